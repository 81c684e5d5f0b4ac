"""Semantic similarity of layers and of their neurons (Equations 1, 2 and 4), in float64.

The embedding landscape of a layer on N samples is M = F·Fᵀ; each row of F holds the layer's values
on one sample. The similarity of two landscapes is their cosine, not centred.

With F_i `(N, positions)` for neuron i, M = Σ F_i·F_iᵀ, so all prefixes of an order of neurons cost
little more than M: 2·N²·positions and 4·N² per neuron. If samples outnumber values, ⟨F_i·F_iᵀ,
F_j·F_jᵀ⟩ = ‖F_iᵀ·F_j‖² is read from the Gram matrix of the values.
"""

from typing import Any

import numpy as np


def prefix_similarities(features: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the similarity of every prefix of an order of neurons with the whole layer.

    Values are `(samples, …, units)`, the order is a permutation of the units, `(units,)`. Entry
    k - 1 of the result, `(units,)` float64, belongs to the first k neurons.
    """
    samples, units = len(features), features.shape[-1]
    positions = features[0].size // units
    if (units * positions) ** 2 * samples >= units * (positions + 4) * samples**2:
        return through_samples(features, order)
    # From the Gram matrix of the values.
    features = features.reshape(samples, positions, units)
    ordered = np.ascontiguousarray(features[:, :, order].transpose(0, 2, 1), dtype=np.float64)
    flat = ordered.reshape(samples, units * positions)
    gram = flat.T @ flat
    gram *= gram
    products = gram.reshape(units, positions, units, positions).sum(axis=(1, 3))
    # Entry k of the sum over the leading k×k block, from its border.
    border = 2 * np.tril(products, -1).sum(axis=1) + np.diag(products)
    return _cosine(np.cumsum(products.sum(axis=1)), np.cumsum(border), products.sum())


def through_samples(features: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the same by growing the prefix's landscape neuron by neuron."""
    features = features.reshape(len(features), -1, features.shape[-1])
    rows = features.reshape(len(features), -1).astype(np.float64)
    whole = rows @ rows.T
    grown = np.zeros_like(whole)
    cross, own = np.zeros(len(order)), np.zeros(len(order))
    for k, neuron in enumerate(order):
        values = features[:, :, neuron].astype(np.float64)
        term = values @ values.T
        cross[k] = np.vdot(term, whole)
        grown += term
        # ‖M + T‖² = ‖M‖² + 2⟨M, T⟩ + ‖T‖², with the grown ⟨M + T, T⟩ = ⟨M, T⟩ + ‖T‖².
        own[k] = 2 * np.vdot(grown, term) - np.vdot(term, term)
    return _cosine(np.cumsum(cross), np.cumsum(own), np.vdot(whole, whole))


def _cosine(cross: np.ndarray, first: np.ndarray, second: Any) -> np.ndarray:
    norm = np.sqrt(np.asarray(first) * second)
    both_zero = (np.asarray(first) <= 0) & (np.asarray(second) <= 0)
    cosine = np.divide(cross, norm, out=np.zeros_like(norm), where=norm > 0)
    return np.where(both_zero, 1.0, np.clip(cosine, 0.0, 1.0))
