"""The table of attacks, with their parameters and budgets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import require

if TYPE_CHECKING:
    import foolbox


@dataclass(frozen=True)
class AttackSpec:
    """An attack, its parameters and its budget; call it to build the Foolbox attack.

    Attributes:
        name: The name in the paper's Table 4.
        family: `"gradient"`, `"score"` or `"decision"`, as the paper groups them.
        factory: `"module:class"` of the Foolbox attack.
        parameters: Keyword arguments of the class.
        norm: The norm that the attack bounds or minimises.
        epsilon: The bound on the change in that norm, for values in [0, 1]; None if the
            attack minimises the change.
        framework: `"tensorflow"` if gradients or operations of images are needed, which then are
            those of Keras's backend, else `"numpy"`.
        start: The attack that finds the adversarial starting points of a decision-based
            attack; images on which it fails are not attacked.
    """

    name: str
    family: str
    factory: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    norm: str = ""
    epsilon: float | None = None
    framework: str = "tensorflow"
    start: "AttackSpec | None" = None

    def __call__(self, rng: int | np.random.Generator = 0) -> "foolbox.Attack":
        """Return the Foolbox attack; `rng` is passed to classes that take it.

        Foolbox's own attacks draw from the global generators of NumPy and of the backend.

        Raises:
            MissingPackageError: if Foolbox is not installed.
        """
        require("foolbox", f"The attack {self.name} is one of")
        module, _, name = self.factory.partition(":")
        factory = getattr(import_module(module), name)
        if "rng" in signature(factory).parameters:
            return factory(**self.parameters, rng=rng)
        return factory(**self.parameters)


_HERE = "nnslicer_tf.detection.attacks"


def _foolbox(
    name: str,
    family: str,
    factory: str,
    norm: str,
    epsilon: float | None = None,
    start: AttackSpec | None = None,
    **parameters: Any,
) -> AttackSpec:
    """Return an attack of Foolbox; only those of the family "gradient" need gradients."""
    framework = "tensorflow" if family == "gradient" or factory == "SpatialAttack" else "numpy"
    factory = f"foolbox.attacks:{factory}"
    return AttackSpec(name, family, factory, parameters, norm, epsilon, framework, start)


def _fgsm(name: str, epsilon: float) -> AttackSpec:
    return _foolbox(name, "gradient", "LinfFastGradientAttack", "linf", epsilon)


def _rpgd(name: str, epsilon: float) -> AttackSpec:
    factory = "LinfProjectedGradientDescentAttack"
    options: dict[str, Any] = {"steps": 40, "random_start": True}
    return _foolbox(name, "gradient", factory, "linf", epsilon, **options)


_DEEPFOOL: dict[str, Any] = {"steps": 50, "candidates": 10, "overshoot": 0.02}
_CARLINI: dict[str, Any] = {
    "binary_search_steps": 5,
    "steps": 100,
    "stepsize": 0.01,
    "initial_const": 0.1,
}
_NOISE = "LinearSearchBlendedUniformNoise"
_SALT = "SaltAndPepperNoise"
_SHIFTS: dict[str, Any] = {
    "max_translation": 3,
    "max_rotation": 30,
    "num_translations": 5,
    "num_rotations": 5,
}

_SPECS = (
    _fgsm("FGSM_2", 2 / 256),
    _fgsm("FGSM_4", 4 / 256),
    _fgsm("FGSM_8", 8 / 256),
    _foolbox("DeepFoolLinf", "gradient", "LinfDeepFoolAttack", "linf", **_DEEPFOOL),
    _foolbox("DeepFoolL2", "gradient", "L2DeepFoolAttack", "l2", **_DEEPFOOL),
    AttackSpec("JSMA", "gradient", f"{_HERE}.jsma:JSMAAttack", {"share": 0.145}, "l0"),
    _rpgd("RPGD_2", 2 / 256),
    _rpgd("RPGD_4", 4 / 256),
    _rpgd("RPGD_8", 8 / 256),
    _foolbox("CWL2", "gradient", "L2CarliniWagnerAttack", "l2", **_CARLINI),
    AttackSpec(
        "ADef",
        "score",
        f"{_HERE}.adef:ADefAttack",
        {"steps": 50, "candidates": 10, "smoothness": 1.0, "max_shift": 3.0},
        "linf",
    ),
    AttackSpec(
        "SinglePixel",
        "score",
        f"{_HERE}.single_pixel:SinglePixelAttack",
        {"max_pixels": 256},
        "l0",
        framework="numpy",
    ),
    AttackSpec(
        "LocalSearch",
        "decision",
        f"{_HERE}.local_search:LocalSearchAttack",
        {"rounds": 30, "candidates": 64, "pixels_a_round": 5},
        "l0",
        framework="numpy",
    ),
    _foolbox(
        "Boundary",
        "decision",
        "BoundaryAttack",
        "l2",
        start=_foolbox(_NOISE, "decision", f"{_NOISE}Attack", "l2", directions=200, steps=50),
        steps=5000,
    ),
    _foolbox("Spatial", "decision", "SpatialAttack", "", **_SHIFTS),
    # With TensorFlow tensors, eagerpy rejects the indices that this attack uses.
    _foolbox(
        "Pointwise",
        "decision",
        "PointwiseAttack",
        "l0",
        start=_foolbox(_SALT, "decision", f"{_SALT}Attack", "l0", steps=100, across_channels=True),
        l2_binary_search=False,
    ),
    _foolbox(
        "GaussianBlur",
        "decision",
        "GaussianBlurAttack",
        "l2",
        steps=100,
        max_sigma=8.0,
        channel_axis=-1,
    ),
)

ATTACKS: dict[str, AttackSpec] = {spec.name: spec for spec in _SPECS}
"""The paper's attacks for CIFAR-10, in the order of its Table 4."""

_MNIST_CHANGES: dict[str, dict[str, Any]] = {
    "FGSM_2": {"epsilon": 0.1},
    "FGSM_4": {"epsilon": 0.2},
    "FGSM_8": {"epsilon": 0.3},
    "RPGD_2": {"epsilon": 0.1},
    "RPGD_4": {"epsilon": 0.2},
    "RPGD_8": {"epsilon": 0.3},
    "CWL2": {"parameters": {**ATTACKS["CWL2"].parameters, "stepsize": 0.05, "initial_const": 1.0}},
}

MNIST_ATTACKS: dict[str, AttackSpec] = {
    name: replace(spec, **_MNIST_CHANGES.get(name, {})) for name, spec in ATTACKS.items()
}
"""The same for black and white digits, on which a change of 8/256 is too small to mislead."""


def find_attack(name: str, table: Mapping[str, AttackSpec] = ATTACKS) -> AttackSpec:
    """Return the attack of that name.

    Raises:
        InvalidArgumentError: for an unknown name; the message suggests similar ones.
    """
    check_name("attack", name, table)
    return table[name]
