"""Mutual information between each unit and each hypothesis, over bins."""

from dataclasses import dataclass

import numpy as np

from nnslicer_tf._checks import check_count
from nnslicer_tf.deepbase.measures.base import AdditiveMeasure, Block, Sums

_ROWS = 4096  # rows counted in one product

Edges = tuple[np.ndarray, np.ndarray]


@dataclass(frozen=True)
class MutualInformation(AdditiveMeasure):
    """Mutual information in nats, from counts in bins; also detects nonlinear relations.

    Bins are quantiles of the first block, or single values if there are few. Counts overestimate
    the information of unrelated values by about (bins - 1)² / (2 · rows); the error includes this
    bias. Memory: 20 · units · hypotheses · bins² numbers.

    Attributes:
        bins: Largest number of bins of a unit or hypothesis, at least 2.
    """

    name = "mutual_information"
    bins: int = 8

    def __post_init__(self) -> None:
        check_count("bins", self.bins, 2)

    def calibrate(self, block: Block) -> Edges:
        """Return the edges of units and hypotheses, `(bins - 1, units or hypotheses)`."""
        units, hypotheses = block.rows()
        return bin_edges(units, self.bins), bin_edges(hypotheses, self.bins)

    def statistics(self, units: np.ndarray, hypotheses: np.ndarray, calibration: Edges) -> Sums:
        """Return the counts `(units, hypotheses, bins, bins)` float32."""
        shape = (units.shape[1], self.bins, hypotheses.shape[1], self.bins)
        counts = np.zeros((shape[0] * self.bins, shape[2] * self.bins), np.float32)
        for start in range(0, len(units), _ROWS):
            one_hot = []
            for values, edges in zip((units, hypotheses), calibration, strict=True):
                numbers = bin_numbers(values[start : start + _ROWS], edges)
                hot = numbers[:, :, None] == np.arange(self.bins)
                one_hot.append(hot.reshape(len(numbers), -1).astype(np.float32))
            counts += one_hot[0].T @ one_hot[1]
        return {"counts": counts.reshape(shape).transpose(0, 2, 1, 3)}

    def score(self, sums: Sums, calibration: Edges) -> np.ndarray:
        """Return the information `(units, hypotheses)`; NaN where one of the two is constant."""
        counts = sums["counts"].astype(np.float64)
        joint = counts / counts.sum(axis=(2, 3), keepdims=True)
        u, h = joint.sum(axis=3, keepdims=True), joint.sum(axis=2, keepdims=True)
        terms = np.where(joint > 0, joint * np.log(joint / (u * h)), 0.0)
        varies = ((u > 0).sum(axis=(2, 3)) > 1) & ((h > 0).sum(axis=(2, 3)) > 1)
        return np.where(varies, terms.sum(axis=(2, 3)), np.nan)


def bin_edges(values: np.ndarray, bins: int) -> np.ndarray:
    """Return edges `(bins - 1, columns)`: between the values if these are few, else quantiles."""
    edges = np.empty((bins - 1, values.shape[1]))
    for column in range(values.shape[1]):
        different = np.unique(values[:, column])
        if len(different) > bins:
            edges[:, column] = np.quantile(values[:, column], np.arange(1, bins) / bins)
        else:
            between = (different[:-1] + different[1:]) / 2
            edges[:, column] = different[-1]  # larger values may still come
            edges[: len(between), column] = between
    return edges


def bin_numbers(values: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return each value's bin, `(rows, columns)`: the number of edges below it."""
    return sum((values > edge for edge in edges), np.zeros(values.shape, np.int8))
