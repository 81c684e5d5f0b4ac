"""Settings of the experiments with DeepBase."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings

Records = Annotated[int, Option(help="Training images.", min=100)]
Seed = Annotated[int, Option(help="Random seed.", min=0)]


@dataclass(frozen=True)
class UnitSettings(Settings):
    """Find the channels that follow brightness, hues, edge directions and classes."""

    trial: ClassVar = {"records": 300}
    kept = "deepbase"
    records: Records = 2000
    error: Annotated[float, Option(help="Error allowed in a score.")] = 0.05


@dataclass(frozen=True)
class PruningSettings(Settings):
    """Remove channels without affinity to three classes; measure accuracy among the three."""

    trial: ClassVar = {"records": 300, "least": (0.1, 0.2)}
    kept = "deepbase"
    records: Records = 2000
    seed: Seed = 0
    least: tuple[float, ...] = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3)  # smallest affinity that is kept


@dataclass(frozen=True)
class ExplorationSettings(Settings):
    """Start DeepXplore from the images on which a hypothesis that no unit follows is strong."""

    trial: ClassVar = {"seeds": 30, "records": 500}
    kept = "deepbase"
    seeds: Annotated[int, Option(help="Number of seeds of each kind.", min=10)] = 100
    seed: Seed = 0
    records: int = 2000  # inspected


@dataclass(frozen=True)
class SqlTrainingSettings(Settings):
    """Train a character LSTM on SQL from a grammar."""

    trial: ClassVar = {"records": 200, "epochs": 1, "weights": Path("runs/sql-quick.weights.h5")}
    kept = "deepbase"
    records: Annotated[int, Option(help="Records of 64 characters.", min=64)] = 8000
    epochs: Annotated[int, Option(min=1)] = 12
    learning_rate: Annotated[float, Option(help="Learning rate of Adam.")] = 3e-3
    seed: Seed = 0
    weights: Annotated[Path | None, Option(help="Default: the included file.")] = None


@dataclass(frozen=True)
class SqlSettings(Settings):
    """Find the units of a character LSTM that follow the parse of SQL."""

    trial: ClassVar = {"records": 200}
    kept = "deepbase"
    records: Annotated[int, Option(help="Records of 64 characters.", min=100)] = 1000
    error: Annotated[float, Option(help="Error allowed in a score.")] = 0.02
    seed: Annotated[int, Option(help="Seed; not that of the training.", min=0)] = 10
    weights: Annotated[Path | None, Option(help="Default: the included file.")] = None
