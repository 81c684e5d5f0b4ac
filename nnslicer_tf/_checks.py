"""Checks of arguments and model outputs, shared by all packages."""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from decimal import Decimal
from difflib import get_close_matches
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing
from typing_extensions import TypeAliasType, TypeIs

from nnslicer_tf.errors import (
    InputShapeError,
    InvalidArgumentError,
    NNSlicerError,
    NonFiniteActivationError,
)

# `help` shows the name of such an alias in place of NumPy's six lines.
ArrayLike = TypeAliasType("ArrayLike", numpy.typing.ArrayLike)

MAX_CLASSES = 2**31
"""Labels are below this: larger ones are no class indices, and int64 cannot hold all of them."""


@contextmanager
def of_user(argument: str) -> Iterator[None]:
    """Name the argument whose own function fails inside; its error is the cause."""
    try:
        yield
    except NNSlicerError:
        raise
    except Exception as error:
        text = f"`{argument}` fails inside: {type(error).__name__}: {error}"
        raise InvalidArgumentError(text) from error


def check_memory(needed: float, what: str, remedy: str) -> None:
    """Raise InvalidArgumentError if `what` needs more bytes than the machine has free.

    Where free memory is not known (outside Linux), nothing is checked.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
    except OSError:
        return
    free = next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable"))
    if needed > free:
        raise InvalidArgumentError(
            f"{what} takes about {needed / 2**30:,.1f} GiB of memory; {free / 2**30:,.1f} GiB are "
            f"free. {remedy}"
        )


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Raise `InvalidArgumentError` unless `name` is known; `what` says of which kind it is."""
    known = list(known)
    if not isinstance(name, str) or name not in known:  # an array is compared by its values
        raise InvalidArgumentError(
            f"Unknown {what} {name!r}.{did_you_mean(name, known)} "
            f"Expected one of: {', '.join(map(repr, known))}."
        )


def names_of(argument: str, names: Any) -> tuple[Any, ...]:
    """Return a name, or the names in any collection, as a tuple; refuse anything else."""
    try:
        return (names,) if isinstance(names, str) else tuple(names)
    except TypeError:
        raise InvalidArgumentError(f"{argument} must be names. Received: {names!r}") from None


def check_texts(argument: str, texts: Iterable[object]) -> None:
    """Raise `InvalidArgumentError` unless all texts can be written to a file, as UTF-8."""
    for text in texts:
        if any("\ud800" <= letter <= "\udfff" for letter in str(text)):
            raise InvalidArgumentError(
                f"{argument} must be text; {text!a} has half of a character (a lone surrogate). "
                "Correct it, or decode the bytes by their own encoding."
            )


def names_in_order(argument: str, names: Any, count: int | None = None) -> tuple[str, ...]:
    """Return distinct names of columns, or of `count` classes, all or none; a dict names indices.

    Raises InvalidArgumentError for others, and for what has no order, such as a set.
    """
    if isinstance(names, Mapping) and {*names} == {*range(len(names))}:
        names = [names[i] for i in range(len(names))]
    names = names.numpy() if hasattr(names, "numpy") else names  # a tensor's are bytes
    if isinstance(names, (str, bytes, Mapping, Set)) or not isinstance(names, Iterable):
        raise InvalidArgumentError(f"{argument} must be names in order. Received: {names!r}")
    found = tuple(name.decode() if isinstance(name, bytes) else str(name) for name in names)
    check_texts(argument, found)
    if len(set(found)) < len(found):
        raise InvalidArgumentError(f"{argument}: names must be unique. Received: {found}")
    if found and count not in (None, len(found)):
        classes = counted(count or 0, "class")
        raise InvalidArgumentError(
            f"The model has {classes}; received {counted(len(found), 'name')}."
        )
    return found


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a suggestion of the nearest names, ignoring case; "" if none is near."""
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(str(name).lower(), by_lower, n=3, cutoff=0.6)
    asked = " or ".join(repr(by_lower[one]) for one in near)
    return f" Did you mean {asked}?" if near else ""


def counted(number: int | str, noun: str) -> str:
    """Return a number with its noun: "1 synapse", "1,094 synapses", "any samples"."""
    ending = "" if number == 1 else "es" if noun.endswith("s") else "s"
    return f"{number if isinstance(number, str) else f'{number:,}'} {noun}{ending}"


def with_article(noun: str) -> str:
    """Return a noun with its indefinite article: "a Dense", "an Embedding"."""
    is_spelled = noun[:2].isupper()  # such as LSTM, read letter by letter
    vowels = "AEFHILMNORSX" if is_spelled else "AEIOaeio"
    return f"{'an' if noun[:1] in tuple(vowels) else 'a'} {noun}"


def is_int(value: object) -> TypeIs[int]:
    """Return whether a value is an integer of Python or NumPy, and not a bool."""
    return isinstance(value, (int, np.integer)) and not isinstance(value, bool)


def as_generator(rng: int | np.random.Generator) -> np.random.Generator:
    """Return `rng` as a NumPy Generator; reject all but non-negative ints and Generators."""
    if isinstance(rng, np.random.Generator):
        return rng
    if is_int(rng) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise InvalidArgumentError(
        f"rng must be a non-negative int or a numpy.random.Generator. Received: {rng!r}"
    )


def as_mask(name: str, values: Any) -> np.ndarray:
    """Return values as bools; raise `InvalidArgumentError` unless all are True or False, 1 or 0."""
    mask = np.asarray(values)
    if mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all():
        raise InvalidArgumentError(
            f"The mask for '{name}' must be True and False, or 1 and 0. Received: {mask.flat[:3]}"
        )
    return mask.astype(bool)


def check_count(name: str, value: object, least: int = 1) -> None:
    """Raise `InvalidArgumentError` unless the argument `name` is an int of at least `least`."""
    if not is_int(value) or value < least:
        known = {0: "a non-negative integer", 1: "a positive integer"}
        what = known.get(least, f"an integer of at least {least}")
        raise InvalidArgumentError(f"{name} must be {what}. Received: {value!r}")


def check_number(name: str, value: Any, interval: str) -> float:
    """Return `value` as a float; reject what is no number of an interval such as "[0, 1)"."""
    low, high = map(float, interval[1:-1].split(","))
    is_number = isinstance(value, Real) and not isinstance(value, bool)
    value = float(Decimal(value)) if is_number and isinstance(value, int) else value  # any size
    is_end = is_number and value in (low, high) and interval[0 if value == low else -1] in "[]"
    if not is_number or not (is_end or low < value < high):
        above = "at least" if interval[0] == "[" else "above"
        what = "" if is_number else "a number "
        has_end = what or np.isfinite(high) or value == high
        expected = f"in {interval}" if has_end else f"{above} {low:g}"
        raise InvalidArgumentError(f"{name} must be {what}{expected}. Received: {value!r}")
    return float(value)


def shape_fits(shape: tuple[int, ...], expected: tuple[int | None, ...]) -> bool:
    """Whether a shape is the expected one, in which None stands for any length."""
    return len(shape) == len(expected) and all(
        e is None or e == n for n, e in zip(shape, expected, strict=True)
    )


def as_class_indices(
    y: ArrayLike, positions: tuple[int, ...] = (), classes: int | None = None
) -> np.ndarray:
    """Return labels (columns, one-hot, tensors, bools) as `(samples, *positions)`, others as is."""
    labels = as_array(y)
    width = labels.shape[-1] if labels.ndim == len(positions) + 2 else 0
    if width == 1:
        labels = labels[..., 0]
    elif width and np.isin(labels, (0, 1)).all() and (labels.sum(axis=-1) == 1).all():
        labels = labels.argmax(axis=-1)
        names = list(getattr(y, "columns", ()))
        if names and all(map(is_int, names)):  # the classes, perhaps not all, of `get_dummies`
            return np.array(names)[labels]
        if classes not in (None, width):
            raise InvalidArgumentError(
                f"y is one-hot with {width} columns; the model has {counted(classes, 'class')}."
            )
    return labels.astype(np.int64) if labels.dtype.kind == "b" else labels


def as_array(x: object) -> np.ndarray:
    """Return an array, list, data frame or tensor as a NumPy array; reject ragged and masked."""
    parts = x if isinstance(x, (list, tuple)) else [x]
    if any(np.ma.isMaskedArray(part) and np.ma.is_masked(part) for part in parts):
        raise InputShapeError("Data has masked values, which would be read: pass x.filled(value).")
    if hasattr(x, "detach"):  # a tensor of PyTorch, perhaps on a GPU and with a gradient
        x = x.detach().cpu().numpy()
    elif any(hasattr(part, "detach") for part in parts):
        x = [as_array(part) for part in parts]
    if hasattr(x, "__getitem__") and not isinstance(x, Sequence) and not hasattr(x, "__array__"):
        # NumPy would ask for items until an IndexError, which some data sets never raise.
        raise InputShapeError(f"Expected an array. Received: {type(x).__name__}")
    try:
        array = np.asarray(x)
        # NumPy does not treat bfloat16, which some models output, as a numeric type.
        return array.astype(np.float32) if array.dtype.name == "bfloat16" else array
    except ValueError as error:
        raise InputShapeError(
            f"All samples must have the same shape, and so must all labels: {error}"
        ) from error


def check_labels(
    y: ArrayLike, samples: int, classes: int | None = None, positions: tuple[int, ...] = ()
) -> np.ndarray:
    """Return class labels, possibly one-hot, as int64 in 0 … `classes` - 1.

    They are `(samples,)`, or `(samples, *positions)` of a map with a class at each position.
    """
    if not samples:
        raise InvalidArgumentError("The data set is empty: pass at least one sample.")
    labels = as_class_indices(y, positions, classes)
    if labels.shape != (samples, *positions) or labels.dtype.kind not in "iu":
        where = f" at each of {positions} positions" if positions else ""
        are_numbers = labels.dtype.kind == "f" and (labels % 1 != 0).any()
        hint = ". For numbers, use InstrumentedModel(model, task='regression')"
        if are_numbers and np.isnan(labels).any():
            hint = ". Some are missing (NaN): leave these samples out"
        raise InvalidArgumentError(
            f"y must hold one class index for each of {samples} samples{where}: integers of shape "
            f"{(samples, *positions)}. Received: {labels.dtype} of shape {labels.shape}"
            + (hint if are_numbers else "")
        )
    if labels.min() < 0 or labels.max() >= (MAX_CLASSES if classes is None else classes):
        expected = "0 or more" if classes is None else f"in 0 … {classes - 1}"
        raise InvalidArgumentError(
            f"Class labels must be {expected}; leave out samples without a class. Received: "
            f"labels from {labels.min()} to {labels.max()}"
        )
    return labels.astype(np.int64)


def check_points(
    x: np.ndarray, name: str, shape: tuple[int, ...], batch_axes: int = 0
) -> np.ndarray:
    """Return points of shape `shape`, or a batch if `batch_axes` is 1, as finite float64."""
    try:
        x = np.asarray(as_array(x), np.float64)
    except (TypeError, ValueError) as error:
        raise InputShapeError(f"{name} must be an array of numbers. Received: {x!r}") from error
    if x.ndim != batch_axes + len(shape) or x.shape[batch_axes:] != tuple(shape):
        lead = "a batch axis before it" if batch_axes else "no batch axis"
        raise InputShapeError(
            f"{name} must have the model's input shape {shape}, with {lead}. "
            f"Received shape: {x.shape}"
        )
    if not np.isfinite(x).all():
        where = tuple(int(i) for i in np.argwhere(~np.isfinite(x))[0])
        raise NonFiniteActivationError(f"{name} is NaN or infinite at index {where}.")
    return x


def check_bounds(bounds: Any) -> tuple[float, float]:
    """Return the smallest and largest value of an input; raise InvalidArgumentError for others."""
    try:
        low, high = map(float, bounds)
        valid = low < high
    except (TypeError, ValueError):
        valid = False
    if not valid:
        raise InvalidArgumentError(
            f"bounds must be the smallest and the largest value of an input. Received: {bounds!r}"
        )
    return low, high


def check_target(target: int, logits: int) -> None:
    """Raise `InvalidArgumentError` unless `target` is the index of one of `logits` logits."""
    if not is_int(target) or not 0 <= target < logits:
        hint = " To give a class by name, pass classes=[…]." if isinstance(target, str) else ""
        raise InvalidArgumentError(
            f"target must be the index of one of {logits} logits. Received: {target!r}.{hint}"
        )
