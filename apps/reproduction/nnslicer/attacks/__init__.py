"""The 17 attacks of the paper's Table 4, in its order: Foolbox's, and the four that it lacks."""

from nnslicer_tf.detection.attacks import ATTACKS as FOOLBOX_ATTACKS
from nnslicer_tf.detection.attacks import MNIST_ATTACKS as FOOLBOX_MNIST_ATTACKS
from nnslicer_tf.detection.attacks import AttackSpec


def _own(name: str, family: str, factory: str, norm: str, **parameters: float) -> AttackSpec:
    framework = "numpy" if name in ("SinglePixel", "LocalSearch") else "tensorflow"
    factory = f"{__package__}.{factory}"
    return AttackSpec(name, family, factory, parameters, norm, framework=framework)


_ADEF = {"steps": 50, "candidates": 10, "smoothness": 1.0, "max_shift": 3.0}
_SEARCH = {"rounds": 30, "candidates": 64, "pixels_a_round": 5}

# After the attack of Foolbox that comes before each in the table.
_OWN = {
    "DeepFoolL2": (_own("JSMA", "gradient", "jsma:JSMAAttack", "l0", share=0.145),),
    "CWL2": (
        _own("ADef", "score", "adef:ADefAttack", "linf", **_ADEF),
        _own("SinglePixel", "score", "single_pixel:SinglePixelAttack", "l0", max_pixels=256),
        _own("LocalSearch", "decision", "local_search:LocalSearchAttack", "l0", **_SEARCH),
    ),
}


def _with_own(table: dict[str, AttackSpec]) -> dict[str, AttackSpec]:
    specs = [one for name, spec in table.items() for one in (spec, *_OWN.get(name, ()))]
    return {spec.name: spec for spec in specs}


ATTACKS = _with_own(FOOLBOX_ATTACKS)
"""Name → attack, with the budgets for colour images."""
MNIST_ATTACKS = _with_own(FOOLBOX_MNIST_ATTACKS)
"""The same, with the budgets for digits."""
