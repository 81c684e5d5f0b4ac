"""Do decisive slices keep the answer when the rest takes other samples' values?

Every slice is judged on the same other samples, which no search has seen: for which share of them
does it keep the answer? With `at_least`, searches promise such a share; over many splits of the
other samples, no more than 5 % of the promises may be broken.
"""

import time
from collections.abc import Iterator

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf import zoo
from nnslicer_tf._numerics import lower_bound
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Samples
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.decisive.comparison import inputs
from reproduction.decisive.settings import MapSettings, OthersSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

AT_LEAST = 0.9
OTHERS, PATH = f"other samples, at least {AT_LEAST:g}", "EAP-IG over other samples"
METHODS = {
    "mean": {},
    "mean, divergence at most 0.2": {"max_divergence": 0.2},
    "mean, divergence at most 0.2, needed": {"max_divergence": 0.2, "needed": True},
    "mean, needed": {"needed": True},
    OTHERS: {"at_least": AT_LEAST},
}
"""Method → its options of `Slicer.decisive`."""
_STEP = 0.9  # between the sizes of a ranking, from all synapses to the first that fails


def others(s: OthersSettings) -> ExperimentResult:
    """Compare slices by what they keep for other samples' values."""
    # Of one split: samples to explain, samples to judge on, and the rest, of which backgrounds are.
    dataset, slicer, data = opened(s)
    im, profile = slicer.im, slicer.profile
    x, judges, rest = np.split(data, [s.samples, s.samples + s.unseen])
    judge = Ablation(im, Samples(judges))
    answers = im.classes.from_logits(im.logits(x))

    def kept(index: int, mask: np.ndarray) -> float:
        values = judge.outputs(mask, x[index : index + 1])[0]
        return float((im.classes.from_logits(values) == answers[index]).mean())

    def measured(method: str, split: int) -> list[dict]:
        background = rest[np.random.default_rng([s.seed, split]).permutation(len(rest))]
        background = Samples(background[: s.background])
        start = time.perf_counter()
        if method == PATH:
            rows = list(_path_rows(im, x[: s.ranked], answers, background, s.points))
        else:
            reference = background if method == OTHERS else "mean"
            options = {"reference": reference, "others": 0, "scope": 0, "rng": split}
            found = slicer.decisive(x, max_share=1.0, **options, **METHODS[method])
            columns = ("share", "needed", "passes", "divergence")
            frame = found.to_frame()[list(columns)]
            masks = [
                np.concatenate([m.ravel() for m in found.masks(i).values()]) for i in range(len(x))
            ]
            rows = [
                {**row, "mask": mask}
                for row, mask in zip(frame.to_dict("records"), masks, strict=True)
            ]
        seconds = (time.perf_counter() - start) / len(rows)
        for index, row in enumerate(rows):
            row |= {"sample": index, "kept": kept(index, row.pop("mask")), "seconds": seconds}
        return rows

    fields = ("split", "samples", "profile", "background", "unseen", "ranked", "points", "seed")
    store = RowStore.of(
        s, f"others-{s.model}", ["method", "split"], *fields, model=profile.fingerprint
    )
    parts = [{"method": name, "split": 0} for name in (*METHODS, PATH)]
    parts += [{"method": OTHERS, "split": split} for split in range(1, s.splits)]
    table = store.fill(parts, measured, "Searches")

    # One row for each method: of the first split; broken promises, of all.
    rows = []
    for method, every in table.groupby("method", sort=False):
        group = every[every["split"] == 0]
        row = {"method": method, "samples": len(group), "median share": group["share"].median()}
        row["90 % of the samples below"] = group["share"].quantile(0.9)
        row["smaller than the whole"] = (group["share"] < 1).mean()
        row["kept"] = group["kept"].mean()
        row["kept for 90 %"] = (group["kept"] >= AT_LEAST).mean()
        row["needed"] = group["needed"].mean() if method != PATH else np.nan
        row |= group[["passes", "seconds"]].mean().to_dict()
        if method == OTHERS:
            broken = int((every["kept"] < AT_LEAST).sum())
            low, high = binomtest(broken, len(every)).proportion_ci(method="wilson")
            row |= {"promises": len(every), "broken": broken / len(every)}
            row |= {"broken, from": low, "broken, to": high}
        rows.append(row)
    head = {"model": f"{s.model} on {dataset}", "samples": f"{s.samples} of {s.split}"}
    head |= {"profile": f"{s.profile} training samples", "synapses": f"{judge.units:,}"}
    head |= {"background": f"{s.background} of {len(rest)} others, {s.splits} splits"}
    head |= {"judged on": f"{s.unseen} others", "seed": s.seed}
    frame = pd.DataFrame(rows).round(4)
    title = f"{s.model}: slices and other samples' values"
    text = note("others", points=s.points, ranked=s.ranked)
    return ExperimentResult([ExperimentTable(f"others-{s.model}", frame, title, head, text)])


def _path_rows(
    im: InstrumentedModel, x: np.ndarray, answers: np.ndarray, background: Samples, points: int
) -> Iterator[dict]:
    """Yield the smallest sizes of EAP-IG's ranking whose bound is reached: half ranks, half tests.

    The score of a synapse is the root mean square over donors of change × gradient, whose gradients
    are means over inputs between the donor and the sample.
    """
    ranks, tests = np.split(background.x, 2)
    ablation = Ablation(im, Samples(tests))
    is_text = im.graph.vocabulary(im.input_operation) is not None
    for index, one in enumerate(x):
        if is_text:  # nothing lies between two words: at the sentence alone
            squares, steps = _squares_at(im, one, int(answers[index]), ranks), 1
        else:
            squares, steps = _squares_between(im, one, int(answers[index]), ranks, points), points
        order = np.argsort(
            -np.concatenate([squares[name] for name in ablation.shapes]), kind="stable"
        )
        row = {"share": 1.0, "passes": 3 * steps * len(ranks)}
        mask, size = np.ones(ablation.units, np.float32), ablation.units
        while size > 1:
            size = int(_STEP * size)
            smaller = np.zeros(ablation.units, np.float32)
            smaller[order[:size]] = 1
            row["passes"] += len(tests)
            logits = ablation.outputs(smaller, one[None])[0]
            kept = int((im.classes.from_logits(logits) == answers[index]).sum())
            if lower_bound(kept, len(tests)) < AT_LEAST:
                break
            mask, row["share"] = smaller, size / ablation.units
        yield {**row, "mask": mask, "needed": np.nan, "divergence": np.nan}


def _squares_at(
    im: InstrumentedModel, one: np.ndarray, label: int, ranks: np.ndarray
) -> dict[str, np.ndarray]:
    """Return each synapse's mean square over donors of change × gradient at the sample, by name."""
    ablation = Ablation(im, Samples(ranks), target={im.logit_operation: "all"})
    pairs = ablation.unchecked(
        [np.repeat(one[None], len(ranks), axis=0)], ablation.base(Samples(ranks)), paired=True
    )
    whole = np.ones((len(ranks), ablation.units), np.float32)
    score = np.eye(im.classes.count, dtype=np.float32)[label]
    slopes = ablation.slopes(whole, pairs, score, 0.0)[1]
    squares = ablation.masks(np.square(slopes).mean(axis=0))
    return {name: part.ravel() for name, part in squares.items()}


def _squares_between(
    im: InstrumentedModel, one: np.ndarray, label: int, ranks: np.ndarray, points: int
) -> dict[str, np.ndarray]:
    """Return the same with gradients that are means over inputs between donor and sample."""
    sums = [o for o in im.operations if o.kernels and o.kind == "weighted_sum"]
    names, read = [o.name for o in sums], [o.inputs[0] for o in sums]
    donors, values = im.capture(ranks, of=read), im.capture(one[None], of=read)
    slopes = dict.fromkeys(names, 0.0)
    for step in (np.arange(points, dtype=np.float32) + 0.5) / points:
        between = ranks + step * (one - ranks)
        found = im.gradients(between, of=[label] * len(ranks), wrt=names)
        slopes = {name: slopes[name] + found[name] / points for name in names}
    squares = {}
    for o in sums:
        total = 0.0
        for d in range(len(ranks)):
            change = (values[o.inputs[0]] - donors[o.inputs[0]][d]).astype(np.float32)
            effect = sample_gradients(o, change, slopes[o.name][d : d + 1])
            total = total + np.square(np.ravel(effect) * o.params.kernel().ravel())
        squares[o.params.name] = total
    return squares


def opened(s: MapSettings) -> tuple[str, Slicer, np.ndarray]:
    """Return the data set's name, a slicer of the network, and the split's samples, shuffled."""
    dataset = zoo.models.entry(s.model).dataset
    im = InstrumentedModel(zoo.load(s.model))
    profile = Profile.from_data(im, inputs(dataset, f"train[:{s.profile}]"), progress=False)
    data = inputs(dataset, s.split).astype(np.float32)
    order = np.random.default_rng(s.seed).permutation(len(data))
    return dataset, Slicer(im, profile, workers=0, progress=False), data[order]
