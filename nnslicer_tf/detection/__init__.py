"""Detect adversarial inputs from slices, and the attacks that make such inputs."""

from nnslicer_tf.detection import attacks

__all__ = ["attacks"]
