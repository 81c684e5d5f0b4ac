"""`Slice`: the result of slicing, with set operations (NNSlicer, section 3.2)."""

import os
from collections.abc import Callable, Container, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import counted
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable, text_table
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError

if TYPE_CHECKING:  # saved slices can be displayed without Keras
    import keras
    import pandas as pd
    from matplotlib.axes import Axes

    from nnslicer_tf.instrument.model import ModelLike

_FORMAT = "nnslicer_tf slice 1"


class Slice(ShownAsTable):
    """The cumulative contributions of neurons and synapses for a criterion.

    Its members are the neurons and synapses with CONTRIB ≠ 0.

    Attributes:
        neurons: Operation name → int64 array of the operation's shape (at "channel"
            granularity: one value for each channel).
        synapses: Kernel name → int64 array of the kernel's shape, in topological order.
        info: Origin of the slice: theta, granularity, relative_to, rectify, product,
            fingerprint, samples and outputs.
    """

    def __init__(
        self,
        neurons: Mapping[str, np.ndarray],
        synapses: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
    ) -> None:
        self.neurons = dict(neurons)
        self.synapses = dict(synapses)
        self.info = dict(info)

    def synapse_mask(self) -> dict[str, np.ndarray]:
        """Return, for each kernel, which synapses are in the slice (bool)."""
        return {name: values != 0 for name, values in self.synapses.items()}

    def to_vector(self) -> np.ndarray:
        """Return the contributions of all synapses, over `synapses` in C order, as one vector."""
        vectors = [values.ravel() for values in self.synapses.values()]
        return np.concatenate([np.zeros(0, np.int64), *vectors])

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per operation and kernel: members of the slice and size."""
        import pandas as pd

        rows = [
            (what, name, int(np.count_nonzero(values)), values.size)
            for what, members in (("neurons", self.neurons), ("synapses", self.synapses))
            for name, values in members.items()
        ]
        frame = pd.DataFrame(rows, columns=["what", "name", "kept", "total"])
        frame["fraction"] = frame["kept"] / frame["total"]
        return frame

    def summary(self) -> str:
        """Return a text table of the numbers of neurons and synapses kept, per operation."""

        def counts(values: np.ndarray) -> tuple[str, str, str]:
            members = int(np.count_nonzero(values))
            return f"{members:,}", f"{values.size:,}", f"{members / max(values.size, 1):.1%}"

        by_operation: dict[str, dict[str, np.ndarray]] = {}
        for kernel, values in self.synapses.items():
            by_operation.setdefault(operation_of(kernel, self.neurons), {})[kernel] = values
        rows = []
        for name, values in self.neurons.items():
            own = by_operation.get(name)
            rows.append((name, *counts(values), *(counts(_joined(own)) if own else ("", "", ""))))
        rows.append(("total", *counts(_joined(self.neurons)), *counts(_joined(self.synapses))))
        return text_table(("operation", "neurons kept", "of", "", "synapses kept", "of", ""), rows)

    def plot(self, ax: "Axes | None" = None) -> "Axes":
        """Plot the share of each kernel's synapses in the slice; `report` plots neurons."""
        from nnslicer_tf.report import plot_kept_synapses

        return plot_kept_synapses(self, ax)

    def apply(self, model: "ModelLike", reference: Any = None) -> "keras.Model":
        """Return a copy of the model in which all but the slice's units are inactive.

        Biases, normalisations and kernels that the slice does not have (`kernels=`) are unchanged.

        Args:
            model: The sliced model, or one with the same kernels; an `InstrumentedModel` if the
                size of the inputs is not fixed, and the one that was sliced is gone.
            reference: What inactive units contribute: the model's `Profile` (their mean, as in the
                paper's program: a layer computes W·(x − x̄) + ȳ with the slice's W and the profile's
                x̄ and ȳ), "zero" (synapses outside the slice become 0), or another of `Ablation`.

        Raises InvalidArgumentError if there is no reference; ProfileMismatchError if the kernels or
        the profile belong to a different model; UnsupportedLayerError if the model cannot be copied
        or masked.
        """
        from nnslicer_tf.instrument import Ablation, instrumented

        if reference is None:
            raise InvalidArgumentError(
                "Say what the rest contributes: slice.apply(model, profile) for its mean values, "
                "slice.apply(model, 'zero') for nothing."
            )
        im = instrumented(model)
        im = im.with_columns(im.columns or tuple(self.info.get("columns", ())))
        if self.level == "synapse":
            shapes = {name: kernel.shape for name, kernel in im.kernels.items()}
        else:
            shapes = {o.name: o.shape for o in im.operations}
        own = {name: values.shape for name, values in self.members.items()}
        fits = all(name in shapes for name in own)
        if not fits or (self.level == "synapse" and own.items() - shapes.items()):
            raise ProfileMismatchError(
                f"The slice belongs to a different model than '{im.model.name}': its {self.level}s "
                f"are {own}, the model has {shapes}."
            )
        ablation = Ablation(im, reference, self.level, of=list(own))
        return ablation.model({name: values != 0 for name, values in self.members.items()})

    @property
    def level(self) -> str:
        """What the members are that `apply` keeps: "synapse", or a decisive slice's level."""
        return self.info.get("level", "synapse")

    @property
    def members(self) -> dict[str, np.ndarray]:
        """The contributions of the units of `level`, by kernel or operation."""
        return self.synapses if self.level == "synapse" else self.neurons

    def edges(self, model: "ModelLike") -> "pd.DataFrame":
        """Return the slice's synapses as a table, with one row for each use of a synapse.

        Args:
            model: The sliced model.

        The columns are kernel; from and to, the units "operation[channel]" that it connects
        (one-to-one operations between them, such as activations and pooling, are skipped); tap, the
        position in a convolution's window; weight; and contribution.

        Raises InvalidArgumentError if the slice has no synapses; ProfileMismatchError if the slice
        is of another model.
        """
        from nnslicer_tf.slicing.edges import edges

        return edges(self, model)

    def compare(self, other: "Slice") -> "pd.DataFrame":
        """Return how far two slices of the same level overlap, for each kernel or operation.

        The columns are name ("total" last); left and right, the numbers of members; both; overlap,
        the share of all members that are in both (Jaccard index), with Wilson's 95 % interval
        (from, to); and by chance, that of random slices of these sizes. NaN: no members.

        Raises InvalidArgumentError if `other` is not a slice; ProfileMismatchError if the slices
        are of different models or levels.
        """
        import pandas as pd
        from scipy.stats import binomtest

        if not isinstance(other, Slice):
            raise InvalidArgumentError(f"Expected another slice. Received: {type(other).__name__}")
        self._check_alike(other)
        masks = {}
        for name in dict.fromkeys([*self.members, *other.members]):
            pair = [one.members.get(name) for one in (self, other)]
            size = next(values.size for values in pair if values is not None)
            masks[name] = [np.zeros(size, bool) if v is None else v.ravel() != 0 for v in pair]
        if not masks:
            raise InvalidArgumentError("These slices hold no units to compare.")
        masks["total"] = [np.concatenate(parts) for parts in zip(*masks.values(), strict=True)]
        rows = []
        for name, (left, right) in masks.items():
            both, either = int((left & right).sum()), int((left | right).sum())
            row = (name, int(left.sum()), int(right.sum()), both)
            if not either:
                rows.append((*row, np.nan, np.nan, np.nan, np.nan))
                continue
            low, high = binomtest(both, either).proportion_ci(method="wilson")
            expected = left.sum() * right.sum() / left.size
            chance = expected / (left.sum() + right.sum() - expected)
            rows.append((*row, both / either, low, high, chance))
        columns = ["name", "left", "right", "both", "overlap", "from", "to", "by chance"]
        return pd.DataFrame(rows, columns=columns)

    def __and__(self, other: "Slice") -> "Slice":
        """Return the members of both slices, with this slice's contributions."""
        return self._combine(other, lambda a, b: np.where(b != 0, a, 0))

    def __or__(self, other: "Slice") -> "Slice":
        """Return the members of either slice, preferring this slice's contributions."""
        return self._combine(other, lambda a, b: np.where(a != 0, a, b))

    def __sub__(self, other: "Slice") -> "Slice":
        """Return the members of this slice that are not in the other."""
        return self._combine(other, lambda a, b: np.where(b != 0, 0, a))

    def __add__(self, other: "Slice") -> "Slice":
        """Return the sum of the contributions: the slice of both sample sets together."""
        return self._combine(other, np.add)

    def __eq__(self, other: object) -> bool:
        """Whether all contributions are equal."""
        return isinstance(other, Slice) and all(
            mine.keys() == theirs.keys()
            and all(np.array_equal(values, theirs[name]) for name, values in mine.items())
            for mine, theirs in ((self.neurons, other.neurons), (self.synapses, other.synapses))
        )

    __hash__ = None  # type: ignore[assignment]  # slices are mutable

    def save(self, path: str | os.PathLike) -> None:
        """Write the slice to an .npz file, replacing an older one only when it is complete."""
        header = {"neurons": list(self.neurons), "synapses": list(self.synapses), "info": self.info}
        arrays = {f"neurons{i}": v for i, v in enumerate(self.neurons.values())}
        arrays |= {f"synapses{i}": v for i, v in enumerate(self.synapses.values())}
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Slice":
        """Read a slice; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "slice") as file:
            neurons, synapses = (file.named(w, w, np.number) for w in ("neurons", "synapses"))
            loaded = cls(neurons, synapses, file.value("info", dict))
            repr(loaded)  # a damaged header raises an error here, not when it is used
        return loaded

    def __repr__(self) -> str:
        neurons, synapses = _joined(self.neurons), _joined(self.synapses)
        samples = self.info.get("samples")
        if "level" in self.info:  # a decisive slice
            values = _joined(self.members)
            members = int(np.count_nonzero(values))
            unit = "unit" if self.level == "head" else self.level  # channels outside of attention
            return (
                f"Slice({members:,} of {counted(values.size, unit)} "
                f"({members / max(values.size, 1):.1%}), decisive, reference "
                f"{self.info.get('reference')!r})"
            )
        return (
            f"Slice({np.count_nonzero(neurons):,} of {counted(neurons.size, 'neuron')}, "
            f"{np.count_nonzero(synapses):,} of {counted(synapses.size, 'synapse')} "
            f"({np.count_nonzero(synapses) / max(synapses.size, 1):.1%}), "
            f"θ={self.info.get('theta')}, {self.info.get('granularity')}, "
            f"{'unknown samples' if samples is None else counted(samples, 'sample')})"
        )

    def _check_alike(self, other: "Slice") -> None:
        """Raise ProfileMismatchError unless both slices are of one model and level."""
        pairs = ((self.neurons, other.neurons), (self.synapses, other.synapses))
        both = [(mine[n], theirs[n]) for mine, theirs in pairs for n in mine.keys() & theirs.keys()]
        alike = bool(both) and all(one.shape == two.shape for one, two in both)
        alike &= all(a.keys() <= b.keys() or a.keys() >= b.keys() for a, b in pairs)
        columns = [one.info["columns"] for one in (self, other) if one.info.get("columns")]
        if self.level != other.level or not alike or columns[:1] != columns[-1:]:
            raise ProfileMismatchError(
                "The slices have different models, granularities, levels or columns: their neurons "
                "and synapses differ in names or shapes, or their tables in the order of columns."
            )

    def _combine(self, other: "Slice", function: Callable) -> "Slice":
        """Combine contributions; a name that only one slice has counts as 0 in the other."""
        if not isinstance(other, Slice):
            return NotImplemented
        self._check_alike(other)
        parts, zero = [], np.zeros((), np.int64)
        for mine, theirs in ((self.neurons, other.neurons), (self.synapses, other.synapses)):
            names = dict.fromkeys([*mine, *theirs])
            if function(1, 0) == 0:  # members are in both
                names = {name: None for name in mine if name in theirs}
            pairs = {name: (mine.get(name, zero), theirs.get(name, zero)) for name in names}
            parts.append({name: np.asarray(function(*pair)) for name, pair in pairs.items()})
        info = self.info
        if function(0, 1) != 0:  # of their origin, what both agree on is known
            if self.to_vector().dtype.kind != other.to_vector().dtype.kind:
                raise ProfileMismatchError("Counts and amounts cannot be combined this way.")
            same = {k: v for k, v in info.items() if other.info.get(k, v) == v}
            info = {k: v for k, v in other.info.items() if info.get(k, v) == v} | same
            counts = [one.info.get("samples") for one in (self, other)]
            info["samples"] = sum(counts) if function is np.add and None not in counts else None
        return Slice(parts[0], parts[1], info)


def operation_of(kernel: str, names: Container[str]) -> str:
    """Return which of some operations, by name, is the sum of a kernel's products, or the state."""
    layer, _, part = kernel.rpartition("/")
    states = (f"{layer}:h", f"{':'.join(layer.rsplit('/', 1))}:h")  # of a direction
    sums = (f"{kernel}:pre", kernel, f"{layer}:{part}", f"{layer}/scores:sum", f"{layer}:pre")
    return next((name for name in (*states, *sums, layer) if name in names), kernel)


def _joined(arrays: Mapping[str, np.ndarray]) -> np.ndarray:
    return np.concatenate([values.ravel() for values in arrays.values()] or [np.zeros(0)])
