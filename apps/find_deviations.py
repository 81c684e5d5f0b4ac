"""Find inputs on which compressed models deviate: the DFlare paper's experiments.

    python apps/find_deviations.py search --models <folder> lenet1 resnet20
    python apps/find_deviations.py ablation | dissemination | repair

Every command takes names of pairs (see `nnslicer_tf.dflare.pairs`), searches with several
random seeds from the same test images, on which both models agree, replays what was found
on freshly loaded models, and writes tables beside the paper's. An interrupted command goes
on from its working folder when it is given again.
"""

import datetime
import os
import platform
import shlex
import sys
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import numpy as np
import pandas as pd
import typer

from nnslicer_tf._files import atomic_path, data_folder
from nnslicer_tf.dflare import (
    AnyChangeFitness,
    DeviationSet,
    DFlare,
    DiffChaser,
    DistanceFitness,
    ImageDomain,
    RankOnly,
    Search,
    Uniform,
    find_deviations,
    verify,
)
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.pair import ModelPair
from nnslicer_tf.dflare.pairs import NamedPair, load_pair, seed_images
from nnslicer_tf.dflare.repair import Repair, RepairedClassifier, cross_validate, repair_data

PAPER = {"patience": None, "bisections": 0}

METHODS: dict[str, Search] = {
    "DFlare": DFlare(),
    "Algorithm 1": DFlare(**PAPER),
    "with patience": DFlare(bisections=0),
    "with bisection": DFlare(patience=None),
    "DFlare_D": DFlare(DistanceFitness(), **PAPER),
    "DFlare_R": DFlare(selection=Uniform(), **PAPER),
    "as programmed": DFlare(AnyChangeFitness(), RankOnly(), **PAPER),
    "DiffChaser": DiffChaser(),
}
"""`DFlare` is this library's default; `Algorithm 1` the paper to the letter, which the rows
below it change in one thing; `as programmed` what the authors' program does."""

REFERENCES = {
    "lenet1": {"paper_seconds": 0.513, "paper_queries": 83.97, "paper_diffchaser_queries": 5812.47},
    "resnet20": {
        "paper_seconds": 0.509,
        "paper_queries": 30.43,
        "paper_diffchaser_queries": 2323.58,
    },
}
"""Table 4 of the paper, for the published pairs."""

app = typer.Typer(add_completion=False, help=__doc__)

Names = Annotated[list[str] | None, typer.Argument(help="Pairs; default: the published two.")]
Models = Annotated[
    Path, typer.Option(help="Folder of the published models.", envvar="DIFFCHASER_MODELS")
]
Seeds = Annotated[int, typer.Option(help="Seed images.", min=1)]
Repeats = Annotated[int, typer.Option(help="Random seeds.", min=1)]
Budget = Annotated[int, typer.Option(help="Queries after which a search gives up.", min=1)]
Work = Annotated[Path, typer.Option(help="Folder of resumable searches and made models.")]
Results = Annotated[Path | None, typer.Option(help="Folder of the tables.")]
Quick = Annotated[bool, typer.Option(help="20 seeds, 1 repeat; a trial.")]

PUBLISHED = ["lenet1", "resnet20"]


@app.command()
def search(
    pairs: Names = None,
    models: Models = Path("."),
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    diffchaser_seeds: Annotated[int, typer.Option(help="DiffChaser's share.", min=0)] = 50,
    name: Annotated[str, typer.Option(help="The tables' name.")] = "search",
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Search with DFlare and, from fewer seeds, DiffChaser (Table 4)."""
    run = _Run(models, seeds, repeats, max_queries, work, results, quick)
    rows = []
    for pair_name in pairs or PUBLISHED:
        for method in ("DFlare", "Algorithm 1"):
            rows += run.measure(pair_name, method)
        if diffchaser_seeds:
            rows += run.measure(pair_name, "DiffChaser", diffchaser_seeds, repeats=1)
    run.write(name, rows)


@app.command()
def ablation(
    pairs: Names = None,
    models: Models = Path("."),
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 5_000,
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Change one thing at a time in the search (Table 6)."""
    run = _Run(models, seeds, repeats, max_queries, work, results, quick)
    methods = [method for method in METHODS if method != "DiffChaser"]
    run.write(
        "ablation",
        [
            row
            for name in pairs or PUBLISHED
            for method in methods
            for row in run.measure(name, method)
        ],
    )


@app.command()
def dissemination(
    models_of_the_zoo: Annotated[list[str] | None, typer.Argument(help="Zoo models.")] = None,
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Search pairs in which 10 … 50 % of the weights are mutated (section 5.4.1)."""
    run = _Run(Path("."), seeds, repeats, max_queries, work, results, quick)
    rows, correlations = [], []
    for model in models_of_the_zoo or ["lenet5"]:
        for percent in (10, 20, 30, 40, 50):
            rows += run.measure(f"{model}-mutated{percent}", "DFlare", mutated=percent)
        table = pd.DataFrame([row for row in rows if row["pair"].startswith(f"{model}-")])
        means = table.groupby("mutated")[["mean_seconds", "mean_queries"]].mean()
        correlations.append(
            {
                "model": model,
                "correlation_seconds": np.corrcoef(means.index, means.mean_seconds)[0, 1],
                "correlation_queries": np.corrcoef(means.index, means.mean_queries)[0, 1],
                "paper_correlation_seconds_lenet5": -0.989,
                "paper_correlation_queries_lenet5": -0.972,
            }
        )
    run.write("dissemination", rows)
    run.write_table("dissemination_correlation", pd.DataFrame(correlations))


@app.command()
def repair(
    pairs: Names = None,
    models: Models = Path("."),
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Repair what was found, and search the repaired models (Tables 7 and 8)."""
    run = _Run(models, seeds, repeats, max_queries, work, results, quick)
    scores, searches = [], []
    for name in pairs or PUBLISHED:
        pair = run.pair(name)
        asked = ModelPair(
            pair.load_original(), pair.load_compressed(), ImageDomain(), pair.preprocess
        )
        for method in ("DFlare", "Algorithm 1"):
            for repeat in range(run.repeats):
                images, found = run.search(pair, method, repeat, run.seeds)
                data = repair_data(asked, images, found)
                folds = cross_validate(data, rng=repeat).mean()
                scores.append({"pair": name, "method": method, "rng": repeat, **folds})
                fitted = Repair(random_state=repeat).fit(
                    np.concatenate([data.seeds, data.triggers]),
                    np.concatenate([data.seed_labels, data.trigger_labels]),
                )
                searches += [
                    run.row(pair, f"{method}, without repair", repeat, images, found),
                    _search_repaired(run, pair, method, repeat, fitted),
                ]
    table = pd.DataFrame(scores)
    run.write_table("repair", table.groupby(["pair", "method"], sort=False).mean().reset_index())
    run.write("repair_search", searches)


def _search_repaired(
    run: "_Run", pair: NamedPair, method: str, repeat: int, fitted: Repair
) -> dict:
    """Search a repaired model from the seeds on which it agrees with the original."""

    def load_repaired() -> ModelLike:
        return RepairedClassifier(pair.load_compressed(), fitted)

    mended = NamedPair(
        f"{pair.name}-repaired-{method.replace(' ', '_')}-{repeat}",
        pair.dataset,
        pair.load_original,
        load_repaired,
        pair.preprocess,
    )
    images, found = run.search(mended, method, repeat, run.seeds)
    row = run.row(mended, f"{method}, with repair", repeat, images, found)
    return {**row, "pair": pair.name}


class _Run:
    """The options that all commands share, and what they do with them."""

    def __init__(
        self,
        models: Path,
        seeds: int,
        repeats: int,
        max_queries: int,
        work: Path,
        results: Path | None,
        quick: bool,
    ) -> None:
        self.models = models
        self.seeds = 20 if quick else seeds
        self.repeats = 1 if quick else repeats
        self.max_queries = max_queries
        self.work = work / "quick" if quick else work
        kept = data_folder() / "results" / "dflare"
        self.results = results or (self.work / "results" if quick else kept)
        self._images: dict[str, np.ndarray] = {}

    def pair(self, name: str) -> NamedPair:
        return load_pair(name, self.models, self.work / "pairs")

    def measure(
        self,
        name: str,
        method: str,
        seeds: int | None = None,
        repeats: int | None = None,
        **columns: object,
    ) -> list[dict]:
        """Search a pair with every random seed; return one row for each."""
        pair = self.pair(name)
        rows = []
        for repeat in range(repeats or self.repeats):
            images, found = self.search(pair, method, repeat, min(seeds or self.seeds, self.seeds))
            rows.append({**self.row(pair, method, repeat, images, found), **columns})
            print(rows[-1], flush=True)
        return rows

    def search(
        self, pair: NamedPair, method: str, repeat: int, seeds: int
    ) -> tuple[np.ndarray, DeviationSet]:
        if pair.name not in self._images:
            self._images[pair.name] = seed_images(pair, self.seeds, 0)
        images = self._images[pair.name][:seeds]
        file = f"{pair.name}-{method.replace(' ', '_')}-{repeat}-{len(images)}-{self.max_queries}"
        found = find_deviations(
            pair.load_original(),
            pair.load_compressed(),
            images,
            pair.preprocess,
            rng=repeat,
            max_queries=self.max_queries,
            search=METHODS[method],
            together=4 if method == "DiffChaser" else 500,
            checkpoint=self.work / "searches" / f"{file}.npz",
        )
        return images, found

    def row(
        self, pair: NamedPair, method: str, repeat: int, images: np.ndarray, found: DeviationSet
    ) -> dict:
        held = verify(pair.load_original, pair.load_compressed, images, found, pair.preprocess)
        return {
            "pair": pair.name,
            "method": method,
            "rng": repeat,
            **found.summary(),
            "queries_90th_percentile": float(np.percentile(found.queries[found.found], 90)),
            "verified": int(held.sum()),
        }

    def write(self, name: str, rows: list[dict]) -> None:
        """Write every run, and the means over the random seeds beside the paper's figures."""
        runs = pd.DataFrame(rows)
        self.write_table(f"{name}_runs", runs)
        means = runs.drop(columns="rng").groupby(["pair", "method"], sort=False).mean()
        means = means.reset_index()
        references = [REFERENCES.get(pair, {}) for pair in means["pair"]]
        self.write_table(name, pd.concat([means, pd.DataFrame(references)], axis=1))

    def write_table(self, name: str, table: pd.DataFrame) -> None:
        """Write a table as CSV and Markdown, headed by how it was made."""
        head = [
            f"command: python {shlex.join(['apps/find_deviations.py', *sys.argv[1:]])}",
            f"seed images: {self.seeds}, random seeds: 0 ... {self.repeats - 1}, "
            f"at most {self.max_queries} queries a search",
            f"machine: {os.cpu_count()} cores, load {os.getloadavg()[1]:.1f}; "
            f"Python {platform.python_version()}, "
            + ", ".join(f"{p} {version(p)}" for p in ("tensorflow", "keras", "ai-edge-litert")),
            f"date: {datetime.date.today().isoformat()}",
        ]
        self.results.mkdir(parents=True, exist_ok=True)
        with atomic_path(self.results / f"{name}.csv") as path:
            text = table.to_csv(index=False, float_format="%.6g")
            path.write_text("".join(f"# {line}\n" for line in head) + text)
        with atomic_path(self.results / f"{name}.md") as path:
            path.write_text("\n".join(["  \n".join(head), "", *_markdown(table)]) + "\n")
        print(table.to_string(), f"\nwritten: {self.results / name}.csv, .md")


def _markdown(table: pd.DataFrame) -> Iterable[str]:
    yield "| " + " | ".join(table.columns) + " |"
    yield "|" + "---|" * len(table.columns)
    for row in table.itertuples(index=False):
        cells = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in row)
        yield "| " + " | ".join("" if cell == "nan" else cell for cell in cells) + " |"


if __name__ == "__main__":
    app()
