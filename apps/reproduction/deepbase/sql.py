"""Units of a character LSTM on SQL, and the hypotheses from the parse that they follow.

This is DeepBase's own use case (Sellam et al., SIGMOD 2019, section 6): a network that predicts
the next character of queries from a grammar, whose parse provides the hypotheses.

    query     := select columns from table [where condition] [order by column] [limit number]
    condition := predicate [(and | or) predicate]
    predicate := column operator value | column in ( query ) | ( condition )

Queries follow one another, ended by `;`, and are cut into records of equal length.
"""

import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import keras
import numpy as np
import pandas as pd
from keras import layers
from matplotlib.figure import Figure

from nnslicer_tf import deepbase
from nnslicer_tf._files import load_weights
from nnslicer_tf._training import compile_loss, train_epoch
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepbase.settings import SqlSettings, SqlTrainingSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.settings import DATA
from reproduction.weights import save_weights

ALPHABET = " ;(),=<>'*0123456789abcdefghijklmnopqrstuvwxyz"
_COLUMNS = ("id", "name", "age", "city", "price", "total", "date", "owner")
_TABLES = ("users", "orders", "items", "shops", "events")
_DEEPEST = 3

FEATURES = (
    *("inside where", "nesting depth", "inside keyword", "position in keyword"),
    *("inside name", "inside number", "characters since ;"),
)
"""Names of the parse's features of every character."""


@dataclass
class _Writer:
    """Collects text, with a row of the parse for each character."""

    rng: np.random.Generator
    text: list[str] = field(default_factory=list)
    parse: list[tuple[float, ...]] = field(default_factory=list)
    depth: int = 0
    wheres: int = 0
    since: int = 0

    def write(self, text: str, kind: str = "") -> None:
        """Write a piece of text; `kind` is "keyword", "name", "number" or none of them."""
        for place, character in enumerate(text):
            keyword = kind == "keyword"
            row = (self.wheres > 0, self.depth, keyword, (place + 1) * keyword)
            self.parse.append((*row, kind == "name", kind == "number", self.since))
            self.text.append(character)
            self.since = 0 if character == ";" else self.since + 1

    def keyword(self, text: str) -> None:
        self.write(text, "keyword")
        self.write(" ")

    def one_of(self, names: tuple[str, ...]) -> str:
        return names[self.rng.integers(len(names))]

    def query(self) -> None:
        self.keyword("select")
        if self.rng.random() < 0.2:
            self.write("*")
        else:
            for place in range(self.rng.integers(1, 4)):
                self.write(", " if place else "")
                self.write(self.one_of(_COLUMNS), "name")
        self.write(" ")
        self.keyword("from")
        self.write(self.one_of(_TABLES), "name")
        if self.rng.random() < 0.7:
            self.write(" ")
            self.wheres += 1
            self.keyword("where")
            self.condition()
            self.wheres -= 1
        if self.rng.random() < 0.25:
            self.write(" ")
            self.keyword("order")
            self.keyword("by")
            self.write(self.one_of(_COLUMNS), "name")
        if self.rng.random() < 0.2:
            self.write(" ")
            self.keyword("limit")
            self.write(str(self.rng.integers(1, 100)), "number")

    def condition(self) -> None:
        self.predicate()
        if self.rng.random() < 0.5:
            self.write(" ")
            self.keyword(self.one_of(("and", "or")))
            self.predicate()

    def predicate(self) -> None:
        chosen = self.rng.random()
        if chosen < 0.2 and self.depth < _DEEPEST:
            self.nested(self.condition)
            return
        self.write(self.one_of(_COLUMNS), "name")
        self.write(" ")
        if chosen < 0.4 and self.depth < _DEEPEST:
            self.keyword("in")
            self.nested(self.query)
            return
        self.write(f"{self.one_of(('=', '<', '>'))} ")
        self.write(str(self.rng.integers(0, 1000)), "number")

    def nested(self, part) -> None:
        self.depth += 1
        self.write("(")
        part()
        self.write(")")
        self.depth -= 1


@dataclass(frozen=True, eq=False)
class Records:
    """Windows of queries: characters as indices in `ALPHABET`, `(records, length)` int32."""

    tokens: np.ndarray
    following: np.ndarray  # the next character at each position
    parse: dict[str, np.ndarray]  # hypothesis → its values, float64

    def text(self, record: int) -> str:
        """Return a record as text."""
        return "".join(ALPHABET[token] for token in self.tokens[record])


def generate(records: int, length: int, rng: int) -> Records:
    """Return windows of random queries, one after another without overlap."""
    writer = _Writer(np.random.default_rng(rng))
    while len(writer.text) <= records * length:
        writer.query()
        writer.write("; ")
    codes = {character: place for place, character in enumerate(ALPHABET)}
    text = np.array([codes[c] for c in writer.text[: records * length + 1]], np.int32)
    parse = np.array(writer.parse[: records * length], np.float64).reshape(records, length, -1)
    tokens, following = (part.reshape(records, length) for part in (text[:-1], text[1:]))
    return Records(tokens, following, {name: parse[..., k] for k, name in enumerate(FEATURES)})


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
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    compile_loss(model, keras.optimizers.Adam(s.learning_rate), loss)
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
        options = {"error": error, "block_size": 64}
        found = [
            deepbase.inspect(ims, records.tokens, hypotheses, measures, "lstm:h", **options)
            for hypotheses, measures in ((records.parse, MEASURES), (binary, PROBE))
        ]
        seconds = time.perf_counter() - started
        frame = pd.concat(found, ignore_index=True)
        frames.append(frame)
        cost = {"error asked": "none: all records" if error is None else error}
        cost["records read"] = max(part.attrs["records"] for part in found)
        cost |= {"seconds": seconds, "pairs": len(frame)}
        costs.append(cost | {"mean records of a pair": frame["records"].mean()})
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
    title = "What the units of a character LSTM on SQL follow"
    drawn = _drawn(records, ims, everything)
    tables = [
        ExperimentTable("sql", _summary(everything), title, head, note("sql")),
        ExperimentTable("sql-cost", table, "Early stopping: what an inspection costs", head),
    ]
    return ExperimentResult(tables, [ExperimentFigure("sql", plot(drawn), drawn=drawn)])


_DRAWN = ("inside where", "nesting depth", "position in keyword")
_PARSE, _UNIT = "#e69f00", "#0072b2"


def _summary(frame: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each hypothesis: the best unit, and scores of both networks."""
    rows = []
    for name in FEATURES:
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
    by_name = (of[of["hypothesis"] == name].reset_index(drop=True) for name in _DRAWN)
    best = [own.loc[own["score"].abs().idxmax()] for own in by_name]
    units = np.array([int(one["unit"]) for one in best])
    drawn = {"text": np.array(list(records.text(shown))), "units": units}
    drawn["truth"] = np.stack([records.parse[name][shown] for name in _DRAWN])
    drawn["correlations"] = np.array([float(one["score"]) for one in best])
    return drawn | {"values": values[:, units].T}


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
    return put_finding(figure, f"The LSTM's units that follow the parse of SQL best: |r| = {sizes}")
