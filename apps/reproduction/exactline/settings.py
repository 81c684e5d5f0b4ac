"""Settings of the ExactLine paper's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class _LineSettings(Settings):
    kept = "exactline"
    trial_folder = Path("runs/exactline")


@dataclass(frozen=True)
class AcasSettings(_LineSettings):
    """Compare decision boundaries of ACAS Xu networks on exact lines and on samples (figure 2)."""

    trial: ClassVar = {"every": 9, "grid": 12}
    networks: Annotated[Path, Option(help="Folder of .nnet files.")]
    speed: Annotated[float, Option(help="Speed of both aircraft, ft/s.")] = 800.0
    reach: Annotated[float, Option(help="Largest distance, ft.")] = 20_000.0
    every: int = 1  # use only every n-th network of the folder
    grid: int = 60  # spokes, and circles


@dataclass(frozen=True)
class PropertySettings(_LineSettings):
    """Search for violations of ACAS Xu's properties 1 to 4 by lines, points and gradients."""

    trial: ClassVar = {"every": 9, "seconds": 0.2}
    networks: Annotated[Path, Option(help="Folder of .nnet files.")]
    seconds: Annotated[float, Option(help="Processor time of each search.")] = 1.0
    seed: Annotated[int, Option(min=0)] = 0
    every: int = 1  # use only every n-th network of the folder
    work: Annotated[Path, Option(help="Folder of resumable work.")] = Path("runs/exactline")


@dataclass(frozen=True)
class AdviceSettings(_LineSettings):
    """Draw exact decision maps of ACAS Xu networks, and measure what samples miss."""

    trial: ClassVar = {"every": 20}
    networks: Annotated[Path, Option(help="Folder of .nnet files.")]
    every: Annotated[int, Option(min=1, help="Use only every n-th network.")] = 1
    samples: tuple[int, ...] = (25, 100)  # side of each grid of samples


@dataclass(frozen=True)
class NeighbourhoodSettings(_LineSettings):
    """Measure the adversarial class on planes through images and their neighbours."""

    trial: ClassVar = {"images": 1}
    images: Annotated[int, Option(min=1, help="Test images of each data set.")] = 5
    seed: Annotated[int, Option(min=0)] = 0


@dataclass(frozen=True)
class CompressedSettings(_LineSettings):
    """Measure exactly where networks with quantised weights disagree with the original."""

    trial: ClassVar = {"planes": 1, "lines": 3}
    planes: Annotated[int, Option(min=1, help="Planes through three images.")] = 10
    lines: Annotated[int, Option(min=1, help="Lines between two images.")] = 50
    seed: Annotated[int, Option(min=0)] = 0


@dataclass(frozen=True)
class BaselineSettings(_LineSettings):
    """Average integrated gradients exactly over a polygon of baselines."""

    trial: ClassVar = {"images": 1}
    images: Annotated[int, Option(min=1, help="Test images.")] = 10
    seed: Annotated[int, Option(min=0)] = 0


@dataclass(frozen=True)
class AttributionSettings(_LineSettings):
    """Compare exact integrated gradients with sums of samples (tables 1 and 2)."""

    trial: ClassVar = {"images": 3}
    images: Annotated[int, Option(min=1, help="Test images for each network.")] = 1_000
    network: Annotated[
        list[str] | None, Option(help="convsmall, convmedium, convbig, lenet5; default: all.")
    ] = None
    work: Annotated[Path, Option(help="Folder of resumable work.")] = Path("runs/exactline")
    most: Annotated[int, Option(min=10, help="Largest number of samples to try.")] = 1_000


@dataclass(frozen=True)
class PathIntegralSettings(AttributionSettings):
    """Count the samples that line integrals need, uniform and non-uniform; exact conductance."""

    images: Annotated[int, Option(min=1, help="Test images for each network.")] = 30
    most: Annotated[int, Option(min=10, help="Largest number of samples to try.")] = 500


@dataclass(frozen=True)
class LinearitySettings(_LineSettings):
    """Compare linearity towards adversarial and random neighbours (tables 3 and 4)."""

    trial: ClassVar = {"images": 5}
    images: Annotated[int, Option(min=1, help="Test images of each data set.")] = 1_000
    network: Annotated[str, Option(help="convsmall, convmedium or convbig.")] = "convsmall"
    seed: Annotated[int, Option(min=0)] = 0


@dataclass(frozen=True)
class ProgramSettings(LinearitySettings):
    """Measure linearity by the procedure of the paper's program."""


@dataclass(frozen=True)
class ProgramAttributionSettings(AttributionSettings):
    """Compare exact integrated gradients with sums by the procedure of the paper's program."""


@dataclass(frozen=True)
class TrainingSettings(_LineSettings):
    """Train a convolutional network that `linearity` and `attributions` analyse."""

    trial: ClassVar = {"reduced": True}
    trial_folder = Path("runs")
    dataset: Annotated[str, Argument(help="mnist or cifar10")]
    method: Annotated[str, Argument(help="normal, pgd or box")]
    network: Annotated[str, Option(help="convsmall, convmedium or convbig.")] = "convsmall"
    seed: Annotated[int, Option(min=0)] = 0
    threads: Annotated[int, Option(help="Default: all cores.", min=0)] = 0
    reduced: bool = False  # one epoch or two, few images

    @property
    def results_folder(self) -> Path:
        """The folder of kept logs."""
        return super().results_folder / "training"
