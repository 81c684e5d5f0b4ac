"""Settings of the experiments with planted circuits."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class Reading:
    """A reading of the definitions, at several θ; see `Slicer`."""

    name: str
    thetas: tuple[float, ...]
    of_channels: bool = False  # one mean for all positions, or times
    product: str = "value"
    relative_to: str = "output"


_BY_PAPER = Reading("slices", (0.0, 0.1, 0.3, 0.5, 1.0))


@dataclass(frozen=True)
class CircuitSettings(Settings):
    """Find planted circuits: slices, gradients, magnitudes."""

    trial: ClassVar = {"networks": 1, "explained": 8, "samples": 50, "points": 4}
    kept = "circuits"
    networks: Annotated[int, Option(help="Networks of each circuit.", min=1)] = 3
    dead: Annotated[int, Option(help="Dead units, a multiple of 4.", min=4)] = 16
    samples: Annotated[int, Option(help="Samples of the profile.", min=10)] = 256
    explained: Annotated[int, Option(help="Samples to explain.", min=1)] = 32
    points: Annotated[int, Option(help="Points of integrated gradients.", min=1)] = 8
    readings: tuple[Reading, ...] = (_BY_PAPER,)
    seed: Annotated[int, Option(help="First random seed.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished networks.")] = Path("runs/circuits")


@dataclass(frozen=True)
class RecurrentCircuitSettings(CircuitSettings):
    """Find planted circuits in recurrent networks: slices, gradients, magnitudes."""

    readings: tuple[Reading, ...] = (
        _BY_PAPER,
        Reading("slices, midpoints", (0.1, 0.3), product="midpoint"),
        Reading("slices, relative to the sum", (0.1, 0.3, 0.5), relative_to="sum"),
    )


@dataclass(frozen=True)
class TransformerCircuitSettings(CircuitSettings):
    """Find planted circuits in transformers: slices, gradients, magnitudes."""

    readings: tuple[Reading, ...] = (
        _BY_PAPER,
        Reading("slices, midpoints", (0.0, 0.1, 0.3), product="midpoint"),
        Reading("slices, means of channels", (0.0, 0.1, 0.3), of_channels=True),
        Reading("slices, both", (0.0, 0.1, 0.3), of_channels=True, product="midpoint"),
    )


@dataclass(frozen=True)
class TracrSettings(Settings):
    """Find the edges that RASP programs compiled by Tracr use: slices, EAP, EAP-IG, ACDC."""

    trial: ClassVar = {"programs": ("reverse", "histogram"), "explained": 8, "references": 2}

    kept = "circuits"
    programs: Annotated[list[str] | None, Option(help="Names of programs; all by default.")] = None
    references: Annotated[int, Option(help="Inputs to take ablated values from.", min=1)] = 4
    explained: Annotated[int, Option(help="Samples for each of them.", min=1)] = 16
    points: Annotated[int, Option(help="Points of EAP-IG.", min=1)] = 16
    rounds: Annotated[int, Option(help="Rounds of ablation.", min=1)] = 16
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished programs.")] = Path("runs/circuits")
