"""The adaptive attacks by name; to add one, add a function from `Problem` to `Tried` here."""

from collections.abc import Callable
from dataclasses import dataclass

from reproduction.adaptive import black_box, gradient, minimum
from reproduction.adaptive.problem import Problem, Tried

WHITE, BLACK, TRANSFER = "white-box", "black-box", "transfer"


@dataclass(frozen=True)
class AdaptiveAttack:
    """An attack on a model and its detector."""

    name: str
    # "white-box" knows the pair, "black-box" queries it, "transfer" knows another detector
    kind: str
    run: Callable[[Problem], Tried]
    from_guides: bool = False  # starts at other classes' inputs: unbounded success is trivial
    smallest: bool = False  # minimises the change: runs once for all budgets
    refines: bool = False  # starts from the other attacks' nearest successes: runs last


# Attacks that need no budget come first: where one succeeds, the others need no unbounded run.
_ATTACKS = (
    AdaptiveAttack("minimum", WHITE, minimum.minimum, smallest=True),
    AdaptiveAttack("orthogonal", WHITE, gradient.orthogonal),
    AdaptiveAttack("selective", WHITE, gradient.selective),
    AdaptiveAttack("weighted", WHITE, gradient.weighted),
    AdaptiveAttack("matching", WHITE, gradient.matching, from_guides=True),
    AdaptiveAttack("square", BLACK, black_box.square),
    AdaptiveAttack("nes", BLACK, black_box.nes),
    AdaptiveAttack("decision", BLACK, black_box.decision, from_guides=True, smallest=True),
    AdaptiveAttack("transfer", TRANSFER, gradient.transfer),
    AdaptiveAttack("approach", WHITE, minimum.approach, True, smallest=True, refines=True),
)

ADAPTIVE_ATTACKS: dict[str, AdaptiveAttack] = {attack.name: attack for attack in _ATTACKS}
"""Name → attack."""
