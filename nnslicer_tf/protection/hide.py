"""Selection of the synapses to hide, and the model without them (NNSlicer, 6.3.1)."""

from collections.abc import Mapping
from numbers import Real

import keras
import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.masked import check_masks
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.pruning import keep_masks
from nnslicer_tf.pruning.masks import kernel_layers


def select(scores: Mapping[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Return the synapses to hide, those with the largest |score| in every kernel, as masks.

    Args:
        scores: Kernel name → scores of the kernel's shape, as from `pruning.scores` for the target
            classes.
        share: The budget: share of every kernel's synapses to hide, 0 < share ≤ 1.

    Returns:
        Kernel name → bool array of the kernel's shape.

    Raises:
        InvalidArgumentError: if the share is out of range, or scores are NaN.
    """
    is_number = isinstance(share, Real) and not isinstance(share, bool)
    if not is_number or not 0 < share <= 1:
        raise InvalidArgumentError(
            f"share is the share of synapses to hide, 0 < share ≤ 1. Received: {share!r}"
        )
    return keep_masks(scores, 1 - share)


def hide(
    model: ModelLike, hidden: Mapping[str, np.ndarray], rng: int | np.random.Generator = 0
) -> keras.Model:
    """Return a copy of the model with new random values for the hidden weights.

    The attacker gets this model, an ordinary Keras model. The layers' initializers draw the new
    values; all other weights are equal.

    Args:
        model: The model to protect.
        hidden: Kernel name → bool array of the kernel's shape, as from `select`.
        rng: Draws the weights.

    Raises:
        InvalidArgumentError: if there is no such kernel, or its shape is different.
    """
    generator = as_generator(rng)
    original = instrumented(model)
    hidden = check_masks(original, hidden)
    copy = copy_model(original.model)
    im = original.like(copy)
    owners = kernel_layers(im)
    for name, mask in hidden.items():
        kernel, (layer, slot) = im.kernels[name], owners[name]
        seed = int(generator.integers(2**31))
        attribute = (slot or "kernel_constraint").replace("constraint", "initializer")
        initializer = getattr(layer, attribute, None)
        if initializer is None or "seed" not in initializer.get_config():  # not a random one
            initializer = keras.initializers.GlorotUniform(seed)
        else:
            config = {**initializer.get_config(), "seed": seed}
            initializer = type(initializer).from_config(config)
        fresh = keras.ops.convert_to_numpy(initializer(kernel.shape))
        kernel.variable().assign(np.where(mask, fresh, kernel.kernel()))
    return copy
