"""Attacks of Foolbox on Keras models, with those of the NNSlicer paper's Table 4 by name.

Foolbox is imported when an entry of `ATTACKS` is called. To add an attack, pass an `AttackSpec` of
a class of Foolbox, or of a subclass of Foolbox's `Attack`, to `generate`.
"""

from nnslicer_tf.detection.attacks.generation import generate
from nnslicer_tf.detection.attacks.table import ATTACKS, MNIST_ATTACKS, AttackSpec

__all__ = ["ATTACKS", "MNIST_ATTACKS", "AttackSpec", "generate"]
