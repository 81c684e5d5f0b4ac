"""Settings of the DFlare paper's experiments."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from typer import Argument, Option

from reproduction.settings import Settings

Published = Annotated[
    Path, Option(help="Folder of the published models.", envvar="DIFFCHASER_MODELS")
]
Pairs = Annotated[list[str] | None, Argument(help="Pairs; default: the published two.")]
Seeds = Annotated[int, Option(help="Number of seed inputs.", min=1)]
DiffChaserSeeds = Annotated[int, Option(help="Number of seed images for DiffChaser.", min=0)]
Repeats = Annotated[int, Option(help="Number of random seeds.", min=1)]
Queries = Annotated[int, Option(help="Queries after which a search gives up.", min=1)]
Name = Annotated[str, Option(help="Name of the tables.")]
Work = Annotated[Path, Option(help="Folder of resumable work and made models.")]


@dataclass(frozen=True)
class SweepSettings(Settings):
    """Settings of all experiments: seeds, repeats, budget, working folder."""

    trial: ClassVar = {"seeds": 20, "repeats": 1}
    kept = "dflare"
    seeds: Seeds = 500
    repeats: Repeats = 5
    max_queries: Queries = 20_000
    work: Work = Path("runs/dflare")
    models: Path = Path(".")  # the folder of the published models
    diffchaser_seeds: int = 0

    @property
    def trial_folder(self) -> Path:
        """The folder of a trial's results."""
        return self.work / "results"

    def runs(self, *methods: str) -> list[tuple[str, int | None, int | None]]:
        """Return methods with their seeds and repeats, None for all; DiffChaser, with fewer."""
        few = [("DiffChaser", self.diffchaser_seeds, 1)] if self.diffchaser_seeds else []
        return [*((method, None, None) for method in methods), *few]


@dataclass(frozen=True)
class PairSettings(SweepSettings):
    """Settings of experiments on named pairs."""

    pairs: Pairs = None
    models: Published = Path(".")


@dataclass(frozen=True)
class RepairSettings(PairSettings):
    """Repair the deviations found, and search the repaired models (Tables 7 and 8)."""

    name: Name = "repair"


@dataclass(frozen=True)
class AgreementSettings(Settings):
    """Ask both models of a pair about the data sets' own inputs (Tables 1 and 2)."""

    trial: ClassVar = {"images": 200}
    kept = "dflare"
    pairs: Pairs = None
    models: Published = Path(".")
    images: Annotated[int, Option(help="Images of each split; 0: all.", min=0)] = 0
    work: Work = Path("runs/dflare")
    name: Name = "agreement"


@dataclass(frozen=True)
class SearchSettings(PairSettings):
    """Search with DFlare and, from fewer seeds, DiffChaser (Table 4)."""

    diffchaser_seeds: DiffChaserSeeds = 50
    name: Name = "search"


@dataclass(frozen=True)
class AblationSettings(PairSettings):
    """Change one thing at a time in the search (Table 6)."""

    method: Annotated[list[str] | None, Option(help="Methods; default: all but DiffChaser.")] = None
    name: Name = "ablation"


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
    repeats: Repeats = 1
    diffchaser_seeds: DiffChaserSeeds = 20


@dataclass(frozen=True)
class SentenceSettings(SweepSettings):
    """Search pairs of text classifiers (ours, not the paper's)."""

    pairs: Annotated[list[str] | None, Argument(help="Pairs of classifiers of sentences.")] = None
    seeds: Seeds = 100
    repeats: Repeats = 1
    max_queries: Queries = 2_000
