"""Gradients of any operation with respect to any other, on each Keras backend."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.instrument.backend import compiled_function, value_and_product
from nnslicer_tf.instrument.graph import Graph


class GradientFunction:
    """The gradient of a target, summed over the batch, with respect to operations.

    `target` maps {operation: tensor (batch, …)} of `needs` to a tensor `(batch,)`.
    """

    def __init__(
        self, graph: Graph, target: Callable[..., Any], needs: Sequence[str], wrt: Sequence[str]
    ) -> None:
        def gradients(inputs: list[Any], extra: list[Any]) -> Sequence[Any]:
            x, extra = ([ops.convert_to_tensor(v) for v in part] for part in (inputs, extra))

            # A zero is added to the value of each operation, and the gradient taken for it.
            def total(*zeros: Any) -> Any:
                added = dict(zip(wrt, zeros, strict=True))
                values = graph.run(
                    x, (*needs, *wrt), lambda n, v: v + added[n] if n in added else v
                )
                return target(values, *extra)

            shapes = [(ops.shape(x[0])[0], *graph.operations[name].shape) for name in wrt]
            zeros = [ops.zeros(shape, x[0].dtype) for shape in shapes]
            return value_and_product(total, zeros, ops.ones_like)[1]

        self._gradients = compiled_function(gradients)

    def __call__(
        self, x: np.ndarray | tuple[np.ndarray, ...], *extra: np.ndarray
    ) -> list[np.ndarray]:
        """Return the gradient `(batch, …)` for each of `wrt`; the target also gets `extra`."""
        inputs = list(x) if isinstance(x, tuple) else [x]
        return [ops.convert_to_numpy(g) for g in self._gradients(inputs, list(extra))]
