"""Which changes made an answer flip, and which can be taken back?"""

import time
from collections.abc import Iterator

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from scipy.stats import binomtest

from nnslicer_tf import InstrumentedModel, versions
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.versions.scenarios import Scenario, check_data, prepared
from reproduction.versions.settings import FlipSettings, RevertSettings

_GOAL = 0.01  # of the changes
_MAX_SHARE = 0.03
_ALPHAS = np.round(np.arange(0, 1.01, 0.1), 2)
_UNSEEN = {"lenet5": "test[:5000]"}  # else all test samples


def flips(s: FlipSettings) -> ExperimentResult:
    """Explain flipped test samples, scenario by scenario."""
    wanted = [{"scenario": name} for name in check_data(s.scenarios.split(","))]

    def measured(scenario: str) -> list[dict]:
        found = prepared(scenario, s.seed, s.work)
        old, new = InstrumentedModel(found.old), InstrumentedModel(found.new)
        x, y, x_new = found.samples(_unseen(found))
        # A trojan's flips carry the trigger; all others are old samples.
        x = x_new if scenario.endswith("trojan") else x
        changed = versions.compare(old, new, x, y).changed
        rng = np.random.default_rng(s.seed)
        chosen = np.sort(rng.permutation(changed)[: s.flips])
        start = time.perf_counter()
        causes = versions.explain_flips(old, new, x[chosen], rng=s.seed)
        seconds = (time.perf_counter() - start) / len(chosen)
        frame = causes.to_frame().assign(
            sample=chosen, flipped=len(changed) / len(x), seconds=seconds
        )
        return frame.to_dict("records")

    store = RowStore.of(s, "flips", ["scenario"], "flips", "seed")
    rows = store.fill(wanted, measured, "Scenarios")
    table = pd.DataFrame([_summary(name, part) for name, part in rows.groupby("scenario")])
    head = {"flips": f"{s.flips} a scenario, of unseen samples", "seed": s.seed}
    title = "The changes that made an answer flip"
    return ExperimentResult(
        [
            ExperimentTable("flips", table, title, head, note("flips")),
            ExperimentTable("flips_rows", rows.drop(columns="seconds")),
        ]
    )


def _summary(name: str, rows: pd.DataFrame) -> dict:
    both = (rows["enough"] & rows["needed"]).astype(bool)
    few = both & (rows["share"] <= _GOAL)
    low, high = binomtest(int(few.sum()), len(rows)).proportion_ci(method="wilson")
    return {
        "scenario": name,
        "flips": len(rows),
        "certified": both.mean(),
        "median share": round(float(rows["share"].median()), 5),
        "at most 1 %": few.mean(),
        "from": round(low, 3),
        "to": round(high, 3),
        "random": rows["random"].mean(),
        "largest": rows["largest"].mean(),
        "runner-up": rows["runner-up given"].mean(),
        "margin": round(float(rows["margin"].median()), 2),
        "passes": rows["passes"].mean(),
        "seconds": round(float(rows["seconds"].iloc[0]), 2),
    }


def reversions(s: RevertSettings) -> ExperimentResult:
    """Take back few changes, and compare with other ways between the versions."""
    wanted = [
        {"scenario": name, "seed": seed}
        for name in check_data(s.scenarios.split(","))
        for seed in range(s.seeds)
    ]

    def measured(scenario: str, seed: int) -> list[dict]:
        return list(_compared(prepared(scenario, seed, s.work), s, seed))

    store = RowStore.of(s, "reversions", ["scenario", "seed"], "labelled")
    rows = store.fill(wanted, measured, "Fine-tunings")
    table = pd.DataFrame(
        [
            {"scenario": name, "seed": seed, **_at_equal_flips(part)}
            for (name, seed), part in rows.groupby(["scenario", "seed"])
        ]
    )
    title = "A few changes taken back, against other ways between two versions"
    head = {"labelled": f"{s.labelled} of either domain", "fine-tunings": s.seeds}
    return ExperimentResult(
        [
            ExperimentTable("reversions", table, title, head, note("reversions")),
            ExperimentTable("reversions_rows", rows),
        ],
        [ExperimentFigure("reversions", plot(rows))],
    )


def plot(rows: pd.DataFrame) -> Figure:
    """Draw the new skill over the negative flips of all models between two versions."""
    names = rows["scenario"].unique()
    figure = Figure(figsize=(3.1 * len(names), 3.2), layout="constrained")
    axes = figure.subplots(1, len(names), squeeze=False)[0]
    ways = {"interpolation": "weights interpolated", "leading directions": "directions removed"}
    for ax, name in zip(axes, names, strict=True):
        first = rows[(rows["scenario"] == name) & (rows["seed"] == 0)]
        for way, label in ways.items():
            curve = first[first["way"] == way].sort_values("amount")
            ax.plot(100 * curve["negative flips"], 100 * curve["new skill"], ".-", label=label)
        at = first[first["way"] == "reversion"].iloc[0]
        new = first[(first["way"] == "interpolation") & (first["amount"] == 1)].iloc[0]
        label = "few changes taken back"
        ax.plot(100 * at["negative flips"], 100 * at["new skill"], "k*", ms=12, label=label)
        ax.plot(100 * new["negative flips"], 100 * new["new skill"], "ks", label="new version")
        ax.set(title=name, xlabel="negative flips, %")
    axes[0].set_ylabel("accuracy in the new domain, %")
    axes[0].legend(fontsize="small")
    return figure


def _unseen(found: Scenario) -> str:
    return _UNSEEN.get(found.name.split("-")[0], "test")


def _compared(found: Scenario, s: RevertSettings, seed: int) -> Iterator[dict]:
    """Yield what each model between the versions gives on unseen samples."""
    x, y, x_new = found.samples("train[80%:]")
    rng = np.random.default_rng([seed, 1])
    old_rows, new_rows = np.split(rng.permutation(len(x))[: 2 * s.labelled], 2)
    chosen = np.concatenate([x[old_rows], x_new[new_rows]])
    labels = np.concatenate([y[old_rows], y[new_rows]])
    start = time.perf_counter()
    result = versions.revert(
        found.old, found.new, chosen, labels, max_share=_MAX_SHARE, rng=seed, progress=False
    )
    seconds = time.perf_counter() - start

    test_x, test_y, test_new = found.samples(_unseen(found))
    right = _answers(found.old, test_x) == test_y

    def row(way: str, amount: float, model: keras.Model) -> dict:
        answers = _answers(model, test_x)
        return {
            "way": way,
            "amount": amount,
            "samples": len(test_x),
            "negative flips": float((right & (answers != test_y)).mean()),
            "old skill": float((answers == test_y).mean()),
            "new skill": float((_answers(model, test_new) == test_y).mean()),
            "seconds": round(seconds, 1) if way == "reversion" else np.nan,
        }

    yield row("reversion", result.share, result.model)
    before = [keras.ops.convert_to_numpy(v) for v in found.old.variables]
    after = [keras.ops.convert_to_numpy(v) for v in found.new.variables]
    copy = keras.models.clone_model(found.new)

    def between(share: float, cut: bool) -> keras.Model:
        for variable, a, b in zip(copy.variables, before, after, strict=True):
            variable.assign(_without_leading(a, b, share) if cut else a + share * (b - a))
        return copy

    for alpha in _ALPHAS:
        yield row("interpolation", float(alpha), between(float(alpha), False))
    for share in (0.0, 0.02, 0.05, 0.1, 0.2, 0.4, 0.7):
        yield row("leading directions", share, between(share, True))


def _without_leading(before: np.ndarray, after: np.ndarray, share: float) -> np.ndarray:
    """Return new weights without a share of the leading singular directions of their change."""
    change = after - before
    if change.ndim < 2:
        return after if share < 1 else before
    u, sizes, v = np.linalg.svd(change.reshape(-1, change.shape[-1]), full_matrices=False)
    sizes[: int(np.ceil(share * len(sizes)))] = 0
    return before + ((u * sizes) @ v).reshape(change.shape)


def _at_equal_flips(rows: pd.DataFrame) -> dict:
    """Return one fine-tuning's figures, and other ways' new skill at equal negative flips."""
    ways = dict(list(rows.groupby("way")))
    own = ways["reversion"].iloc[0]
    new = ways["interpolation"].set_index("amount").loc[1.0]
    found = {
        "new, negative flips": round(new["negative flips"], 4),
        "new, new skill": round(new["new skill"], 4),
        "share": round(own["amount"], 4),
        "negative flips": round(own["negative flips"], 4),
        "old skill": round(own["old skill"], 4),
        "new skill": round(own["new skill"], 4),
    }
    for way in ("interpolation", "leading directions"):
        curve = ways[way].sort_values("negative flips")
        # The best new skill of all models with as few negative flips, between neighbours linear.
        best = curve["new skill"].cummax()
        skill = np.interp(own["negative flips"], curve["negative flips"], best)
        found[f"gain over {way}"] = round(100 * (own["new skill"] - skill), 2)
    return found | {"seconds": own["seconds"]}


def _answers(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return model.predict(x, batch_size=256, verbose=0).argmax(axis=1)
