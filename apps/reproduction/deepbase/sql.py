"""Units of a character LSTM on SQL, and the hypotheses from the parse that they follow.

This is DeepBase's own use case (Sellam et al., SIGMOD 2019, section 6): a network that predicts
the next character of queries from a grammar, whose parse provides the hypotheses.
"""

import time
from collections.abc import Mapping

import keras
import numpy as np
import pandas as pd
from keras import layers
from matplotlib.figure import Figure

from nnslicer_tf import deepbase
from nnslicer_tf._files import load_weights, save_weights
from nnslicer_tf._training import compile_classifier, train_epoch
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepbase.settings import SqlSettings, SqlTrainingSettings
from reproduction.deepbase.sql_grammar import ALPHABET, HYPOTHESES, Records, generate
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.settings import DATA

LENGTH = 64
UNITS = 64
MEASURES = ("correlation",)
PROBE = "logistic_probe"
_WEIGHTS = DATA / "weights" / "sql_lstm.weights.h5"


def character_lstm() -> keras.Model:
    """Build the network, from characters `(64,)` to logits of the next one `(64, characters)`."""
    inputs = keras.Input((LENGTH,), dtype="int32", name="characters")
    x = layers.Embedding(len(ALPHABET), 16, name="embedding")(inputs)
    x = layers.LSTM(UNITS, return_sequences=True, name="lstm")(x)
    return keras.Model(inputs, layers.Dense(len(ALPHABET), name="logits")(x), name="sql_lstm")


def train(s: SqlTrainingSettings) -> ExperimentResult:
    """Train the network on queries from the grammar, and write its weights."""
    keras.utils.set_random_seed(s.seed)
    model = character_lstm()
    data, held_out = generate(s.records, LENGTH, s.seed), generate(500, LENGTH, s.seed + 1)
    compile_classifier(model, keras.optimizers.Adam(s.learning_rate))
    rng = np.random.default_rng(s.seed)

    def step(rows: np.ndarray, _: np.random.Generator) -> float:
        return float(model.train_on_batch(data.tokens[rows], data.following[rows]))

    rows = []
    for epoch in range(s.epochs):
        losses = train_epoch(step, s.records, 64, rng)
        row = {"epoch": epoch + 1, "loss": float(np.mean(losses))}
        logits = model.predict(held_out.tokens, verbose=0)
        row["accuracy, held out"] = float((logits.argmax(axis=-1) == held_out.following).mean())
        rows.append(row)
        print(rows[-1], flush=True)
    path = s.weights or _WEIGHTS
    uncompiled = character_lstm()
    uncompiled.set_weights(model.get_weights())
    save_weights(uncompiled, path)
    head = {
        "network": f"LSTM of {UNITS} units on characters, {model.count_params():,} weights",
        "queries": f"{s.records} records of {LENGTH} characters; 500 more are held out",
        "seed": s.seed,
    }
    title = "Training of the character LSTM on SQL: accuracy of the next character"
    return ExperimentResult([ExperimentTable("sql-training", pd.DataFrame(rows), title, head)])


def inspect(s: SqlSettings) -> ExperimentResult:
    """Find the units that follow hypotheses from the parse, in a trained and a fresh network."""
    records = generate(s.records, LENGTH, s.seed)
    trained = character_lstm()
    load_weights(trained, s.weights or _WEIGHTS)
    keras.utils.set_random_seed(s.seed)
    ims = {"trained": InstrumentedModel(trained), "fresh": InstrumentedModel(character_lstm())}
    frames, costs = [], []
    binary = {name: (values > 0).astype(np.float64) for name, values in records.parse.items()}
    for error in (None, s.error):
        started = time.perf_counter()
        found = [
            deepbase.inspect(
                ims, records.tokens, hypotheses, measures, "lstm:h", error=error, block_size=64
            )
            for hypotheses, measures in ((records.parse, MEASURES), (binary, PROBE))
        ]
        frame = pd.concat(found, ignore_index=True)
        frames.append(frame)
        costs.append(
            {
                "error asked": "none: all records" if error is None else error,
                "records read": max(part.attrs["records"] for part in found),
                "seconds": time.perf_counter() - started,
                "pairs": len(frame),
                "mean records of a pair": frame["records"].mean(),
            }
        )
        print(costs[-1], flush=True)
    everything, early = frames
    head = {
        "network": f"LSTM of {UNITS} units, trained by sql-train; states h at each time",
        "records": f"{s.records} records of {LENGTH} characters from the grammar",
        "seed": s.seed,
    }
    keys = ["model", "group", "unit", "hypothesis", "measure"]
    both = everything.merge(early, on=keys, suffixes=("", " early"))
    both = both.dropna(subset=["score", "score early", "error early"])
    table = pd.DataFrame(costs)
    differences = (both["score"] - both["score early"]).abs()
    table["largest difference of a score"] = [0.0, differences.max()]
    table["share of scores within the error"] = [1.0, (differences <= both["error early"]).mean()]
    return ExperimentResult(
        [
            ExperimentTable("sql", _summary(everything), _TITLE, head, _TEXT),
            ExperimentTable("sql-cost", table, _COST, head),
        ],
        [ExperimentFigure("sql", plot(drawn := _drawn(records, ims, everything)), drawn=drawn)],
    )


_TITLE = "What the units of a character LSTM on SQL follow"
_DRAWN = ("inside where", "nesting depth", "position in keyword")
_PARSE, _UNIT = "#e69f00", "#0072b2"
_COST = "Early stopping: what an inspection costs"
_TEXT = (
    "correlation: of the unit that is nearest to the hypothesis, over all characters; probe: F1 "
    "score of a logistic regression on all units, for whether the hypothesis is above 0. The fresh "
    "network has random weights: what it follows is in the characters, not learned."
)


def _summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each hypothesis: the best unit, and scores of both networks."""
    rows = []
    for name in HYPOTHESES:
        row: dict[str, object] = {"hypothesis": name}
        for model in ("trained", "fresh"):
            found = frame[(frame["model"] == model) & (frame["hypothesis"] == name)]
            for measure in (*MEASURES, PROBE):
                of = found[found["measure"] == measure]
                whole = of[of["unit"].isna()]
                scores = (whole if len(whole) else of)["score"].abs()
                row[f"{measure}, {model}"] = scores.max()
            if model == "trained":
                of = found[found["measure"] == "correlation"].reset_index(drop=True)
                row["best unit"] = int(of.loc[of["score"].abs().idxmax(), "unit"])
        rows.append(row)
    return pd.DataFrame(rows)


def _drawn(
    records: Records, ims: Mapping[str, InstrumentedModel], frame: pd.DataFrame
) -> dict[str, np.ndarray]:
    """Return a record with a nested query, and the units nearest to three hypotheses on it."""
    depth, where = records.parse["nesting depth"], records.parse["inside where"]
    shown = int(np.argmax(depth.std(axis=1) + where.std(axis=1)))
    tokens = records.tokens[shown : shown + 1]
    values = ims["trained"].capture(tokens, of=["lstm:h"])["lstm:h"][0]
    of = frame[(frame["model"] == "trained") & (frame["measure"] == "correlation")]
    best = [
        own.loc[own["score"].abs().idxmax()]
        for own in (of[of["hypothesis"] == name].reset_index(drop=True) for name in _DRAWN)
    ]
    units = np.array([int(one["unit"]) for one in best])
    return {
        "text": np.array(list(records.text(shown))),
        "truth": np.stack([records.parse[name][shown] for name in _DRAWN]),
        "units": units,
        "values": values[:, units].T,
        "correlations": np.array([float(one["score"]) for one in best]),
    }


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the units nearest to three hypotheses over a record with a nested query."""
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    axes = figure.subplots(3, 1, sharex=True, sharey=True)
    parts = (drawn[key] for key in ("truth", "units", "values", "correlations"))
    for axis, name, truth, unit, values, r in zip(axes, _DRAWN, *parts, strict=True):
        shares = truth / max(truth.max(), 1)
        axis.step(np.arange(LENGTH), shares, where="mid", color=_PARSE, label="parse")
        unit_label = f"{'−' if r < 0 else ''}unit {unit}"
        axis.plot(np.sign(r) * values, color=_UNIT, linewidth=1, label=unit_label)
        axis.set_title(f"{name}: r = {r:.2f}".replace("-", "−"), fontsize=9, loc="left")
        axis.legend(loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False, fontsize=8)
        axis.set_ylim(-1.1, 1.1)
    axes[1].set_ylabel("value; parse: share of its largest")
    axes[-1].set_xticks(range(LENGTH), drawn["text"], fontfamily="monospace", fontsize=7)
    axes[-1].set_xlabel("character of the query", fontsize=9)
    sizes = ", ".join(f"{abs(r):.2f}" for r in drawn["correlations"])
    put_finding(figure, f"The LSTM's units that follow the parse of SQL best: |r| = {sizes}")
    return figure
