"""Gradients of any operation with respect to any other, on each Keras backend."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.graph import Graph
from nnslicer_tf.instrument.operations import Operation
from nnslicer_tf.instrument.recurrence import Member


class GradientFunction:
    """The gradient of a target with respect to operations: d(sum over the batch) / d(values).

    Args:
        graph: The instrumented graph.
        target: Maps {operation: tensor (batch, …)} to a tensor `(batch,)`.
        needs: Names of the operations that `target` reads.
        wrt: Names of the operations to differentiate with respect to.
    """

    def __init__(
        self,
        graph: Graph,
        target: Callable[..., Any],
        needs: Sequence[str],
        wrt: Sequence[str],
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

        Args:
            x: The model's input, `(batch, …)` float32; several inputs as a tuple.
            *extra: Further arrays, passed to the target after the values.
        """
        inputs = list(x) if isinstance(x, tuple) else [x]
        return [keras.ops.convert_to_numpy(g) for g in self._compute(inputs, *extra)]

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

                values = self._graph.run(x, (*self._needs, *self._wrt), watched)
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
            def change(name: str, value: Any) -> Any:
                return value + zeros[name] if name in zeros else value

            values = self._graph.run(x, (*self._needs, *self._wrt), change)
            return self._target(values, *extra).sum()

        gradient = jax.jit(jax.grad(total))

        def compute(x: Any, *extra: Any) -> list[Any]:
            zeros = {
                name: np.zeros((len(x[0]), *self._graph.operations[name].shape), np.float32)
                for name in self._wrt
            }
            gradients = gradient(zeros, x, *extra)
            return [gradients[name] for name in self._wrt]

        return compute

    def _torch(self) -> Callable:
        import torch

        def compute(x: Any, *extra: Any) -> list[Any]:
            with torch.enable_grad():
                tensors = map(keras.ops.convert_to_tensor, x)
                inputs = [tensor.detach().requires_grad_() for tensor in tensors]
                values = self._graph.run(inputs, (*self._needs, *self._wrt), self._requiring)
                total = self._target(values, *map(keras.ops.convert_to_tensor, extra)).sum()
                sources = [values[name] for name in self._wrt]
                return list(
                    torch.autograd.grad(total, sources, allow_unused=True, materialize_grads=True)
                )

        return compute

    def _requiring(self, name: str, value: Any) -> Any:
        """Return a PyTorch tensor that requires a gradient, even if it was computed from tokens."""
        return value.requires_grad_() if name in self._wrt and value.is_leaf else value


def logit_indices(of: Sequence[int] | int, samples: int, logits: tuple[int, ...]) -> np.ndarray:
    """Return the index of each sample's logit, `(samples,)` int32.

    Args:
        of: One index, or one for each sample.
        samples: Number of samples.
        logits: Shape of the logits.

    Raises:
        InvalidArgumentError: if `of` is anything else, or an index is out of range.
    """
    index = np.asarray(of)
    valid = index.dtype.kind in "iu" and index.shape in ((), (samples,)) and len(logits) == 1
    if not valid or index.min() < 0 or index.max() >= logits[0]:
        raise InvalidArgumentError(
            f"`of` must be a function, or one index or {samples} of them into logits of "
            f"shape {logits}. Received: {of!r}"
        )
    return np.broadcast_to(index, (samples,)).astype(np.int32)


def check_differentiable(operations: Iterable[Operation]) -> None:
    """Check that no operation is inside a recurrent layer, where gradients are incomplete."""
    for operation in operations:
        if isinstance(operation.params, Member):
            raise InvalidArgumentError(
                f"Operation '{operation.name}' is inside a recurrent layer: a gradient would leave "
                "out what it does through later steps. Take the layer's output or an input."
            )
