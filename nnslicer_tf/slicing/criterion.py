"""Slicing criteria: the outputs that a slice explains (NNSlicer, section 3.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from typing_extensions import TypeAliasType

from nnslicer_tf._checks import ArrayLike, counted
from nnslicer_tf.errors import CriterionError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing._plan import Start

PREDICTED = "predicted"
ALL = "all"

Indices: TypeAlias = ArrayLike | Iterable[int]
Outputs = TypeAliasType("Outputs", Indices | Mapping[str, Indices])


@dataclass(frozen=True)
class ResolvedCriterion:
    """A criterion checked against a model."""

    start: Start
    last: str | None  # last operation to expand; None expands all
    logits: str  # its largest value is the predicted class

    def key(self) -> tuple:
        """Return a key that identifies the criterion."""
        neurons = tuple((name, i.tobytes()) for name, i in self.start.neurons.items())
        return self.start.predicted, neurons, self.last, self.logits


@dataclass(frozen=True)
class Criterion:
    """The neurons O of a slicing criterion C = (I, O).

    Attributes:
        outputs: Indices of outputs, "predicted" for each sample's own top-1 class (of a map, at
            each position, which needs granularity "activation"), or a mapping from the name of an
            output or inner operation to indices of its neurons (row-major; of its channels at
            "channel" granularity) or "all". The name of an output refers to its logits, the values
            before a final softmax. A mapping with only one output may also use "predicted".
        until: Name of the last operation or layer to expand; by default, the walk continues to
            the input. `Criterion({"conv": "all"}, until="conv")` gives a local slice of it.
    """

    outputs: Outputs = PREDICTED
    until: str | None = None

    def resolve(self, im: InstrumentedModel, shapes: Mapping[str, tuple]) -> ResolvedCriterion:
        """Return the criterion in the model's operations; raise CriterionError if it does not fit.

        `shapes` maps operations to the shapes of their neurons at the slice's granularity.
        """

        def operation_of(name: str) -> str:
            if isinstance(name, str) and name in im.outputs:
                return im.logit_operation_of(name)
            try:
                return im[name].name
            except ValueError as error:
                raise CriterionError(f"The criterion does not fit this model. {error}") from error

        chosen: dict[str, Indices]
        if isinstance(self.outputs, Mapping):
            chosen = dict(self.outputs)
            if not chosen:
                raise CriterionError("The criterion names no operation: `outputs` is empty.")
        else:
            shape, one = im[im.logit_operation].shape, im.output_names[0]
            is_predicted = isinstance(self.outputs, str) and self.outputs == PREDICTED
            if len(im.output_operations) > 1 or (len(shape) != 1 and not is_predicted):
                raise CriterionError(
                    f"outputs={self.outputs!r} needs a model with one output vector; this one has "
                    f"{len(im.output_operations)} output(s) ({', '.join(im.outputs)}), the first "
                    f"of shape {shape}. Name an output, or neurons of an operation: outputs="
                    f"{{{one!r}: 'predicted'}}, or {{{one!r}: [indices]}}."
                )
            chosen = {im.logit_operation: self.outputs}

        starts: dict[str, np.ndarray] = {}
        predicted, axis = "", -1
        kinds = {im.logit_operation_of(o): im.classes_of(o) for o in im.output_operations}
        for name, indices in chosen.items():
            operation = operation_of(name)
            if len(chosen) == 1 and isinstance(indices, str) and indices == PREDICTED:
                kind, shape = kinds.get(operation), im[operation].shape
                is_map_of_channels = len(shape) != 1 and shapes[operation] != shape
                if kind is None or is_map_of_channels or (kind.is_number and shape != (1,)):
                    remark = "" if kind is None else kind.remark
                    what = "numbers" if kind is not None and kind.is_number else "values"
                    raise CriterionError(
                        "'predicted' needs an output vector of classes, or a map and single "
                        f"activations; '{operation}' has {'×'.join(map(str, shape))} {what}. Name "
                        f"neurons instead: outputs={{'operation': [indices]}}. {remark}"
                    )
                predicted, axis = operation, kind.axis
                continue
            # An output and its logits are one operation.
            of_sigmoid = operation == im.logit_operation and im.classes.is_binary
            neurons = _indices(operation, indices, shapes[operation], of_sigmoid)
            starts[operation] = np.union1d(starts.get(operation, neurons), neurons)

        before = {operation.name for operation in im.graph.ancestors({predicted, *starts})}
        last = None  # of the layer `until`, the first operation, in topological order, on the way
        if self.until is not None:
            if not isinstance(self.until, str):
                raise CriterionError(f"until must be one name. Received: {self.until!r}")
            of_layer = [o.name for o in im.operations if self.until in (o.layer, o.name)]
            reached = [name for name in of_layer if name in before]
            last = (reached or of_layer or [operation_of(self.until)])[0]
            if self.until in of_layer and im[self.until].layer != self.until:
                last = self.until
        own = predicted or next(iter(starts))
        if last is not None and last not in before:
            raise CriterionError(
                f"The walk back from {', '.join(chosen)} does not reach until={self.until!r}."
            )
        is_output = len(chosen) == 1 and own in kinds
        return ResolvedCriterion(
            Start(starts, bool(predicted), axis), last, own if is_output else im.logit_operation
        )


def _indices(
    name: str, chosen: Indices, shape: tuple[int, ...], of_sigmoid: bool = False
) -> np.ndarray:
    """Return `chosen` as sorted, distinct row-major indices of neurons of operation `name`."""
    size = int(np.prod(shape))
    if isinstance(chosen, str):
        if chosen != ALL:
            raise CriterionError(f"Neurons of '{name}' are indices or 'all'. Received: {chosen!r}")
        return np.arange(size)
    given = list(chosen) if isinstance(chosen, Iterable) else chosen
    indices = np.atleast_1d(np.asarray(given))
    if indices.size == 0:
        raise CriterionError(f"The criterion names no neuron of '{name}'.")
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        raise CriterionError(f"Neurons of '{name}' must be integer indices. Received: {given!r}")
    if indices.min() < 0 or indices.max() >= size:
        indexed = "indexed 0" if size == 1 else f"indexed 0 to {size - 1}"
        hint = (
            " A single sigmoid has one neuron for both classes: its logit is positive for class 1, "
            "negative for class 0. Use outputs=[0]; its synapses are those of both classes, and "
            "amounts have the sign of class 1. explain(x, target=0) gives those of class 0."
            if of_sigmoid
            else ""
        )
        raise CriterionError(
            f"'{name}' has {counted(size, 'neuron')}, {indexed}. "
            f"Received: {indices.tolist()}.{hint}"
        )
    distinct = np.unique(indices)
    if len(distinct) < len(indices):
        raise CriterionError(
            f"The criterion names neurons of '{name}' twice. It is a set of neurons, the same for "
            "all samples; slice the samples of each class on their own to give each its label."
        )
    return distinct
