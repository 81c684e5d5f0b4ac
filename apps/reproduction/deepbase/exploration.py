"""Seeds for DeepXplore, chosen by properties that no unit of digit networks follows."""

from collections.abc import Callable

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, deepbase, deepxplore, zoo
from nnslicer_tf.deepbase import per_record
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.deepbase.settings import ExplorationSettings
from reproduction.result import ExperimentResult, ExperimentTable


def explore(s: ExplorationSettings) -> ExperimentResult:
    """Start DeepXplore from the images on which a hypothesis that no unit follows is strong."""
    inspected = datasets.load("mnist", f"train[:{s.records}]")
    test = datasets.load("mnist", "test")
    ims = [InstrumentedModel(zoo.load(name, "mnist")) for name in ("lenet", "lenet5", "mlp")]
    # Hypothesis → largest |correlation| with any unit of the last hidden layers.
    best = []
    for im in ims:
        hidden = im[im.logit_operation].inputs[0]
        frame = deepbase.inspect(im, inspected.x, HYPOTHESES, units=hidden)
        best.append(deepbase.best_units(frame, 1).set_index("hypothesis")["score"].abs())
    affinity = pd.concat(best, axis=1).max(axis=1)
    rng = np.random.default_rng(s.seed)
    chosen = {"drawn by chance": rng.choice(len(test), s.seeds, replace=False)}
    for name in affinity.sort_values().index:
        values = HYPOTHESES[name](test.x)
        extreme = np.abs(values - values.mean())
        chosen[name] = np.argsort(-extreme, kind="stable")[: s.seeds]
    rows = []
    for name, indices in chosen.items():
        row = {"seeds where strong": name, "best |correlation|": affinity.get(name, np.nan)}
        for constraint in ("light", "blackout"):
            found = deepxplore.generate(ims, test.x[indices], constraint, rng=s.seed)
            row["models disagree on seeds"] = int((~found.generated).sum())
            row[f"found, {constraint}"] = found.success_rate
        rows.append(row)
        print(row, flush=True)
    head = {
        "networks": "lenet, lenet5 and mlp of the zoo; units of their last hidden layers",
        "records": f"inspected MNIST train[:{len(inspected)}], seeds from its test images",
        "seeds": f"{s.seeds} of each kind; a hypothesis is strong where it is far from its mean",
        "random seed": s.seed,
    }
    title = "Differences from seeds on which a hypothesis is strong, the least followed first"
    return ExperimentResult([ExperimentTable("explore", pd.DataFrame(rows), title, head)])


def _centred(x: np.ndarray) -> tuple[np.ndarray, ...]:
    """Return images scaled to sum 1, and each pixel's distance below and right of the centre."""
    ink = x[..., 0] / x[..., 0].sum(axis=(1, 2), keepdims=True)
    rows, columns = np.arange(x.shape[1])[:, None], np.arange(x.shape[2])[None]
    down = rows - (ink * rows).sum(axis=(1, 2), keepdims=True)
    right = columns - (ink * columns).sum(axis=(1, 2), keepdims=True)
    return ink, down, right


def _slant(x: np.ndarray) -> np.ndarray:
    ink, down, right = _centred(x)
    return (ink * down * right).sum(axis=(1, 2)) / (ink * down**2).sum(axis=(1, 2))


def _aspect(x: np.ndarray) -> np.ndarray:
    ink, down, right = _centred(x)
    return np.sqrt((ink * right**2).sum(axis=(1, 2)) / (ink * down**2).sum(axis=(1, 2)))


HYPOTHESES: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "brightness": per_record(deepbase.brightness),
    "slant": _slant,
    "height of the centre": lambda x: -_centred(x)[1][:, 0, 0],
    "side of the centre": lambda x: -_centred(x)[2][:, 0, 0],
    "aspect ratio": _aspect,
    **{f"edge {angle}°": per_record(deepbase.edge_direction(angle)) for angle in (0, 45, 90, 135)},
}
"""Name → function from images of digits to a number for each."""
