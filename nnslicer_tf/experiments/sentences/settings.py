"""Settings of the experiments on sentences."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Option

from nnslicer_tf.experiments.settings import Settings, View


@dataclass(frozen=True)
class WordSettings(Settings):
    """Slice sentences, draw their words, and delete words in the order of several methods."""

    trial: ClassVar = {"sentences": 10, "profile": 200}

    kept = "sentences"

    model: Annotated[str, Option(help="text_transformer or text_lstm.")] = "text_transformer"
    sentences: Annotated[int, Option(help="Test sentences whose words are deleted.", min=2)] = 200
    profile: Annotated[int, Option(help="Training sentences of the profile.", min=1)] = 5000
    split: Annotated[str, Option(help="train[5000:]: to choose between readings.")] = "test"
    explore: View = None
    seed: Annotated[int, Option(help="Seed of the random order.", min=0)] = 0


@dataclass(frozen=True)
class PartSettings(Settings):
    """Delete heads and synapses of the transformer in the order of several methods."""

    trial: ClassVar = {"sentences": 4, "profile": 200}

    kept = "sentences"

    sentences: Annotated[int, Option(help="Test sentences.", min=2)] = 100
    profile: Annotated[int, Option(help="Training sentences of the profile.", min=1)] = 5000
    split: Annotated[str, Option(help="train[5000:]: to choose between readings.")] = "test"
    seed: Annotated[int, Option(help="Seed of the choice and the random order.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished sentences.")] = Path("runs/sentences")


@dataclass(frozen=True)
class RoundingSettings(Settings):
    """Slice sentences with copies of a model whose weights differ in their last bits."""

    trial: ClassVar = {"sentences": 6, "profile": 200, "copies": 1}

    kept = "sentences"

    model: Annotated[str, Option(help="text_transformer or text_lstm.")] = "text_transformer"
    sentences: Annotated[int, Option(help="Test sentences whose words are deleted.", min=2)] = 200
    profile: Annotated[int, Option(help="Training sentences of the profile.", min=1)] = 5000
    copies: Annotated[int, Option(help="Copies of the model.", min=1)] = 5
    seed: Annotated[int, Option(help="Seed of the choice and of the changes.", min=0)] = 0
    work: Annotated[Path, Option(help="Folder of finished copies.")] = Path("runs/sentences")
