"""Explain why a compressed model deviates: where its errors arise, and which of them matter."""

import functools
import operator
from collections.abc import Collection, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import keras
import numpy as np

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf._environment import track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging._held_errors import Arrays, HeldErrors
from nnslicer_tf.debugging.counterparts import CompressedLike, counterpart_of, weights_twin
from nnslicer_tf.debugging.places import Counterpart, Place
from nnslicer_tf.debugging.runs import check_classifier
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.slicing import Profile, Slice, Slicer

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_LEVELS = ("layer", "channel")
_KINDS = ("enters", "made", "passed", "leaves")


class LayerComparison(ShownAsTable):
    """A model and its compressed copy, layer by layer, on inputs on which they deviate.

    A *place* is a value that both models have. Errors are root mean squares of differences,
    relative to the root mean square of the original's values; the errors that a place makes and
    passes on add up, element by element, to the error that leaves it.

    Attributes:
        places: The places, in topological order.
        x: The deviating samples `(samples, *input_shape)`.
        rows: Their indices among the samples that were given. Inside values exist only in LiteRT's
            reference kernels, which round differently from those that run a file usually: a few
            samples that deviate there do not deviate here, and are left out.
        given: Number of samples that were given.
        labels: The original's and the compressed model's label on them, `(samples, 2)`.
        errors: Kind of error → operation of a place → its relative size. The kinds are "enters",
            the error of the place's inputs, relative to them; "passed", its effect on the output;
            "made", what the place adds; and "leaves", both together.
        causes: Operation of a place → its share of the fall of the margin, the logit of the
            original's label minus that of the compressed model's, due to its error. All shares
            add up to 1; a negative one supports the original's label.
        channels: Operation of a place → the same for each channel, `(channels,)`.
        alone: Operation of a place → share of the samples that get the original's label if only
            the error made there is removed, with all others held fixed.
    """

    def __init__(
        self, held: HeldErrors, x: np.ndarray, labels: np.ndarray, batch_size: int, progress: bool
    ) -> None:
        self._held, self._batch_size = held, batch_size
        self.places: tuple[Place, ...] = held.counterpart.places
        deviating = labels[:, 0] != labels[:, 1]
        self.rows, self.given = np.flatnonzero(deviating), len(x)
        self.x, self.labels = x, labels = x[deviating], labels[deviating]
        squares: dict[str, dict[str, float]] = {kind: {} for kind in (*_KINDS, "in", "out")}
        shares: Arrays = {}
        mended = np.zeros(len(self.places))
        for rows in track(list(self._batches()), "Comparing", progress=progress):
            values, computed, made = held.made(x[rows])
            _add_squares(squares, held, x[rows], values, computed)
            for name, part in held.attributions(x[rows], made, labels[rows]).items():
                by_channel = part.reshape(-1, part.shape[-1]).sum(axis=0, dtype=np.float64)
                shares[name] = shares.get(name, 0) + by_channel
            outputs = held.outputs(x[rows], made, [{p.operation} for p in self.places])
            mended += [self._right(o, rows) for o in outputs]
        self.errors = {
            kind: {
                name: float(np.sqrt(amount / whole)) if (whole := squares[beside][name]) else 0.0
                for name, amount in squares[kind].items()
            }
            for kind, beside in zip(_KINDS, ("in", "out", "out", "out"), strict=True)
        }
        fall = sum(float(values.sum()) for values in shares.values())
        self.channels = {name: values / fall for name, values in shares.items()}
        self.causes = {name: float(values.sum()) for name, values in self.channels.items()}
        self.alone = dict(zip(held.names, (mended / len(x)).tolist(), strict=True))

    @property
    def im(self) -> InstrumentedModel:
        """The original."""
        return self._held.im

    @property
    def counterpart(self) -> Counterpart:
        """The compressed model."""
        return self._held.counterpart

    @cached_property
    def ranking(self) -> tuple[Place, ...]:
        """The places, sorted by how much of the deviation they cause."""
        return tuple(sorted(self.places, key=lambda place: -self.causes[place.operation]))

    @cached_property
    def twin(self) -> keras.Model:
        """A copy of the original with the compressed model's weights, in floating point.

        Its slices are those of the compressed model, except for the rounding of activations.
        """
        return weights_twin(self.im, self.counterpart)

    def mended(self, switched: Sequence[Collection[str]]) -> np.ndarray:
        """Return the share of samples that get the original's label without some errors.

        Args:
            switched: For each result, the operations of places whose errors are removed; all
                other errors are held fixed.

        Returns:
            `(results,)` float64.

        Raises:
            InvalidArgumentError: if there is no such place.
        """
        for name in {name for names in switched for name in names}:
            check_name("place", name, self._held.names)
        right = np.zeros(len(switched))
        for rows in self._batches():
            made = self._held.made(self.x[rows])[2]
            outputs = self._held.outputs(self.x[rows], made, switched)
            right += [self._right(o, rows) for o in outputs]
        return right / len(self.x)

    def slices(
        self, data: DataLike, theta: float = 0.3, most: int = 50, progress: bool = True
    ) -> tuple[Slice, Slice]:
        """Return the slices of the original and of `twin` for the original's labels.

        Their differences show what compression changed in the evidence for the label: `first -
        second` is what it removed, `second - first` what it added.

        Args:
            data: Samples of the profile, such as training data.
            theta: θ of the exclusion.
            most: Largest number of deviating samples; the first ones are sliced.
            progress: Show progress bars.
        """
        twin = InstrumentedModel(self.twin)
        found = []
        for im in (self.im, twin):
            profile = Profile.from_data(im, data, progress=progress)
            slicer = Slicer(im, profile, theta, progress=progress)
            x, labels = self.x[:most], self.labels[:most, 0]
            parts = [
                slicer.slice(x[labels == label], [im.classes.neuron(int(label))[0]])
                for label in np.unique(labels)
            ]
            found.append(functools.reduce(operator.add, parts))
        return found[0], found[1]

    def to_frame(self, level: str = "layer", most: int | None = None) -> "pd.DataFrame":
        """Return a table ranked by the share of the deviation that each place causes.

        Args:
            level: "layer" (one row per place, with its kernel, how that is stored, its share of
                the weights, and the errors) or "channel".
            most: Largest number of rows; all by default.

        Raises:
            InvalidArgumentError: for an unknown level.
        """
        import pandas as pd

        check_name("level", level, _LEVELS)
        if level == "channel":
            parts = [
                pd.DataFrame({"operation": n, "channel": range(len(v)), "cause": v})
                for n, v in self.channels.items()
            ]
            frame = pd.concat(parts).sort_values("cause", ascending=False, kind="stable")
        else:
            total = sum(kernel.size for kernel in self.im.kernels.values())
            rows = [
                {
                    "operation": place.operation,
                    "kernel": place.kernel or "",
                    "stored": place.stored,
                    "weights": place.weights / total,
                    **{kind: self.errors[kind][place.operation] for kind in _KINDS},
                    "cause": self.causes[place.operation],
                    "mended alone": self.alone[place.operation],
                }
                for place in self.ranking
            ]
            frame = pd.DataFrame(rows)
        frame = frame.head(most or len(frame)).reset_index(drop=True)
        frame.insert(0, "rank", range(1, len(frame) + 1))
        return frame

    def figure(self) -> "Figure":
        """Plot, for each place in order, its errors and the share that it causes."""
        from nnslicer_tf.report.results import errors_figure

        frame = self.to_frame().set_index("operation")
        return errors_figure(frame.loc[[place.operation for place in self.places]])

    def __repr__(self) -> str:
        first = self.ranking[0].operation
        return (
            f"LayerComparison({len(self.x)} of {self.given} samples deviate, "
            f"{len(self.places)} places; "
            f"'{first}' causes {self.causes[first]:.0%})"
        )

    def _batches(self) -> Iterator[slice]:
        for start in range(0, len(self.x), self._batch_size):
            yield slice(start, start + self._batch_size)

    def _right(self, outputs: np.ndarray, rows: slice) -> int:
        """Return how many samples get the original's label."""
        return int((self.im.classes.from_outputs(outputs) == self.labels[rows, 0]).sum())


def compare_layers(
    im: InstrumentedModel,
    compressed: CompressedLike,
    x: np.ndarray,
    *,
    batch_size: int = 32,
    progress: bool = True,
) -> LayerComparison:
    """Compare a model with its compressed copy, layer by layer, where the two deviate.

    Args:
        im: The original, a classifier.
        compressed: The path or the content of a LiteRT file (8-bit weights, 8-bit integers
            throughout, or 16-bit floats) that was converted from the original; or a Keras model
            with the original's layers and other weights.
        x: Samples `(samples, *input_shape)` as the original takes them, such as those that
            `dflare.find_deviations` finds, preprocessed. Those on which the models agree are
            skipped; the result's `rows` are the others.
        batch_size: Samples at once. Several copies of their activations at all places are in
            memory.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if the original is not a classifier of two or more classes, if the
            models agree on all samples, or if they do not correspond; the message names the
            first layer without a counterpart.
        CorruptFileError: if a LiteRT file is damaged.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_count("batch_size", batch_size)
    check_classifier(im)
    x = im.check(x)
    held = HeldErrors(im, counterpart_of(im, compressed, x))
    output, labels = im.output_operations[0], []
    for start in range(0, len(x), batch_size):
        batch = x[start : start + batch_size]
        outputs = (im.predict(batch), held.counterpart.values(batch)[output])
        labels.append(np.stack([im.classes.from_outputs(values) for values in outputs], axis=1))
    both = np.concatenate(labels)
    if (both[:, 0] == both[:, 1]).all():
        raise InvalidArgumentError(
            f"The two models give the same labels on all {len(x)} samples: there is no deviation "
            "to explain. dflare.find_deviations searches for some; give what it finds, "
            "preprocessed. (Of a LiteRT file the reference kernels are compared, which round "
            "differently from the usual ones.)"
        )
    return LayerComparison(held, x, both, batch_size, progress)


def _add_squares(
    squares: dict[str, dict[str, float]],
    held: HeldErrors,
    x: np.ndarray,
    values: Arrays,
    computed: Arrays,
) -> None:
    """Add the sums of squares of one batch: kind of error → operation → sum."""
    original = held.im.forward(x, held.names)
    leaves = {name: values[name] - original[name] for name in held.names}
    places = set(held.names)
    for name in held.names:
        # The places from whose values this one is computed.
        seen: set[str] = set()
        waiting = list(held.im.graph.operations[name].inputs)
        while waiting:
            one = waiting.pop()
            if one not in seen and one not in places:
                waiting.extend(held.im.graph.operations[one].inputs)
            seen.add(one)
        inputs = sorted(seen & places)
        amounts = {
            "enters": sum(_square(leaves[i]) for i in inputs),
            "in": sum(_square(original[i]) for i in inputs),
            "passed": _square(computed[name] - original[name]),
            "made": _square(values[name] - computed[name]),
            "leaves": _square(leaves[name]),
            "out": _square(original[name]),
        }
        for kind, amount in amounts.items():
            squares[kind][name] = squares[kind].get(name, 0.0) + amount


def _square(values: np.ndarray) -> float:
    return float(np.square(values, dtype=np.float64).sum())
