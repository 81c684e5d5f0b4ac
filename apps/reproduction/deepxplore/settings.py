"""Settings of DeepXplore's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings

Models = Annotated[Path, Option(help="Folder of the published weights (MNIST).")]
Seed = Annotated[int, Option(help="Random seed.", min=0)]
Work = Annotated[Path, Option(help="Folder of the differences found and of finished rows.")]


@dataclass(frozen=True)
class DifferenceSettings(Settings):
    """Find inputs on which networks disagree, measure their coverage, and retrain on them."""

    trial: ClassVar = {"seeds": 100, "train": 2000}
    kept = "deepxplore"
    models: Models
    seeds: Annotated[int, Option(help="Test images to start from.", min=10)] = 1000
    train: Annotated[int, Option(help="Training images for ranges and retraining.")] = 10_000
    seed: Seed = 0
    work: Work = Path("runs/deepxplore")


@dataclass(frozen=True)
class SweepSettings(Settings):
    """Change the weights and the step of the search, one at a time."""

    trial: ClassVar = {"seeds": 20}
    kept = "deepxplore"
    models: Models = Path(".")
    dataset: Annotated[str, Option(help="mnist or cifar10.")] = "mnist"
    seeds: Annotated[int, Option(help="Test images to start from.", min=10)] = 200
    seed: Seed = 0
    work: Work = Path("runs/deepxplore")


@dataclass(frozen=True)
class NumberSettings(SweepSettings):
    """Measure coverage by the number of inputs, and how often networks agree on them."""

    trial: ClassVar = {"seeds": 40, "draws": 2}
    seeds: Annotated[int, Option(help="Test images to start from.", min=10)] = 1_000
    draws: Annotated[int, Option(help="Random orders of the inputs.", min=1)] = 10
