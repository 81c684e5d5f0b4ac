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
        last: Name of the last operation that is expanded, None for all.
    """

    start: Start
    last: str | None

    def key(self) -> tuple:
        """Return a key that identifies the criterion."""
        neurons = tuple((name, i.tobytes()) for name, i in self.start.neurons.items())
        return self.start.predicted, neurons, self.last


@dataclass(frozen=True)
class Criterion:
    """The neurons O of a slicing criterion C = (I, O).

    Attributes:
        outputs: Indices of outputs, "predicted" for each sample's own top-1 class, or a mapping
            from the name of an inner operation to indices of its neurons (row-major; of
            its channels at "channel" granularity) or "all".
        until: Name of the last operation or layer that is expanded; by default the walk
            continues to the input. `Criterion({"conv": "all"}, until="conv")` gives a local
            slice of the layer conv.
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
        last = self._last_operation(im)
        if isinstance(self.outputs, str) and self.outputs == PREDICTED:
            self._check_classifier(im, "outputs='predicted'")
            return ResolvedCriterion(Start({}, True), last)
        if isinstance(self.outputs, Mapping):
            if not self.outputs:
                raise CriterionError("The criterion names no operation: `outputs` is empty.")
            starts = {
                self._operation(im, name): _indices(name, chosen, shapes)
                for name, chosen in self.outputs.items()
            }
        else:
            self._check_classifier(im, f"outputs={self.outputs!r}")
            name = im.logit_operation
            starts = {name: _indices(name, self.outputs, shapes)}
        return ResolvedCriterion(Start(starts, False), last)

    @staticmethod
    def _check_classifier(im: InstrumentedModel, received: str) -> None:
        shape = im[im.logit_operation].shape
        if len(im.output_operations) > 1 or len(shape) != 1:
            raise CriterionError(
                f"{received} needs a model with one output vector; this one has "
                f"{len(im.output_operations)} output(s), the first of shape {shape}. Name the "
                "neurons of an operation instead: outputs={'operation': [indices]}."
            )

    @staticmethod
    def _operation(im: InstrumentedModel, name: str) -> str:
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


def _indices(name: str, chosen: Indices, shapes: Mapping[str, tuple]) -> np.ndarray:
    """Return `chosen` as sorted, distinct row-major indices of neurons of operation `name`."""
    size = int(np.prod(shapes[name]))
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
    return np.unique(indices)
