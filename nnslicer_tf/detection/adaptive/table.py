"""The adaptive attacks by name; to add one, add a function from `Problem` to `Tried` here."""

from collections.abc import Callable
from dataclasses import dataclass

from nnslicer_tf.detection.adaptive import black_box, gradient, minimum
from nnslicer_tf.detection.adaptive.problem import Problem, Tried

WHITE, BLACK, TRANSFER = "white-box", "black-box", "transfer"


@dataclass(frozen=True)
class AdaptiveAttack:
    """An attack on a model and its detector.

    Attributes:
        name: Its name.
        kind: `"white-box"` (knows the pair), `"black-box"` (queries it) or `"transfer"` (knows
            another detector).
        run: The attack's function.
        from_guides: Whether it starts at normal inputs of other classes, so that success without a
            bound is trivial.
        smallest: Whether it minimises the change, and so runs once for all budgets.
        refines: Whether it starts from the other attacks' nearest successes, and so runs last.
    """

    name: str
    kind: str
    run: Callable[[Problem], Tried]
    from_guides: bool = False
    smallest: bool = False
    refines: bool = False


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
