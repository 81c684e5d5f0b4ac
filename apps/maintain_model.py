"""Semantic slicing and maintenance of a model: the NeuSemSlice paper's experiments.

    python apps/maintain_model.py slicing mlp mnist      # figures 5 and 6, tables 1 to 4
    python apps/maintain_model.py restructure mlp mnist  # table 5
    python apps/maintain_model.py readapt mlp mnist      # table 6
    python apps/maintain_model.py develop mlp mnist      # table 7, or 8 with --scenario 2

Every command trains a model of the zoo for each repeat (its random seed). The first images
of the training split are held out, to choose thresholds by, `--images` of those that follow
are trained on; the test split is only reported on. Finished models and repeats are kept
under `--work`, and a command that was interrupted goes on from there.
"""

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Annotated, Literal

import keras
import pandas as pd
import typer

from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import atomic_path, check_writable, data_folder
from nnslicer_tf._progress import track
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import provenance, write_table
from nnslicer_tf.semantic import experiments as runs

EPSILON = {"cifar10": 8 / 255}
REPLAYS = ("Retrain", "Replay 5%", "Replay 10%", "Replay 100%")
OURS = ("NeuSemSlice", "NeuSemSlice, centred")


class Experiment(StrEnum):
    """The commands."""

    SLICING = "slicing"
    RESTRUCTURE = "restructure"
    READAPT = "readapt"
    DEVELOP = "develop"


@dataclass(frozen=True)
class Setting:
    """A model of the zoo, data and seeds; and what was found, kept on disk."""

    model: str
    dataset: str
    repeats: int
    images: int
    epochs: int
    tests: int
    samples: int
    precision: str
    work: Path
    folder: Path

    @cached_property
    def data(self) -> dict[str, datasets.Dataset]:
        """Training, held-out and test samples, as a `Trial` takes them."""
        held_out = min(5_000, self.images // 4)
        parts = {
            "train": datasets.load(self.dataset, f"train[{held_out}:{held_out + self.images}]"),
            "held_out": datasets.load(self.dataset, f"train[:{held_out}]"),
            "test": datasets.load(self.dataset, f"test[:{self.tests}]"),
        }
        if len(parts["train"]) < self.images:
            raise InvalidArgumentError(
                f"--images {self.images} are more than the {len(parts['train'])} training images "
                f"that '{self.dataset}' has behind {held_out} held-out ones."
            )
        return parts

    @property
    def name(self) -> str:
        """Model and data set."""
        return f"{self.model}-{self.dataset}"

    @property
    def _precision(self) -> str:
        """The end of names of what is kept of models that were not trained in float32."""
        return "" if self.precision == "float32" else f"-{self.precision}"

    def trial(self, seed: int, classes: Iterable[int] | None = None) -> runs.Trial:
        """Return a model trained with a seed, on some classes or on all, with all data."""
        data, which = self.data["train"], "all"
        if classes is not None:
            data, which = runs.of_classes(data, classes), "".join(map(str, classes))
        folder = f"{self.name}-{self.images}-{self.epochs}-{which}-{seed}{self._precision}"
        keras.utils.set_random_seed(seed)
        model = zoo.build(self.model, data.x.shape[1:], data.classes)
        recipe = zoo.Recipe(epochs=self.epochs, precision=self.precision)
        path = self.work / "trained" / folder
        zoo.train(model, data, recipe, rng=seed, folder=path, progress=False)
        model = zoo.in_precision(model, self.precision)
        return runs.Trial(model, **self.data, seed=seed, samples=self.samples)

    def repeat(self, what: str, run: Callable[[int], Iterable[dict]]) -> pd.DataFrame:
        """Return the rows of all seeds; those that are on file are not made again."""
        rows = []
        sizes = f"{self.images}-{self.epochs}-{self.tests}-{self.samples}{self._precision}"
        for seed in range(self.repeats):
            path = self.work / what / f"{self.name}-{sizes}-{seed}.json"
            if not path.exists():
                found = [{"seed": seed, **row} for row in track(run(seed), f"{what}, rows")]
                with atomic_path(path) as temporary:
                    temporary.write_text(json.dumps(found))
            rows += json.loads(path.read_text())
            typer.echo(f"{what} {self.name}: repeat {seed + 1} of {self.repeats}")
        return pd.DataFrame(rows)

    def write(
        self, name: str, title: str, table: pd.DataFrame, kind: str = "", **more: object
    ) -> None:
        """Write a table, headed by how it was made; a `kind` ends the file's name."""
        parts = ", ".join(f"{len(part)} {name}" for name, part in self.data.items())
        training = f"{self.epochs} epochs in {self.precision}"
        sizes = f"{parts} images; {training}; scores on {self.samples} images"
        head = provenance(seeds=f"0 … {self.repeats - 1}", sizes=sizes, **more)
        write_table(self.folder / f"{name}-{self.name}{kind}", title, table, head)


def main(
    experiment: Experiment,
    model: Annotated[str, typer.Argument(help="A model of the zoo.")] = "mlp",
    dataset: Annotated[str, typer.Argument(help="A data set.")] = "mnist",
    metrics: Annotated[str, typer.Option(help="Comma between; slicing takes many.")] = "taylor",
    repeats: Annotated[int, typer.Option(min=1, help="Models, each with its seed.")] = 5,
    images: Annotated[int, typer.Option(min=100, help="Training images.")] = 50_000,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of training a model.")] = 4,
    tests: Annotated[int, typer.Option(min=10, help="Test images.")] = 10_000,
    samples: Annotated[int, typer.Option(min=10, help="Images for scores.")] = 5_000,
    precision: Annotated[
        Literal["float32", "mixed_bfloat16"], typer.Option(help="Of training and predictions.")
    ] = "float32",
    attacked: Annotated[int, typer.Option(min=10, help="readapt: images attacked.")] = 1_000,
    tolerance: Annotated[float, typer.Option(help="restructure: accuracy to lose.")] = 0.01,
    scenario: Annotated[int, typer.Option(min=1, max=2, help="develop: 2 or 3 tasks.")] = 1,
    work: Annotated[Path, typer.Option(help="Models and finished repeats.")] = Path(
        "runs/semantic"
    ),
    results: Annotated[Path | None, typer.Option(help="Folder of tables and figures.")] = None,
    quick: Annotated[bool, typer.Option(help="One repeat of 2,000 images; a trial.")] = False,
) -> None:
    """Run one of the NeuSemSlice paper's experiments."""
    folder = results or data_folder() / "results" / "semantic"
    if quick:  # small, and never in the place of kept results
        repeats, images, epochs, tests, samples = 1, 2_000, 2, 500, 500
        work = work / "quick"
        folder = results or work
    check_writable(folder / "trial")
    s = Setting(model, dataset, repeats, images, epochs, tests, samples, precision, work, folder)
    names = metrics.split(",")
    if experiment is Experiment.SLICING:
        slicing(s, names)
    elif experiment is Experiment.RESTRUCTURE:
        restructure(s, names[0], tolerance)
    elif experiment is Experiment.READAPT:
        readapt(s, names[0], attacked)
    else:
        develop(s, names[0], scenario)


def slicing(s: Setting, metrics: list[str]) -> None:
    """Accuracy over compression rate of every way to slice, and what masking costs."""
    curves = [s.repeat("deeparc", lambda seed: [runs.deeparc_row(s.trial(seed))])]
    masks = []
    for m in metrics:
        curves.append(s.repeat(f"slicing-{m}", lambda seed, m=m: runs.curve_rows(s.trial(seed), m)))
        masks.append(
            s.repeat(f"masking-{m}", lambda seed, m=m: runs.masked_range_rows(s.trial(seed), m))
        )
    table = pd.concat(curves)
    s.write("figure5", "Accuracy over compression rate (figure 5)", table)
    with atomic_path(s.folder / f"figure5-{s.name}.png") as path:
        runs.plot_curves(table, s.name).savefig(path, dpi=110)
    title = "Semantic slicing against the others, areas over the common range (table 4)"
    s.write("table4", title, runs.area_tests(table))
    title = "Accuracy after masking a tenth of the neurons by rank ({}; paper: VGG16-CIFAR10)"
    for name, part in runs.masked_range_tables(pd.concat(masks)).items():
        s.write(name, title.format(name), part)


def restructure(s: Setting, metric: str, tolerance: float) -> None:
    """Compress whole and restructured models until the accuracy falls (table 5)."""
    rows = s.repeat(
        f"restructure-{metric}-{tolerance}",
        lambda seed: runs.restructure_rows(s.trial(seed), metric, tolerance),
    )
    pairs = [
        (f"{way}+{name}", other)
        for name in ("LAMP", "Glob", "Unif", "ERK")
        for way in OURS
        for other in (name, f"Global+{name}", f"Category-wise+{name}")
    ]
    used = {"metric": metric, "tolerance": f"{tolerance:.1%} of held-out accuracy"}
    number = f"table5-{1_000 * tolerance:.0f}permille"  # no dot: what follows is an ending
    write_means(s, rows, 5, number, "Compression until the accuracy falls", used)
    tests = runs.paired_tests(rows, ["CR", "NI", "MA"], pairs)
    s.write(number, "Paired tests (table 5)", tests, "-tests", **used)


def readapt(s: Setting, metric: str, attacked: int) -> None:
    """Train critical neurons on adversarial samples and attack again (table 6)."""
    attacked = min(attacked, len(s.data["held_out"]) // 2)
    epsilon = EPSILON.get(s.dataset, 0.1)
    rows = s.repeat(
        f"readapt-{metric}-{attacked}",
        lambda seed: runs.readapt_rows(s.trial(seed), metric, epsilon, attacked=attacked),
    )
    pairs = [
        (way, other)
        for way in (*OURS, *(f"{way}+DeepArc" for way in OURS))
        for other in ("Fully Training", "DeepArc", "Global", "Category-wise")
    ]
    used = {
        "metric": metric,
        "epsilon": round(epsilon, 4),
        "adaptation": f"10 epochs of Adam on {attacked} attacked images and their originals",
    }
    write_means(s, rows, 6, "table6", "Re-adaptation to adversarial samples", used)
    tests = runs.paired_tests(rows, ["RA", "RAA", "clean"], pairs)
    s.write("table6", "Paired tests (table 6)", tests, "-tests", **used)


def develop(s: Setting, metric: str, scenario: int) -> None:
    """Teach new classes without the old ones' samples, or with some (tables 7 and 8)."""
    tasks = runs.split_classes(s.data["train"].classes, scenario + 1)
    rows = s.repeat(
        f"develop{scenario}-{metric}",
        lambda seed: runs.develop_rows(s.trial(seed, tasks[0]), tasks, metric),
    )
    pairs = [(way, other) for way in OURS for other in (*REPLAYS, "Global", "Category-wise")]
    used = {"metric": metric, "training": "2 epochs of Adam on each task"}
    number = 6 + scenario
    title = f"Incremental development, scenario {'I' * scenario}"
    write_means(s, rows, number, f"table{number}", title, used)
    tests = runs.paired_tests(rows, ["TaskA", "Avg", "TaskA known", "Avg known"], pairs)
    s.write(f"table{number}", f"Paired tests (table {number})", tests, "-tests", **used)


def write_means(
    s: Setting, rows: pd.DataFrame, number: int, name: str, title: str, used: dict
) -> None:
    """Write the means over seeds beside the paper's, and the rows of every seed."""
    means = runs.means_beside_the_paper(rows, number, s.model, s.dataset)
    s.write(name, f"{title} (table {number})", means, **used)
    s.write(name, f"{title}, every seed", rows, "-runs", **used)


if __name__ == "__main__":
    typer.run(main)
