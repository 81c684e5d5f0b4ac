"""Settings of DeepXplore's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from nnslicer_tf.experiments.settings import Settings, View


@dataclass(frozen=True)
class DifferenceSettings(Settings):
    """Find inputs on which networks disagree, measure their coverage, and retrain on them."""

    trial: ClassVar = {"seeds": 100, "train": 2000}

    kept = "deepxplore"

    models: Annotated[Path, Option(help="Folder of the published weights.")]
    seeds: Annotated[int, Option(help="Test images to start from.", min=10)] = 1000
    train: Annotated[int, Option(help="Training images for ranges and retraining.")] = 10_000
    explore: View = None
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of the differences found.")] = Path("runs/deepxplore")
