"""The attacks by name, with their parameters and budgets."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from inspect import signature
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._environment import require

if TYPE_CHECKING:
    import foolbox


@dataclass(frozen=True)
class AttackSpec:
    """An attack, its parameters and its budget; call it to build the Foolbox attack.

    Attributes:
        name: The name in the paper's Table 4.
        family: `"gradient"`, `"score"` or `"decision"`, as in the paper.
        factory: `"module:class"` of the Foolbox attack.
        parameters: Keyword arguments of the class.
        norm: The norm that the attack bounds or minimises.
        epsilon: The bound on the change in that norm, for values in [0, 1]; None: it is minimised.
        framework: `"tensorflow"` if the attack needs gradients or operations on tensors, of Keras's
            backend; else `"numpy"`.
        start: The attack that finds the starting points of a decision-based attack; images on which
            it fails are not attacked.
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
        """Return the Foolbox attack, with `rng` if its class takes it.

        Foolbox's own attacks draw from the global generators of NumPy and of the backend. Raises
        MissingPackageError if Foolbox is not installed.
        """
        require("foolbox", f"The attack {self.name} is one of")
        module, _, name = self.factory.partition(":")
        factory = getattr(import_module(module), name)
        own = {"rng": rng} if "rng" in signature(factory).parameters else {}
        return factory(**self.parameters, **own)


def _spec(
    name: str, family: str, factory: str, norm: str, epsilon: float | None = None, **parameters: Any
) -> AttackSpec:
    """Return the specification of a Foolbox attack; see `AttackSpec`."""
    start = parameters.pop("start", None)
    factory = f"foolbox.attacks:{factory}"
    framework = "tensorflow" if family == "gradient" or name == "Spatial" else "numpy"
    return AttackSpec(name, family, factory, parameters, norm, epsilon, framework, start)


_PGD: dict[str, Any] = {"steps": 40, "random_start": True}
_DEEPFOOL: dict[str, Any] = {"steps": 50, "candidates": 10, "overshoot": 0.02}
_CW: dict[str, Any] = {"binary_search_steps": 5, "steps": 100, "stepsize": 0.01}
_MOVES: dict[str, Any] = {"max_translation": 3, "max_rotation": 30}
_MOVES |= {"num_translations": 5, "num_rotations": 5}
_BLUR: dict[str, Any] = {"steps": 100, "max_sigma": 8.0, "channel_axis": -1}
_NOISES: dict[str, Any] = {"directions": 200, "steps": 50}
_SALTS: dict[str, Any] = {"steps": 100, "across_channels": True}
_BLENDED, _SALTED = "LinearSearchBlendedUniformNoise", "SaltAndPepperNoise"
_NOISE = _spec(_BLENDED, "decision", f"{_BLENDED}Attack", "l2", **_NOISES)
_SALT = _spec(_SALTED, "decision", f"{_SALTED}Attack", "l0", **_SALTS)
_FAST, _PROJECTED = "LinfFastGradientAttack", "LinfProjectedGradientDescentAttack"

_SPECS = (
    *(_spec(f"FGSM_{n}", "gradient", _FAST, "linf", n / 256) for n in (2, 4, 8)),
    _spec("DeepFoolLinf", "gradient", "LinfDeepFoolAttack", "linf", **_DEEPFOOL),
    _spec("DeepFoolL2", "gradient", "L2DeepFoolAttack", "l2", **_DEEPFOOL),
    *(_spec(f"RPGD_{n}", "gradient", _PROJECTED, "linf", n / 256, **_PGD) for n in (2, 4, 8)),
    _spec("CWL2", "gradient", "L2CarliniWagnerAttack", "l2", **_CW, initial_const=0.1),
    _spec("Boundary", "decision", "BoundaryAttack", "l2", start=_NOISE, steps=5000),
    _spec("Spatial", "decision", "SpatialAttack", "", **_MOVES),
    # With TensorFlow tensors, eagerpy rejects the indices that this attack uses.
    _spec("Pointwise", "decision", "PointwiseAttack", "l0", start=_SALT, l2_binary_search=False),
    _spec("GaussianBlur", "decision", "GaussianBlurAttack", "l2", **_BLUR),
)

ATTACKS: dict[str, AttackSpec] = {spec.name: spec for spec in _SPECS}
"""The paper's attacks on CIFAR-10 that Foolbox has, in the order of Table 4."""

_MNIST_CHANGES: dict[str, dict[str, Any]] = {
    **{f"{name}_{2**n}": {"epsilon": n / 10} for name in ("FGSM", "RPGD") for n in (1, 2, 3)},
    "CWL2": {"parameters": {**ATTACKS["CWL2"].parameters, "stepsize": 0.05, "initial_const": 1.0}},
}

MNIST_ATTACKS: dict[str, AttackSpec] = {
    name: replace(spec, **_MNIST_CHANGES.get(name, {})) for name, spec in ATTACKS.items()
}
"""The same for black and white digits, on which a change of 8/256 is too small to mislead."""
