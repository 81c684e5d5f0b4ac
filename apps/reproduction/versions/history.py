"""Is a fault planted in a fine-tuning found with the old version at hand?"""

import keras
import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf import InstrumentedModel, versions
from reproduction.debugging.faults import FaultyModel
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.versions.scenarios import check_data, prepared
from reproduction.versions.settings import HistorySettings

_KINDS = ("negate", "scale", "bias", "copy", "zero", "noise")


def history(s: HistorySettings) -> ExperimentResult:
    """Rank the channels of faulty versions, scenario by scenario."""

    def measured(scenario: str) -> list[dict]:
        found = prepared(scenario, 0, s.work)
        old, faulty = InstrumentedModel(found.old), FaultyModel(found.new)
        x, y, x_new = found.samples("train[90%:]")
        half = min(len(x) // 2, 1000)
        x, y = np.concatenate([x[:half], x_new[half : 2 * half]]), y[: 2 * half]
        accuracy = (_answers(faulty, x) == y).mean()
        rows: list[dict] = []
        for fault in faulty.draw(np.random.default_rng(s.seed), kinds=_KINDS):
            faulty.plant(fault)
            wrong = _answers(faulty, x) != y
            if 100 * (accuracy - (1 - wrong.mean())) < s.cost:
                continue
            chosen = np.r_[np.flatnonzero(wrong)[: s.samples], np.flatnonzero(~wrong)[: s.samples]]
            new = InstrumentedModel(keras.models.clone_model(faulty.im.model))
            new.model.set_weights(faulty.im.model.get_weights())
            ranked = versions.rank_changes(old, new, x[chosen], y[chosen], progress=False)
            # A shared layer's name may have a suffix; a kernel is named by its layer.
            layer = faulty.im[fault.operation].kernels[0].variable().path.rpartition("/")[0]
            place = (ranked["name"] == layer) & (ranked["index"] == (fault.channel,))
            rank = int(np.flatnonzero(place)[0]) + 1
            rows.append({"kind": fault.kind, "rank": rank, "channels": len(ranked)})
            if len(rows) == s.faults:
                return rows
        raise AssertionError("faults are drawn without end")

    store = RowStore.of(s, "history", ["scenario"], "faults", "cost", "samples", "seed")
    wanted = [{"scenario": name} for name in check_data(s.scenarios.split(","))]
    rows = store.fill(wanted, measured, "Scenarios")
    groups = [*rows.groupby("scenario"), *rows.groupby("kind"), ("all", rows)]
    table = pd.DataFrame([_summary(name, part) for name, part in groups])
    head = {"faults": f"{s.faults} a scenario", "cost_points": s.cost, "seed": s.seed}
    head |= {"failing_and_passing_samples": s.samples}
    title = "Faults in a fine-tuning, found with the old version at hand"
    tables = [ExperimentTable("history", table, title, head, note("history"))]
    return ExperimentResult([*tables, ExperimentTable("history_ranks", rows)])


def _answers(faulty: FaultyModel, x: np.ndarray) -> np.ndarray:
    return faulty.im.classes.from_logits(faulty.im.logits(x))


def _summary(name: str, rows: pd.DataFrame) -> dict:
    within = rows["rank"] <= np.maximum(1, np.ceil(rows["channels"] / 100))
    low, high = binomtest(int(within.sum()), len(rows)).proportion_ci(method="wilson")
    return {
        "faults of": name,
        "faults": len(rows),
        "channels": int(rows["channels"].max()),
        "first": (rows["rank"] == 1).mean(),
        "first 5": (rows["rank"] <= 5).mean(),
        "first 1 %": within.mean(),
        "from": round(low, 3),
        "to": round(high, 3),
    }
