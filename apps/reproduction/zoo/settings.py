"""Settings of the training of a model of the zoo."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from typer import Argument, Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class TrainingSettings(Settings):
    """Train a model, and write its weights and a log."""

    trial: ClassVar = {"epochs": 2, "reduced": True}
    kept = "training"
    model: Annotated[str, Argument(help="A model of the zoo; an unknown name lists them.")]
    dataset: Annotated[str, Option(help="Default: the model's own.")] = ""
    epochs: Annotated[int | None, Option(help="Default: the recipe's.", min=1)] = None
    seed: Annotated[int, Option(min=0)] = 0
    precision: Annotated[
        Literal["float32", "mixed_bfloat16"] | None,
        Option(help="Precision of the layers. Default: the recipe's."),
    ] = None
    threads: Annotated[int, Option(help="Default: all cores.", min=0)] = 0
    checkpoints: Annotated[Path, Option(help="Folder of resumable runs.")] = Path("runs")
    weights: Annotated[Path | None, Option(help="Default: the zoo's own file.")] = None
    reduced: bool = False  # one epoch or two, few images

    @property
    def run(self) -> str:
        """Name of the run: model, data set, and whether it is a trial."""
        return f"{self.model}-{self.used_dataset}" + "-quick" * self.reduced

    @property
    def used_dataset(self) -> str:
        """The requested data set, or the model's default."""
        from reproduction.zoo.models import zoo

        return self.dataset or zoo.models.entry(self.model).dataset

    @property
    def trial_folder(self) -> Path:
        """The folder of checkpoints, and of a trial's weights and log."""
        return self.checkpoints / f"train-{self.run}-{self.seed}"
