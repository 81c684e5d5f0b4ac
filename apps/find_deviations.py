"""Find inputs on which compressed models deviate: the DFlare paper's experiments.

    python apps/find_deviations.py search lenet1 resnet20 --models <folder>
    python apps/find_deviations.py ablation | dissemination | repair

Every command takes names of pairs (see `nnslicer_tf.dflare.pairs`), searches with several
random seeds from the same test images, on which both models agree, replays what was found
on freshly loaded models, and writes tables beside the paper's. An interrupted command goes
on from its working folder when it is given again.
"""

import dataclasses
from importlib.metadata import version
from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import pandas as pd
import typer

from nnslicer_tf._files import data_folder
from nnslicer_tf.dflare import DeviationSet, ImageDomain, find_deviations
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.dflare.experiments import (
    METHODS,
    figures,
    means_beside_the_paper,
    paper_repair,
)
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.dflare.pairs import PUBLISHED, NamedPair, load_pair, seed_images
from nnslicer_tf.dflare.repair import Repair, RepairedClassifier, cross_validate, repair_data
from nnslicer_tf.report import plot_queries, provenance, save_figure, write_table

matplotlib.use("Agg")

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


@app.command()
def search(
    pairs: Names = None,
    models: Models = Path("."),
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    diffchaser_seeds: Annotated[int, typer.Option(help="Seeds for DiffChaser.", min=0)] = 50,
    name: Annotated[str, typer.Option(help="The tables' name.")] = "search",
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Search with DFlare and, from fewer seeds, DiffChaser (Table 4)."""
    run = _Run(models, seeds, repeats, max_queries, work, results, quick)
    rows, queries = [], {}
    for pair_name in pairs or PUBLISHED:
        for method in ("DFlare", "Algorithm 1"):
            rows += run.measure(pair_name, method)
            queries[f"{pair_name}, {method}"] = run.queries
        if diffchaser_seeds:
            rows += run.measure(pair_name, "DiffChaser", diffchaser_seeds, repeats=1)
            queries[f"{pair_name}, DiffChaser"] = run.queries
    run.write_means(name, rows)
    run.plot_queries(name, queries)


@app.command()
def ablation(
    pairs: Names = None,
    models: Models = Path("."),
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    method: Annotated[
        list[str] | None, typer.Option(help="Only these; default: all but DiffChaser.")
    ] = None,
    name: Annotated[str, typer.Option(help="The tables' name.")] = "ablation",
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Change one thing at a time in the search (Table 6)."""
    methods = method or [known for known in METHODS if known != "DiffChaser"]
    unknown = [given for given in methods if given not in METHODS]
    if unknown:
        raise typer.BadParameter(f"No method is called {unknown[0]!r}. Known: {', '.join(METHODS)}")
    run = _Run(models, seeds, repeats, max_queries, work, results, quick)
    rows = [
        row
        for pair_name in pairs or PUBLISHED
        for chosen in methods
        for row in run.measure(pair_name, chosen)
    ]
    run.write_means(name, rows)


@app.command()
def dissemination(
    zoo_models: Annotated[list[str] | None, typer.Argument(help="Models of the zoo.")] = None,
    seeds: Seeds = 500,
    repeats: Repeats = 5,
    max_queries: Budget = 20_000,
    work: Work = Path("runs/dflare"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Search pairs in which 10 … 50 % of the weights are mutated (section 5.4.1)."""
    run = _Run(Path("."), seeds, repeats, max_queries, work, results, quick)
    zoo_models = zoo_models or ["lenet5"]
    rows = [
        {**row, "model": model, "mutated_percent": percent}
        for model in zoo_models
        for method in ("DFlare", "Algorithm 1")
        for percent in (10, 20, 30, 40, 50)
        for row in run.measure(f"{model}-mutated{percent}", method)
    ]
    run.write("dissemination_runs", pd.DataFrame(rows))
    figures = ["success_rate", "mean_seconds", "mean_queries", "median_queries", "verified"]
    keys = ["model", "method"]
    groups = pd.DataFrame(rows).groupby([*keys, "mutated_percent"], sort=False)
    means = groups[figures].mean()
    run.write("dissemination", means.reset_index())
    correlations = means.reset_index(level=2).groupby(keys, sort=False).corr()
    correlations = correlations["mutated_percent"].unstack()[figures[1:4]].reset_index()
    published = pd.read_csv(
        data_folder() / "paper/dflare/section54_dissemination.csv", comment="#"
    ).iloc[0]
    correlations["paper_model"] = published["model"]
    correlations["paper_seconds"] = published["correlation_seconds"]
    correlations["paper_queries"] = published["correlation_queries"]
    run.write("dissemination_correlation", correlations)


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
                scores.append({"pair": name, "method": method, **folds, **paper_repair(name)})
                mended = _mended(pair, method, repeat, Repair(random_state=repeat).fit(*data.all()))
                for searched, label in ((pair, "without repair"), (mended, "with repair")):
                    row = run.row(searched, method, repeat, run.seeds)
                    searches.append({**row, "pair": name, "method": f"{method}, {label}"})
    table = pd.DataFrame(scores).groupby(["pair", "method"], sort=False).mean().reset_index()
    run.write("repair", table)
    run.write_means("repair_search", searches)


def _mended(pair: NamedPair, method: str, repeat: int, fitted: Repair) -> NamedPair:
    """Return the pair with a repaired compressed model."""

    def load_repaired() -> ModelLike:
        return RepairedClassifier(pair.load_compressed(), fitted)

    name = f"{pair.name}-repaired-{method}-{repeat}"
    return dataclasses.replace(pair, name=name, load_compressed=load_repaired)


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
        self.results.mkdir(parents=True, exist_ok=True)
        self.queries = np.array([])  # of the last `measure`
        self._images: dict[str, np.ndarray] = {}

    def pair(self, name: str) -> NamedPair:
        return load_pair(name, self.models, self.work / "pairs")

    def measure(
        self, name: str, method: str, seeds: int | None = None, repeats: int | None = None
    ) -> list[dict]:
        """Search a pair with every random seed; return one row for each."""
        pair, seeds = self.pair(name), min(seeds or self.seeds, self.seeds)
        rows, queries = [], []
        for repeat in range(repeats or self.repeats):
            rows.append(self.row(pair, method, repeat, seeds))
            print(rows[-1], flush=True)
            found = self.search(pair, method, repeat, seeds)[1]
            queries.append(found.queries[found.found])
        self.queries = np.concatenate(queries)
        return rows

    def search(
        self, pair: NamedPair, method: str, repeat: int, seeds: int
    ) -> tuple[np.ndarray, DeviationSet]:
        """Search, or read what was found when this was done before."""
        if pair.name not in self._images:
            self._images[pair.name] = seed_images(pair, self.seeds, 0)
        images = self._images[pair.name][:seeds]
        file = f"{pair.name}-{method}-{repeat}-{len(images)}-{self.max_queries}.npz"
        chosen = METHODS[method]
        found = find_deviations(
            pair.load_original(),
            pair.load_compressed(),
            images,
            pair.preprocess,
            rng=repeat,
            max_queries=self.max_queries,
            search=chosen.search,
            domain=chosen.domain,
            together=chosen.together,
            checkpoint=self.work / "searches" / file.replace(" ", "_"),
        )
        return images, found

    def row(self, pair: NamedPair, method: str, repeat: int, seeds: int) -> dict:
        images, found = self.search(pair, method, repeat, seeds)
        said = figures(pair, images, found, METHODS[method].domain)
        return {"pair": pair.name, "method": method, "rng": repeat, **said}

    def write_means(self, name: str, rows: list[dict]) -> None:
        """Write every run, and the means over the random seeds beside the paper's figures."""
        runs = pd.DataFrame(rows)
        self.write(f"{name}_runs", runs)
        self.write(name, means_beside_the_paper(runs))

    def write(self, name: str, table: pd.DataFrame) -> None:
        """Write a table as CSV and Markdown, headed by how it was made."""
        packages = ("ai-edge-litert", "opencv-python-headless")
        head = provenance(
            **{"seed images": self.seeds, "random seeds": f"0 ... {self.repeats - 1}"},
            queries=f"at most {self.max_queries} a search",
            libraries=", ".join(f"{package} {version(package)}" for package in packages),
        )
        write_table(self.results / name, f"DFlare: {name.replace('_', ' ')}", table, head)
        print(table.to_string(), f"\nwritten: {self.results / name}.csv, .md")

    def plot_queries(self, name: str, queries: dict[str, np.ndarray]) -> None:
        """Draw histograms of the queries, one a pair and method (Figure 4)."""
        from matplotlib import pyplot

        columns = 3
        rows = -(-len(queries) // columns)
        figure, axes = pyplot.subplots(rows, columns, figsize=(4 * columns, 2.6 * rows))
        for axis, (label, values) in zip(axes.flat, queries.items(), strict=False):
            plot_queries(values, label, axis)
        for axis in axes.flat[len(queries) :]:
            axis.set_axis_off()
        figure.tight_layout()
        save_figure(figure, self.results / f"{name}_queries.png", dpi=100)


if __name__ == "__main__":
    app()
