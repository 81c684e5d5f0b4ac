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
    split: Annotated[str, Option(help="Split the samples are drawn from.")] = "train[95%:]"
    samples: Annotated[int, Option(help="Samples, drawn at random.", min=2)] = 200
    profile: Annotated[int, Option(help="First training samples, for the means.", min=1)] = 5000
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished parts.")] = Path("runs/decisive")


@dataclass(frozen=True)
class DecisiveSettings(MapSettings):
    """Keep the largest synapses by several methods, ablate the others to their means."""

    trial: ClassVar = {"samples": 4, "profile": 200, "learned": 1, "steps": 10}

    samples: Annotated[int, Option(help="Samples, drawn at random.", min=2)] = 100
    points: Annotated[int, Option(help="Points of EAP-IG.", min=1)] = 8
    learned: Annotated[int, Option(help="Samples whose masks are learned.", min=1)] = 8
    steps: Annotated[int, Option(help="Steps of learning a mask.", min=1)] = 150
