"""The check that contributions add up: each rule's to the change of its operation's value.

Operations of Keras's layers are covered by tests. Those of users' layers, and functions, are
checked on two random samples, one as reference for the other, before the first walk.
"""

import math
from typing import Any

import keras
import numpy as np
from keras import ops

from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.comparison import random_input
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.kinds.kind import EXCLUSION, MULTIPLIERS, kind_of
from nnslicer_tf.kinds.rescale import multipliers_of

TOLERANCE = 1e-2  # of the sum of the contributions' magnitudes
SIZE = 1 << 20  # values of the operations that are checked at most


def check_amounts(im: InstrumentedModel, contribution: str) -> None:
    """Raise UnsupportedLayerError for an operation whose contributions do not add up."""
    # Counts need no multipliers of kinds whose rule is the user's own.
    own = [k for k, rule in EXCLUSION.items() if rule.activation.__module__[:12] != "nnslicer_tf."]

    def is_known(layer: Any) -> bool:
        of_keras = type(layer).__module__.startswith("keras.")
        is_layer = isinstance(layer, keras.layers.Layer)
        return of_keras and is_layer and not isinstance(layer, keras.layers.Lambda)

    checked = [
        o
        for o in im.operations
        if o.inputs and o.kind not in ("mask", "lookup") and not isinstance(o.params, Member)
        if contribution == "amount" or o.kind in MULTIPLIERS or o.kind not in own
        if not is_known(o.keras_layer) and sum(map(math.prod, o.input_shapes)) <= SIZE
    ]
    if not checked:
        return
    rng = np.random.default_rng(0)
    inputs = []
    for name, tensor in zip(im.input_operations, im.functional.inputs, strict=True):
        tokens = im.graph.vocabulary(name)
        sample = random_input(rng, (2, *im[name].shape), tensor.dtype, tokens, name=name)
        inputs.append(ops.convert_to_tensor(sample.astype(np.float32)))
    values = im.graph.run(inputs, {name for o in checked for name in (o.name, *o.inputs)})
    for operation in checked:
        x: list[Any] = [values[name][:1] for name in operation.inputs]
        x0: list[Any] = []
        masks_follow = kind_of(operation).one_to_one or operation.kind in ("softmax", "average")
        for place, name in enumerate(operation.inputs):
            is_mask = im[name].kind == "mask" or (place and masks_follow)
            x0.append(values[name][:1] if is_mask else values[name][1:])
        y, y0 = operation.compute(*x), operation.compute(*x0)
        given = ops.convert_to_tensor(rng.normal(size=y.shape).astype(np.float32))
        parts = multipliers_of(operation, x, x0, given)
        amounts = [p * (a - b) for p, a, b in zip(parts, x, x0, strict=True) if p is not None]
        total = sum(float(ops.sum(amount)) for amount in amounts)
        size = sum(float(ops.sum(ops.abs(amount))) for amount in amounts)
        change = given * (y - y0)
        expected = float(ops.sum(change))
        size = max(size, float(ops.sum(ops.abs(change))))
        size += 1e-4 * float(ops.sum(ops.abs(given * y)))  # rounding
        if np.isfinite([total, expected]).all() and abs(total - expected) > TOLERANCE * size:
            raise UnsupportedLayerError(
                f"The contributions of operation '{operation.name}' "
                f"({type(operation.keras_layer).__name__}, of kind '{operation.kind}') add up to "
                f"{total:.4g}, but its value changes by {expected:.4g}. Its kind does not "
                "describe what it computes: register it as another kind, or with multipliers that "
                "add up (kinds.register_kind), or use Keras's layers."
            )
