"""The adaptive attacks by name.

Adding one: write a function from `Problem` to `Tried`, and enter it here.
"""

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
        kind: `"white-box"` (knows the pair), `"black-box"` (asks it) or `"transfer"` (knows
            another detector).
        run: Makes the changed inputs.
        from_guides: It starts at normal inputs of other classes: without a bound on the change it
            has nothing to do, so that says nothing about it.
        smallest: It makes the change as small as it can, and is run once for all budgets.
        refines: It starts from the nearest successes of the other attacks, and comes last.
    """

    name: str
    kind: str
    run: Callable[[Problem], Tried]
    from_guides: bool = False
    smallest: bool = False
    refines: bool = False


# First what need not be told a budget: where it succeeds without a bound, the others need not be
# run without one.
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
    AdaptiveAttack(
        "approach", WHITE, minimum.approach, from_guides=True, smallest=True, refines=True
    ),
)

ADAPTIVE_ATTACKS: dict[str, AdaptiveAttack] = {attack.name: attack for attack in _ATTACKS}
"""Name → attack."""
