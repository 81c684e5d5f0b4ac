"""Find inputs on which digit classifiers disagree: DeepXplore's experiments.

    python apps/explore_differences.py --models <folder>
    python apps/explore_differences.py --models <folder> --quick

Three networks of MNIST: LeNet-1 and LeNet-4 with the weights that DeepXplore's authors
published (`lenet1_weights.h5`, `lenet4_weights.h5` in the folder) and the zoo's LeNet-5.
From the same test images, without their labels, differences are sought under every
constraint; then it is measured what they cover beside as many test images, seeds and
random images, and what retraining on one half of them does on the other half.

What was found is kept in the working folder: an interrupted run goes on from there.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import keras
import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, deepxplore, zoo
from nnslicer_tf._files import data_folder
from nnslicer_tf.deepxplore import Differences, NeuronCoverage, NeuronRanges
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import markdown_table, provenance, save_figure, write_table

matplotlib.use("Agg")

THRESHOLDS = (0.0, 0.25, 0.5, 0.75)
SECTIONS = 100
# Name → constraint, λ2, and threshold of the coverage that is pursued.
SEARCHES = {
    "light": ("light", 0.1, 0.25),
    "occlusion": ("occlusion", 0.1, 0.25),
    "blackout": ("blackout", 0.1, 0.25),
    "light, λ2 = 0": ("light", 0.0, 0.25),
    "light, λ2 = 1": ("light", 1.0, 0.25),
}


def main(
    models: Annotated[Path, typer.Option(help="Folder of the published weights.")],
    seeds: Annotated[int, typer.Option(help="Test images to start from.", min=10)] = 1000,
    train: Annotated[int, typer.Option(help="Training images for ranges, retraining.")] = 10_000,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    work: Annotated[Path, typer.Option(help="Folder of what was found.")] = Path("runs/deepxplore"),
    results: Annotated[Path | None, typer.Option(help="Folder of the tables.")] = None,
    quick: Annotated[bool, typer.Option(help="100 seeds, 2,000 training images.")] = False,
) -> None:
    """Search, measure coverage, retrain, and write the tables and pictures."""
    if quick:
        seeds, train, work = 100, 2_000, work / "quick"
    results = results or (work if quick else data_folder() / "results" / "deepxplore")
    ims = [nns.InstrumentedModel(model) for model in _networks(models)]
    images = datasets.load("mnist", f"test[:{seeds}]")
    others = datasets.load("mnist", f"test[{seeds}:]")
    training = datasets.load("mnist", f"train[:{train}]")
    head = {"seeds": f"MNIST test[:{seeds}], without labels", "random seed": seed}

    found = {name: _search(name, ims, images.x, seed, work) for name in SEARCHES}
    accuracy = {im.model.name: zoo.accuracy(im.model, others) for im in ims}
    table = pd.DataFrame([_figures(name, f, images.y) for name, f in found.items()])
    head["accuracy on the other test images"] = _shares(accuracy)
    title = "Differences found"
    _write(results / "differences", title, table, head)
    for name in deepxplore.CONSTRAINTS:
        _draw(results / f"differences_{name}.png", found[name], images.x)

    ranges = [NeuronRanges.from_data(im, training.x) for im in ims]
    table = pd.concat(
        _coverage(name, f, images, others.x, ranges, seed) for name, f in found.items()
    )
    head["ranges"] = f"of train[:{train}], k-multisection with k = {SECTIONS}"
    _write(results / "coverage", "What the found inputs cover", table, head)
    _draw_coverage(results / "coverage.png", table)

    rows = []
    for im in ims:
        control = deepxplore.retrain(im.model, training.x, training.y, rng=seed)
        for name in deepxplore.CONSTRAINTS:
            study = _Retraining(name, found[name], images.y, others)
            rows.append(study.measure(im.model, im.model, "none"))
            rows.append(study.measure(im.model, control, "no found inputs"))
            rows += study.retrained(im.model, training, seed)
            print(rows[-1], flush=True)
    title = "Retraining on one half of the found inputs, measured on the other"
    head["retraining"] = f"5 epochs of Adam, 0.0001, on train[:{train}] and the found inputs"
    _write(results / "retraining", title, pd.DataFrame(rows), head)


def _networks(folder: Path) -> list[keras.Model]:
    published = [
        deepxplore.published_lenet(name, folder / f"{name}_weights.h5")
        for name in ("lenet1", "lenet4")
    ]
    return [*published, zoo.load("lenet5", "mnist")]


def _search(
    name: str, ims: list[InstrumentedModel], images: np.ndarray, seed: int, work: Path
) -> Differences:
    """Search, or read what was found when this was done before."""
    path = work / f"{name}-{len(images)}-{seed}.npz".replace(" ", "")
    if path.exists():
        return Differences.load(path)
    constraint, lambda2, threshold = SEARCHES[name]
    coverage = [NeuronCoverage(im, threshold) for im in ims]
    deepxplore.generate(ims, images[:2], constraint, max_iterations=1, progress=False)  # compile
    found = deepxplore.generate(
        ims, images, constraint, lambda2=lambda2, coverage=coverage, rng=seed
    )
    found.save(path)
    return found


def _figures(name: str, found: Differences, labels: np.ndarray) -> dict:
    made = found.generated
    truth, majority = labels[found.seed_index][made], found.majority()[made]
    return {
        "search": name,
        "seeds": found.tried,
        "seeds on which they disagree": int((~made).sum()),
        "found": int(made.sum()),
        "found, share": found.success_rate,
        "mean steps": found.iterations[made].mean(),
        "seconds a difference": found.seconds / max(int(made.sum()), 1),
        "seed's class is right, share": (found.labels[made] == truth).mean(),
        "majority is right, share": (majority == truth).mean(),
        "all three differ, share": (majority == -1).mean(),
    }


def _coverage(
    name: str,
    found: Differences,
    images: datasets.Dataset,
    others: np.ndarray,
    ranges: list[NeuronRanges],
    seed: int,
) -> pd.DataFrame:
    """Compare what found inputs cover with as many others."""
    rng = np.random.default_rng(seed)
    made = found.inputs[found.generated]
    count = len(made)
    sets = {
        "found": made,
        "their seeds": images.x[found.seed_index[found.generated]],
        "test images": others[rng.choice(len(others), count, replace=False)],
        "random images": rng.uniform(size=made.shape).astype(np.float32),
    }
    rows = []
    for inputs, x in sets.items():
        for of_model in ranges:
            im = of_model.neurons.im
            row = {"search": name, "inputs": inputs, "count": count, "model": im.model.name}
            rows.append(row | {k: _covered(c, x) for k, c in _criteria(im, of_model).items()})
    return pd.DataFrame(rows)


def _criteria(im: InstrumentedModel, ranges: NeuronRanges) -> dict[str, deepxplore.Coverage]:
    return {
        **{f"neurons > {t:g}": NeuronCoverage(im, t) for t in THRESHOLDS},
        "k-multisection": deepxplore.KMultisectionCoverage(ranges, SECTIONS),
        "boundary": deepxplore.BoundaryCoverage(ranges),
        "strong activation": deepxplore.StrongActivationCoverage(ranges),
        "top 2": deepxplore.TopKCoverage(im, 2),
    }


def _covered(coverage: deepxplore.Coverage, x: np.ndarray) -> float:
    coverage.update(x)
    return coverage.total()


class _Retraining:
    """Found inputs of even seeds to train on, and those of odd seeds to measure on."""

    def __init__(
        self, name: str, found: Differences, labels: np.ndarray, others: datasets.Dataset
    ) -> None:
        self.name, self.found, self.others = name, found, others
        self.even = found.seed_index % 2 == 0
        held_out = ~self.even & found.generated
        self.x, self.y = found.inputs[held_out], labels[found.seed_index[held_out]]

    def retrained(
        self, model: keras.Model, training: datasets.Dataset, seed: int
    ) -> Iterator[dict]:
        """Retrain with the found inputs, labelled in two ways without anybody's help."""
        classes = {
            "labelled by the majority": self.found.majority(),
            "labelled as their seed": self.found.labels,
        }
        for how, y in classes.items():
            added = self.even & (y >= 0) & self.found.generated
            x = np.concatenate([training.x, self.found.inputs[added]])
            y = np.concatenate([training.y, y[added]])
            better = deepxplore.retrain(model, x, y, rng=seed)
            yield self.measure(model, better, how, int(added.sum()))

    def measure(self, model: keras.Model, better: keras.Model, how: str, added: int = 0) -> dict:
        """Return the accuracies of a retrained model."""
        right = np.argmax(better.predict(self.x, verbose=0), axis=1) == self.y
        return {
            "model": model.name,
            "search": self.name,
            "training": how,
            "added": added,
            "held-out found inputs": len(self.x),
            "accuracy on them": float(right.mean()),
            "accuracy on other test images": zoo.accuracy(better, self.others),
        }


def _shares(values: dict[str, float]) -> str:
    return ", ".join(f"{name} {value:.4f}" for name, value in values.items())


def _write(path: Path, title: str, table: pd.DataFrame, head: dict) -> None:
    write_table(path, title, table, provenance(**head))
    print(f"{title}\n{markdown_table(table)}\n-> {path}.md", flush=True)


def _draw(path: Path, found: Differences, images: np.ndarray) -> None:
    save_figure(found.plot(images, most=10), path, dpi=100, tight=True)


def _draw_coverage(path: Path, table: pd.DataFrame) -> None:
    """Draw the coverage of LeNet-5 by the inputs of every constraint, and of as many others."""
    from matplotlib import pyplot

    columns = [column for column in table.columns[4:] if column != "neurons > 0"]
    shown = table[(table["model"] == "lenet5") & table["search"].isin(deepxplore.CONSTRAINTS)]
    figure, axes = pyplot.subplots(1, 3, figsize=(12, 3.8), sharey=True, layout="constrained")
    for axis, (name, group) in zip(axes, shown.groupby("search", sort=False), strict=True):
        width = 0.8 / len(group)
        for i, (_, row) in enumerate(group.iterrows()):
            places = np.arange(len(columns)) + i * width
            axis.bar(places, [row[column] for column in columns], width, label=row["inputs"])
        axis.set_xticks(np.arange(len(columns)) + 0.3, columns, rotation=40, ha="right")
        axis.set_title(f"{name}: {group['count'].iloc[0]} inputs of each kind")
    axes[0].set_ylabel("covered share, LeNet-5")
    axes[0].legend(fontsize=8)
    save_figure(figure, path, dpi=100)


if __name__ == "__main__":
    typer.run(main)
