"""The 17 attacks of the NNSlicer paper's Table 4, by its names, and their use on Keras models.

Thirteen are Foolbox's own; JSMA, ADef, SinglePixel and LocalSearch are not in Foolbox 3
and are written here as Foolbox attacks, one in a file (`jsma`, `adef`, `single_pixel`,
`local_search`). Importing this package does not import Foolbox, calling an entry of
`ATTACKS` does.

Adding an attack: subclass Foolbox's `Attack`, or `ArrayAttack` with one method
`perturb(query, x, labels)`, and add a line to `ATTACKS`; or give `generate` an `AttackSpec`
of your own.
"""

from nnslicer_tf._lazy import lazy_exports
from nnslicer_tf.detection.attacks.generation import AdversarialExamples, generate
from nnslicer_tf.detection.attacks.logits import logits_model
from nnslicer_tf.detection.attacks.table import (
    ATTACKS,
    MNIST_ATTACKS,
    AttackSpec,
    find_attack,
)

__all__ = [
    "ATTACKS",
    "MNIST_ATTACKS",
    "AdversarialExamples",
    "ArrayAttack",
    "AttackSpec",
    "Query",
    "find_attack",
    "generate",
    "logits_model",
]

# Lazy, since the base class is Foolbox's.
__getattr__, _ = lazy_exports(
    __name__, {"nnslicer_tf.detection.attacks.array_attack": ("ArrayAttack", "Query")}
)
