"""One slice for each class: how often it keeps its own class, and claims samples of others.

The promise of `Slicer.decisive(together=True, against=…)` is judged on samples that neither the
search nor its tests have seen. Other rankings of synapses are given the same samples and bounds.
"""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf._numerics import lower_bound
from nnslicer_tf.instrument import Ablation
from reproduction.decisive.comparison import Kept, contributions, path_effects
from reproduction.decisive.others import opened
from reproduction.decisive.settings import ClassSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

SEARCH = "decisive()"
_STEP = 0.9  # between the sizes of a ranking, from all synapses
_POINTS = 8  # of EAP-IG
_LEAST_KEPT = 0.5  # a ranking's sizes end where it keeps fewer of the class's tests


def classes(s: ClassSettings) -> ExperimentResult:
    """Find one slice for each class, and judge it on samples that no search has seen."""
    dataset, slicer, data = opened(s)
    im, profile = slicer.im, slicer.profile
    answers = im.classes.from_logits(im.logits(data))
    ablation = Ablation(im, profile, target={im.logit_operation: "all"})

    def measured(label: int, split: int) -> list[dict]:
        own, rest, others, more = _parts(s, answers, label, split)
        options = {"against": data[others], "at_least": s.at_least, "at_most": s.at_most}
        found = slicer.decisive(
            data[own], together=True, max_share=1.0, others=0, scope=0, rng=split, **options
        )
        row = {"share": found.certificate["share"][0], "passes": found.certificate["passes"][0]}
        judged = im.classes.from_logits(ablation.outputs(found.masks(), data[[*rest, *more]]))
        kept, claimed = np.split(judged == label, [len(rest)])
        return [row | {"kept": kept.mean(), "claimed": claimed.mean(), "judges": len(rest)}]

    fields = ("split", "profile", "of_class", "others", "at_least", "at_most", "seed")
    made_from = {"model": profile.fingerprint}
    store = RowStore.of(s, f"classes-{s.model}", ["label", "split"], *fields, **made_from)
    labels = np.unique(answers).tolist()
    parts = [{"label": c, "split": split} for split in range(s.splits) for c in labels]
    table = store.fill(parts, measured, "Classes")

    first = table[table["split"] == 0][["label", "share", "kept", "claimed", "judges"]]
    broken = (table["kept"] < s.at_least) | (table["claimed"] > s.at_most)
    low, high = binomtest(int(broken.sum()), len(table)).proportion_ci(method="wilson")
    row = {"promises": len(table), "smaller than the whole": (table["share"] < 1).mean()}
    row |= {"median share": table["share"].median(), "kept": table["kept"].mean()}
    row |= {"claimed": table["claimed"].mean(), "broken": broken.mean()}
    row |= {"broken, from": low, "broken, to": high, "passes": table["passes"].mean()}
    head = {"model": f"{s.model} on {dataset}", "samples": f"{len(data)} of {s.split}"}
    head |= {"for each class": f"{s.of_class} of it and {s.others} others", "seed": s.seed}
    head |= {"bounds": f"{s.at_least:g} kept, {s.at_most:g} claimed", "splits": s.splits}
    title, text = f"{s.model}: one slice for each class", note("classes")
    tables = [
        ExperimentTable(f"classes-{s.model}", first.round(4), title, head, text),
        ExperimentTable(
            f"classes-{s.model}-bounds", pd.DataFrame([row]).round(4), f"{title}, all splits", head
        ),
    ]
    return ExperimentResult(tables)


def rankings(s: ClassSettings) -> ExperimentResult:
    """Compare the slices of classes with rankings of synapses; both are given the same samples.

    Half of a ranking's samples rank: a synapse's score is the root mean square of its scores for
    samples, all for the class. The other half tests sizes, from large to small.
    """
    dataset, slicer, data = opened(s)
    im, profile = slicer.im, slicer.profile
    answers = im.classes.from_logits(im.logits(data))
    network = Kept(im, profile)
    ablation = Ablation(im, profile, target={im.logit_operation: "all"})
    weights = [im.kernels[name].kernel() for name in network.kernels]
    sizes = np.abs(np.concatenate([kernel.ravel() for kernel in weights]))

    def mean_square(index: np.ndarray, score: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
        blocks = np.array_split(index, -(-len(index) // 20))
        return sum(np.square(score(data[b]), dtype=np.float64).sum(axis=0) for b in blocks)

    def scores(method: str, label: int, own: np.ndarray, others: np.ndarray) -> np.ndarray:
        def path(x: np.ndarray) -> np.ndarray:
            return np.stack([path_effects(network, _POINTS, one, label) for one in x])

        def counted(x: np.ndarray) -> np.ndarray:
            return contributions(network, 0.1, "count", x, np.full(len(x), label))

        if method == "|weight|":
            return sizes
        score = counted if method.startswith("slices") else path
        rows = np.concatenate([own, others]) if method.endswith("and others") else own
        return mean_square(rows, score)

    def found(method: str, label: int, parts: list[np.ndarray]) -> Iterator[tuple[bool, dict]]:
        """Yield slices from large to small, with whether they pass the tests."""
        (own, tests), (others, strangers) = (np.array_split(part, 2) for part in parts)
        order = np.argsort(-scores(method, label, own, others), kind="stable")
        size = ablation.units
        while size > 1:
            size = int(_STEP * size)
            mask = np.zeros(ablation.units, np.float32)
            mask[order[:size]] = 1
            judged = im.classes.from_logits(ablation.outputs(mask, data[[*tests, *strangers]]))
            kept, claimed = np.split(judged == label, [len(tests)])
            if kept.mean() < _LEAST_KEPT:
                break
            passed = lower_bound(int(kept.sum()), len(kept)) >= s.at_least
            passed &= lower_bound(int((~claimed).sum()), len(claimed)) >= 1 - s.at_most
            yield passed, {"share": size / ablation.units, "mask": mask}

    def measured(method: str, label: int) -> list[dict]:
        own, rest, others, more = _parts(s, answers, label, 0)
        whole = {"share": 1.0, "mask": np.ones(ablation.units, np.float32)}
        if method == SEARCH:
            options = {"against": data[others], "at_least": s.at_least, "at_most": s.at_most}
            one = slicer.decisive(
                data[own], together=True, max_share=1.0, others=0, scope=0, rng=0, **options
            )
            chosen = {"share": one.certificate["share"][0], "mask": one.masks()}
            smallest = chosen["share"]
        else:
            chosen, smallest, goes_on = whole, 1.0, True
            for passed, smaller in found(method, label, [own, others]):
                goes_on &= passed
                chosen = smaller if goes_on else chosen
                smallest = smaller["share"] if passed else smallest
        outputs = ablation.outputs(chosen.pop("mask"), data[[*rest, *more]])
        kept, claimed = np.split(im.classes.from_logits(outputs) == label, [len(rest)])
        return [chosen | {"at best": smallest, "kept": kept.mean(), "claimed": claimed.mean()}]

    fields = ("split", "profile", "of_class", "others", "at_least", "at_most", "seed")
    made_from = {"model": profile.fingerprint, "step": _STEP, "points": _POINTS}
    name = f"ranked-classes-{s.model}"
    store = RowStore.of(s, name, ["method", "label"], *fields, **made_from)
    names = (SEARCH, "EAP-IG", "EAP-IG, own and others", "slices, θ = 0.1", "|weight|")
    labels = np.unique(answers).tolist()
    parts = [{"method": method, "label": label} for method in names for label in labels]
    table = store.fill(parts, measured, "Classes")

    ours = table[table["method"] == SEARCH].set_index("label")["share"]
    rows = []
    for method, group in table.groupby("method", sort=False):
        row = {"method": method, "classes": len(group)}
        row["smaller than the whole"] = (group["share"] < 1).mean()
        row["median share"], row["at best"] = group["share"].median(), group["at best"].median()
        each = group.set_index("label")
        row["decisive() beside it"] = (ours / each["share"]).median()
        row["decisive() beside its best"] = (ours / each["at best"]).median()
        rows.append(row | group[["kept", "claimed"]].mean().to_dict())
    head = {"model": f"{s.model} on {dataset}", "samples": f"{len(data)} of {s.split}"}
    head |= {"for each class": f"{s.of_class} of it and {s.others} others", "seed": s.seed}
    head |= {"bounds": f"{s.at_least:g} kept, {s.at_most:g} claimed"}
    title, text = f"{s.model}: slices of classes beside rankings", note("ranked")
    return ExperimentResult([ExperimentTable(name, pd.DataFrame(rows).round(4), title, head, text)])


def _parts(s: ClassSettings, answers: np.ndarray, label: int, split: int) -> list[np.ndarray]:
    """Return samples of the class, the rest of these, samples of others, and their rest."""
    order = np.random.default_rng([s.seed, split]).permutation(len(answers))
    is_own = answers[order] == label
    own, rest = np.split(order[is_own], [s.of_class])
    return [own, rest, *np.split(order[~is_own], [s.others])]
