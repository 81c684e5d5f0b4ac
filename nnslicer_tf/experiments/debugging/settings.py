"""Settings of the experiments on causes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from nnslicer_tf.experiments.settings import Settings, View

_METHODS = (
    *("gradient_contrast", "patching", "gradient", "wrong_minus_right", "contrast"),
    *("tarantula", "ochiai", "dstar"),
    *("deepfault_tarantula", "deepfault_ochiai", "deepfault_dstar", "random"),
)


@dataclass(frozen=True)
class LocalisationSettings(Settings):
    """Plant faults in a model, and rank its channels by how suspicious they are."""

    trial: ClassVar = {"faults": 3, "images": 300}

    kept = "debugging"

    model: Annotated[str, Option(help="Model of the zoo.")] = "lenet5"
    faults: Annotated[int, Option(help="Faults that cost enough accuracy.", min=1)] = 100
    images: Annotated[int, Option(help="Test images that show the faults.", min=50)] = 2000
    samples: Annotated[int, Option(help="Failing, and passing, images to compare.", min=1)] = 100
    cost: Annotated[float, Option(help="Least loss of accuracy, in points.", min=0.0)] = 2.0
    methods: Annotated[str, Option(help="Names, separated by commas.")] = ",".join(_METHODS)
    explore: View = None
    seed: Annotated[int, Option(help="Random seed of the faults.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of resumable runs.")] = Path("runs/debugging")


@dataclass(frozen=True)
class MendingSettings(Settings):
    """Mend models with planted faults from few images, in several ways."""

    trial: ClassVar = {"faults": 1, "images": 300}

    kept = "debugging"

    model: Annotated[str, Option(help="Model of the zoo.")] = "lenet5"
    faults: Annotated[int, Option(help="Faults that cost enough accuracy.", min=1)] = 20
    images: Annotated[int, Option(help="Test images; half are for mending.", min=50)] = 2000
    samples: Annotated[int, Option(help="Failing, and passing, images to mend by.", min=1)] = 20
    cost: Annotated[float, Option(help="Least loss of accuracy, in points.", min=0.0)] = 2.0
    seed: Annotated[int, Option(help="Random seed of the faults.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of resumable runs.")] = Path("runs/debugging")


@dataclass(frozen=True)
class RepairSettings(Settings):
    """Repair images that a model gets wrong, provably, by changes of its dense layers."""

    trial: ClassVar = {"counts": (2, 4)}

    kept = "debugging"

    model: Annotated[str, Option(help="Model of the zoo.")] = "lenet5"
    train: Annotated[int, Option(help="Training images that are to stay right.", min=1)] = 50
    among: Annotated[int, Option(help="Weights that may change: the most suspicious.")] = 1000
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    counts: tuple[int, ...] = (5, 10, 20, 50)  # images to repair
