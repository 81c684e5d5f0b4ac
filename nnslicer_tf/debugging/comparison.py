"""Explain why a compressed model deviates: where its errors arise, and which of them matter.

At place l the compressed model has the value q_l; f_l(q) is its value from the earlier ones in
floating point, and e_l = q_l − f_l(q) the error made there. Adding all errors to the original
yields the compressed model's values, and each place's or channel's can be switched off separately.
"""

import functools
import operator
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import pandas as pd
from keras import ops
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_count, check_name, counted
from nnslicer_tf._environment import track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging.counterparts import CompressedLike, Counterpart, Place, counterpart_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.report.results import errors_figure
from nnslicer_tf.slicing import Profile, Slice, Slicer

_LEVELS = ("layer", "channel")
_KINDS = {"enters": "in", "made": "out", "passed": "out", "leaves": "out"}
"""Kind of error → whether it is relative to the values of the place's inputs or its own."""

_STEPS = 8  # on the path from the original to the compressed model, for the integral

Arrays = dict[str, np.ndarray]


class _HeldErrors:
    """The original with the errors of a compressed model, which can be added selectively."""

    def __init__(self, counterpart: Counterpart) -> None:
        self.im = counterpart.im
        self.counterpart = counterpart
        self.names = tuple(place.operation for place in counterpart.places)
        im = counterpart.im

        def run(x: Any, errors: Sequence[Any], wanted: str) -> Any:
            added = dict(zip(self.names, errors, strict=True))

            def change(name: str, value: Any) -> Any:
                return value + added[name] if name in added else value

            return im.graph.run(x, [wanted], change)[wanted]

        def switched(x: Any, errors: Sequence[Any], keep: Any) -> Any:
            kept = [error * keep[i] for i, error in enumerate(errors)]
            return run(x, kept, im.output_operations[0])

        def gradients(x: Any, errors: Sequence[Any], direction: Any, share: Any) -> Any:
            def logits(*parts: Any) -> Any:
                return run(x, parts, im.logit_operation)

            return vector_jacobian_product(logits, [error * share for error in errors], direction)

        self._outputs = compiled_function(switched)
        self._gradients = compiled_function(gradients)

    def made(self, x: np.ndarray) -> tuple[Arrays, Arrays, Arrays]:
        """Return q, f(q) and q − f(q) for a batch: operation → `(batch, …)`."""
        values = self.counterpart.values(x)
        computed: dict[str, Any] = {}

        def change(name: str, value: Any) -> Any:
            if name not in values:
                return value
            computed[name] = ops.convert_to_numpy(value)
            return ops.convert_to_tensor(values[name])

        self.im.graph.run(ops.convert_to_tensor(x), self.names, change)
        return values, computed, {name: values[name] - computed[name] for name in self.names}

    def mended(
        self, x: np.ndarray, made: Arrays, labels: np.ndarray, switched: Iterable[Collection[str]]
    ) -> list[int]:
        """Count the samples with the original's label, once for each set of errors switched off."""
        x, errors = ops.convert_to_tensor(x), [ops.convert_to_tensor(e) for e in made.values()]
        counts = []
        for off in switched:
            keep = np.array([name not in off for name in self.names], np.float32)
            outputs = self._outputs(x, errors, ops.convert_to_tensor(keep))
            answers = self.im.classes.from_outputs(ops.convert_to_numpy(outputs))
            counts.append(int((answers == labels[:, 0]).sum()))
        return counts

    def attributions(self, x: np.ndarray, made: Arrays, labels: np.ndarray) -> Arrays:
        """Return each error's contribution to the fall of the margin: operation → `(batch, …)`.

        The margin is the score of the original's label minus that of the compressed model's, in
        `labels` `(batch, 2)`. The integral of gradient × error, as all errors grow to full size,
        divides its fall among the elements; positive contributions favour the compressed label.
        """
        # Scores are linear in the logits, also those of one sigmoid: −z and z.
        units = self.im[self.im.logit_operation].size
        by_class = self.im.classes.scores(np.eye(units, dtype=np.float32)).T
        direction = ops.convert_to_tensor(by_class[labels[:, 0]] - by_class[labels[:, 1]])
        x, errors = ops.convert_to_tensor(x), [ops.convert_to_tensor(e) for e in made.values()]
        sums = {name: np.zeros_like(made[name]) for name in self.names}
        for share in (np.arange(_STEPS, dtype=np.float32) + 0.5) / _STEPS:
            slopes = self._gradients(x, errors, direction, ops.convert_to_tensor(share))
            for name, slope in zip(self.names, slopes, strict=True):
                sums[name] -= ops.convert_to_numpy(slope) * made[name] / _STEPS
        return sums


class LayerComparison(ShownAsTable):
    """A model and its compressed copy, layer by layer, on inputs on which they deviate.

    A *place* is a value that both models have. Errors are root mean squares of differences,
    relative to that of the original's values.

    Attributes:
        im: The original.
        counterpart: The compressed model.
        places: The places, in topological order.
        x: The deviating samples `(samples, *input_shape)`.
        rows: Their indices among the samples passed. (LiteRT's reference kernels, which expose
            inner values, round differently, so a few samples may no longer deviate.)
        given: Number of samples passed.
        labels: The original's and the compressed model's label on them, `(samples, 2)`.
        errors: Kind of error → operation of a place → its relative size: "enters", the error of
            the place's inputs; "passed", its effect on the output; "made", the place's own error;
            "leaves", the sum of the last two, which add up element by element.
        causes: Operation of a place → share of its error in the fall of the margin, the original
            label's logit minus the compressed one's. Shares add up to 1; negative ones support the
            original's label.
        channels: Operation of a place → the same for each channel, `(channels,)`.
        alone: Operation of a place → share of the samples that get the original's label if only
            the place's own error is removed, with all others fixed.
    """

    def __init__(
        self,
        held: "_HeldErrors",
        x: np.ndarray,
        labels: np.ndarray,
        batch_size: int,
        progress: bool,
    ) -> None:
        self._held, self._batch_size = held, batch_size
        self.im, self.counterpart = held.im, held.counterpart
        self.places: tuple[Place, ...] = held.counterpart.places
        deviating = labels[:, 0] != labels[:, 1]
        self.rows, self.given = np.flatnonzero(deviating), len(x)
        self.x, self.labels = x, labels = x[deviating], labels[deviating]
        squares = {kind: dict.fromkeys(held.names, 0.0) for kind in (*_KINDS, "in", "out")}
        shares: Arrays = {}
        mended = np.zeros(len(self.places))
        for rows in track(list(self._batches()), "Comparing", progress=progress):
            values, computed, made = held.made(x[rows])
            original = self.im.forward(x[rows], held.names)
            changes = {
                "made": made,
                "out": original,
                "leaves": {n: values[n] - original[n] for n in held.names},
                "passed": {n: computed[n] - original[n] for n in held.names},
            }
            for kind, parts in changes.items():
                for name, part in parts.items():
                    squares[kind][name] += float(np.square(part, dtype=np.float64).sum())
            for name, part in held.attributions(x[rows], made, labels[rows]).items():
                by_channel = part.reshape(-1, part.shape[-1]).sum(axis=0, dtype=np.float64)
                shares[name] = shares.get(name, 0) + by_channel
            mended += held.mended(x[rows], made, labels[rows], [{name} for name in held.names])
        # The inputs of a place are the nearest places before it.
        nearest: dict[str, set[str]] = {}
        for operation in self.im.operations:
            before = set[str]().union(*(nearest[name] for name in operation.inputs))
            if operation.name in held.names:
                for kind, source in (("enters", "leaves"), ("in", "out")):
                    amount = sum(squares[source][name] for name in sorted(before))
                    squares[kind][operation.name] = amount
            nearest[operation.name] = {operation.name} if operation.name in held.names else before
        self.errors = {
            kind: {
                name: float(np.sqrt(amount / whole)) if (whole := squares[beside][name]) else 0.0
                for name, amount in squares[kind].items()
            }
            for kind, beside in _KINDS.items()
        }
        fall = sum(float(values.sum()) for values in shares.values())
        self.channels = {name: values / fall for name, values in shares.items()}
        self.causes = {name: float(values.sum()) for name, values in self.channels.items()}
        self.alone = dict(zip(held.names, (mended / len(x)).tolist(), strict=True))

    @cached_property
    def ranking(self) -> tuple[Place, ...]:
        """The places, sorted by their share of the deviation."""
        return tuple(sorted(self.places, key=lambda place: -self.causes[place.operation]))

    @cached_property
    def twin(self) -> keras.Model:
        """A copy of the original with the compressed weights; its activations are not rounded."""
        return self.counterpart.twin()

    def mended(self, switched: Sequence[Collection[str]]) -> np.ndarray:
        """Return `(results,)` shares of samples that get the original's label without some errors.

        `switched` has, for each result, the operations of places whose errors are removed, with all
        others fixed. Raises InvalidArgumentError if there is no such place.
        """
        for name in {name for names in switched for name in names}:
            check_name("place", name, self._held.names)
        right = np.zeros(len(switched))
        for rows in self._batches():
            x, labels = self.x[rows], self.labels[rows]
            right += self._held.mended(x, self._held.made(x)[2], labels, switched)
        return right / len(self.x)

    def slices(
        self, data: DataLike, theta: float = 0.3, most: int = 50, progress: bool = True
    ) -> tuple[Slice, Slice]:
        """Return the slices of the original and of `twin` for the original's labels.

        `first - second` is the evidence that compression removed, `second - first` what it added.
        `data` are samples of the profile, `theta` is θ of the exclusion; at most the `most` first
        deviating samples are sliced.
        """
        twin = self.im.like(self.twin)
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

    def to_frame(self, level: str = "layer", most: int | None = None) -> pd.DataFrame:
        """Return a table of at most `most` rows, ranked by the share of the deviation.

        The level is "layer" (one row per place: kernel, its storage and share of the weights,
        errors) or "channel"; others raise InvalidArgumentError.
        """
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

    def figure(self) -> Figure:
        """Plot each place's errors and share of the deviation, in topological order."""
        frame = self.to_frame().set_index("operation")
        return errors_figure(frame.loc[[place.operation for place in self.places]])

    def __repr__(self) -> str:
        first = self.ranking[0].operation
        count = f"{len(self.x)} of {self.given} samples deviate, {len(self.places)} places"
        return f"LayerComparison({count}; '{first}' causes {self.causes[first]:.0%})"

    def _batches(self) -> Iterator[slice]:
        for start in range(0, len(self.x), self._batch_size):
            yield slice(start, start + self._batch_size)


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
        x: Preprocessed samples `(samples, *input_shape)`, such as the results of
            `dflare.find_deviations`; those on which the models agree are skipped.
        batch_size: Samples at once; several copies of all their activations are in memory.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if the original is not a classifier of two or more classes, the
            models agree on all samples, or a layer, named in the message, has no counterpart.
        CorruptFileError: if a LiteRT file is damaged.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_count("batch_size", batch_size)
    check_classifier(im, exclusive=True)
    x = im.check(x)
    held = _HeldErrors(counterpart_of(im, compressed, x))
    output, labels = im.output_operations[0], []
    for start in range(0, len(x), batch_size):
        batch = x[start : start + batch_size]
        outputs = (im.predict(batch), held.counterpart.values(batch)[output])
        labels.append(np.stack([im.classes.from_outputs(values) for values in outputs], axis=1))
    both = np.concatenate(labels)
    if (both[:, 0] == both[:, 1]).all():
        raise InvalidArgumentError(
            f"The two models give the same labels on all {counted(len(x), 'sample')}: there is no "
            "deviation to explain. Pass inputs found by dflare.find_deviations, preprocessed. (A "
            "LiteRT file runs with the reference kernels here, which round differently.)"
        )
    return LayerComparison(held, x, both, batch_size, progress)
