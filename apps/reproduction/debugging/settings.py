"""Settings of the experiments on causes."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings

KINDS = ("noise", "scale", "negate", "synapses")
"""Kinds of faults: noise on all weights of a channel, all of them scaled, all of them negated, and
one weight in ten of them set to a large value."""

_METHODS = (
    *("gradient_contrast", "patching", "gradient", "wrong_minus_right", "contrast"),
    *("contrast:amount", "wrong_minus_right:amount", "tarantula", "ochiai", "dstar"),
    *("deepfault_tarantula", "deepfault_ochiai", "deepfault_dstar", "random"),
)


Model = Annotated[str, Option(help="Model of the zoo.")]
Work = Annotated[Path, Option(help="Folder of resumable runs.")]


@dataclass(frozen=True)
class FaultSettings(Settings):
    """Settings of experiments on planted faults."""

    kept = "debugging"
    model: Model = "lenet5"
    faults: Annotated[int, Option(help="Faults that cost enough accuracy.", min=1)] = 100
    images: Annotated[int, Option(help="Test samples that show the faults.", min=50)] = 2000
    samples: Annotated[int, Option(help="Failing and passing samples to use.", min=1)] = 100
    cost: Annotated[float, Option(help="Least loss of accuracy, in points.", min=0.0)] = 2.0
    strengths: Annotated[str, Option(help="Strengths of faults, separated by commas.")] = "1,2,4"
    kinds: Annotated[str, Option(help="Kinds of faults, separated by commas.")] = ",".join(KINDS)
    seed: Annotated[int, Option(help="Random seed of the faults.", min=0)] = 0
    work: Work = Path("runs/debugging")


@dataclass(frozen=True)
class LocalisationSettings(FaultSettings):
    """Plant faults in a model, and rank its channels by how suspicious they are."""

    trial: ClassVar = {"faults": 3, "images": 300}
    methods: Annotated[str, Option(help="Methods, separated by commas.")] = ",".join(_METHODS)


@dataclass(frozen=True)
class UnitSettings(Settings):
    """Plant faults of six kinds in four networks, and rank their units among all hidden ones."""

    trial: ClassVar = {"faults": 1, "images": 300, "networks": "mlp"}
    kept = "debugging"
    networks: Annotated[str, Option(help="Networks, separated by commas.")] = (
        "mlp,digits_cnn,lenet,lenet5"
    )
    methods: Annotated[str, Option(help="Methods, separated by commas.")] = "adjustment,gradient"
    faults: Annotated[int, Option(help="Faults of each kind, network and seed.", min=1)] = 3
    images: Annotated[int, Option(help="Test samples that show the faults.", min=50)] = 1000
    samples: Annotated[int, Option(help="Failing and passing samples to use.", min=1)] = 64
    cost: Annotated[float, Option(help="Least loss of accuracy, in points.", min=0.0)] = 2.0
    work: Work = Path("runs/debugging")
    # Of the faults on which the method was chosen, and of others. Those of seed 1 were the others
    # until one of the method's rules was chosen on them.
    seeds: tuple[int, int] = (0, 2)


@dataclass(frozen=True)
class MendingSettings(FaultSettings):
    """Mend models with planted faults from few images, in several ways; half are for mending."""

    trial: ClassVar = {"faults": 1, "images": 300}
    faults: Annotated[int, Option(help="Faults that cost enough accuracy.", min=1)] = 20
    samples: Annotated[int, Option(help="Failing and passing samples to use.", min=1)] = 20


@dataclass(frozen=True)
class RepairSettings(Settings):
    """Repair images that a model gets wrong, provably, by changes of its dense layers."""

    trial: ClassVar = {"counts": (2, 4)}
    kept = "debugging"
    model: Model = "lenet5"
    train: Annotated[int, Option(help="Training images to keep right.", min=1)] = 50
    among: Annotated[int, Option(help="Weights that may change: the most suspicious.")] = 1000
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    counts: tuple[int, ...] = (5, 10, 20, 50)  # images to repair


@dataclass(frozen=True)
class CompressionSettings(Settings):
    """Say why a compressed model deviates, leave few layers in float, and search again."""

    trial: ClassVar = {"seeds": 10, "max_queries": 300}
    kept = "debugging"
    pair: Annotated[str, Option(help="Pair of models, see find_deviations.py.")] = "lenet5-integer"
    ways: Annotated[str, Option(help="Quantisers, separated by commas.")] = (
        "dynamic,weights,integer,static,static16"
    )
    budget: Annotated[float, Option(help="Largest share of the weights in float.")] = 0.05
    seeds: Annotated[int, Option(help="Test, and training, images to search from.", min=2)] = 100
    max_queries: Annotated[int, Option(help="Queries after which a search gives up.", min=1)] = 2000
    seed: Annotated[int, Option(help="Random seed of the searches.", min=0)] = 0
    models: Annotated[
        Path, Option(help="Folder of the published models.", envvar="DIFFCHASER_MODELS")
    ] = Path(".")
    work: Work = Path("runs/debugging")
    shares: tuple[float, ...] = (1.0, 0.1, 0.01, 0.001)  # of the weights' errors


@dataclass(frozen=True)
class RecipeSettings(Settings):
    """Leave layers in float by several rankings, quantise again, and run the files."""

    trial: ClassVar = {"networks": "resnet10", "learned": 300, "tested": 100, "budgets": (0.1,)}
    kept = "debugging"
    networks: Annotated[str, Option(help="Networks of the zoo, separated by commas.")] = (
        "resnet10,plainnet20,mobilenet_v3_small,vit"
    )
    learned: Annotated[int, Option(help="Training images that rank layers.", min=1)] = 1000
    tested: Annotated[int, Option(help="Test images.", min=1)] = 1000
    seed: Annotated[int, Option(help="Seed of random orders of layers.", min=0)] = 0
    work: Work = Path("runs/debugging")
    quantisers: tuple[str, ...] = ("dynamic_wi4_afp32",)  # settings of ai-edge-quantizer
    budgets: tuple[float, ...] = (0.02, 0.05, 0.1, 0.2)  # largest shares of the weights in float
