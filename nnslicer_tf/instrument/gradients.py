"""Gradients of any operation with respect to any other, on each Keras backend."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument.graph import Graph


class GradientFunction:
    """The gradient of a target, summed over the batch, with respect to operations.

    `target` maps {operation: tensor (batch, …)} of `needs` to a tensor `(batch,)`.
    """

    def __init__(
        self, graph: Graph, target: Callable[..., Any], needs: Sequence[str], wrt: Sequence[str]
    ) -> None:
        self._graph = graph
        self._target = target
        self._needs = tuple(needs)
        self._wrt = tuple(wrt)
        self._compute = getattr(self, f"_{keras.backend.backend()}")()

    def __call__(
        self, x: np.ndarray | tuple[np.ndarray, ...], *extra: np.ndarray
    ) -> list[np.ndarray]:
        """Return one gradient `(batch, …)` float32 for each operation of `wrt`.

        `x` is `(batch, …)` float32, a tuple for several inputs; the target also receives `extra`.
        """
        inputs = list(x) if isinstance(x, tuple) else [x]
        return [keras.ops.convert_to_numpy(g) for g in self._compute(inputs, *extra)]

    def _values(self, x: Any, change: Callable[[str, Any], Any]) -> dict[str, Any]:
        return self._graph.run(x, (*self._needs, *self._wrt), change)

    def _tensorflow(self) -> Callable:
        import tensorflow as tf

        @tf.function(reduce_retracing=True, autograph=False)
        def compute(x: Any, *extra: Any) -> list[Any]:
            with tf.GradientTape(watch_accessed_variables=False) as tape:
                tape.watch(x)

                def watched(name: str, value: Any) -> Any:
                    if name in self._wrt:  # tokens have no gradient, values made from them do
                        tape.watch(value)
                    return value

                values = self._values(x, watched)
                total = tf.reduce_sum(self._target(values, *extra))
            sources = [values[name] for name in self._wrt]
            return tape.gradient(total, sources, unconnected_gradients="zero")

        return lambda x, *extra: compute(
            list(map(tf.convert_to_tensor, x)), *map(tf.convert_to_tensor, extra)
        )

    def _jax(self) -> Callable:
        import jax

        # JAX differentiates only with respect to arguments, so a zero is added to the value of
        # each operation in `wrt`, and the gradient is taken with respect to these zeros.
        def total(zeros: dict[str, Any], x: Any, *extra: Any) -> Any:
            values = self._values(x, lambda name, v: v + zeros[name] if name in zeros else v)
            return self._target(values, *extra).sum()

        gradient = jax.jit(jax.grad(total))

        def compute(x: Any, *extra: Any) -> list[Any]:
            shapes = {name: self._graph.operations[name].shape for name in self._wrt}
            zeros = {k: np.zeros((len(x[0]), *shape), np.float32) for k, shape in shapes.items()}
            gradients = gradient(zeros, x, *extra)
            return [gradients[name] for name in self._wrt]

        return compute

    def _torch(self) -> Callable:
        import torch

        def requiring(name: str, value: Any) -> Any:
            # Values that were computed from tokens are leaves.
            return value.requires_grad_() if name in self._wrt and value.is_leaf else value

        def compute(x: Any, *extra: Any) -> list[Any]:
            with torch.enable_grad():
                tensors = map(keras.ops.convert_to_tensor, x)
                inputs = [tensor.detach().requires_grad_() for tensor in tensors]
                values = self._values(inputs, requiring)
                total = self._target(values, *map(keras.ops.convert_to_tensor, extra)).sum()
                sources = [values[name] for name in self._wrt]
                return list(
                    torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)
                )

        return compute
