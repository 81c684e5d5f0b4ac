"""Open questions of the paper (section 4): conductance of neurons, and non-uniform sampling.

The conductance of a neuron (Dhamdhere, Sundararajan and Yan, ICLR 2019) is the integral, over the
line from a baseline to the input, of the output's derivative by the neuron's value, times the
change of that value. On a part of an exact line the derivative is constant, so that the integral is
a sum over parts: derivative in the middle, times the change from the part's start to its end.

Gradients at few places of the line are chosen in several ways. `left`, `middle` and `Gauss` know
nothing of the network. `bisected` halves the interval whose trapezoid is furthest from the change
of the output, which the same passes give. `longest` knows the exact line, and takes the middles of
its longest parts; each part counts with the gradient that is nearest.
"""

from collections.abc import Callable, Iterator
from functools import partial

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf.exactline import Attributor
from nnslicer_tf.exactline.gradients import PathGradients
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from reproduction.exactline.measures import relative_error
from reproduction.exactline.networks import RELU_NETWORKS, relu_networks
from reproduction.exactline.settings import PathIntegralSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

_WITHIN = 0.05
_CONSECUTIVE = 6  # numbers of samples for which the error stays small, as in table 2

Sampled = Callable[[int], np.ndarray]
"""Number of samples → approximation."""


def path_integrals(s: PathIntegralSettings) -> ExperimentResult:
    """Count the samples that integrated gradients and conductance need for an error of 5 %."""
    store = RowStore.of(s, "path-integrals", ("network", "dataset", "weights", "image"), "most")
    tables = []
    for network, (dataset, model) in relu_networks(s.network or RELU_NETWORKS).items():
        x = datasets.load(dataset, f"test[:{s.images}]").x
        im = InstrumentedModel(model)
        labels, attributor = im.predict(x).argmax(axis=1), Attributor(im)
        # The last hidden layer and the first one: near to the output, and far from it.
        hidden = [o.name for o in im.operations if o.kind == "rectify"]
        base = {"network": network, "dataset": dataset, "weights": model_fingerprint(model)[:12]}

        def rows(image: int, attributor=attributor, im=im, x=x, labels=labels, hidden=hidden, **_):
            path = attributor.path(x[image], np.zeros(x[image].shape), int(labels[image]))
            yield dict(_samples_needed(im, path, hidden, s.most))

        names = [{**base, "image": i} for i in range(len(x))]
        tables.append(store.fill(names, rows, network).drop(columns="weights"))
    images = pd.concat(tables, ignore_index=True)
    by = images.groupby(["network", "dataset"], sort=False)
    means = by.mean(numeric_only=True).drop(columns="image").reset_index()
    means.insert(2, "images", by.size().to_numpy())
    head = {"baseline": "black", "target": "the predicted class", "most_samples": s.most}
    title = "Samples for an error of 5 %: integrated gradients and conductance"
    table = ExperimentTable("path_integrals", means, title, head, note("path_integrals"))
    return ExperimentResult([table, ExperimentTable("path_integrals_images", images)])


def conductance(im: InstrumentedModel, path: PathGradients, layer: str) -> np.ndarray:
    """Return the exact conductance of an operation's neurons, of the operation's shape.

    They add up to the change of the output, if everything passes through this operation.
    """
    slopes, values = _along(im, path, layer)
    return (slopes * np.diff(values, axis=0)).sum(axis=0)


def _along(im: InstrumentedModel, path: PathGradients, layer: str) -> tuple[np.ndarray, np.ndarray]:
    """Return the output's derivative by a layer on each part, and its values at their ends."""
    line = path.partition
    middles = line.at(line.midpoints).astype(np.float32)
    slopes = im.gradients(middles, path.target, wrt=[layer])[layer].astype(np.float64)
    ends = line.at(line.ratios).astype(np.float32)
    return slopes, dict(im.forward(ends, [layer]))[layer].astype(np.float64)


def _samples_needed(
    im: InstrumentedModel, path: PathGradients, hidden: list[str], most: int
) -> Iterator[tuple[str, object]]:
    line, outputs = path.partition, path.partition.outputs.reshape(len(path.partition) + 1, -1)
    outputs = outputs[:, path.target]
    yield "parts", len(line)
    exact, step = path.exact(), line.end - line.start
    ways: dict[str, Sampled] = {
        "left": partial(_left, path),
        "middle": lambda n: step * path.at((np.arange(n) + 0.5) / n).mean(axis=0),
        "Gauss": partial(_gauss, path),
        "bisected": _Bisected(path, outputs),
        "longest": partial(_longest, path),
    }
    for name, way in ways.items():
        yield name, _enough(way, exact, most)
    for name, layer in {"first layer": hidden[0], "last layer": hidden[-1]}.items():
        slopes, values = _along(im, path, layer)
        whole = (slopes * np.diff(values, axis=0)).sum(axis=0)
        change = outputs[-1] - outputs[0]
        yield f"{name}, error of the sum", abs(whole.sum() - change) / abs(change)
        speeds = np.diff(values, axis=0) / np.diff(line.ratios).reshape(-1, *[1] * whole.ndim)
        derivatives = (slopes * speeds).reshape(len(line), -1)

        def sampled(n: int, derivatives: np.ndarray = derivatives) -> np.ndarray:
            return derivatives[_parts(path, (np.arange(n) + 0.5) / n)].mean(axis=0)

        yield f"{name}, middle", _enough(sampled, whole.ravel(), most)


def _parts(path: PathGradients, ratios: np.ndarray) -> np.ndarray:
    """Return the part in which each ratio lies."""
    return np.searchsorted(path.partition.ratios[1:-1], ratios, side="right")


def _left(path: PathGradients, n: int) -> np.ndarray:
    step = path.partition.end - path.partition.start
    return step * path.at(np.arange(n) / n).mean(axis=0)


def _gauss(path: PathGradients, n: int) -> np.ndarray:
    nodes, weights = np.polynomial.legendre.leggauss(n)
    step = path.partition.end - path.partition.start
    return step * np.tensordot(weights / 2, path.at((nodes + 1) / 2), axes=1)


def _longest(path: PathGradients, n: int) -> np.ndarray:
    """Return the sum over parts, each with the gradient of the nearest of the n longest."""
    middles, lengths = path.partition.midpoints, np.diff(path.partition.ratios)
    chosen = np.sort(np.argsort(-lengths, kind="stable")[:n])
    borders = (middles[chosen][1:] + middles[chosen][:-1]) / 2
    weights = np.bincount(np.searchsorted(borders, middles), lengths, len(chosen))
    step = path.partition.end - path.partition.start
    return step * np.tensordot(weights, path.gradients[chosen], axes=1)


class _Bisected:
    """Trapezoids between places, the worst of which is halved for each further sample."""

    def __init__(self, path: PathGradients, outputs: np.ndarray) -> None:
        self._path, self._places = path, [0.0, 1.0]
        line = path.partition
        self._output = lambda ratio: np.interp(ratio, line.ratios, outputs)
        self._slopes = {ratio: self._slope(ratio) for ratio in self._places}

    def _slope(self, ratio: float) -> float:
        line = self._path.partition
        return float(((line.end - line.start) * self._path.at(np.array([ratio]))[0]).sum())

    def _error(self, first: float, last: float) -> float:
        sloped = (self._slopes[first] + self._slopes[last]) / 2 * (last - first)
        return abs(float(sloped - (self._output(last) - self._output(first))))

    def __call__(self, n: int) -> np.ndarray:
        while len(self._places) < n:
            gaps = list(zip(self._places, self._places[1:], strict=False))
            worst = max(range(len(gaps)), key=lambda i: self._error(*gaps[i]))
            middle = sum(gaps[worst]) / 2
            self._places.insert(worst + 1, middle)
            self._slopes[middle] = self._slope(middle)
        places = np.array(self._places)
        weights = np.convolve(np.diff(places), [0.5, 0.5])
        step = self._path.partition.end - self._path.partition.start
        return step * np.tensordot(weights, self._path.at(places), axes=1)


def _enough(sampled: Sampled, exact: np.ndarray, most: int) -> int | None:
    """Return the first number of samples from which the relative error stays within 5 %."""
    good = 0
    for samples in range(2, most + _CONSECUTIVE):
        good = good + 1 if relative_error(sampled(samples), exact) <= _WITHIN else 0
        if good == _CONSECUTIVE:
            return samples - _CONSECUTIVE + 1
    return None
