"""Settings of the comparison of slices by what they keep."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class MapSettings(Settings):
    """Order the features of an input by several methods, then delete and insert them."""

    trial: ClassVar = {"samples": 4, "profile": 200}

    kept = "decisive"
    model: Annotated[str, Option(help="A model of the zoo.")] = "lenet5"
    split: Annotated[str, Option(help="Split of all samples.")] = "train[95%:]"
    samples: Annotated[int, Option(help="Samples, drawn at random.", min=2)] = 200
    profile: Annotated[int, Option(help="First training samples, for the means.", min=1)] = 5000
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished parts.")] = Path("runs/decisive")


@dataclass(frozen=True)
class DecisiveSettings(MapSettings):
    """Keep the largest synapses by several methods, ablate the others to their means."""

    trial: ClassVar = {"samples": 4, "profile": 200, "learned": 1, "steps": 10}

    split: Annotated[str, Option(help="Split of all samples.")] = "test"
    samples: Annotated[int, Option(help="Samples, drawn at random.", min=2)] = 100
    points: Annotated[int, Option(help="Points of EAP-IG.", min=1)] = 8
    learned: Annotated[int, Option(help="Samples whose masks are learned.", min=1)] = 8
    steps: Annotated[int, Option(help="Steps of learning a mask.", min=1)] = 150


@dataclass(frozen=True)
class OthersSettings(MapSettings):
    """Give inactive synapses the values of other samples, and see what slices keep."""

    trial: ClassVar = {
        "samples": 3, "profile": 200, "background": 60, "unseen": 20, "splits": 2, "ranked": 1,
        "points": 2,
    }  # fmt: skip

    split: Annotated[str, Option(help="Split of all samples.")] = "test"
    samples: Annotated[int, Option(help="Samples, drawn at random.", min=2)] = 50
    background: Annotated[int, Option(help="Other samples of a search.", min=60)] = 200
    unseen: Annotated[int, Option(help="Other samples that judge slices.", min=2)] = 300
    splits: Annotated[int, Option(help="Backgrounds, drawn at random.", min=1)] = 20
    ranked: Annotated[int, Option(help="Samples that EAP-IG ranks.", min=1)] = 50
    points: Annotated[int, Option(help="Points of EAP-IG.", min=1)] = 5


@dataclass(frozen=True)
class ClassSettings(MapSettings):
    """Find one slice for each class that keeps its samples and claims few others."""

    trial: ClassVar = {"profile": 200, "splits": 1}

    split: Annotated[str, Option(help="Split of all samples.")] = "test"
    of_class: Annotated[int, Option(help="Samples of the class, for search and test.")] = 400
    others: Annotated[int, Option(help="Samples of other classes, likewise.")] = 800
    at_least: Annotated[float, Option(help="Share of the class to keep.")] = 0.95
    at_most: Annotated[float, Option(help="Share of others to claim.")] = 0.05
    splits: Annotated[int, Option(help="Choices of these samples.", min=1)] = 10
