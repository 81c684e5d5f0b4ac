"""Settings of the experiments on versions."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class VersionSettings(Settings):
    """Settings that all experiments on versions share."""

    kept = "versions"
    work: Annotated[Path, Option(help="Folder of versions and finished rows.")] = Path(
        "runs/versions"
    )


@dataclass(frozen=True)
class FlipSettings(VersionSettings):
    """Explain flipped answers of unseen samples by the fewest changes, in several scenarios."""

    trial: ClassVar = {"scenarios": "lenet5-rotated", "flips": 4}

    scenarios: Annotated[str, Option(help="Scenarios, separated by commas.")] = (
        "lenet5-rotated,lenet5-pruned,lenet5-repaired,lenet5-trojan,resnet10-inverted,sst2-halved"
    )
    flips: Annotated[int, Option(help="Flipped samples of each scenario.", min=1)] = 50
    seed: Annotated[int, Option(help="Seed of training, samples and controls.", min=0)] = 0


@dataclass(frozen=True)
class RevertSettings(VersionSettings):
    """Take back few changes; against interpolated weights, and changes of lower rank."""

    trial: ClassVar = {"scenarios": "lenet5-rotated", "seeds": 1, "labelled": 400}

    scenarios: Annotated[str, Option(help="Scenarios with a new skill, by commas.")] = (
        "lenet5-rotated,lenet5-inverted,lenet5-noisy,sst2-halved,resnet10-inverted"
    )
    seeds: Annotated[int, Option(help="Fine-tunings of each scenario.", min=1)] = 3
    labelled: Annotated[int, Option(help="Labelled samples of either domain.", min=100)] = 1500


@dataclass(frozen=True)
class HistorySettings(VersionSettings):
    """Plant faults in fine-tuned versions; rank channels with the old version at hand."""

    trial: ClassVar = {"scenarios": "lenet5-rotated", "faults": 3}

    scenarios: Annotated[str, Option(help="Scenarios, separated by commas.")] = (
        "lenet5-rotated,mlp-inverted,resnet10-inverted"
    )
    faults: Annotated[int, Option(help="Faults of each scenario.", min=1)] = 40
    cost: Annotated[float, Option(help="Least loss of accuracy, in points.", min=0.0)] = 2.0
    samples: Annotated[int, Option(help="Failing and passing samples to use.", min=1)] = 150
    seed: Annotated[int, Option(help="Seed of the faults.", min=0)] = 0
