"""Settings of the comparison of explanations."""

from dataclasses import dataclass
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings


@dataclass(frozen=True)
class TableSettings(Settings):
    """Compare contributions of columns with exact Shapley values over the same rows."""

    trial: ClassVar = {"samples": 2, "rows": 10, "epochs": 2}

    kept = "explanations"
    samples: Annotated[int, Option(help="Test rows that are explained.", min=2)] = 20
    rows: Annotated[int, Option(help="Background rows.", min=4)] = 100
    epochs: Annotated[int, Option(help="Epochs of training.", min=1)] = 60
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0
