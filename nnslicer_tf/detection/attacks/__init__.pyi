from .array_attack import ArrayAttack, Query
from .generation import AdversarialExamples, generate
from .logits import logits_model
from .table import ATTACKS, MNIST_ATTACKS, AttackSpec, find_attack

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
