"""Inputs on which digit classifiers disagree: how many, their coverage, retraining on them.

Three networks for MNIST: LeNet-1 and LeNet-4 with the weights that DeepXplore's authors published
(`lenet1_weights.h5`, `lenet4_weights.h5` in a folder) and the zoo's LeNet-5. Searches for
differences start from the same test images, without their labels, under every constraint. The
experiment measures their coverage, compared with equally many test images, seeds and random
images, and the effect of retraining on one half of them for the other half. Differences found are
kept in the working folder.
"""

from collections.abc import Iterator, Mapping

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, deepxplore, zoo
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.deepxplore import Differences, NeuronCoverage, NeuronRanges
from nnslicer_tf.deepxplore.constraints import CONSTRAINTS
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepxplore.networks import networks
from reproduction.deepxplore.retraining import majority_of, retrain
from reproduction.deepxplore.settings import DifferenceSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

SEARCHES = {
    "light": ("light", 0.1, 0.25),
    "occlusion": ("occlusion", 0.1, 0.25),
    "blackout": ("blackout", 0.1, 0.25),
    "light, λ2 = 0": ("light", 0.0, 0.25),
    "light, λ2 = 1": ("light", 1.0, 0.25),
}
"""Name → constraint, λ2, and threshold of the coverage to increase."""

_COLOURS = {"found": "#0072b2", "their seeds": "#e69f00"}
_COLOURS |= {"test images": "#009e73", "random images": "#8a8f98"}
_THRESHOLDS = (0.0, 0.25, 0.5, 0.75)
_SECTIONS = 100
_SHOWN = 10  # inputs found in each figure


def explore(s: DifferenceSettings) -> ExperimentResult:
    """Find differences, and measure their coverage and the effect of retraining on them."""
    ims = networks("mnist", s.models)
    images = datasets.load("mnist", f"test[:{s.seeds}]")
    others = datasets.load("mnist", f"test[{s.seeds}:]")
    training = datasets.load("mnist", f"train[:{s.train}]")
    found = {name: _search(name, ims, images.x, s) for name in SEARCHES}
    accuracy = ", ".join(f"{im.model.name} {zoo.accuracy(im.model, others):.4f}" for im in ims)
    head = {
        "seeds": f"MNIST test[:{s.seeds}], without labels",
        "random seed": s.seed,
        "accuracy on the other test images": accuracy,
    }
    differences = []
    for name, of in found.items():
        made, majority = of.generated, majority_of(of.predictions)[of.generated]
        row = {"search": name, "seeds": of.tried}
        row |= {"seeds on which they disagree": int((~made).sum()), "found": int(made.sum())}
        row |= {"found, share": of.success_rate, "mean steps": of.iterations[made].mean()}
        row["seconds a difference"] = of.seconds / max(int(made.sum()), 1)
        truth = images.y[of.seed_index][made]
        row["seed's class is right, share"] = (of.labels[made] == truth).mean()
        row["majority is right, share"] = (majority == truth).mean()
        differences.append(row | {"all three differ, share": (majority == -1).mean()})
    ranges = [NeuronRanges.from_data(im, training.x) for im in ims]
    covered = {name: _coverage(f, images, others.x, ranges, s.seed) for name, f in found.items()}
    coverage = pd.concat(covered, names=["search"]).reset_index("search")
    ranged = {**head, "ranges": f"of train[:{s.train}], k-multisection with k = {_SECTIONS}"}
    models, data = [im.model for im in ims], (images, others, training)
    retraining = pd.DataFrame(_retraining(models, found, data, s.seed))
    figures = []
    for name in CONSTRAINTS:
        # The first generated inputs, their seeds, and the predictions.
        shown = np.flatnonzero(found[name].generated)[:_SHOWN]
        drawn = {
            "seeds": images.x[found[name].seed_index[shown]],
            "inputs": found[name].inputs[shown],
            "predictions": found[name].predictions[shown],
        }
        title = f"differences_{name}"
        figures.append(ExperimentFigure(title, plot_differences(name, drawn), 100, drawn=drawn))
    figures.append(ExperimentFigure("coverage", plot_coverage(coverage), 100))
    how = f"5 epochs of Adam, 0.0001, on train[:{s.train}] and the found inputs"
    title = "Retraining on one half of the found inputs, measured on the other"
    tables = [
        ExperimentTable("differences", pd.DataFrame(differences), "Differences found", head),
        ExperimentTable("coverage", coverage, "What the found inputs cover", ranged),
        ExperimentTable("retraining", retraining, title, {**ranged, "retraining": how}),
    ]
    return ExperimentResult(tables, figures)


def plot_differences(name: str, drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw seeds, and below each the input made from it under a constraint."""
    constraint, count = name.removeprefix("differences_"), len(drawn["inputs"])
    inputs, predictions, seeds = (drawn[key] for key in ("inputs", "predictions", "seeds"))
    ones, nones = np.ones(count, int), np.full(count, -1)
    found = Differences(inputs, np.arange(count), predictions, nones, ones, count, 0.0)
    figure = found.plot(seeds, most=count)
    finding = f"LeNet-1, LeNet-4 and LeNet-5 disagree after changes by {constraint}"
    return put_finding(figure, finding)


def _search(
    name: str, ims: list[InstrumentedModel], images: np.ndarray, s: DifferenceSettings
) -> Differences:
    """Search for differences, or read those of an earlier run."""
    path = s.work / f"{name}-{len(images)}-{s.seed}.npz".replace(" ", "")
    if path.exists():
        return Differences.load(path)
    constraint, lambda2, threshold = SEARCHES[name]
    coverage = [NeuronCoverage(im, threshold) for im in ims]
    deepxplore.generate(ims, images[:2], constraint, max_iterations=1, progress=False)  # compile
    options = {"lambda2": lambda2, "coverage": coverage, "rng": s.seed}
    found = deepxplore.generate(ims, images, constraint, **options)
    found.save(path)
    return found


def _coverage(
    found: Differences, images: Dataset, others: np.ndarray, ranges: list[NeuronRanges], seed: int
) -> pd.DataFrame:
    """Compare the coverage of the inputs found with that of equally many others."""
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
            row = {"inputs": inputs, "count": count, "model": im.model.name}
            criteria: dict[str, deepxplore.Coverage] = {
                **{f"neurons > {t:g}": NeuronCoverage(im, t) for t in _THRESHOLDS},
                "k-multisection": deepxplore.KMultisectionCoverage(of_model, _SECTIONS),
                "boundary": deepxplore.BoundaryCoverage(of_model),
                "strong activation": deepxplore.BoundaryCoverage(of_model, "upper"),
                "top 2": deepxplore.TopKCoverage(im, 2),
            }
            for criterion, coverage in criteria.items():
                coverage.update(x)
                row[criterion] = coverage.total()
            rows.append(row)
    return pd.DataFrame(rows)


def _retraining(
    models: list[keras.Model], found: dict[str, Differences], data: tuple[Dataset, ...], seed: int
) -> Iterator[dict[str, object]]:
    """Yield accuracies on odd-seed inputs of models retrained on even-seed inputs."""
    images, others, training = data
    for model in models:
        control = retrain(model, training.x, training.y, rng=seed)
        for name in CONSTRAINTS:
            one, even = found[name], found[name].seed_index % 2 == 0
            held_out = ~even & one.generated
            test_x, test_y = one.inputs[held_out], images.y[one.seed_index[held_out]]
            rows = [("none", model, 0), ("no found inputs", control, 0)]
            # Two ways to label them without a human.
            labels = {
                "labelled by the majority": majority_of(one.predictions),
                "labelled as their seed": one.labels,
            }
            for how, y in labels.items():
                added = even & (y >= 0) & one.generated
                x = np.concatenate([training.x, one.inputs[added]])
                labels = np.concatenate([training.y, y[added]])
                better = retrain(model, x, labels, rng=seed)
                rows.append((how, better, int(added.sum())))
            for how, better, count in rows:
                row = {"model": model.name, "search": name, "training": how, "added": count}
                right = np.argmax(better.predict(test_x, verbose=0), axis=1) == test_y
                row |= {"held-out found inputs": len(test_x), "accuracy on them": right.mean()}
                yield row | {"accuracy on other test images": zoo.accuracy(better, others)}


def plot_coverage(table: pd.DataFrame) -> Figure:
    """Draw the coverage of LeNet-5 by each constraint's inputs, and by equally many others."""
    columns = [column for column in table.columns[4:] if column != "neurons > 0"]
    shown = table[(table["model"] == "lenet5") & table["search"].isin(CONSTRAINTS)]
    figure = Figure(figsize=(8, 1.2 + 1.9 * len(CONSTRAINTS)), layout="constrained")
    axes = figure.subplots(len(CONSTRAINTS), 1, sharex=True, sharey=True, squeeze=False)[:, 0]
    for axis, (name, group) in zip(axes, shown.groupby("search", sort=False), strict=True):
        width = 0.8 / len(group)
        for i, (_, row) in enumerate(group.iterrows()):
            places = np.arange(len(columns)) + i * width
            look = {"label": row["inputs"], "color": _COLOURS[row["inputs"]]}
            axis.bar(places, [row[column] for column in columns], width, **look)
        axis.set_xticks(np.arange(len(columns)) + 0.3, columns, fontsize=8)
        axis.set_title(f"{name}: {group['count'].iloc[0]} inputs of each kind", fontsize=10)
        axis.set_ylabel("covered share", fontsize=9)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4)
    means = shown.groupby("inputs")["k-multisection"].mean()
    return put_finding(
        figure,
        f"Found inputs cover {means['found']:.1%} of the sections of the ranges of LeNet-5's "
        f"neurons (k-multisection), as many test images {means['test images']:.1%}",
    )
