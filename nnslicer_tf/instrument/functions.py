"""Functions of a graph: forward passes and gradients, each compiled once."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument.gradients import GradientFunction, logit_indices
from nnslicer_tf.instrument.graph import CaptureModel, Graph, compiled, forward_pass
from nnslicer_tf.instrument.inputs import Inputs, arrays_of


class GraphFunctions:
    """Compiled functions of a graph, kept so that they can be called again.

    Args:
        graph: The instrumented graph.
    """

    def __init__(self, graph: Graph) -> None:
        self._graph = graph
        self._captures: dict[tuple[str, ...], Callable] = {}
        self._gradients: dict[tuple, GradientFunction] = {}

    def forward(self, batch: np.ndarray | Inputs, names: tuple[str, ...]) -> dict[str, np.ndarray]:
        """Return the values of operations `(batch, *operation shape)` by name."""
        if names not in self._captures:
            shapes = [self._graph.operations[name].shape for name in self._graph.inputs]
            self._captures[names] = compiled(CaptureModel(self._graph, names), shapes)
        return dict(zip(names, forward_pass(self._captures[names], batch), strict=True))

    def gradients(
        self,
        stream: Sequence[np.ndarray | Inputs],
        target: Callable[..., Any],
        needs: tuple[str, ...],
        wrt: tuple[str, ...],
    ) -> dict[str, np.ndarray]:
        """Return a target's gradients `(samples, *operation shape)` for all samples, by name.

        Args:
            stream: The samples, in batches.
            target: Maps {operation: tensor (batch, …)} to a tensor `(batch,)`.
            needs: Names of the operations that the target reads.
            wrt: Names of the operations to differentiate with respect to.
        """
        compute = self._gradient(target, needs, wrt)
        return _joined(wrt, [compute(arrays_of(batch)) for batch in stream])

    def logit_gradients(
        self,
        stream: Sequence[np.ndarray | Inputs],
        of: Sequence[int] | int,
        logits: str,
        wrt: tuple[str, ...],
    ) -> dict[str, np.ndarray]:
        """Return the gradients of one logit for each sample, as `gradients` does.

        Args:
            stream: The samples, in batches.
            of: Index of the logit, or one for each sample.
            logits: Name of the operation that computes the logits.
            wrt: Names of the operations to differentiate with respect to.

        Raises:
            InvalidArgumentError: if an index is out of range.
        """
        ends = np.cumsum([len(batch) for batch in stream])
        index = logit_indices(of, int(ends[-1]), self._graph.operations[logits].shape)
        compute = self._gradient(_Chosen(logits), (logits,), wrt)
        targets = np.split(index, ends[:-1])
        pairs = zip(stream, targets, strict=True)
        return _joined(wrt, [compute(arrays_of(batch), chosen) for batch, chosen in pairs])

    def _gradient(
        self, target: Callable[..., Any], needs: tuple[str, ...], wrt: tuple[str, ...]
    ) -> GradientFunction:
        key = (target, needs, wrt)
        if key not in self._gradients:
            self._gradients[key] = GradientFunction(self._graph, target, needs, wrt)
        return self._gradients[key]


@dataclass(frozen=True)
class _Chosen:
    """A target: for each sample, the logit with a given index. Equal targets are compiled once."""

    logits: str

    def __call__(self, values: Mapping[str, Any], index: Any) -> Any:
        return keras.ops.take_along_axis(values[self.logits], index[:, None], axis=1)[:, 0]


def _joined(names: Sequence[str], parts: Sequence[Sequence[np.ndarray]]) -> dict[str, np.ndarray]:
    return {name: np.concatenate([p[i] for p in parts]) for i, name in enumerate(names)}
