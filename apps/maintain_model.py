"""Semantic slicing and maintenance of a model: the NeuSemSlice paper's experiments.

    python apps/maintain_model.py slicing mlp mnist      # figures 5 and 6, tables 1, 2 and 4
    python apps/maintain_model.py restructure mlp mnist  # table 5
    python apps/maintain_model.py readapt mlp mnist      # table 6
    python apps/maintain_model.py develop mlp mnist      # tables 7 and 8

Every command trains a model of the zoo for each repeat (its random seed), on the first
images of the training split; the last 5,000 images of that split choose thresholds, the
test split is only reported on. Finished models and repeats are kept under `--work`, and a
command that was interrupted goes on from there.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Annotated

import keras
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, semantic, zoo
from nnslicer_tf._files import atomic_path, check_writable, data_folder
from nnslicer_tf.detection.attacks import AttackSpec, generate
from nnslicer_tf.report import provenance, write_table

app = typer.Typer(no_args_is_help=True, add_completion=False, help=__doc__)

THETAS = (0.9, 0.91, 0.92, 0.93, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99)
SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
EPSILON = {"mnist": 0.1, "fashion_mnist": 0.1, "digits": 0.1, "cifar10": 8 / 255}
SLICERS = ("Global", "Category-wise", "NeuSemSlice", "NeuSemSlice, centred")

Model = Annotated[str, typer.Argument(help="A model of the zoo.")]
Data = Annotated[str, typer.Argument(help="A data set.")]
Repeats = Annotated[int, typer.Option(min=1, help="Models, each with its seed.")]
Images = Annotated[int, typer.Option(min=100, help="Training images.")]
Epochs = Annotated[int, typer.Option(min=1, help="Epochs of training a model.")]
Tests = Annotated[int, typer.Option(min=10, help="Test images.")]
Metric = Annotated[str, typer.Option(help="Contribution metric.")]
Work = Annotated[Path, typer.Option(help="Folder of models and finished repeats.")]
Results = Annotated[Path | None, typer.Option(help="Folder of tables and figures.")]
Quick = Annotated[bool, typer.Option(help="One repeat of 2,000 images; a trial.")]


@dataclass(frozen=True)
class Setting:
    """What all commands share."""

    model: str
    dataset: str
    repeats: int
    images: int
    epochs: int
    tests: int
    work: Path
    results: Path | None
    quick: bool

    @classmethod
    def of(cls, *options: object) -> "Setting":
        """Return the setting; a trial is small and never replaces kept results."""
        setting = cls(*options)
        if not setting.quick:
            return setting
        small = {"repeats": 1, "images": 2_000, "epochs": 2, "tests": 500}
        work = setting.work / "quick"
        return cls(**{**vars(setting), **small, "work": work, "results": setting.results or work})

    @cached_property
    def train(self) -> datasets.Dataset:
        """Training samples."""
        return datasets.load(self.dataset, f"train[:{self.images}]")

    @cached_property
    def held_out(self) -> datasets.Dataset:
        """Held-out samples, which choose thresholds."""
        return datasets.load(self.dataset, "train[-5000:]" if self.dataset != "digits" else "test")

    @cached_property
    def test(self) -> datasets.Dataset:
        """Test samples."""
        return datasets.load(self.dataset, f"test[:{self.tests}]")

    @property
    def name(self) -> str:
        """Model and data set."""
        return f"{self.model}-{self.dataset}"

    @property
    def folder(self) -> Path:
        """Folder of tables and figures."""
        kept = data_folder() / "results" / "semantic"
        return check_writable((self.results or kept) / "trial").parent

    def trained(self, seed: int, classes: tuple[int, ...] | None = None) -> keras.Model:
        """Return a model trained with a seed, on some classes or on all."""
        data = self.train if classes is None else only(self.train, classes)
        which = "all" if classes is None else "".join(map(str, classes))
        folder = self.work / "models" / f"{self.name}-{self.images}-{self.epochs}-{which}-{seed}"
        keras.utils.set_random_seed(seed)
        model = zoo.build(self.model, data.x.shape[1:], 10)
        recipe = zoo.Recipe(epochs=self.epochs)
        zoo.train(model, data, recipe, rng=seed, folder=folder, progress=False)
        return model

    def repeat(self, what: str, run: Callable[[int], list[dict]]) -> pd.DataFrame:
        """Return the rows of all repeats; those that are on file are not run again."""
        rows = []
        for seed in range(self.repeats):
            tag = f"{self.name}-{self.images}-{self.epochs}-{self.tests}"
            path = self.work / what / f"{tag}-{seed}.json"
            if not path.exists():
                found = [{"seed": seed, **row} for row in run(seed)]
                with atomic_path(path) as temporary:
                    temporary.write_text(json.dumps(found))
            rows += json.loads(path.read_text())
            print(f"{what} {self.name}: repeat {seed + 1} of {self.repeats}", flush=True)
        return pd.DataFrame(rows)

    def head(self, **more: object) -> dict[str, object]:
        """Return what stands above a table."""
        return provenance(
            seeds=f"0 … {self.repeats - 1}",
            sizes=f"{self.images} training, {self.tests} test images, {self.epochs} epochs",
            **more,
        )


def only(data: datasets.Dataset, classes: tuple[int, ...]) -> datasets.Dataset:
    """Return the samples of some classes."""
    chosen = np.isin(data.y, classes)
    return datasets.Dataset(
        data.x[chosen], data.y[chosen], data.name, data.split, data.normalise, data.classes
    )


@app.command()
def slicing(
    model: Model = "mlp",
    dataset: Data = "mnist",
    metrics: Annotated[str, typer.Option(help="Separated by commas.")] = "taylor,deeplift,ens",
    repeats: Repeats = 5,
    images: Images = 50_000,
    epochs: Epochs = 6,
    tests: Tests = 10_000,
    work: Work = Path("runs/semantic"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Accuracy over compression rate of every way to slice, and what masking costs."""
    s = Setting.of(model, dataset, repeats, images, epochs, tests, work, results, quick)
    names = tuple(metrics.split(","))
    curves = s.repeat(f"slicing-{'-'.join(names)}", lambda seed: slice_all(s, seed, names))
    path = s.folder / f"slicing-{s.name}"
    write_table(path, "Accuracy over compression rate (figure 5)", curves, s.head())
    tests_ = compare_all(curves)
    title = "Semantic slicing against the others, areas over the common range (table 4)"
    write_table(s.folder / f"table4-{s.name}", title, tests_, s.head())
    draw_curves(curves, path.with_suffix(".png"))
    masks = s.repeat(f"masking-{'-'.join(names)}", lambda seed: mask_ranges(s, seed, names))
    means = masks.groupby(["setting", "range", "metric"], sort=False)["accuracy"].mean()
    title = "Accuracy after masking ranges of neurons (tables 1 and 2)"
    write_table(s.folder / f"masking-{s.name}", title, means.unstack().reset_index(), s.head())


def slicers(model: keras.Model, data: datasets.Dataset, metric: str) -> dict[str, Callable]:
    """Return each way to slice: from a threshold or share to critical neurons."""
    im = nns.InstrumentedModel(model)
    plain = semantic.SemanticSlicer(im, data.x, data.y, metric)
    centred = semantic.SemanticSlicer(im, data.x, data.y, metric, centred=True)
    ways = (
        *(plain.global_slice, plain.category_slice),
        *(plain.semantic_slice, centred.semantic_slice),
    )
    return dict(zip(SLICERS, ways, strict=True))


def settings_of(way: str) -> tuple[float, ...]:
    """Return the thresholds or shares of a way to slice."""
    return THETAS if way.startswith("NeuSemSlice") else SHARES


def compression(model: keras.Model, critical: semantic.CriticalNeurons) -> float:
    """Return the share of the parameters that restructuring removes."""
    return 1 - semantic.restructure(model, critical).count_params() / model.count_params()


def slice_all(s: Setting, seed: int, metrics: tuple[str, ...]) -> list[dict]:
    """Return the points of every curve of one model."""
    model = s.trained(seed)
    masker, rows = semantic.Masker(model), []
    for metric in metrics:
        for way, select in slicers(model, sample(s.train), metric).items():
            for setting in settings_of(way):
                critical = select(setting)
                rows.append(
                    {
                        "metric": metric,
                        "method": way,
                        "setting": setting,
                        "compression": compression(model, critical),
                        "accuracy": zoo.accuracy(masker.neurons(critical), s.test),
                    }
                )
    return rows


def sample(data: datasets.Dataset, count: int = 5_000) -> datasets.Dataset:
    """Return the first samples, on which scores and similarities are measured."""
    return datasets.Dataset(
        data.x[:count], data.y[:count], data.name, data.split, data.normalise, data.classes
    )


def compare_all(curves: pd.DataFrame) -> pd.DataFrame:
    """Compare semantic slicing with the other ways, metric by metric."""
    rows = []
    for (metric, method), group in curves.groupby(["metric", "method"], sort=False):
        if not method.startswith("NeuSemSlice"):
            continue
        for other in SLICERS[:2]:
            against = curves[(curves.metric == metric) & (curves.method == other)]
            rows.append({"metric": metric, "method": method, "against": other})
            try:
                found = semantic.compare(as_curves(group), as_curves(against))
            except nns.errors.InvalidArgumentError:
                continue  # no rate in common
            rows[-1] |= {"gain": found.difference, "p_value": found.p_value}
            rows[-1] |= {"cohens_d": found.cohens_d, "repeats": found.repeats}
    return pd.DataFrame(rows)


def as_curves(rows: pd.DataFrame) -> list[tuple[np.ndarray, np.ndarray]]:
    """Return compression rates and accuracies, a pair a repeat."""
    return [(r.compression.to_numpy(), r.accuracy.to_numpy()) for _, r in rows.groupby("seed")]


def mask_ranges(s: Setting, seed: int, metrics: tuple[str, ...]) -> list[dict]:
    """Mask the neurons of one range of ranks; for all data, and for a category its own."""
    model = s.trained(seed)
    data, masker, rows = sample(s.train), semantic.Masker(model), []
    im = nns.InstrumentedModel(model)
    for metric in metrics:
        slicer = semantic.SemanticSlicer(im, data.x, data.y, metric)
        for low in (0.0, 0.1, 0.2, 0.3, 0.4):
            label = {"range": f"{low:.0%} → {low + 0.1:.0%}", "metric": metric}
            masked = masker.neurons(outside(slicer.scores, low))
            rows.append({"setting": "global", **label, "accuracy": zoo.accuracy(masked, s.test)})
            parts = []
            for row, c in enumerate(slicer.categories):
                scores = {k: v[row] for k, v in slicer.category_scores.items()}
                masked = masker.neurons(outside(scores, low))
                parts.append(zoo.accuracy(masked, only(s.test, (int(c),))))
            rows.append({"setting": "by category", **label, "accuracy": float(np.mean(parts))})
    return rows


def outside(scores: dict[str, np.ndarray], low: float) -> dict[str, np.ndarray]:
    """Keep all neurons but a tenth of every layer, by rank from `low` on."""
    keep = {}
    for layer, score in scores.items():
        first, last = (round(share * len(score)) for share in (low, low + 0.1))
        keep[layer] = np.ones(len(score), bool)
        keep[layer][np.argsort(-score, kind="stable")[first:last]] = False
    return keep


def draw_curves(curves: pd.DataFrame, path: Path) -> None:
    """Draw the mean curve of every way to slice, a panel a metric (figures 5 and 6)."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    metrics = list(curves.metric.unique())
    size = (4.2 * len(metrics), 3.8)
    figure, axes = pyplot.subplots(1, len(metrics), figsize=size, squeeze=False, sharey=True)
    for axis, metric in zip(axes[0], metrics, strict=True):
        for method in SLICERS:
            rows = curves[(curves.metric == metric) & (curves.method == method)]
            means = rows.groupby("setting")[["compression", "accuracy"]].mean()
            axis.plot(means.compression, means.accuracy, marker="o", markersize=3, label=method)
        axis.set(title=metric, xlabel="compression rate")
    axes[0, 0].set_ylabel("test accuracy")
    axes[0, -1].legend(fontsize=8)
    figure.tight_layout()
    with atomic_path(path) as temporary:
        figure.savefig(temporary, dpi=110)


def best_slices(
    s: Setting, model: keras.Model, data: datasets.Dataset, held_out: datasets.Dataset, metric: str
) -> dict[str, semantic.CriticalNeurons]:
    """Return a slice of every kind.

    The centred semantic slice is the smallest that loses at most half a point on held-out
    samples; the others have the settings whose size is nearest to it.
    """
    ways, masker = slicers(model, data, metric), semantic.Masker(model)
    lowest = zoo.accuracy(model, held_out) - 0.005
    chosen = ways["NeuSemSlice, centred"](1.0)
    for theta in THETAS:
        critical = ways["NeuSemSlice, centred"](theta)
        if zoo.accuracy(masker.neurons(critical), held_out) >= lowest:
            chosen = critical
            break
    size = compression(model, chosen)
    grids = {
        "Global": np.arange(0.05, 1, 0.05),
        "Category-wise": np.arange(0.02, 1, 0.04),
        "NeuSemSlice": (0.9, 0.95, 0.98, 0.985, 0.99, 0.9925, 0.995, 0.9975, 0.999),
    }
    found = {}
    for way, grid in grids.items():
        slices = [ways[way](float(setting)) for setting in grid]
        sizes = [abs(compression(model, critical) - size) for critical in slices]
        found[way] = slices[int(np.argmin(sizes))]
    return {**found, "NeuSemSlice, centred": chosen}


@app.command()
def restructure(
    model: Model = "mlp",
    dataset: Data = "mnist",
    metric: Metric = "taylor",
    repeats: Repeats = 5,
    images: Images = 50_000,
    epochs: Epochs = 6,
    tests: Tests = 10_000,
    work: Work = Path("runs/semantic"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Compress whole and restructured models until the accuracy falls (table 5)."""
    s = Setting.of(model, dataset, repeats, images, epochs, tests, work, results, quick)
    rows = s.repeat(f"restructure-{metric}", lambda seed: compress_all(s, seed, metric))
    keys = ["compressor", "method"]
    means = rows.groupby(keys, sort=False)[["CR", "NI", "MA"]].mean().reset_index()
    rule = "held-out accuracy one point below the model's; a tenth of the weights an iteration"
    title = "Compression until the accuracy falls (table 5)"
    write_table(s.folder / f"table5-{s.name}", title, means, s.head(metric=metric, stop=rule))
    write_table(s.folder / f"table5-{s.name}-runs", title, rows, s.head(metric=metric, stop=rule))


def compress_all(s: Setting, seed: int, metric: str) -> list[dict]:
    """Compress one model, whole and restructured, by every compressor."""
    model = s.trained(seed)
    lowest = zoo.accuracy(model, s.held_out) - 0.01
    starts = {"": model}
    slices = best_slices(s, model, sample(s.train), s.held_out, metric)
    starts |= {way: semantic.restructure(model, critical) for way, critical in slices.items()}
    rows = []
    for compressor in semantic.COMPRESSORS:
        for way, start in starts.items():
            found = semantic.compress(
                start, compressor, lambda m: zoo.accuracy(m, s.held_out), lowest
            )
            left = (1 - found.rate) * start.count_params()
            rows.append(
                {
                    "compressor": compressor,
                    "method": way or "alone",
                    "CR": 1 - left / model.count_params(),
                    "NI": found.iterations,
                    "MA": zoo.accuracy(found.model, s.test),
                }
            )
    return rows


@app.command()
def readapt(
    model: Model = "mlp",
    dataset: Data = "mnist",
    metric: Metric = "taylor",
    repeats: Repeats = 5,
    images: Images = 50_000,
    epochs: Epochs = 6,
    tests: Tests = 10_000,
    work: Work = Path("runs/semantic"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Train critical neurons on 1,000 adversarial samples and attack again (table 6)."""
    s = Setting.of(model, dataset, repeats, images, epochs, tests, work, results, quick)
    rows = s.repeat(f"readapt-{metric}", lambda seed: readapt_all(s, seed, metric))
    columns = ["TPR", "RA", "RAA", "clean", "attacked_before"]
    means = rows.groupby(["attack", "method"], sort=False)[columns].mean().reset_index()
    title = "Re-adaptation to adversarial samples (table 6)"
    head = s.head(metric=metric, epsilon=EPSILON[s.dataset], epochs_of_adaptation=10)
    write_table(s.folder / f"table6-{s.name}", title, means, head)


def readapt_all(s: Setting, seed: int, metric: str) -> list[dict]:
    """Attack one model, adapt it in every way, and attack again."""
    model = s.trained(seed)
    im = nns.InstrumentedModel(model)
    last = semantic.output_layer(im)
    slices = best_slices(s, model, sample(s.train), s.held_out, metric)
    chosen = {way: semantic.readapted_neurons(model, c) for way, c in slices.items()}
    whole = {k: np.ones(v.units, bool) for k, v in semantic.neuron_layers(im).items()}
    whole[last.name] = np.ones(last.units, bool)
    similarities = semantic.layer_similarities(im, s.train.x[:500])
    redundant = semantic.redundant_layers(similarities, 0.95)
    modules = {k: m for k, m in whole.items() if k not in redundant}
    both = {k: m for k, m in chosen["NeuSemSlice, centred"].items() if k not in redundant}
    chosen = {"Fully training": whole, "DeepArc": modules, **chosen, "centred + DeepArc": both}
    x, y = s.held_out.x[:1_000], s.held_out.y[:1_000]
    rows = []
    for attack in attacks(EPSILON[s.dataset]):
        adversarial = generate(model, attack, x, y, rng=seed, batch_size=250, progress=False).x
        data = (np.concatenate([x, adversarial]), np.concatenate([y, y]))
        before = share_right(model, adversarial, y)
        for way, neurons in chosen.items():
            trained = semantic.train_neurons(model, neurons, *data, epochs=10, rng=seed)
            other = (s.held_out.x[1_000:2_000], s.held_out.y[1_000:2_000])
            again = generate(trained, attack, *other, rng=seed, batch_size=250, progress=False).x
            rows.append(
                {
                    "attack": attack.name,
                    "method": way,
                    "TPR": semantic.parameter_share(model, neurons),
                    "RA": share_right(trained, *data),
                    "RAA": share_right(trained, again, other[1]),
                    "clean": zoo.accuracy(trained, s.test),
                    "attacked_before": before,
                }
            )
    return rows


def attacks(epsilon: float) -> tuple[AttackSpec, AttackSpec]:
    """Return FGSM and PGD with 20 steps, bounded in the maximum norm."""
    pgd = "foolbox.attacks:LinfProjectedGradientDescentAttack"
    fgsm = "foolbox.attacks:LinfFastGradientAttack"
    return (
        AttackSpec("FGSM", "gradient", fgsm, {}, "linf", epsilon),
        AttackSpec("PGD", "gradient", pgd, {"steps": 20}, "linf", epsilon),
    )


def share_right(model: keras.Model, x: np.ndarray, y: np.ndarray) -> float:
    """Return the accuracy of a model on samples."""
    return float(np.mean(np.argmax(model.predict_on_batch(x), axis=1) == y))


@app.command()
def develop(
    model: Model = "mlp",
    dataset: Data = "mnist",
    metric: Metric = "taylor",
    repeats: Repeats = 5,
    images: Images = 50_000,
    epochs: Epochs = 6,
    tests: Tests = 10_000,
    scenario: Annotated[int, typer.Option(min=1, max=2, help="Two tasks, or three.")] = 1,
    work: Work = Path("runs/semantic"),
    results: Results = None,
    quick: Quick = False,
) -> None:
    """Teach new classes without the old ones' samples, or with some (tables 7 and 8)."""
    s = Setting.of(model, dataset, repeats, images, epochs, tests, work, results, quick)
    tasks = (
        ((0, 1, 2, 3, 4), (5, 6, 7, 8, 9))
        if scenario == 1
        else ((0, 1, 2), (3, 4, 5), (6, 7, 8, 9))
    )
    what = f"develop{scenario}-{metric}"
    rows = s.repeat(what, lambda seed: develop_all(s, seed, metric, tasks))
    means = rows.drop(columns="seed").groupby("method", sort=False).mean().reset_index()
    number = 6 + scenario
    title = f"Incremental development, scenario {'I' * scenario} (table {number})"
    head = s.head(metric=metric, training="2 epochs of Adam, learning rate 0.001, on each task")
    write_table(s.folder / f"table{number}-{s.name}", title, means, head)
    write_table(s.folder / f"table{number}-{s.name}-runs", title, rows, head)


def develop_all(s: Setting, seed: int, metric: str, tasks: tuple) -> list[dict]:
    """Teach one model the later tasks in every way."""
    base = s.trained(seed, tasks[0])
    held_out = only(s.held_out, tasks[0])
    slices = best_slices(s, base, sample(only(s.train, tasks[0])), held_out, metric)
    nothing = {k: np.zeros_like(m) for k, m in slices["Global"].items()}
    ways = [("Retrain", None, 0.0)]
    ways += [(f"Replay {share:.0%}", None, share) for share in (0.05, 0.1, 1.0)]
    ways += [(way, critical, 0.0) for way, critical in slices.items()]
    ways += [(f"{way} + replay 10%", slices[way], 0.1) for way in SLICERS[2:]]
    whole = accuracies(s, base, tasks) | switched(s, base, [], tasks)
    rows = [{"method": "Original", **whole}]
    for way, critical, replay in ways:
        rows.append({"method": way})
        current, frozen, heads = base, critical, [(critical, tasks[0])]
        for number, task in enumerate(tasks[1:], start=1):
            learned = [c for old in tasks[:number] for c in old]
            data = replayed(s, task, tuple(learned), replay, seed)
            options = {"epochs": 2, "batch_size": 128, "rng": seed}
            if frozen is None:
                neurons = semantic.developed_neurons(current, nothing, learned)
                neurons = {k: np.ones_like(m) for k, m in neurons.items()}
                current = semantic.train_neurons(current, neurons, data.x, data.y, **options)
                continue
            current = semantic.develop(current, frozen, data.x, data.y, learned, **options)
            if number < len(tasks) - 1:
                frozen = frozen | slice_again(s, current, task, way, metric, frozen)
                heads.append((frozen, task))
        rows[-1] |= accuracies(s, current, tasks)
        rows[-1] |= switched(s, current, heads if critical is not None else [], tasks)
    return rows


def slice_again(
    s: Setting,
    model: keras.Model,
    task: tuple,
    way: str,
    metric: str,
    like: semantic.CriticalNeurons,
) -> semantic.CriticalNeurons:
    """Return the slice of a task learned later, of the kind and share of the first."""
    select = slicers(model, sample(only(s.train, task)), metric)[way.split(" + ")[0]]
    slices = [select(setting) for setting in settings_of(way)]
    wanted = like.count / len(task)
    return min(slices, key=lambda critical: abs(critical.count - wanted))


def replayed(s: Setting, task: tuple, learned: tuple, share: float, seed: int) -> datasets.Dataset:
    """Return a task's samples and a share of those learned before."""
    new, old = only(s.train, task), only(s.train, learned)
    chosen = np.random.default_rng(seed).permutation(len(old))[: round(share * len(old))]
    x, y = np.concatenate([new.x, old.x[chosen]]), np.concatenate([new.y, old.y[chosen]])
    return datasets.Dataset(x, y, new.name, new.split, new.normalise, new.classes)


def accuracies(s: Setting, model: keras.Model, tasks: tuple) -> dict[str, float]:
    """Return each task's test accuracy among all classes, and their mean."""
    found = {f"Task{'ABC'[i]}": zoo.accuracy(model, only(s.test, t)) for i, t in enumerate(tasks)}
    return {**found, "Avg": float(np.mean(list(found.values())))}


def switched(s: Setting, model: keras.Model, heads: list, tasks: tuple) -> dict[str, float]:
    """Return the accuracies when a task is known: an old one by its frozen neurons alone.

    As section 4.3 has it: the frozen neurons predict the tasks that they are critical for,
    the whole model the last task; each among its own task's classes. Methods that freeze
    nothing predict every task by the whole model.
    """
    masker, found = semantic.Masker(model), {}
    for i, task in enumerate(tasks):
        network = masker.neurons(heads[i][0]) if i < len(heads) else model
        data = only(s.test, task)
        logits = network.predict_on_batch(data.x)[:, list(task)]
        found[f"Task{'ABC'[i]} known"] = float(np.mean(np.array(task)[logits.argmax(1)] == data.y))
    return {**found, "Avg known": float(np.mean(list(found.values())))}


if __name__ == "__main__":
    app()
