"""Planted faults: the rank that methods give them, and mending; provable repair of own mistakes."""

from collections.abc import Iterator
from dataclasses import asdict, replace

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import wilcoxon

from nnslicer_tf import datasets
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import largest
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.debugging import METHODS, Runs, mend, suspicious
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from nnslicer_tf.pruning.fine_tuning import fine_tune
from reproduction.debugging import settings
from reproduction.debugging.baselines import register
from reproduction.debugging.faults import OTHER_KINDS, Fault, FaultyModel, rank
from reproduction.debugging.provable_repair import InfeasibleRepairError, repair
from reproduction.plots import METHODS as COLOURS
from reproduction.plots import put_finding
from reproduction.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    note,
    paper_text,
)
from reproduction.rows import RowStore
from reproduction.samples import first
from reproduction.zoo.models import zoo

_MOST_DRAWN = 500  # faults drawn for each one needed
_EARLY = 0.01  # share of the channels that one would examine first


def localisation(s: settings.LocalisationSettings) -> ExperimentResult:
    """Rank the faulty channel among all hidden ones, by every method."""
    methods = s.methods.split(",")
    register()
    for method in methods:
        check_name("method", method, METHODS)
    faulty = FaultyModel(zoo.load(s.model))
    data = images(s)
    channels = sum(operation.shape[-1] for operation in faulty.hidden)
    name = f"faults_{s.model}" + ("" if s.kinds == ",".join(settings.KINDS) else "_others")
    store = fault_rows(name, "method", faulty, s)
    names = []
    for index, (fault, cost) in enumerate(costly(faulty, data, s)):
        names += [{"fault": index, "method": method} for method in methods]
        if any(one not in store for one in names[-len(methods) :]):
            runs = Runs.split(faulty.im, data.x, data.y).sampled(s.samples, rng=index)
            failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
            register(fault.seed)
            made = []
            for method in methods:
                found = suspicious(faulty.im, failing, passing, method, progress=False)
                hidden = {o.name: found.channels[o.name] for o in faulty.hidden}
                row = {"fault": index, "method": method, **asdict(fault), "cost": cost}
                del row["seed"]
                made.append(row | {"rank": rank(hidden, fault.operation, fault.channel)})
            store.add(made)
    faulty.heal()
    rows = store.to_frame(names).assign(channels=channels)
    ranks = rows.pivot(index="fault", columns="method", values="rank")
    ours = ranks.get("gradient_contrast")
    summary = []
    for method in methods:
        own = ranks[method]
        row = {"method": method, "top_1": (own <= 1).mean(), "top_5": (own <= 5).mean()}
        row["top_1_percent"] = (own <= max(1.0, 0.01 * channels)).mean()
        row |= {"median_rank": own.median(), "exam": (own / channels).mean()}
        row["auc"] = ((channels - own) / (channels - 1)).mean()
        differ = ours is not None and (own != ours).any()
        summary.append(row | {"p": wilcoxon(own, ours).pvalue if differ else np.nan})
    head = {"model": s.model, "faults": s.faults, "cost_points": s.cost, "strengths": s.strengths}
    head |= {
        "kinds": s.kinds,
        "test_samples": len(data),
        "compared": s.samples,
        "hidden_channels": channels,
    }
    head["seed"] = s.seed
    title = f"Planted faults in {s.model}: which method finds the channel"
    table = ExperimentTable(name, pd.DataFrame(summary), title, head, note("faults"))
    figure = ExperimentFigure(name, plot(name, rows))
    return ExperimentResult([ExperimentTable(f"{name}_ranks", rows), table], [figure])


def images(s: settings.FaultSettings) -> Dataset:
    """Return the first test images of the model's data set."""
    return datasets.load(zoo.models.entry(s.model).dataset, f"test[:{s.images}]")


def fault_rows(
    name: str, compared: str, faulty: FaultyModel, s: settings.FaultSettings
) -> RowStore:
    """Return the store of an experiment's rows, one for each fault and value of `compared`."""
    fields = ("images", "samples", "cost", "strengths", "kinds", "seed")
    return RowStore.of(s, name, ("fault", compared), *fields, weights=faulty.im.fingerprint)


def costly(
    faulty: FaultyModel, data: Dataset, s: settings.FaultSettings
) -> Iterator[tuple[Fault, float]]:
    """Plant and yield the first faults that cost enough accuracy, with their cost in points."""
    try:
        strengths = [float(part) for part in s.strengths.split(",")]
    except ValueError:
        message = f"--strengths takes numbers such as '1,2,4'. Received: {s.strengths!r}"
        raise InvalidArgumentError(message) from None

    def accuracy() -> float:
        return float((faulty.im.logits(data.x).argmax(axis=1) == data.y).mean())

    kinds = s.kinds.split(",")
    for kind in kinds:
        check_name("kind of fault", kind, (*settings.KINDS, *OTHER_KINDS))
    whole = accuracy()
    drawn = faulty.draw(np.random.default_rng(s.seed), strengths, kinds)
    for _ in track(range(s.faults), "Faults"):
        for _ in range(_MOST_DRAWN):
            fault = next(drawn)
            faulty.plant(fault)
            cost = 100 * (whole - accuracy())
            if cost >= s.cost:
                yield fault, cost
                break
        else:
            raise InvalidArgumentError(
                f"None of {_MOST_DRAWN} faults costs {s.cost} points of accuracy. Choose --cost."
            )


def plot(name: str, rows: pd.DataFrame) -> Figure:
    """Draw for each method the share of faults found among the first channels."""
    model = name.removeprefix("faults_").removesuffix("_ranks")
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axis = figure.subplots()
    early = {}
    for method, part in rows.groupby("method", sort=False):
        ranks = np.sort(part["rank"] / part["channels"])
        dashed = str(method).startswith("deepfault") or ":" in str(method)
        style = "--" if dashed else "-"
        shares = np.arange(1, len(ranks) + 1) / len(ranks)
        label, colour = str(method).replace("_", " "), COLOURS[str(method).partition(":")[0]]
        axis.step(ranks, shares, style, where="post", label=label, color=colour)
        # With fewer than a hundred channels, only the first one counts.
        early[label] = np.mean(part["rank"] <= np.maximum(1, _EARLY * part["channels"]))
    axis.axvline(_EARLY, color="grey", linewidth=0.8)
    axis.annotate(f" {_EARLY:.0%}", (_EARLY, 0), xycoords=("data", "axes fraction"), fontsize=8)
    axis.set(xscale="log", xlabel="share of hidden channels looked at")
    axis.set_ylabel("share of faults found")
    figure.legend(loc="outside lower center", ncols=4, fontsize=9)
    best = max(early, key=early.__getitem__)
    return put_finding(
        figure,
        f"{model}: {best} puts {early[best]:.0%} of the planted faults among the first "
        f"{_EARLY:.0%} of the channels",
    )


_EPOCHS = 30
_WAYS = ("as it is", "mask", "scale", "train", "fine-tune last layer", "fine-tune all")


def mending(s: settings.MendingSettings) -> ExperimentResult:
    """Mend planted faults in several ways; measure how many answers get better and worse."""
    faulty = FaultyModel(zoo.load(s.model))
    data = images(s)
    name = f"mending_{s.model}"
    store = fault_rows(name, "way", faulty, s)
    names = []
    for index, (fault, cost) in enumerate(costly(faulty, data, s)):
        names += [{"fault": index, "way": way} for way in _WAYS]
        if any(one not in store for one in names[-len(_WAYS) :]):
            base = {"fault": index, "operation": fault.operation, "kind": fault.kind, "cost": cost}
            store.add({**base, **row} for row in _mended(faulty.im, data, s.samples, index))
    faulty.heal()
    rows = store.to_frame(names)
    columns = ["accuracy", "mended", "drawdown"]
    means = rows.groupby("way", sort=False)[columns].agg(["mean", "std"])
    means.columns = [f"{a}_{b}" if b == "std" else a for a, b in means.columns]
    head = {"model": s.model, "faults": s.faults, "cost_points": s.cost}
    head["failing_and_passing_images"] = s.samples
    head |= {"unseen_images": s.images - s.images // 2, "seed": s.seed}
    title = f"Planted faults in {s.model}: mended from {2 * s.samples} images"
    table = ExperimentTable(name, means.reset_index(), title, head, note("mending"))
    return ExperimentResult([ExperimentTable(f"{name}_rows", rows), table])


def _mended(im: InstrumentedModel, data: Dataset, samples: int, seed: int) -> Iterator[dict]:
    half = len(data) // 2
    runs = Runs.split(im, data.x[:half], data.y[:half]).sampled(samples, rng=seed)
    failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
    # Gradients need no common classes; strong faults may leave none.
    found = suspicious(im, failing, passing, "gradient", progress=False)
    x, y = (np.concatenate(pair) for pair in zip(failing, passing, strict=True))
    unseen, labels = data.x[half:], data.y[half:]
    before = im.logits(unseen).argmax(axis=1) == labels
    for way in _WAYS:
        if way in ("mask", "scale", "train"):
            model = mend(im, found, x, y, way, epochs=_EPOCHS, rng=seed)
        else:
            model = copy_model(im.model)
        if way.startswith("fine-tune"):
            for layer in model.layers:
                is_fixed = way != "fine-tune all" and layer is not model.layers[-1]
                if is_fixed or isinstance(layer, keras.layers.BatchNormalization):
                    layer.trainable = False
            fine_tune(model, x, y, _EPOCHS, batch_size=32, rng=seed, progress=False)
        after = model.predict(unseen, verbose=0).argmax(axis=1) == labels
        mended, lost = 100 * after[~before].mean(), 100 * (~after[before]).mean()
        yield {"way": way, "accuracy": 100 * after.mean(), "mended": mended, "drawdown": lost}


def provable_repair(s: settings.RepairSettings) -> ExperimentResult:
    """Repair images that a model gets wrong by the least change of each of its dense layers."""
    dataset = zoo.models.entry(s.model).dataset
    im = InstrumentedModel(zoo.load(s.model))
    register()
    test = datasets.load(dataset, "test")
    kept = first(datasets.load(dataset, "train"), 10 * s.train)
    right = im.logits(kept.x).argmax(axis=1) == kept.y
    kept = first(replace(kept, x=kept.x[right], y=kept.y[right]), s.train)
    wrong = np.flatnonzero(im.logits(test.x).argmax(axis=1) != test.y)
    wrong = np.random.default_rng(s.seed).permutation(wrong)
    dense = [name for name, kernel in im.kernels.items() if len(kernel.shape) == 2][-2:]
    rows = []
    for count in track(s.counts, "Repairs"):
        chosen = wrong[:count]
        failing = test.x[chosen], test.y[chosen]
        found = suspicious(im, failing, (kept.x, kept.y), "gradient_contrast", progress=False)
        x, y = np.concatenate([test.x[chosen], kept.x]), np.concatenate([test.y[chosen], kept.y])
        others = np.delete(np.arange(len(test)), chosen)
        before = im.logits(test.x[others]).argmax(axis=1) == test.y[others]
        for kernel in dense:
            scores = found.synapses[kernel]
            among = largest(scores, min(s.among, scores.size))
            for size in ("sum", "largest"):
                row = {"kernel": kernel, "repaired": len(chosen), "size": size}
                row |= {"may_change": int(among.sum()), "feasible": False}
                rows.append(row)
                try:
                    repaired = repair(im, kernel, x, y, among=among, size=size)
                except InfeasibleRepairError:
                    continue
                logits, change = InstrumentedModel(repaired.model).logits, np.abs(repaired.change)
                after = logits(test.x[others]).argmax(axis=1) == test.y[others]
                right = (logits(x).argmax(axis=1) == y).sum()
                row |= {"feasible": True, "right": right, "of": len(x)}
                row |= {"changed": np.count_nonzero(change), "largest": change.max()}
                row["drawdown"] = 100 * (before.mean() - after.mean())
                row["generalisation"] = 100 * after[~before].mean()
    head = {"model": s.model, "kept_right": s.train, "test_images": len(test)}
    head |= {"wrong_before": len(wrong), "seed": s.seed}
    name, title = f"repair_{s.model}", f"Provable repair of {s.model}: what it costs elsewhere"
    text = f"{note('repair')}\n\n{paper_text('debugging/repair')}"
    return ExperimentResult([ExperimentTable(name, pd.DataFrame(rows), title, head, text)])
