"""Explain why a compressed model deviates: where its errors arise, and which of them matter.

At place l the compressed model has the value q_l; f_l(q) is its value from the earlier ones in
floating point, and e_l = q_l − f_l(q) the error made there. Adding all errors to the original
yields the compressed model's values, and each place's or channel's can be switched off separately.

The deviation that errors explain is one of labels (of maps, at the positions where they differ), or
of values: the squared difference of the logits or numbers.
"""

from collections.abc import Collection, Sequence
from functools import cached_property
from typing import Any

import keras
import numpy as np
import pandas as pd
from keras import ops
from matplotlib.figure import Figure
from sklearn.utils import gen_batches

from nnslicer_tf._checks import check_count, check_name, counted
from nnslicer_tf._environment import track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging.counterparts import CompressedLike, Counterpart, Place, counterpart_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.instrument.data import one_order
from nnslicer_tf.report.results import errors_figure

_LEVELS = ("layer", "channel")
_KINDS = {"enters": "in", "made": "out", "passed": "out", "leaves": "out"}
"""Kind of error → whether it is relative to the values of the place's inputs or its own."""

_STEPS = 8  # on the path from the original to the compressed model, for the integral

Arrays = dict[str, np.ndarray]


class LayerComparison(ShownAsTable):
    """A model and its compressed copy, layer by layer, on inputs on which they deviate.

    A *place* is a value that both models have. Errors are root mean squares of differences,
    relative to that of the original's values.

    Attributes:
        im: The original.
        counterpart: The compressed model.
        places: The places, in topological order.
        by_labels: Whether the deviation is that of labels (of maps, of all positions that differ),
            or the squared difference of the logits or numbers.
        x: The compared samples `(samples, *input_shape)`: by labels, those that deviate.
        rows: Their indices among the samples passed. (LiteRT's reference kernels, which expose
            inner values, round differently, so a few samples may no longer deviate.)
        given: Number of samples passed.
        labels: The original's and the compressed model's, `(samples, 2, …)`; None for numbers.
        errors: Kind of error → operation of a place → its relative size: "enters", the error of
            the place's inputs; "passed", its effect on the output; "made", the place's own error;
            "leaves", the sum of the last two, which add up element by element.
        causes: Operation of a place → share of its error in the deviation: in the fall of the
            margin, the original label's logit minus the compressed one's, or in the change of the
            values, along it. Shares add up to 1; negative ones make the deviation smaller.
        channels: Operation of a place → the same for each channel, `(channels,)`.
        alone: Operation of a place → share of the deviation that is gone if only the place's own
            error is removed, with all others fixed; of labels, that of those that are mended.
    """

    def __init__(
        self,
        counterpart: Counterpart,
        by_labels: bool,
        x: np.ndarray,
        labels: np.ndarray | None,
        batch_size: int,
        progress: bool,
    ) -> None:
        self.im, self.counterpart, self.by_labels = counterpart.im, counterpart, by_labels
        self.places: tuple[Place, ...] = counterpart.places
        self._names = tuple(place.operation for place in self.places)
        self._batch_size = batch_size
        self._compile()
        self.rows, self.given = np.arange(len(x)), len(x)
        if labels is not None and self.by_labels:
            differs = (labels[:, 0] != labels[:, 1]).reshape(len(x), -1).any(axis=1)
            self.rows, labels = np.flatnonzero(differs), labels[differs]
        self.x, self.labels = x, labels = x[self.rows], labels
        squares = {kind: dict.fromkeys(self._names, 0.0) for kind in (*_KINDS, "in", "out")}
        shares: Arrays = {}
        for rows in track([*gen_batches(len(x), batch_size)], "Comparing", progress=progress):
            values, computed, made = self._made(x[rows])
            original = self.im.forward(x[rows], self._names)
            changes = {
                "made": made,
                "out": original,
                "leaves": {n: values[n] - original[n] for n in self._names},
                "passed": {n: computed[n] - original[n] for n in self._names},
            }
            for kind, parts in changes.items():
                for name, part in parts.items():
                    squares[kind][name] += float(np.square(part, dtype=np.float64).sum())
            right, wrong = self._ends(rows, made)
            # The score that falls by the deviation: the margin of the labels, which weighs nothing
            # where they are the same, or the logits along their own difference.
            direction = self.im.classes.contrast(right, wrong) if by_labels else right - wrong
            for name, part in self._attributions(x[rows], made, direction).items():
                by_channel = part.reshape(-1, part.shape[-1]).sum(axis=0, dtype=np.float64)
                shares[name] = shares.get(name, 0) + by_channel
        alone = self.mended([{name} for name in self._names])
        self.alone = dict(zip(self._names, alone.tolist(), strict=True))
        # The inputs of a place are the nearest places before it.
        nearest: dict[str, set[str]] = {}
        for operation in self.im.operations:
            before = set[str]().union(*(nearest[name] for name in operation.inputs))
            if operation.name in self._names:
                for kind, source in (("enters", "leaves"), ("in", "out")):
                    amount = sum(squares[source][name] for name in sorted(before))
                    squares[kind][operation.name] = amount
            nearest[operation.name] = {operation.name} if operation.name in self._names else before
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

    @cached_property
    def ranking(self) -> tuple[Place, ...]:
        """The places, sorted by their share of the deviation."""
        return tuple(sorted(self.places, key=lambda place: -self.causes[place.operation]))

    @cached_property
    def twin(self) -> keras.Model:
        """A copy of the original with the compressed weights; its activations are not rounded."""
        return self.counterpart.twin()

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in vars(self).items() if k not in ("_outputs", "_gradients")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._compile()

    def _compile(self) -> None:
        """Compile the original with the errors of the compressed model, added selectively."""
        im = self.im
        # Scores are logits, or numbers as they are; labels are read from the output.
        scored = im.output_operations[0] if im.classes.is_number else im.logit_operation
        read = im.output_operations[0] if self.by_labels else scored

        def run(x: Any, errors: Sequence[Any], wanted: str) -> Any:
            added = dict(zip(self._names, errors, strict=True))

            def change(name: str, value: Any) -> Any:
                return value + added[name] if name in added else value

            return im.graph.run(x, [wanted], change)[wanted]

        def switched(x: Any, errors: Sequence[Any], keep: Any) -> Any:
            return run(x, [error * keep[i] for i, error in enumerate(errors)], read)

        def gradients(x: Any, errors: Sequence[Any], direction: Any, share: Any) -> Any:
            parts = [error * share for error in errors]
            return vector_jacobian_product(lambda *e: run(x, e, scored), parts, direction)

        self._outputs = compiled_function(switched)
        self._gradients = compiled_function(gradients)

    def _made(self, x: np.ndarray) -> tuple[Arrays, Arrays, Arrays]:
        """Return q, f(q) and q − f(q) for a batch: operation → `(batch, …)`."""
        values = self.counterpart.values(x)
        computed: dict[str, Any] = {}

        def change(name: str, value: Any) -> Any:
            if name not in values:
                return value
            computed[name] = ops.convert_to_numpy(value)
            return ops.convert_to_tensor(values[name])

        self.im.graph.run(ops.convert_to_tensor(x), self._names, change)
        return values, computed, {name: values[name] - computed[name] for name in self._names}

    def _answers(self, x: np.ndarray, made: Arrays, off: Collection[str]) -> np.ndarray:
        """Return labels `(batch, …)`, or logits float64, without the errors of some places."""
        keep = np.array([name not in off for name in self._names], np.float32)
        errors = [ops.convert_to_tensor(error) for error in made.values()]
        outputs = self._outputs(ops.convert_to_tensor(x), errors, ops.convert_to_tensor(keep))
        values = ops.convert_to_numpy(outputs)
        return self.im.classes.from_outputs(values) if self.by_labels else values.astype(np.float64)

    def _deviation(self, answers: np.ndarray, original: np.ndarray) -> float:
        """Return the number of different labels, or the squared difference of the values."""
        differs = answers != original if self.by_labels else np.square(answers - original)
        return float(differs.sum())

    def _attributions(self, x: np.ndarray, made: Arrays, direction: np.ndarray) -> Arrays:
        """Return each error's contribution to the fall of a score: operation → `(batch, …)`.

        The score is the product of logits and `direction`. The integral of gradient × error, as all
        errors grow to full size, divides its fall among the elements.
        """
        towards = ops.convert_to_tensor(direction.astype(np.float32))
        x, errors = ops.convert_to_tensor(x), [ops.convert_to_tensor(e) for e in made.values()]
        sums = {name: np.zeros_like(made[name]) for name in self._names}
        for share in (np.arange(_STEPS, dtype=np.float32) + 0.5) / _STEPS:
            slopes = self._gradients(x, errors, towards, ops.convert_to_tensor(share))
            for name, slope in zip(self._names, slopes, strict=True):
                sums[name] -= ops.convert_to_numpy(slope) * made[name] / _STEPS
        return sums

    def _ends(self, rows: slice, made: Arrays) -> tuple[np.ndarray, np.ndarray]:
        """Return the original's and the compressed model's labels, or logits, for some samples."""
        if self.by_labels and self.labels is not None:
            return self.labels[rows, 0], self.labels[rows, 1]
        x = self.x[rows]
        return self._answers(x, made, self._names), self._answers(x, made, ())

    def mended(self, switched: Sequence[Collection[str]]) -> np.ndarray:
        """Return `(results,)` shares of the deviation that are gone without some errors.

        `switched` has, for each result, the operations of places whose errors are removed, with all
        others fixed. Of labels, the share is that of those that are mended. Raises
        InvalidArgumentError if there is no such place.
        """
        for name in {name for names in switched for name in names}:
            check_name("place", name, self._names)
        before, after = 0.0, np.zeros(len(switched))
        for rows in gen_batches(len(self.x), self._batch_size):
            x, (_, _, made) = self.x[rows], self._made(self.x[rows])
            right, wrong = self._ends(rows, made)
            before += self._deviation(wrong, right)
            after += [self._deviation(self._answers(x, made, off), right) for off in switched]
        if not before:
            raise InvalidArgumentError(
                f"The two models compute the same on all {counted(self.given, 'sample')}."
            )
        return 1 - after / before

    def to_frame(self, level: str = "layer", most: int | None = None) -> pd.DataFrame:
        """Return a table of at most `most` rows, ranked by the share of the deviation.

        The level is "layer" (one row per place: kernel, its storage and share of the weights,
        errors, and the ratio of the original's value to the error that leaves, "SNR, dB") or
        "channel"; others, and `most` below 1, raise InvalidArgumentError.
        """
        check_name("level", level, _LEVELS)
        check_count("most", 1 if most is None else most)
        if level == "channel":
            parts = [
                pd.DataFrame({"operation": n, "channel": range(len(v)), "cause": v})
                for n, v in self.channels.items()
            ]
            frame = pd.concat(parts).sort_values("cause", ascending=False, kind="stable")
        else:
            total = sum(kernel.size for kernel in self.im.kernels.values())
            with np.errstate(divide="ignore"):  # without an error the ratio is infinite
                ratios = -20 * np.log10([*self.errors["leaves"].values()])
            decibels = dict(zip(self.errors["leaves"], ratios, strict=True))
            rows = [
                {
                    "operation": place.operation,
                    "kernel": place.kernel or "",
                    "stored": place.stored,
                    "weights": place.weights / total,
                    **{kind: self.errors[kind][place.operation] for kind in _KINDS},
                    "SNR, dB": decibels[place.operation],
                    "cause": self.causes[place.operation],
                    "mended alone": self.alone[place.operation],
                }
                for place in self.ranking
            ]
            frame = pd.DataFrame(rows)
        frame = frame.iloc[:most].reset_index(drop=True)
        frame.insert(0, "rank", range(1, len(frame) + 1))
        return frame

    def figure(self) -> Figure:
        """Plot each place's errors and share of the deviation, in topological order."""
        frame = self.to_frame().set_index("operation")
        return errors_figure(frame.loc[[place.operation for place in self.places]])

    def __repr__(self) -> str:
        first = self.ranking[0].operation
        of = "deviate" if self.by_labels else "compared by values"
        count = f"{len(self.x)} of {self.given} samples {of}, {len(self.places)} places"
        return f"LayerComparison({count}; '{first}' causes {self.causes[first]:.0%})"


def compare_layers(
    im: InstrumentedModel,
    compressed: CompressedLike,
    x: np.ndarray,
    *,
    by: str = "labels",
    output: str | None = None,
    batch_size: int = 32,
    progress: bool = True,
) -> LayerComparison:
    """Compare a model with its compressed copy, layer by layer, where the two deviate.

    Args:
        im: The original: a classifier, a segmentation, or a model of numbers or images.
        compressed: The path or the content of a LiteRT file (8-bit weights, 8-bit integers
            throughout, or 16-bit floats) that was converted from the original; or a Keras model
            with the original's layers and other weights. It begins after the original's
            `preprocess`, unless it is an instrumented model with one of its own.
        x: Samples `(samples, *input_shape)` of the original, such as `find_deviations` finds.
        by: "labels": samples on which the labels differ (of maps, at some position); where none
            do, and for numbers and independent labels, "values": all samples, by the squared
            difference of the logits or numbers.
        output: Name of the output that is compared; needed if there are several.
        batch_size: Samples at once; several copies of all their activations are in memory.
        progress: Show progress bars.

    Raises InvalidArgumentError if the models compute the same on all samples, there are several
    outputs and none is named, or a layer, named in the message, has no counterpart;
    CorruptFileError if a LiteRT file is damaged; InputShapeError, InputRangeError or
    NonFiniteActivationError for bad data.
    """
    check_count("batch_size", batch_size)
    check_name("deviation", by, ("labels", "values"))
    x = im.with_columns(one_order(im.columns, getattr(compressed, "columns", ()))).check(x)
    if im.preparation is not None and getattr(compressed, "preparation", None) is None:
        x, im = np.asarray(im.preparation.predict(x, verbose=0)), im.unprepared
    whole, im = im, im.of_output(output)
    if im is not whole:
        if isinstance(compressed, keras.Model):
            place = whole.output_operations.index(whole.output_operation_of(output))
            compressed = keras.Model(compressed.inputs, compressed.outputs[place])
        elif isinstance(compressed, InstrumentedModel):
            compressed = compressed.of_output(output)
    kind = im.classes
    counterpart, name = counterpart_of(im, compressed, x), im.output_operations[0]
    labels = None
    if not kind.is_number:
        parts = []
        for rows in gen_batches(len(x), batch_size):
            both = (im.predict(x[rows]), counterpart.values(x[rows])[name])
            parts.append(np.stack([kind.from_outputs(values) for values in both], axis=1))
        labels = np.concatenate(parts)
    differ = labels is not None and bool((labels[:, 0] != labels[:, 1]).any())
    by_labels = differ and by == "labels" and not kind.is_multi_label
    return LayerComparison(counterpart, by_labels, x, labels, batch_size, progress)
