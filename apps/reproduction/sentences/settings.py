"""Settings of the experiments on sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from reproduction.settings import Settings, View

Model = Annotated[str, Option(help="text_transformer or text_lstm.")]
Work = Annotated[Path, Option(help="Folder of finished parts.")]


@dataclass(frozen=True)
class SentenceSettings(Settings):
    """Settings common to all experiments on sentences."""

    kept = "sentences"
    sentences: Annotated[int, Option(help="Test sentences, drawn at random.", min=2)] = 200
    profile: Annotated[int, Option(help="Training sentences of the profile.", min=1)] = 5000
    seed: Annotated[int, Option(help="Random seed.", min=0)] = 0


@dataclass(frozen=True)
class WordSettings(SentenceSettings):
    """Slice sentences, draw their words, and delete words in the order of several methods."""

    trial: ClassVar = {"sentences": 10, "profile": 200}
    model: Model = "text_transformer"
    split: Annotated[str, Option(help="train[5000:]: to choose between readings.")] = "test"
    explore: View = None


@dataclass(frozen=True)
class PartSettings(SentenceSettings):
    """Delete heads and synapses of the transformer in the order of several methods."""

    trial: ClassVar = {"sentences": 4, "profile": 200}
    sentences: int = 100
    split: Annotated[str, Option(help="train[5000:]: to choose between readings.")] = "test"
    work: Work = Path("runs/sentences")


@dataclass(frozen=True)
class RoundingSettings(SentenceSettings):
    """Slice sentences with copies of a model whose weights differ in their last bits."""

    trial: ClassVar = {"sentences": 6, "profile": 200, "copies": 1}
    model: Model = "text_transformer"
    copies: Annotated[int, Option(help="Copies of the model.", min=1)] = 5
    work: Work = Path("runs/sentences")
