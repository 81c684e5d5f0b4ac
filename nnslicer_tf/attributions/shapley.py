"""Shapley values of a table's columns (Lundberg and Lee, NeurIPS 2017), over background rows.

A coalition of features has the sample's values, the other features those of a row. Up to about 12
features, all coalitions are run; of more, those of random orders. Cost: at most half a million
forward passes of single rows, for a small network one or two seconds.
"""

import math
from typing import Any

import numpy as np

from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import staged
from nnslicer_tf._numerics import parted
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.instrument.target import Target

MAX_FEATURES = 512
_MAX_RUNS = 500_000  # forward passes

_BATCH = 4096


def shapley_values(
    im: InstrumentedModel,
    x: Any,
    rows: Any,
    target: Target,
    features: np.ndarray | None = None,
    *,
    rng: int | np.random.Generator = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Return what each feature of a sample adds to the target's score, against each row.

    Arguments as in `contributions_against`; `features` is the index of the feature that each entry
    of the inputs belongs to, `(entries,)`, by default one of its own. Entries of a feature are
    exchanged together. `rng` draws the orders of features, where there are too many coalitions.

    Returns the values `(rows, features)`, which add up to the sample's score less the row's, and
    the standard errors of their means over the rows that the drawing of orders causes,
    `(features,)`, 0 if all coalitions were run.

    Raises UnsupportedLayerError if there are more than 512 features.
    """
    one, background = flat(x)[0], flat(rows)
    features = np.arange(len(one)) if features is None else np.asarray(features)
    count, samples = int(features.max()) + 1, len(background)
    if count > MAX_FEATURES:
        raise UnsupportedLayerError(
            f"Shapley values are computed for at most {MAX_FEATURES} features; '{im.model.name}' "
            f"has {count}. Group them, or use 'DeepLIFT'."
        )

    def scores(coalitions: np.ndarray, of_row: np.ndarray) -> np.ndarray:
        """Return the scores of mixtures of the sample and rows."""
        parts = []
        for first in range(0, len(coalitions), _BATCH):
            here = slice(first, first + _BATCH)
            mixed = np.where(coalitions[here][:, features], one, background[of_row[here]])
            parts.append(scores_of(im, mixed, target))
        return np.concatenate(parts)

    if samples * 2**count <= _MAX_RUNS:
        members = (np.arange(2**count)[:, None] >> np.arange(count)) % 2 == 1
        sizes = members.sum(axis=1)
        # The share of the orders in which a coalition of this size precedes one more feature.
        shares = [1 / (count * math.comb(count - 1, size)) for size in range(count)]
        before = np.array([0.0, *shares, 0.0])
        weights = np.where(members.T, before[sizes], -before[sizes + 1])
        runs = np.repeat(members, samples, axis=0), np.tile(np.arange(samples), 2**count)
        return (weights @ scores(*runs).reshape(2**count, samples)).T, np.zeros(count)

    random = as_generator(rng)
    draws = max(2, _MAX_RUNS // (2 * (count + 1) * samples))
    estimates = np.zeros((draws, samples, count))
    steps = np.arange(count + 1)[:, None]
    for estimate in staged(estimates, "order", draws):  # each from an order and its reverse
        ranks = random.random((samples, count)).argsort(axis=1)
        for places in (ranks, count - 1 - ranks):
            coalitions = (places[:, None] < steps).reshape(-1, count)
            found = scores(coalitions, np.repeat(np.arange(samples), count + 1))
            added = np.diff(found.reshape(samples, count + 1), axis=1)
            estimate += np.take_along_axis(added, places, axis=1) / 2
    errors = np.sqrt(estimates.var(axis=0, ddof=1).sum(axis=0) / draws) / samples
    return estimates.mean(axis=0), errors


def flat(batch: Any) -> np.ndarray:
    """Return a batch as one array `(samples, entries of all inputs)`."""
    return np.concatenate([part.reshape(len(part), -1) for part in arrays_of(batch)], axis=1)


def batch_of(im: InstrumentedModel, rows: np.ndarray) -> Any:
    """Return the batch whose `flat` form is given."""
    arrays = parted(rows, im.input_shapes)
    return Inputs(arrays) if len(arrays) > 1 else next(iter(arrays.values()))


def scores_of(im: InstrumentedModel, rows: np.ndarray, target: Target) -> np.ndarray:
    """Return the target's scores for a batch in `flat` form, float64."""
    values = im.forward(batch_of(im, rows), [target.operation])[target.operation]
    weights = target.weights(im[target.operation].size).astype(np.float64)
    return values.reshape(len(values), -1).astype(np.float64) @ weights
