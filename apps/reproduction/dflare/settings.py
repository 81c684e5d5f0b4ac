"""Settings of the DFlare paper's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from reproduction.settings import Settings, View

Published = Annotated[
    Path, Option(help="Folder of the published models.", envvar="DIFFCHASER_MODELS")
]
Work = Annotated[Path, Option(help="Folder of resumable work and made models.")]


@dataclass(frozen=True)
class SweepSettings(Settings):
    """Settings of all experiments: seeds, repeats, budget, working folder."""

    trial: ClassVar = {"seeds": 20, "repeats": 1}
    kept = "dflare"
    seeds: Annotated[int, Option(help="Number of seed images.", min=1)] = 500
    repeats: Annotated[int, Option(help="Number of random seeds.", min=1)] = 5
    max_queries: Annotated[int, Option(help="Queries after which a search gives up.", min=1)] = (
        20_000
    )
    work: Work = Path("runs/dflare")

    models: Path = Path(".")  # the folder of the published models

    @property
    def trial_folder(self) -> Path:
        """The folder of a trial's results."""
        return self.work / "results"


@dataclass(frozen=True)
class PairSettings(SweepSettings):
    """Settings of experiments on named pairs."""

    pairs: Annotated[list[str] | None, Argument(help="Pairs; default: the published two.")] = None
    models: Published = Path(".")


@dataclass(frozen=True)
class RepairSettings(PairSettings):
    """Repair the deviations found, and search the repaired models (Tables 7 and 8)."""

    name: Annotated[str, Option(help="Name of the tables.")] = "repair"


@dataclass(frozen=True)
class AgreementSettings(Settings):
    """Ask both models of a pair about the data sets' own inputs (Tables 1 and 2)."""

    trial: ClassVar = {"images": 200}
    kept = "dflare"
    pairs: Annotated[list[str] | None, Argument(help="Pairs; default: the published two.")] = None
    models: Published = Path(".")
    images: Annotated[int, Option(help="Images of each split; 0: all.", min=0)] = 0
    work: Work = Path("runs/dflare")
    name: Annotated[str, Option(help="Name of the table.")] = "agreement"


@dataclass(frozen=True)
class SearchSettings(PairSettings):
    """Search with DFlare and, from fewer seeds, DiffChaser (Table 4)."""

    diffchaser_seeds: Annotated[
        int, Option(help="Number of seed images for DiffChaser.", min=0)
    ] = 50
    name: Annotated[str, Option(help="Name of the tables.")] = "search"
    explore: View = None


@dataclass(frozen=True)
class AblationSettings(PairSettings):
    """Change one thing at a time in the search (Table 6)."""

    method: Annotated[list[str] | None, Option(help="Methods; default: all but DiffChaser.")] = None
    name: Annotated[str, Option(help="Name of the tables.")] = "ablation"


@dataclass(frozen=True)
class DisseminationSettings(SweepSettings):
    """Search pairs in which 10 … 50 % of the weights are mutated (section 5.4.1)."""

    originals: Annotated[
        list[str] | None, Argument(help="Models of the zoo, or published ones; default: lenet5.")
    ] = None
    models: Published = Path(".")


@dataclass(frozen=True)
class LayerSettings(SweepSettings):
    """Search pairs in which one convolution is pruned by half (section 5.4.2)."""

    model: Annotated[str, Argument(help="Model of the zoo, or a published one.")] = "resnet20"
    models: Published = Path(".")
    repeats: Annotated[int, Option(help="Number of random seeds.", min=1)] = 1
    diffchaser_seeds: Annotated[
        int, Option(help="Number of seed images for DiffChaser.", min=0)
    ] = 20


@dataclass(frozen=True)
class SentenceSettings(SweepSettings):
    """Search pairs of text classifiers (ours, not the paper's)."""

    published: ClassVar[tuple[str, ...]] = (
        "text_transformer-dynamic",
        "text_transformer-pruned",
        "text_lstm-pruned",
    )

    pairs: Annotated[list[str] | None, Argument(help="Pairs of classifiers of sentences.")] = None
    seeds: Annotated[int, Option(help="Number of seed sentences.", min=1)] = 100
    repeats: Annotated[int, Option(help="Number of random seeds.", min=1)] = 1
    max_queries: Annotated[int, Option(help="Queries after which a search gives up.", min=1)] = (
        2_000
    )
