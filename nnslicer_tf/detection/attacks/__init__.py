"""Foolbox's attacks on Keras models; `ATTACKS` names those of the NNSlicer paper's Table 4.

Foolbox is imported when an entry of `ATTACKS` is called. To add an attack, pass `generate` an
`AttackSpec` of a Foolbox class, or of your own subclass of Foolbox's `Attack`.
"""

from nnslicer_tf.detection.attacks.generation import generate
from nnslicer_tf.detection.attacks.table import ATTACKS, MNIST_ATTACKS, AttackSpec

__all__ = ["ATTACKS", "MNIST_ATTACKS", "AttackSpec", "generate"]
