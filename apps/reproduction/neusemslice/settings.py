"""Settings of the NeuSemSlice paper's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from typer import Argument, Option

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.settings import Settings

WAYS = ("Global", "Category-wise", "NeuSemSlice", "NeuSemSlice, centred")

OURS = WAYS[2:]

_SHARES = tuple(step / 10 for step in range(1, 11))
_THETAS = tuple(step / 100 for step in range(90, 100))

PAPER_SETTINGS = dict(zip(WAYS, (_SHARES, _SHARES, _THETAS, _THETAS), strict=True))
"""Slicing method → the paper's shares or thresholds (section 5.2)."""

_MORE = {_SHARES: (0.01, 0.02, 0.05), _THETAS: (0.5, 0.7, 0.8, 0.995, 0.999, 0.9999)}
SETTINGS = {way: tuple(sorted((*known, *_MORE[known]))) for way, known in PAPER_SETTINGS.items()}
"""The same with more, so that all methods reach from slight to nearly full compression."""

Model = Annotated[str, Argument(help="A model of the zoo.")]
DataSet = Annotated[str, Argument(help="A data set.")]
Metrics = Annotated[
    str, Option(help="Names, separated by commas; commands for one metric take the first.")
]
Tests = Annotated[int, Option(min=10, help="Test images.")]
Samples = Annotated[int, Option(min=10, help="Images for scores.")]
Work = Annotated[Path, Option(help="Folder of models and finished repeats.")]
Interval = Annotated[
    int, Option(min=1, help="Neurons by which semantic slices grow (Algorithm 1's i).")
]


def _interval_name(interval: int) -> str:
    """Return an ending of names of files; nothing for the interval 1."""
    return "" if interval == 1 else f"-interval{interval}"


@dataclass(frozen=True)
class MaintenanceSettings(Settings):
    """Settings of all experiments; the help says which settings only one of them reads."""

    trial: ClassVar = {"repeats": 1, "images": 2_000, "epochs": 2, "tests": 500, "samples": 500}
    kept = "semantic"
    model: Model = "mlp"
    dataset: DataSet = "mnist"
    metrics: Metrics = "taylor"
    repeats: Annotated[int, Option(min=1, help="Number of models, each with its own seed.")] = 5
    first_seed: Annotated[
        int, Option(min=0, help="Seed of the first model; the others have the next ones.")
    ] = 0
    images: Annotated[int, Option(min=100, help="Training images.")] = 50_000
    epochs: Annotated[int, Option(min=1, help="Epochs of training a model.")] = 4
    recipe: Annotated[
        Literal["plain", "zoo"],
        Option(help="Train by Adam without augmentation, or as the zoo does, but for --epochs."),
    ] = "plain"
    tests: Tests = 10_000
    samples: Samples = 5_000
    precision: Annotated[
        Literal["float32", "mixed_bfloat16"], Option(help="Precision of training and prediction.")
    ] = "float32"
    interval: Interval = 1
    weights: Annotated[
        Literal["trained", "zoo"],
        Option(help="Train a model for each repeat, or take the zoo's, which is one."),
    ] = "trained"
    attacked: Annotated[int, Option(min=10, help="readapt: number of attacked images.")] = 1_000
    tolerance: Annotated[float, Option(help="restructure: accuracy that may be lost.")] = 0.01
    scenario: Annotated[
        int, Option(min=1, max=2, help="develop: 1 has two tasks, 2 has three.")
    ] = 1
    work: Work = Path("runs/semantic")

    @property
    def metric(self) -> str:
        """The first metric."""
        return self.metrics.split(",")[0]

    @property
    def training_name(self) -> str:
        """Recipe and precision as a part of names of files; nothing for the defaults."""
        recipe = "" if self.recipe == "plain" else f"-{self.recipe}"
        return recipe + ("" if self.precision == "float32" else f"-{self.precision}")

    @property
    def interval_name(self) -> str:
        """The interval as a part of names of files."""
        return _interval_name(self.interval)

    @property
    def name(self) -> str:
        """Model and data set."""
        return f"{self.model}-{self.dataset}"

    @property
    def seeds(self) -> range:
        """The random seeds, one for each repeat."""
        return range(self.first_seed, self.first_seed + self.repeats)

    def __post_init__(self) -> None:
        if self.weights == "zoo" and self.seeds != range(1):
            raise InvalidArgumentError(
                "The zoo has one set of weights of a model: --weights zoo needs --repeats 1 and no "
                f"--first-seed. Received: --repeats {self.repeats} --first-seed {self.first_seed}"
            )


@dataclass(frozen=True)
class ScoringTimeSettings(Settings):
    """Time the metrics of a trained model's neurons (section 5.2)."""

    trial: ClassVar = {"images": 500, "runs": 1}
    kept = "semantic"
    model: Model = "mlp"
    dataset: DataSet = "mnist"
    images: Annotated[int, Option(min=0, help="Training images to score on; 0: all.")] = 0
    runs: Annotated[int, Option(min=1, help="Runs of each metric, of which the median counts.")] = 5


@dataclass(frozen=True)
class CaseStudySettings(Settings):
    """Slice a trained model, and compress its slices (figure 6)."""

    trial: ClassVar = {"tests": 200, "samples": 200, "metrics": "taylor"}
    kept = "semantic"
    model: Model = "mobilenet_v3_small"
    dataset: DataSet = "cifar10"
    metrics: Metrics = "deeplift,taylor"
    tests: Tests = 10_000
    samples: Samples = 5_000
    interval: Interval = 1
    work: Work = Path("runs/semantic")

    @property
    def name(self) -> str:
        """Model, data set, and the interval unless it is 1."""
        return f"{self.model}-{self.dataset}{_interval_name(self.interval)}"
