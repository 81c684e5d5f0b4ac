"""Special cases of the exclusion in the paper's program: how often they matter.

The program excludes by the sum of the local values, as `Slicer(relative_to="sum")` does. In
addition it keeps every value within 1 % of the smallest one that it kept, and drops a neuron
whose sum is below its smallest local value, or below a thousandth of its largest (see "What
the original computes" in the docs). Both rules are applied here to real neurons, one at a time.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile
from reproduction.nnslicer.settings import SpecialCaseSettings
from reproduction.result import ExperimentResult, ExperimentTable

_BAR = 0.99  # share of the smallest magnitude that is kept
_SMALL = 1e-3  # share of the largest magnitude
_TEXT = (
    "Neurons drawn at random among those that differ from their mean. `kept`: share of the local "
    "values that the plain rule keeps. `more by the bar`: values within 1 % of the smallest that "
    "is kept, in relation to the number kept. `dropped neurons`: share of the neurons whose sum is "
    "below the smallest local value or a thousandth of the largest; `dropped values`: share of the "
    "values kept that these neurons have."
)


class Kept(NamedTuple):
    """The local values of some neurons that the exclusion keeps."""

    plain: np.ndarray  # (neurons, values): values that the plain rule keeps
    bar: np.ndarray  # the same, and those within 1 % of the smallest one
    dropped: np.ndarray  # (neurons,): neurons whose values the program drops entirely


def exclude(v: np.ndarray, theta: float) -> Kept:
    """Apply the plain rule and the special cases to local values `(neurons, values)`.

    The windows have no padding, so a zero also counts as a local value.
    """
    magnitudes = np.abs(v)
    order = np.argsort(-magnitudes, axis=1, kind="stable")
    sums = v.sum(axis=1, dtype=np.float64)
    left = sums[:, None] - np.cumsum(np.take_along_axis(v, order, axis=1), axis=1, dtype=np.float64)
    within = np.abs(left) < theta * np.abs(sums)[:, None]
    count = np.where(within.any(axis=1), within.argmax(axis=1) + 1, v.shape[1])
    plain = np.zeros(v.shape, bool)
    np.put_along_axis(plain, order, np.arange(v.shape[1]) < count[:, None], axis=1)
    smallest = np.take_along_axis(magnitudes, order, axis=1)[np.arange(len(v)), count - 1]
    bar = plain | (magnitudes > _BAR * smallest[:, None])
    total = np.abs(sums)
    dropped = (total < magnitudes.min(axis=1)) | (total < _SMALL * magnitudes.max(axis=1))
    return Kept(plain, bar, dropped)


def special_cases(s: SpecialCaseSettings) -> ExperimentResult:
    """Count what the special cases change, over the neurons of a network."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    profile = Profile.from_data(im, datasets.load(s.dataset, f"train[:{s.train}]").x)
    images = datasets.load(s.dataset, s.split).x[: s.images]
    captured = im.capture(images)
    rng = np.random.default_rng(s.seed)
    rows: list[dict[str, object]] = []
    found: list[Kept] = []
    sums = [o for o in im.graph.operations.values() if o.kind == "weighted_sum"]
    for operation in track([o for o in sums if o.params.groups == 1], "Kernels"):
        # The local values of random neurons `(neurons, taps · inputs)`.
        kernel, source = operation.params, operation.inputs[0]
        delta = captured[source] - profile.means[source]
        x = delta.reshape(len(delta), -1, delta.shape[-1])
        inside = np.flatnonzero((kernel.taps >= 0).all(axis=1))
        weights = kernel.matrix().reshape(-1, kernel.matrix().shape[-1])
        sample = rng.integers(len(x), size=s.neurons)
        position = rng.choice(inside, s.neurons)
        output = rng.integers(weights.shape[1], size=s.neurons)
        windows = x[sample[:, None], kernel.taps[position]].reshape(s.neurons, -1)
        v = (windows * weights.T[output]).astype(np.float64)
        found.append(exclude(v[v.sum(axis=1) != 0], s.theta))
        rows.append({"kernel": kernel.name, **_figures(found[-1:])})
    rows.append({"kernel": "all", **_figures(found)})
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "neurons": f"up to {s.neurons} of each kernel, of the first {s.images} images of {s.split}",
        "means": f"{s.train:,} training images",
        "theta": f"{s.theta:g} times the sum of the local values",
        "seed": s.seed,
    }
    title = "Special cases of the program's exclusion"
    name = f"special-cases-{s.model}-{s.dataset}"
    return ExperimentResult([ExperimentTable(name, pd.DataFrame(rows), title, head, _TEXT)])


def _figures(parts: Sequence[Kept]) -> dict[str, float]:
    """Return the metrics of a row over the neurons of several kernels."""
    kept = sum(int(part.plain.sum()) for part in parts)
    neurons = sum(len(part.dropped) for part in parts)
    dropped = sum(int(part.plain[part.dropped].sum()) for part in parts)
    return {
        "neurons": neurons,
        "kept": kept / sum(part.plain.size for part in parts),
        "more by the bar": sum(int(part.bar.sum()) for part in parts) / kept - 1,
        "dropped neurons": sum(int(part.dropped.sum()) for part in parts) / neurons,
        "dropped values": dropped / kept,
    }
