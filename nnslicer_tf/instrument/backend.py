"""Backend functions that Keras lacks: compilation and vector-Jacobian products."""

from collections.abc import Callable, Sequence
from typing import Any

from nnslicer_tf._lazy import LazyModule

keras: Any = LazyModule("keras")


def compiled_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function of tensors, compiled if the backend supports it."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        return tf.function(function, reduce_retracing=True)
    if backend == "jax":
        import jax

        return jax.jit(function)
    return function


def vector_jacobian_product(
    function: Callable[..., Any], inputs: Sequence[Any], cotangent: Any
) -> Sequence[Any]:
    """Return cotangent · ∂function/∂input for each input; may be called in a compiled function.

    Args:
        function: Maps the input tensors to one tensor.
        inputs: Floating-point tensors to differentiate with respect to.
        cotangent: Tensor of the shape of the function's result.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            result = function(*inputs)
        return tape.gradient(result, list(inputs), cotangent, unconnected_gradients="zero")
    if backend == "jax":
        import jax

        return jax.vjp(function, *inputs)[1](cotangent)
    import torch

    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in inputs]
        result = function(*inputs)
        return torch.autograd.grad(
            result, inputs, cotangent, allow_unused=True, materialize_grads=True
        )
