"""Settings for challenging the user's own detector."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.nnslicer.settings import Names, Seed, Theta, Work
from reproduction.settings import Settings

DataOption = Annotated[str, Option(help="As for the commands of nnslicer: files or a data set.")]


@dataclass(frozen=True)
class OwnSettings(Settings):
    """Attack a model and its detector with adaptive attacks; check that the result is credible."""

    trial: ClassVar = {"steps": 20, "queries": 40, "rounds": 2}
    kept = "challenge"
    model: Annotated[Path, Option(help="The Keras model, a .keras or .h5 file.")]
    detector: Annotated[Path, Option(help="The detector, an .npz file from `Detector.save`.")]
    data: DataOption  # labelled inputs to attack, new to the detector
    normal: DataOption = ""  # normal inputs of all classes, to start from; default: the same
    profile: Annotated[
        Path | None, Option(help="For a detector based on slices: the slicer's profile.")
    ] = None
    theta: Theta = 0.0
    kind: Annotated[str, Option(help="The detector's class, as MODULE:CLASS.")] = (
        "nnslicer_tf.detection:SliceDetector"
    )
    normalise: Annotated[str, Option(help="For images: 'unit' (to [0, 1]) or 'none'.")] = "unit"
    low: Annotated[float, Option(help="Least value of an input.")] = 0.0
    high: Annotated[float, Option(help="Largest value of an input.")] = 1.0
    attacks: Names = ""
    norms: Annotated[str, Option(help="linf, l2.")] = "linf,l2"
    steps: Annotated[int, Option(help="Gradient steps of a white-box attack.", min=1)] = 60
    queries: Annotated[int, Option(help="Queries of a black-box attack, per input.", min=1)] = 400
    rounds: Annotated[int, Option(help="Weights of a sum; rounds of the smallest change.")] = 4
    seed: Seed = 0
    work: Work = Path("runs/challenge")

    @property
    def results_folder(self) -> Path:
        """The user's folder: these results are not the project's."""
        return self.work / "results"
