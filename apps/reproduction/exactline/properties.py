"""Violations of ACAS Xu's properties 1 to 4, found along exact lines: inputs to seed a verifier.

The paper (section 3) shows advisories along lines; a verifier asks whether any input of a box gets
a forbidden one. Four searches have the same time of one processor:

- `points`: random points of the box, in batches.
- `gradient`: projected steps along the sign of the gradient, from random points.
- `lines`: exact lines between random points of the box.
- `climbing`: exact lines through the best point so far, in random directions up to the box's sides;
  each step goes to the largest value on the whole line, which no sampling can miss.

The properties are those of Katz et al. (CAV 2017), on all 45 networks, as in the competition of
verifiers. An input counts if `evaluate`, which knows nothing of lines, violates the property.
"""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from nnslicer_tf.exactline import LinearPartition, LineWalker, acas
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline.advice_maps import evaluate, network_files
from reproduction.exactline.settings import PropertySettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

_BATCH = 1_000  # random points at once
_STEPS = 50  # of the gradient's, from each point
_PATIENCE = 20  # lines without a larger value, after which climbing starts anew


@dataclass(frozen=True)
class Property:
    """A property of the advisories in a box of inputs."""

    low: tuple[float, ...]  # of ρ, θ, ψ and both speeds, in physical units
    high: tuple[float, ...]
    excess: Callable[[np.ndarray], np.ndarray]  # outputs (…, 5) → above 0 where violated
    violated: frozenset[str]  # networks, by the counterexamples of a verifier


def _is_highest(outputs: np.ndarray) -> np.ndarray:
    return outputs[..., 0] - outputs[..., 1:].max(axis=-1)


def _is_lowest(outputs: np.ndarray) -> np.ndarray:
    return outputs[..., 1:].min(axis=-1) - outputs[..., 0]


_FAR = ((55947.691, -np.pi, -np.pi, 1145.0, 0.0), (60760.0, np.pi, np.pi, 1200.0, 60.0))
_NEAR = ((1500.0, -0.06, 3.10, 980.0, 960.0), (1800.0, 0.06, np.pi, 1200.0, 1200.0))
_AWAY = ((1500.0, -0.06, 0.0, 1000.0, 700.0), (1800.0, 0.06, 0.0, 1200.0, 800.0))
_SECOND = {f"{a}_{b}" for a in range(2, 6) for b in range(1, 10)} - {"3_3", "4_2"}
_SECOND |= {f"1_{b}" for b in range(2, 7)}
_LAST = frozenset({"1_7", "1_8", "1_9"})

PROPERTIES = {
    1: Property(*_FAR, lambda outputs: outputs[..., 0] - 1500, frozenset()),
    2: Property(*_FAR, _is_highest, frozenset(_SECOND)),
    3: Property(*_NEAR, _is_lowest, _LAST),
    4: Property(*_AWAY, _is_lowest, _LAST),
}
"""Number → property. The networks that violate it are those for which α,β-CROWN published a
counterexample in the competition of 2022 (VNN-COMP)."""


def properties(s: PropertySettings) -> ExperimentResult:
    """Search for violations of properties by lines, points and gradients."""
    store = RowStore.of(s, "properties", ("property", "network"), "seconds", "seed")
    names = [
        {"property": number, "network": path.stem}
        for number in PROPERTIES
        for path in network_files(s.networks)[:: s.every]
    ]
    rows = store.fill(names, lambda **name: _rows(s, **name), "Networks and properties")
    table = []
    for (number, search), group in rows.groupby(["property", "search"], sort=False):
        found = group[group["found"]]
        row = {"property": number, "search": search, "networks": len(group)}
        row |= {"known": int(group["known"].sum()), "found": len(found)}
        row["found of the known"] = int(found["known"].sum())
        row["median seconds"] = found["seconds"].median()
        row["slowest"] = found["seconds"].max()
        table.append(row)
    head = {"seconds": f"{s.seconds:g} for each search", "seed": s.seed}
    title = "ACAS Xu's properties: violations that a search finds"
    return ExperimentResult(
        [
            ExperimentTable("properties", pd.DataFrame(table), title, head, note("properties")),
            ExperimentTable("properties_networks", rows),
        ]
    )


def _rows(s: PropertySettings, property: int, network: str) -> Iterator[dict[str, object]]:
    path = next(p for p in network_files(Path(s.networks)) if p.stem == network)
    nnet, wanted = acas.load_nnet(path), PROPERTIES[property]
    known = any(f"_{name}_" in network for name in wanted.violated)
    # Its inputs are physical units; those of a search are in [0, 1], so that directions are fair.
    walker = LineWalker(InstrumentedModel(acas.to_keras(nnet, "float64")))
    box = np.array(wanted.low), np.array(wanted.high)
    walker.line(*box)  # compiled before the time starts
    searches = {"points": _points, "gradient": _gradient, "lines": _lines, "climbing": _climbing}
    for name, search in searches.items():
        rng = np.random.default_rng([s.seed, property])
        start, row = time.process_time(), {"search": name, "known": known, "found": False}
        for candidates in search(nnet, walker, box, wanted.excess, rng):
            seconds = time.process_time() - start
            values = wanted.excess(evaluate(nnet, candidates))
            if (values > 0).any():
                best = candidates[int(values.argmax())]
                row |= {"found": True, "excess": float(values.max()), "input": best.tolist()}
                break
            if seconds > s.seconds:
                break
        yield row | {"seconds": time.process_time() - start}


Box = tuple[np.ndarray, np.ndarray]
Excess = Callable[[np.ndarray], np.ndarray]


def _drawn(box: Box, rng: np.random.Generator, count: int) -> np.ndarray:
    return rng.uniform(*box, (count, len(box[0])))


def _points(
    nnet: acas.NNet, walker: LineWalker, box: Box, excess: Excess, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    while True:
        yield _drawn(box, rng, _BATCH)


def _gradient(
    nnet: acas.NNet, walker: LineWalker, box: Box, excess: Excess, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    low, high = box
    while True:
        x = _drawn(box, rng, 100)
        for step in range(_STEPS):
            # The derivative of the excess, by differences: five inputs need five passes.
            width = (high - low) * 1e-6
            moved = excess(evaluate(nnet, x[:, None] + np.diag(width)))
            slope = moved - excess(evaluate(nnet, x))[:, None]
            x = np.clip(x + (high - low) * 0.1 * 0.93**step * np.sign(slope), low, high)
            yield x


def _lines(
    nnet: acas.NNet, walker: LineWalker, box: Box, excess: Excess, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    while True:
        line = walker.line(*_drawn(box, rng, 2))
        yield line.at(np.array(_largest(line, excess)[:1]))


def _climbing(
    nnet: acas.NNet, walker: LineWalker, box: Box, excess: Excess, rng: np.random.Generator
) -> Iterator[np.ndarray]:
    low, high = box
    while True:
        (x,), largest, idle = _drawn(box, rng, 1), -np.inf, 0
        while idle < _PATIENCE:
            # The line through x, up to the sides of the box.
            direction = rng.normal(size=len(low)) * (high - low)
            moves = direction != 0
            sides = (np.stack([low, high]) - x)[:, moves] / direction[moves]
            first, last = sides.min(axis=0).max(), sides.max(axis=0).min()
            ends = [np.clip(x + end * direction, low, high) for end in (first, last)]
            line = walker.line(*ends)
            ratio, value = _largest(line, excess)
            idle = 0 if value > largest else idle + 1
            if value > largest:
                x, largest = line.at(np.array([ratio]))[0], value
            yield x[None]


def _largest(line: LinearPartition, excess: Excess) -> tuple[float, float]:
    """Return where on a line the excess is largest, and its value there.

    It is looked up where the outputs bend and where the highest or the lowest output changes.
    """
    ratios = np.concatenate(
        [line.ratios, line.classify().ratios, line.classify(lowest=True).ratios]
    )
    values = excess(line.evaluate(ratios))
    best = int(values.argmax())
    return float(ratios[best]), float(values[best])
