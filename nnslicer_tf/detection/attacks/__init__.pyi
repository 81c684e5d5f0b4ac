from .array_attack import ArrayAttack
from .generation import generate
from .table import ATTACKS, MNIST_ATTACKS, AttackSpec

__all__ = ["ATTACKS", "MNIST_ATTACKS", "ArrayAttack", "AttackSpec", "generate"]
