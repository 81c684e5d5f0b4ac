"""Foolbox on the backend of Keras."""

from collections.abc import Callable
from typing import Any

import keras

from nnslicer_tf._environment import require
from nnslicer_tf.detection.attacks.table import AttackSpec
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.backend import device_name

_TENSORFLOW_ONLY = ("foolbox.attacks:SpatialAttack",)


def check_backend(attack: AttackSpec) -> None:
    """Check that Foolbox has an attack for images with channels last on the backend of Keras.

    Raises:
        InvalidArgumentError: if it does not.
    """
    backend = keras.backend.backend()
    if backend != "tensorflow" and attack.factory in _TENSORFLOW_ONLY:
        raise InvalidArgumentError(
            f"The attack {attack.name} needs Keras on TensorFlow; it runs on {backend}. Set "
            "KERAS_BACKEND=tensorflow."
        )


def foolbox_model(logits: Callable[[Any], Any]) -> Any:
    """Return the Foolbox model of a function of the backend's tensors.

    Args:
        logits: Maps images `(batch, height, width, channels)` in [0, 1] to `(batch, classes)`.
    """
    foolbox = require("foolbox", "Attacks are made with")
    backend = keras.backend.backend()
    if backend == "tensorflow":
        device = "/CPU:0" if device_name() == "CPU" else "/GPU:0"
        return foolbox.TensorFlowModel(logits, bounds=(0, 1), device=device)
    if backend == "jax":
        return foolbox.JAXModel(logits, bounds=(0, 1))
    import torch

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return logits(x)

    device = keras.ops.zeros(()).device
    model = foolbox.PyTorchModel(Module().eval(), bounds=(0, 1), device=device)
    model.data_format = "channels_last"  # Foolbox takes it for granted that it is the other one
    return model


def seed_foolbox(seed: int) -> None:
    """Seed the backend's global generator, from which Foolbox draws."""
    backend = keras.backend.backend()
    if backend == "tensorflow":
        import tensorflow as tf

        tf.random.set_seed(seed)
    elif backend == "jax":
        import eagerpy
        import jax

        eagerpy.JAXTensor.key = jax.random.PRNGKey(seed)
    else:
        import torch

        torch.manual_seed(seed)
