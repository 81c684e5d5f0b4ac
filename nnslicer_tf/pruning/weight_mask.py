"""The constraint that keeps pruned weights at zero."""

import base64
from typing import Any

import keras
import numpy as np
from numpy.typing import ArrayLike


@keras.saving.register_keras_serializable(package="nnslicer_tf")
class WeightMask(keras.constraints.Constraint):
    """Constraint that multiplies weights by a mask of zeros and ones after every optimiser step.

    It is saved with its layer, and Keras finds it when loading a model if `nnslicer_tf.pruning`
    has been imported. `without_masks` makes models that load without this package.

    Args:
        mask: Array of the weights' shape, false (or 0) where weights are pruned.
        other: Another constraint of Keras, which the remaining weights keep to.
    """

    def __init__(self, mask: ArrayLike, other: keras.constraints.Constraint | None = None) -> None:
        self.mask = np.array(mask, bool)
        self.mask.setflags(write=False)
        self.other = other

    def __call__(self, w: Any) -> Any:
        """Return the masked weights."""
        zeros = keras.ops.zeros_like(w)
        w = keras.ops.where(self.mask, w, zeros)
        return w if self.other is None else keras.ops.where(self.mask, self.other(w), zeros)

    def get_config(self) -> dict[str, Any]:
        """Return the mask as text for JSON, with one bit per weight."""
        bits = base64.b64encode(np.packbits(self.mask).tobytes()).decode()
        other = keras.constraints.serialize(self.other) if self.other is not None else None
        return {"bits": bits, "shape": list(self.mask.shape), "other": other}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WeightMask":
        """Create the constraint from its config."""
        bits = np.frombuffer(base64.b64decode(config["bits"]), np.uint8)
        count = int(np.prod(config["shape"]))
        mask = np.unpackbits(bits, count=count).reshape(config["shape"])
        return cls(mask, keras.constraints.get(config.get("other")))

    def __repr__(self) -> str:
        kept = np.count_nonzero(self.mask)
        return f"WeightMask({kept:,} of {self.mask.size:,} weights kept)"
