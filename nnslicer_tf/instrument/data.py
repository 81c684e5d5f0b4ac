"""Reading of users' data: all analyses read their samples through this module.

Every form of `DataLike` is checked once, then cut into float32 batches; so are labels.
"""

import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from decimal import Decimal
from functools import partial
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import pandas as pd
from typing_extensions import TypeAliasType

from nnslicer_tf._checks import ArrayLike, as_array, check_count, check_labels, shape_fits
from nnslicer_tf.datasets import Dataset, load_data
from nnslicer_tf.datasets.files import order_remedy
from nnslicer_tf.errors import (
    InputRangeError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
)
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.instrument.plausibility import warn_of_class_order

if TYPE_CHECKING:
    from nnslicer_tf.instrument.model import InstrumentedModel

DataLike = TypeAliasType(
    "DataLike", ArrayLike | Mapping[str, Any] | Iterable[ArrayLike] | Dataset | str | os.PathLike
)
"""Samples in any of these forms:

- an array, nested list, tensor or data frame of samples, or a pair `(x, y)`;
- a `datasets.Dataset`, or what `datasets.load_data` loads: "cifar10:test", a folder of images, …;
- an iterable (`tf.data.Dataset`, `DataLoader`, `PyDataset`) of samples or batches; each is an
  array, a tuple `(x, …)`, or a dictionary with a key such as x, image or input;
- for a model with several inputs: a dict, list or tuple of arrays, or an iterable of these.
"""

Shape: TypeAlias = Sequence[int]
Bounds: TypeAlias = tuple[float, float]
"""Smallest and largest value of an input."""

KEYS = ("x", "image", "images", "input", "inputs", "pixel_values", "features")
"""Keys under which samples are looked for in a dict."""
_EMPTY = "The data set is empty: no samples were given."
_LABEL_KEYS = ("y", "label", "labels", "class", "target", "targets")


class WholeBounds(tuple[float, float]):
    """Bounds of an input of integers or booleans, which cuts off fractions."""


def bounds_of_dtype(dtype: str) -> Bounds | None:
    """Return the bounds of an input of a dtype; None for floating-point numbers."""
    if dtype == "bool":
        return WholeBounds((0.0, 1.0))
    if "int" not in dtype:
        return None
    limits = np.iinfo(dtype)
    is_small = limits.bits <= 16
    low = float(limits.min) if is_small or dtype[0] == "u" else -np.inf
    return WholeBounds((low, float(limits.max) if is_small else np.inf))


def check_array(
    x: Any, shape: Shape, first: int = 0, bounds: Bounds | None = None, columns: Sequence[str] = ()
) -> np.ndarray:
    """Return `x` as a finite float32 array `(batch, *shape)`.

    `first` is its first sample's index, and `columns` are the names of a table's, for messages.
    Raises InputShapeError if `x` has a different shape, or is not numeric; InputRangeError for
    values outside the bounds, or fractions where integers belong; NonFiniteActivationError for NaN.
    """
    array = dense(x)
    if array.dtype.kind not in "fiub":
        raise InputShapeError(f"Data must be real numbers. Received an array of {array.dtype}.")
    if array.ndim != len(shape) + 1 or array.shape[1:] != tuple(shape):
        expected = ", ".join(["samples", *map(str, shape)])
        raise InputShapeError(
            f"The model takes data of shape ({expected}). Received shape {array.shape}."
        )
    with np.errstate(over="ignore"):  # such values are infinite, which is checked
        array = np.ascontiguousarray(array, dtype=np.float32)

    def sample_of(bad: np.ndarray) -> int:
        return int(np.argmax(bad.any(axis=tuple(range(1, array.ndim)))))

    if not np.isfinite(array).all():
        bad = ~np.isfinite(array)
        row, where = sample_of(bad), ""
        if array.ndim == 2 and array.shape[1] == len(columns):
            where = f" in column {columns[int(bad[row].argmax())]!r}"
        raise NonFiniteActivationError(
            f"Sample {first + row} of the data has NaN or infinite values{where} (in float32). "
            "Remove or repair it."
        )
    if isinstance(bounds, WholeBounds) and (fractions := array != np.floor(array)).any():
        raise InputRangeError(
            "The model takes integers and would truncate fractions. Sample "
            f"{first + sample_of(fractions)} of `x` has the value "
            f"{array[fractions][0]:.4g}. Pass the integers of the training data."
        )
    if bounds is not None and (outside := (array < bounds[0]) | (array > bounds[1])).any():
        place = sample_of(outside)
        raise InputRangeError(
            f"Sample {first + place} of the data ranges from {array[place].min():.4g} to "
            f"{array[place].max():.4g}; the bounds of the model are {bounds[0]:g} and "
            f"{bounds[1]:g}. Scale data as for training, or let the model do it: "
            "InstrumentedModel(model, preprocess=…)."
        )
    return array


def shapes_at_hand(data: Any, inputs: Mapping[str, Sequence[int | None]]) -> list[Any] | None:
    """Return the shape of the samples, or of a profile, for each input with axes of unknown size.

    `inputs` maps names to shapes, with None for unknown sizes. Returns None if nothing fits.
    """
    sources: Any = data
    if isinstance(means := getattr(data, "means", None), Mapping):  # a profile
        sources = {name: np.asarray(means[name])[None] for name in inputs if name in means}
    else:
        sources = data.x if isinstance(data, Dataset) else getattr(data, "element_spec", data)
        is_pair = sources is not data or (len(data) == 2 and len(inputs) == 1)
        sources = sources[0] if isinstance(sources, tuple) and is_pair else sources
    if isinstance(sources, Mapping):
        parts = [sources.get(name) for name in inputs]
        if len(inputs) == 1 and parts[0] is None:
            keys = [key for key in KEYS if key in sources] or list(sources)[:1]
            parts = [sources[key] for key in keys[:1]]
    elif len(inputs) == 1:
        parts = [sources]
    else:
        parts = list(sources) if isinstance(sources, (list, tuple)) else []
    shapes = []
    for part, shape in zip(parts, inputs.values(), strict=False):
        if part is None or isinstance(part, (str, os.PathLike, Iterator)):
            return None
        extents = tuple(part.shape) if hasattr(part, "shape") else np.shape(part)
        extents = extents[len(extents) - len(shape) :]
        if not shape_fits(extents, tuple(shape)) or None in extents:
            return None
        shapes.append(tuple(map(int, extents)))
    return shapes if len(shapes) == len(inputs) else None


class Samples:
    """Checked samples: arrays are checked at once, other data while they are read.

    Args:
        data: Samples in one of the forms of `DataLike`. For several inputs: arrays in a dict by
            name, or in a list or tuple in order; or an iterable of such batches or samples, each
            alone or first in a tuple `(x, …)`.
        shape: Input shape without the batch axis; name → shape for several inputs.
        bounds: Smallest and largest value of an input, if known; by name for several.
        aliases: Alternative keys that a dict may use → names of the inputs.
        columns: Names of a table's columns; see `aligned`.
        labelled: Whether labels are required and kept.

    Raises the errors of `check_array`, and InvalidArgumentError if an array is empty, or inputs are
    missing, unknown or of different lengths.
    """

    def __init__(
        self,
        data: Any,
        shape: Shape | Mapping[str, Shape],
        bounds: Bounds | Mapping[str, Bounds | None] | None = None,
        aliases: Mapping[str, str] | None = None,
        columns: Sequence[str] = (),
        labelled: bool = False,
    ) -> None:
        self._reordered: set[str] = set()  # inputs whose tables have been, which is said once
        self.labels: list[Any] = []  # if `labelled`, those read so far, batch by batch
        self._labelled = labelled
        self._is_single = not isinstance(shape, Mapping)
        self._shapes: dict[str, Any] = {"": tuple(shape)} if self._is_single else dict(shape)  # type: ignore[arg-type]
        self._bounds: Any = {"": bounds} if self._is_single else bounds or {}
        self._aliases = dict(aliases or {})
        # A list for a dict, whose order may be meant, would be exchanged where shapes are equal.
        is_sorted = list(self._aliases.values()) in ([], list(self._shapes))
        self._by_name_only = not is_sorted and len(set(self._shapes.values())) < len(self._shapes)
        # Input → columns of its table, known or those of the first part that is read.
        self._columns = {n: columns_of(columns, n) if n else tuple(columns) for n in self._shapes}
        self._read_columns: set[str] = set()
        self._whole: Any = None
        self._stream: Iterable[Any] = ()
        self.count: int | None = None  # number of samples, if it is known in advance
        if self._is_single:
            if isinstance(data, (str, os.PathLike)):
                data = load_data(data, labels=labelled, shape=self._shapes[""])
            x, y = _opened(data, self._shapes[""], partial(self._read, ""))
            arrays = {"": x} if isinstance(x, np.ndarray) else None
            self.labels = [] if arrays is None else [y]
        else:
            x, arrays = dict(data) if hasattr(data, "iloc") else data, None
            first: Any = x[0] if isinstance(x, tuple) and x else None
            if isinstance(first, Mapping) or {*column_names(first)} == {*self._shapes}:
                x = dict(first)  # labels follow
            if isinstance(x, (Mapping, list, tuple)):
                arrays = self._by_name(x)
            elif not isinstance(data, Iterable) or hasattr(data, "shape"):
                raise InputShapeError(f"{self._expected()} Received one {type(data).__name__}.")
        if arrays is None:
            self._stream = x
        else:
            self._whole = self._checked(arrays, 0)
            self.count = len(self._whole)

    @property
    def columns(self) -> tuple[str, ...]:
        """Columns of the tables that were read; of several inputs, with the input's name."""
        names = [(name, self._columns[name]) for name in self._shapes if name in self._read_columns]
        return tuple(f"{name}: {c}" if name else c for name, columns in names for c in columns)

    def _read(self, name: str, x: Any) -> np.ndarray:
        """Return an array of samples for an input; a table's columns are put in order."""
        x = _as_table(x)
        known = self._columns[name]
        # Among several inputs, a Series has a value for each sample, unless it is a known row.
        is_column = name and _is_row(x) and {*map(str, x.index)} != {*known}
        if names := () if is_column else column_names(x) or _places(x):
            self._columns[name] = known = known or names
            self._read_columns.add(name)
            x = aligned(x, known, quiet=name in self._reordered)
            self._reordered |= {name} if names != known else set()
        return dense(x.x if isinstance(x, Dataset) else x)

    def batches(self, size: int) -> Iterator[Any]:
        """Yield float32 batches `(≤ size, *shape)` or `Inputs`, in order; errors of `Samples`."""
        check_count("batch_size", size)
        if self._whole is not None:
            for start in range(0, len(self._whole), size):
                yield self._whole[start : start + size]
            return
        first, waiting = 0, 0
        pending: list[dict[str, np.ndarray]] = []

        def joined() -> dict[str, np.ndarray]:
            return {name: np.concatenate([part[name] for part in pending]) for name in self._shapes}

        # Elements are joined or cut into batches.
        for element in self._stream:
            pending.append(self._arrays(element))
            waiting += max(map(len, pending[-1].values()))
            if waiting >= size:
                arrays = joined()
                whole = waiting - waiting % size
                for start in range(0, whole, size):
                    rows = slice(start, start + size)
                    yield self._checked({k: v[rows] for k, v in arrays.items()}, first)
                    first += size
                pending, waiting = [{k: v[whole:] for k, v in arrays.items()}], waiting - whole
        if waiting:
            yield self._checked(joined(), first)
        elif first == 0:
            raise InvalidArgumentError(f"{_EMPTY} A generator can be read only once.")

    def array(self) -> Any:
        """Return all samples as one float32 array or `Inputs`; errors as in `batches`."""
        if self._whole is not None:
            return self._whole
        parts = list(self.batches(1024))
        if self._is_single:
            return np.concatenate(parts)
        return Inputs({name: np.concatenate([part[name] for part in parts]) for name in parts[0]})

    def _arrays(self, element: Any) -> dict[str, np.ndarray]:
        """Return the arrays of an element, which may be `(x, …)` with labels after the inputs."""
        if self._is_single:
            x, y = _pair(element, self._shapes[""], partial(self._read, ""))
            if self._labelled:
                self.labels.append(y)
            return {"": x}
        if isinstance(element, tuple) and isinstance(element[0], (Mapping, list, tuple)):
            element = element[0]
        if not isinstance(element, (Mapping, list, tuple)):
            raise InputShapeError(f"{self._expected()} Received one {type(element).__name__}.")
        return {
            name: self._about(name, _pair, array, self._shapes[name], dense)[0]
            for name, array in self._by_name(element).items()
        }

    def _by_name(self, data: Any) -> dict[str, np.ndarray]:
        if not isinstance(data, Mapping):
            if self._by_name_only or len(data) != len(self._shapes):
                raise InvalidArgumentError(f"{self._expected()} Received {len(data)}.")
            data = dict(zip(self._shapes, data, strict=True))
        data = {self._aliases.get(key, key): value for key, value in data.items()}
        missing = [name for name in self._shapes if name not in data]
        unknown = [key for key in data if key not in self._shapes]
        if missing or unknown:
            raise InvalidArgumentError(f"{self._expected()} Missing: {missing}; unknown: {unknown}")
        arrays = {name: self._about(name, self._read, name, data[name]) for name in self._shapes}
        # As in Keras, a column of a table is an input of one value.
        one = [n for n, shape in self._shapes.items() if shape == (1,) and arrays[n].ndim == 1]
        return arrays | {name: arrays[name][:, None] for name in one}

    def _checked(self, arrays: Mapping[str, np.ndarray], first: int) -> Any:
        checked = {}
        for (name, shape), array in zip(self._shapes.items(), arrays.values(), strict=True):
            bounds, columns = self._bounds.get(name), self._columns[name]
            checked[name] = self._about(name, check_array, array, shape, first, bounds, columns)
        lengths = {name: len(array) for name, array in checked.items()}
        if len(set(lengths.values())) > 1:
            raise InvalidArgumentError(f"Inputs have different numbers of samples: {lengths}")
        if not any(lengths.values()):
            raise InvalidArgumentError(_EMPTY)
        return checked[""] if self._is_single else Inputs(checked)

    def _about(self, name: str, check: Any, *arguments: Any) -> Any:
        """Check an array; the message begins with the name of the input if there are several."""
        try:
            return check(*arguments)
        except InputShapeError as error:
            if self._is_single:
                raise
            raise InputShapeError(f"Input '{name}': {error}") from error

    def _expected(self) -> str:
        described = ", ".join(f"'{name}' {shape}" for name, shape in self._shapes.items())
        return (
            f"The model has {len(self._shapes)} inputs: {described}. Give an array for each, as a "
            f"dict by name{'' if self._by_name_only else ' or as a list in this order'}."
        )


def read_labelled(
    data: Any,
    y: ArrayLike | None,
    shape: Shape,
    bounds: Bounds | None = None,
    columns: Sequence[str] = (),
    check: Callable[[Any, int], Any] = check_labels,
    required: bool = True,
) -> tuple[np.ndarray, Any]:
    """Return samples `(samples, *shape)` float32 and their labels, as `check` returns them.

    Without `y`, `data` must have labels: a `Dataset`, a pair `(x, y)`, a name that
    `datasets.load_data` knows, or an iterable of pairs. For `columns` see `aligned`. Unless they
    are `required`, labels that are missing are None.

    Raises InvalidArgumentError if labels are missing, and errors of `Samples` and of `check`, which
    takes the labels and the number of samples.
    """
    samples = Samples(data, shape, bounds, columns=columns, labelled=y is None)
    x = samples.array()
    if y is None:
        if any(part is None or not len(part) for part in samples.labels):
            if not required:
                return x, None
            raise InvalidArgumentError(
                "Labels are needed here: pass y, or data with labels, such as (x, y), a "
                f"datasets.Dataset or an iterable of pairs (x, y). Received: {type(data).__name__}"
            )
        y = np.concatenate(samples.labels) if len(samples.labels) > 1 else samples.labels[0]
    return x, check(y, len(x))


def check_class_order(im: "InstrumentedModel", data: Dataset, option: str = "") -> bool:
    """Compare labels that are names, numbered alphabetically, with the model's classes.

    `option` is the command line's, which names the classes. Returns whether it warned that another
    order agrees better. Raises InvalidArgumentError if the numbers of classes differ.
    """
    is_vector = len(im.output_operations) == 1 and len(im[im.logit_operation].shape) == 1
    if not data.alphabetical or not len(data.y) or not is_vector or im.classes.is_number:
        return False
    names, count = data.class_names, im.classes.count
    if len(names) != count:
        raise InvalidArgumentError(
            f"'{data.name}' has {len(names)} different labels ({', '.join(names)[:100]}), the "
            f"model {count} classes, so labels cannot be matched to classes. Name all classes in "
            f"the model's order: {option + ' A,B,…' if option else 'classes=[…]'}."
        )
    predicted = im.classes.from_outputs(im.predict(data.x))
    return warn_of_class_order(predicted, data.y, names, order_remedy(names, option))


def column_names(data: Any) -> tuple[str, ...]:
    """Return the column names of a DataFrame, its row or a `Dataset`; () for 0, 1, 2 … in order.

    Those of a dict of inputs, some of which are tables, have the input's name before theirs.
    """
    if isinstance(data, Mapping):  # a Series in it is an input of one value for each sample
        tables = {key: column_names(part) for key, part in data.items() if not _is_row(part)}
        return tuple(f"{key}: {name}" for key, names in tables.items() for name in names)
    names = getattr(data, "columns", data.index if hasattr(data, "iloc") else ())
    if np.ndim(names) != 1:
        return ()
    texts = tuple(map(str, names))
    if len(set(texts)) < len(set(names)):  # such as 1 and "1"
        raise InputShapeError(f"Columns need names that differ as text: {', '.join(texts)[:200]}.")
    places = tuple(str(name) for name in names if not isinstance(name, str))  # "0.0" is a name
    return () if places == numbers_of(names) else texts


def columns_of(columns: Sequence[str], name: str) -> tuple[str, ...]:
    """Return the columns of one of several inputs, without the input's name."""
    start = f"{name}: "
    return tuple(column.removeprefix(start) for column in columns if column.startswith(start))


def numbers_of(columns: Sequence[str]) -> tuple[str, ...]:
    """Return the names 0, 1 … that a table without names gives so many columns."""
    return tuple(map(str, range(len(columns))))


def is_numbered(columns: Sequence[str]) -> bool:
    """Whether columns have the names 0, 1 …, in any order."""
    return sorted(columns) == sorted(numbers_of(columns))


def table_columns(data: Any) -> tuple[str, ...]:
    """Return the columns of the first table in one input's samples, 0, 1 … if it has no names."""
    while isinstance(data, (list, tuple)) and len(data):
        data = data[0]
    if isinstance(data, Mapping):
        if all(isinstance(value, (Real, np.bool_)) for value in data.values()):  # a row
            return tuple(map(str, data))
        return next(filter(None, map(table_columns, data.values())), ())
    if isinstance(data, (str, os.PathLike)) and str(data).endswith(".csv"):
        data = load_data(data, labels="optional")
    return column_names(data) or _places(data)


def as_named(data: Any, columns: Sequence[str], known: Sequence[str]) -> Any:
    """Return an array as a table if its columns' names are the known ones, in any order."""
    if not known or column_names(data) or sorted(map(str, columns)) != sorted(known):
        return data
    return pd.DataFrame(np.reshape(as_array(data), (-1, len(known))), columns=[*columns])


def one_order(*known: Sequence[str]) -> tuple[str, ...]:
    """Return the columns of tables that several models read; InvalidArgumentError if they differ.

    Without names, or with 0, 1 … in order, a model reads the others', unless 0, 1 … in disorder.
    """
    orders = dict.fromkeys(map(tuple, known))
    longest = max(orders, key=len, default=())
    named = [names for names in orders if names not in ((), numbers_of(names))]
    if not any(is_numbered(names) for names in named):
        orders = dict.fromkeys(named or [longest])
    first, *others = orders
    if others:
        raise InvalidArgumentError(
            "The models take tables whose columns have other names, or are in different orders: "
            f"{', '.join(first)[:200] or '0, 1 …'} and {', '.join(others[0])[:200] or '0, 1 …'}. "
            "Use the same columns for both, or put a layer that reorders them before one of them."
        )
    return first


def aligned(data: Any, columns: Sequence[str], quiet: bool = False) -> Any:
    """Return a table with its columns in a known order; warn if it had another one, unless `quiet`.

    Without names, data is unchanged. Raises InputShapeError if the columns have other names.
    """
    if isinstance(data, Mapping):
        known = {key: columns_of(columns, key) for key in data}
        rows = [k for k, part in data.items() if _is_row(part) and {*part.index} != {*known[k]}]
        return {k: part if k in rows else aligned(part, known[k]) for k, part in data.items()}
    data = _as_table(data)
    names, columns = column_names(data) or _places(data), tuple(columns)
    places = numbers_of(columns)  # of a table without names, which has an order
    differ = is_numbered(names) != is_numbered(columns)
    if not names or columns in ((), names) or (differ and places in (names, columns)):
        return data
    missing = [name for name in columns if name not in names]
    unknown = [name for name in names if name not in columns]
    if missing or unknown or len(set(names)) < len(names):
        raise InputShapeError(
            f"The model reads a table with the columns {', '.join(columns)[:200]}. "
            f"Missing here: {missing}, unknown: {unknown}, there twice: "
            f"{[n for n in columns if names.count(n) > 1]}. Use these names, or an array in order."
        )
    if not quiet:
        warnings.warn(
            f"The columns were reordered to match the model's: {', '.join(columns)[:200]}. "
            f"Received: {', '.join(names)[:200]}",
            stacklevel=4,
        )
    order = [names.index(name) for name in columns]
    if isinstance(data, Dataset):
        return replace(data, x=np.asarray(data.x)[:, order], columns=columns)
    return data.iloc[..., order] if hasattr(data, "columns") else data.iloc[order]


def dense(x: Any) -> np.ndarray:
    """Return `as_array(x)`; raise InputShapeError if `x` is sparse or ragged."""
    kind = type(x).__name__
    remedy = ""
    if hasattr(x, "toarray"):  # SciPy
        remedy = "is sparse; pass x.toarray()"
    elif kind == "SparseTensor":
        remedy = "is sparse; pass tf.sparse.to_dense(x)"
    elif getattr(x, "is_sparse", False) is True:  # PyTorch
        remedy = "is sparse; pass x.to_dense()"
    elif kind in ("RaggedTensor", "RaggedTensorValue"):
        remedy = "has rows of different lengths; pad them to one length: x.to_tensor()"
    if remedy:
        raise InputShapeError(f"Data must be dense arrays. This {kind} {remedy}.")
    array = as_array(x)
    if array.dtype.kind not in "OSU":
        return array
    # Python's numbers are read, as from a data frame whose columns have several dtypes.
    for index, value in np.ndenumerate(array):
        if not isinstance(value, (Real, np.bool_, Decimal)):
            columns = column_names(x)
            place = f"Column {columns[index[-1]]!r}" if columns else f"Place {list(index)}"
            raise InputShapeError(
                f"Data must be real numbers. {place} has {value!r:.60}. Turn text into numbers "
                "first, as for training (pandas.get_dummies, keras.layers.StringLookup)."
            )
    return array.astype(np.float64)


def _opened(data: Any, shape: tuple[int, ...], read: Callable) -> tuple[Any, Any]:
    if isinstance(data, Dataset):
        return read(data), data.y
    if isinstance(data, Mapping):
        x, y = samples_of_mapping(data)
        return read(x), y
    if hasattr(data, "shape"):
        x = read(data)
        if x.ndim:
            return x, None
    elif isinstance(data, (list, tuple)):  # of samples, batches or pairs, or one pair (x, y)
        ranks = [_rank(item) for item in data]
        is_pair = len(ranks) == 2 or ranks[2:] == [1]  # perhaps with the weights of samples
        of_batch = is_pair and ranks[0] == len(shape) + 1
        if of_batch and (isinstance(data, tuple) or ranks[1] != ranks[0]):
            return read(data[0]), data[1]
        has_keys = any(isinstance(item, Mapping) for item in data)
        if ranks and set(ranks) <= {0, len(shape)} and not has_keys:
            return read(list(data)), None
        return data, None
    elif hasattr(data, "num_batches") and hasattr(data, "__getitem__"):  # a PyDataset of Keras
        return _Items(data, data.num_batches), None
    elif isinstance(data, Iterable):
        if hasattr(data, "cardinality") and int(data.cardinality()) == -1:
            raise InputShapeError(
                "The tf.data.Dataset repeats endlessly. Drop its .repeat(), or add .take(n)."
            )
        return data, None
    elif isinstance(data, Sized) and hasattr(data, "__getitem__"):  # a data set of PyTorch
        return _Items(data, len(data)), None
    raise InputShapeError(
        "Data must be an array, list, tensor or data frame of samples, a datasets.Dataset, a "
        "tf.data.Dataset or other iterable, or the name of a data set, file or folder. Received: "
        f"{type(data).__name__} {str(data)[:60]}"
    )


def _places(data: Any) -> tuple[str, ...]:
    """Return the names that pandas gives the columns of a DataFrame without names, or ()."""
    return numbers_of(data.columns) if hasattr(data, "iloc") and data.ndim == 2 else ()


def _as_table(data: Any) -> Any:
    """Return a list of rows as a DataFrame, which puts their columns in one order."""
    is_list = isinstance(data, list) and bool(data) and all(map(_is_row, data))
    return pd.DataFrame(data) if is_list else data


def _is_row(item: Any) -> bool:
    """Whether an object is a row of a DataFrame, or another Series."""
    return hasattr(item, "iloc") and item.ndim == 1


@dataclass
class _Items(Iterable):
    """Iterable over the items of an object that has `__getitem__` and a length."""

    data: Any
    count: int

    def __iter__(self) -> Iterator[Any]:
        return (self.data[i] for i in range(self.count))


def samples_of_mapping(element: Mapping) -> tuple[Any, Any]:
    """Return the samples and the labels of a dict, as they are."""
    entries = {str(key).lower(): value for key, value in element.items()}
    x, y = (
        next((value for key, value in entries.items() if key in keys), None)
        for keys in (KEYS, _LABEL_KEYS)
    )
    if x is None:
        raise InputShapeError(
            f"Data has the keys {', '.join(map(str, element))}; samples must be under one of "
            f"{', '.join(KEYS)}."
        )
    return x, y


def _pair(
    element: Any, shape: tuple[int, ...], read: Callable
) -> tuple[np.ndarray, np.ndarray | None]:
    y: Any = None
    if isinstance(element, Mapping):
        x, y = samples_of_mapping(element)
        x = read(x)
    else:
        # `(x, …)`, or a sample or batch that is written as a list
        is_pair = isinstance(element, (tuple, list)) and bool(element)
        rank = _rank(element[0]) if is_pair else 0
        if is_pair and rank == len(shape):  # a sample and its label, or a batch of samples
            is_pair = isinstance(element, tuple) or len({np.shape(part) for part in element}) > 1
        elif is_pair:
            is_pair = rank == len(shape) + 1
        x = read(element[0] if is_pair else element)
        y = element[1] if is_pair and len(element) > 1 else None
    labels = None if y is None else as_array(y)
    if x.shape == shape:
        return x[None], None if labels is None else labels[None]
    if x.shape[1:] != shape:
        raise InputShapeError(
            f"The model takes samples of shape {tuple(shape)}, alone or in batches. Received an "
            f"element of shape {x.shape}."
        )
    return x, labels


def _rank(item: Any) -> int:
    """Return the number of axes of an array, or of nested lists judging by their first entries."""
    if hasattr(item, "shape"):
        return len(item.shape)
    if isinstance(item, (list, tuple)):
        return 1 + _rank(item[0]) if item else 1
    return 0
