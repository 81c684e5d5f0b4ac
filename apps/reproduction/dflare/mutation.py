"""Models with mutated weights (DFlare, section 5.4.1)."""

import keras
import numpy as np

from nnslicer_tf._checks import as_generator, check_number
from nnslicer_tf.instrument import copy_model


def mutated(model: keras.Model, ratio: float, rng: int | np.random.Generator = 0) -> keras.Model:
    """Return a copy in which a share of all kernels' weights grows or shrinks by 10 %.

    Kernels are weights of two or more dimensions; `rng` chooses the weights, and the sign of each
    change. Raises InvalidArgumentError unless the ratio is in [0, 1].
    """
    check_number("ratio", ratio, "[0, 1]")
    generator, copy = as_generator(rng), copy_model(model)
    kernels = [weight for weight in copy.weights if weight.ndim > 1]
    sizes = [int(np.prod(kernel.shape)) for kernel in kernels]
    factors = np.ones(sum(sizes), np.float32)
    chosen = generator.choice(len(factors), round(ratio * len(factors)), replace=False)
    factors[chosen] = generator.choice(np.array([0.9, 1.1], np.float32), len(chosen))
    for kernel, part in zip(kernels, np.split(factors, np.cumsum(sizes)[:-1]), strict=False):
        kernel.assign(keras.ops.convert_to_numpy(kernel) * part.reshape(kernel.shape))
    return copy
