"""Slicing criteria: the outputs that a slice explains (NNSlicer, section 3.2)."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.errors import CriterionError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing._plan import Start

PREDICTED = "predicted"
ALL = "all"

Indices: TypeAlias = ArrayLike | Iterable[int]
Outputs: TypeAlias = Indices | Mapping[str, Indices]


@dataclass(frozen=True)
class ResolvedCriterion:
    """A criterion checked against a model.

    Attributes:
        start: The neurons at which the walk starts.
        last: Name of the last operation to expand, None to expand all.
        logits: Name of the operation whose largest value is the predicted class.
    """

    start: Start
    last: str | None
    logits: str

    def key(self) -> tuple:
        """Return a key that identifies the criterion."""
        neurons = tuple((name, i.tobytes()) for name, i in self.start.neurons.items())
        return self.start.predicted, neurons, self.last, self.logits


@dataclass(frozen=True)
class Criterion:
    """The neurons O of a slicing criterion C = (I, O).

    Attributes:
        outputs: Indices of outputs, "predicted" for each sample's own top-1 class, or a mapping
            from the name of an output or inner operation to indices of its neurons (row-major; of
            its channels at "channel" granularity) or "all". The name of an output refers to its
            logits, the values before a final softmax. A mapping with only one output may also
            use "predicted".
        until: Name of the last operation or layer to expand; by default, the walk continues to
            the input. `Criterion({"conv": "all"}, until="conv")` gives a local slice of the
            layer conv.
    """

    outputs: Outputs = PREDICTED
    until: str | None = None

    def resolve(self, im: InstrumentedModel, shapes: Mapping[str, tuple]) -> ResolvedCriterion:
        """Return the criterion, checked and expressed in the model's operations.

        Args:
            im: The model.
            shapes: Operation name → shape of its neurons at the granularity of the slice.

        Raises:
            CriterionError: if it names operations or neurons that do not exist.
        """
        if not isinstance(self.outputs, Mapping):
            self._check_one_output(im)
            return self._of_output(im, im.logit_operation, self.outputs, shapes)
        if not self.outputs:
            raise CriterionError("The criterion names no operation: `outputs` is empty.")
        if len(self.outputs) == 1:
            ((name, chosen),) = self.outputs.items()
            return self._of_output(im, self._operation(im, name), chosen, shapes)
        starts: dict[str, np.ndarray] = {}
        for name, chosen in self.outputs.items():
            operation = self._operation(im, name)
            indices = _indices(name, chosen, shapes[operation])
            # An output and its logits are one operation.
            starts[operation] = np.union1d(starts.get(operation, indices), indices)
        last = self._last_operation(im)
        return ResolvedCriterion(Start(starts, False), last, im.logit_operation)

    def _of_output(
        self, im: InstrumentedModel, name: str, chosen: Indices, shapes: Mapping[str, tuple]
    ) -> ResolvedCriterion:
        """Return the criterion on neurons of one operation."""
        last = self._last_operation(im)
        logits = name if name in _logits(im) else im.logit_operation
        if isinstance(chosen, str) and chosen == PREDICTED:
            if name not in _logits(im) or len(im[name].shape) != 1:
                raise CriterionError(
                    f"'predicted' needs an output vector; '{name}' has shape {im[name].shape}. "
                    "Name neurons instead: outputs={'operation': [indices]}."
                )
            return ResolvedCriterion(Start({}, True), last, name)
        return ResolvedCriterion(
            Start({name: _indices(name, chosen, shapes[name])}, False), last, logits
        )

    def _check_one_output(self, im: InstrumentedModel) -> None:
        shape = im[im.logit_operation].shape
        if len(im.output_operations) > 1 or len(shape) != 1:
            raise CriterionError(
                f"outputs={self.outputs!r} needs a model with one output vector; this one has "
                f"{len(im.output_operations)} output(s) ({', '.join(im.outputs)}), the first of "
                f"shape {shape}. Name the neurons of an output or operation instead: "
                "outputs={'name': [indices]}."
            )

    @staticmethod
    def _operation(im: InstrumentedModel, name: str) -> str:
        """Return the operation that a name in the criterion refers to."""
        if name in im.outputs:
            return im.logit_operation_of(name)
        try:
            return im[name].name
        except ValueError as error:
            raise CriterionError(f"The criterion does not fit this model. {error}") from error

    def _last_operation(self, im: InstrumentedModel) -> str | None:
        """Return the first operation, in topological order, of the layer `until`."""
        if self.until is None:
            return None
        of_layer = [o.name for o in im.operations if self.until in (o.layer, o.name)]
        exact = [name for name in of_layer if name == self.until]
        if exact and im[exact[0]].layer != self.until:
            return exact[0]
        return of_layer[0] if of_layer else self._operation(im, self.until)


def _logits(im: InstrumentedModel) -> set[str]:
    """Return the operations with the logits of the outputs."""
    return {im.logit_operation_of(name) for name in im.output_operations}


def _indices(name: str, chosen: Indices, shape: tuple[int, ...]) -> np.ndarray:
    """Return `chosen` as sorted, distinct row-major indices of neurons of operation `name`."""
    size = int(np.prod(shape))
    if isinstance(chosen, str):
        if chosen != ALL:
            raise CriterionError(
                f"Neurons of '{name}' are given as indices or 'all'. Received: {chosen!r}"
            )
        return np.arange(size)
    given = list(chosen) if isinstance(chosen, Iterable) else chosen
    indices = np.atleast_1d(np.asarray(given))
    if indices.size == 0:
        raise CriterionError(f"The criterion names no neuron of '{name}'.")
    if indices.dtype.kind not in "iu" or indices.ndim != 1:
        raise CriterionError(
            f"Neurons of '{name}' are given as integer indices. Received: {given!r}"
        )
    if indices.min() < 0 or indices.max() >= size:
        raise CriterionError(
            f"'{name}' has {size} neurons, indexed 0 to {size - 1}. Received: {indices.tolist()}"
        )
    distinct = np.unique(indices)
    if len(distinct) < len(indices):
        raise CriterionError(
            f"The criterion names neurons of '{name}' twice. It is a set of neurons, the same for "
            "all samples; slice the samples of each class on their own to give each its label."
        )
    return distinct
