"""Backend functions that Keras lacks: compilation, vector-Jacobian products, loops over time."""

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial, wraps
from itertools import count
from typing import Any

from nnslicer_tf._environment import keras, stage
from nnslicer_tf.errors import WorkerError

FEW_STEPS = 64
"""Most steps of a loop over time that is not worth compiling for one call."""

_lost: list[int] = []  # this process, if TensorFlow's threads stayed behind in its parent


def _note_fork() -> None:
    """Note in a forked process whether TensorFlow was already running in its parent."""
    module = sys.modules.get("tensorflow.python.eager.context")
    context = getattr(module, "context_safe", lambda: None)()  # TensorFlow has no public question
    if getattr(context, "_initialized", False):
        _lost.append(os.getpid())


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_process() -> None:
    """Raise WorkerError in a process forked after TensorFlow started: it would wait forever."""
    if os.getpid() in _lost and keras.backend.backend() == "tensorflow":
        raise WorkerError(
            "This process was forked from one in which TensorFlow was already running, and has "
            "none of its threads. Start processes with multiprocessing.get_context('spawn'), "
            "fork before TensorFlow computes anything, or pass `workers=`."
        )


def compiled_function(
    function: Callable[..., Any], signature: Any = None, after: int = 0
) -> Callable[..., Any]:
    """Return a function of tensors, compiled if the backend supports it.

    TensorFlow compiles it once for a `signature`, the shapes of its float32 tensors, and runs the
    first calls, those before number `after`, without: compiling takes as long as tens of them.
    """
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        from nnslicer_tf.instrument.upstream import taking_turns

        # As Keras does: AutoGraph's conversion of all functions takes longer than tracing.
        specs = signature and keras.tree.map_shape_structure(
            lambda shape: tf.TensorSpec(shape, tf.float32), signature
        )
        compiled = tf.function(function, specs, reduce_retracing=True, autograph=False)
        # TensorFlow counts tracings by the address of a function, which a later one may get.
        compiled._omit_frequent_tracing_warning = True
        compiled, calls = taking_turns(compiled, tf.errors.AlreadyExistsError), count()

        @wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            check_process()
            if (call := next(calls)) != after:
                return (function if call < after else compiled)(*args, **kwargs)
            with stage("compiling"):
                return compiled(*args, **kwargs)

        return run
    if backend == "jax":
        import jax

        return jax.jit(function)
    import torch

    return torch.no_grad()(function)


def vector_jacobian_product(
    function: Callable[..., Any], inputs: Sequence[Any], cotangent: Any
) -> Sequence[Any]:
    """Return cotangent · ∂function/∂input of each input, for a function that returns one tensor."""
    return value_and_product(function, inputs, lambda result: cotangent)[1]


def value_and_product(
    function: Callable[..., Any], inputs: Sequence[Any], cotangent: Callable[[Any], Any]
) -> tuple[Any, Sequence[Any]]:
    """Return a function's result and its vector-Jacobian product; `cotangent` maps the result."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(inputs)
            result = function(*inputs)
        found = tape.gradient(result, list(inputs), cotangent(result), unconnected_gradients="zero")
        return result, found
    if backend == "jax":
        import jax

        result, pull = jax.vjp(function, *inputs)
        return result, pull(cotangent(result))
    import torch

    with torch.enable_grad():
        inputs = [x.detach().requires_grad_() for x in inputs]
        result = function(*inputs)
        found = torch.autograd.grad(
            result, inputs, cotangent(result.detach()), allow_unused=True, materialize_grads=True
        )
        return result.detach(), found


def over_time(
    step: Callable[[list[Any], list[Any]], tuple[list[Any], list[Any]]],
    carry: Sequence[Any],
    sequences: Sequence[Any],
    results: int,
    reverse: bool = False,
) -> tuple[list[Any], list[Any]]:
    """Run a step for each entry of some sequences `(time, …)`, as a loop of the backend.

    `step` maps the carry and the entries to the next carry and to `results` tensors, all of one
    dtype. Returns the last carry, and the results `(time, …)` in the order of the sequences.
    `keras.ops.scan` cannot be used: on TensorFlow, results must have the carry's structure.
    """
    backend, state, length = keras.backend.backend(), list(carry), sequences[0].shape[0]
    if backend == "jax":
        import jax

        return jax.lax.scan(step, state, list(sequences), reverse=reverse)
    if backend == "torch":
        found, order = [], slice(None, None, -1 if reverse else 1)
        for t in range(length)[order]:
            state, values = step(state, [sequence[t] for sequence in sequences])
            found.append(values)
        return state, [keras.ops.stack(values) for values in zip(*found[order], strict=True)]
    import tensorflow as tf

    if tf.executing_eagerly() and length > FEW_STEPS:
        loop = partial(over_time, step, results=results, reverse=reverse)
        return tf.function(loop, autograph=False)(state, list(sequences))
    # Arrays, because the derivative of an indexed tensor is as large as the tensor at each step.
    entries = [tf.TensorArray(s.dtype, length).unstack(s) for s in sequences]
    arrays = [tf.TensorArray(state[0].dtype, length, infer_shape=False) for _ in range(results)]
    shapes: list[Any] = []

    def body(i: Any, state: list[Any], arrays: list[Any]) -> tuple[Any, list[Any], list[Any]]:
        t = length - 1 - i if reverse else i
        state, values = step(state, [entry.read(t) for entry in entries])
        shapes[:] = [value.shape for value in values]
        return i + 1, state, [a.write(t, v) for a, v in zip(arrays, values, strict=True)]

    invariants = [tf.TensorShape((None, *c.shape[1:])) for c in carry]
    _, state, arrays = tf.while_loop(
        lambda i, *_: i < length,
        body,
        (tf.constant(0), state, arrays),
        shape_invariants=(tf.TensorShape(()), invariants, [tf.TensorShape(None)] * len(arrays)),
        maximum_iterations=length,
    )
    stacked = [array.stack() for array in arrays]
    return list(state), [
        tf.ensure_shape(v, (length, *shape)) for v, shape in zip(stacked, shapes, strict=True)
    ]
