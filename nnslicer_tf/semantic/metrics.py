"""Contribution metrics: how much every neuron matters on a data set (section 2.3).

| metric | score of a neuron |
|---|---|
| `avg` | mean activation |
| `var` | variance of the activation |
| `ens` | mean of both, each scaled to [0, 1] within its layer |
| `deeplift` | mean absolute DeepLIFT contribution to the label's logit |
| `taylor` | mean absolute product of activation and gradient of the cross-entropy |
| `taylor_weights` | mean squared sum of weight × gradient over the neuron's weights |

A filter's activation on a sample is the mean over its positions, a recurrent unit's that over its
steps; contributions and Taylor terms are summed over them. Padding does not count as a position.
Gradients with respect to the states of recurrent units go through time; DeepLIFT and
`taylor_weights` reject such layers. Data are streamed; only means and squares are kept.

DeepLIFT is the rescale rule of Shrikumar et al. (ICML 2017). `taylor` is the criterion of
Molchanov et al., "Pruning Convolutional Neural Networks for Resource Efficient Inference"
(ICLR 2017), `taylor_weights` that of their "Importance Estimation for Neural Network
Pruning" (CVPR 2019, eq. 8, the neuron's weights as one group) on batches of one sample.

Adding a metric: add a `Metric` to `METRICS`. Cost: a forward pass for the first three, about
three for the Taylor metrics, six for DeepLIFT.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeGuard

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf._checks import check_labels, check_name
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike, check_array, check_batch_size
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.pruning.class_scores import check_classifier
from nnslicer_tf.semantic._backward import (
    Backward,
    cross_entropy,
    gradient_rule,
    label_logit,
    rescale_rule,
    sigmoid_cross_entropy,
)
from nnslicer_tf.semantic.neurons import NeuronLayer, RecurrentLayer, neuron_layers

Values = dict[str, np.ndarray]
Baseline = np.ndarray | Mapping[str, np.ndarray] | None
"""A sample, or for several inputs one for each by name; None: zeros."""


@dataclass(frozen=True)
class Metric:
    """A contribution metric.

    Attributes:
        prepare: Maps the instrumented model, its layers with neurons and the baseline
            `(1, *input shape)` to a function from samples and labels to one value per
            sample and neuron, layer → `(samples, units)`.
        score: Maps their means and variances over samples, float64 `(units,)`, to scores.
        labels: Whether the values depend on the labels.
    """

    prepare: Callable[..., Callable[[np.ndarray, np.ndarray], Values]]
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    labels: bool = True


@dataclass
class Moments:
    """Running count, mean and sum of squared deviations of a stream of values."""

    count: int = 0
    mean: Any = 0.0
    squares: Any = 0.0

    def add(self, values: np.ndarray) -> None:
        """Add `values` `(samples, units)` (Chan et al., 1979)."""
        values = values.astype(np.float64)
        total = self.count + len(values)
        mean = values.mean(axis=0)
        apart = mean - self.mean
        between = apart**2 * self.count * len(values) / total
        self.squares = self.squares + ((values - mean) ** 2).sum(axis=0) + between
        self.mean = self.mean + apart * len(values) / total
        self.count = total

    @property
    def variance(self) -> np.ndarray:
        """Population variance of all values."""
        return self.squares / self.count


def contributions(
    im: InstrumentedModel,
    x: DataLike,
    metric: str = "taylor",
    y: ArrayLike | None = None,
    *,
    baseline: Baseline = None,
    batch_size: int = 256,
    progress: bool = False,
) -> dict[str, np.ndarray]:
    """Return the contribution score of every neuron on a data set.

    Args:
        im: A classifier.
        x: Samples in any form of `DataLike`; a `tf.data.Dataset`, loader or generator is read
            batch by batch.
        metric: A name of `METRICS`.
        y: Labels `(samples,)`, integers or one-hot. By default those in `x`; for an array, which
            has none, the model's own predictions.
        baseline: DeepLIFT's reference sample `(*input shape)`; zeros by default.
        batch_size: Samples in one pass. It does not change the scores.
        progress: Show a progress bar.

    Returns:
        Layer's name → scores `(units,)` float64, larger for neurons that matter more. Only
        their order within a layer is meaningful.

    Raises:
        InvalidArgumentError: for an unknown metric, labels that do not fit or are missing, or a
            metric that needs labels on a model that is not a classifier of two or more classes.
        UnsupportedLayerError: if the model has no layer with neurons.
        InputShapeError: if the samples or the baseline have another shape.
    """
    chosen = find_metric(metric)
    check_batch_size(batch_size)
    layers = neuron_layers(im)
    values_of = chosen.prepare(im, layers, reference_sample(im, baseline))
    moments = LayerMoments(layers)
    total = None
    if y is None and _is_stream(x, im):
        batches = _stream(im, x, batch_size, chosen.labels)
    else:
        x, y = labelled(im, x, y, batch_size, needs_labels=chosen.labels)
        starts = range(0, len(x), batch_size)
        batches, total = (
            ((x[i : i + batch_size], y[i : i + batch_size]) for i in starts),
            len(starts),
        )
    for batch_x, batch_y in track(batches, "Contributions", total, progress):
        moments.add(values_of(batch_x, batch_y))
    return moments.scores(chosen)


class LayerMoments:
    """The moments of every layer's values."""

    def __init__(self, layers: Mapping[str, NeuronLayer]) -> None:
        self._moments = {layer: Moments() for layer in layers}

    def add(self, values: Values) -> None:
        """Add the values of one batch."""
        for layer, moments in self._moments.items():
            moments.add(values[layer])

    def scores(self, metric: Metric) -> dict[str, np.ndarray]:
        """Return the scores by layer."""
        return {k: metric.score(m.mean, m.variance) for k, m in self._moments.items()}


def find_metric(name: str) -> Metric:
    """Return a metric by name.

    Raises:
        InvalidArgumentError: if there is no such metric; the message lists them.
    """
    check_name("metric", name, METRICS)
    return METRICS[name]


def labelled(
    im: InstrumentedModel,
    x: DataLike,
    y: ArrayLike | None,
    batch_size: int,
    needs_labels: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return samples float32 and labels int64 as arrays, checked against the model.

    Args:
        im: A classifier.
        x: The samples.
        y: Their labels; None for those in `x`, or the predictions if `x` is an array.
        batch_size: Samples in one pass.
        needs_labels: Whether labels are used; if not, and none are given, they are 0.

    Raises:
        InvalidArgumentError: if there are no samples, labels are missing or do not fit samples or
            outputs, or labels are used and the model is not a classifier.
        InputShapeError: if the samples have another shape.
    """
    check_batch_size(batch_size)
    if y is None and needs_labels and _has_labels(x, im):
        x, y = im.labelled(x)
    x = im.check(x)
    if y is not None:
        return x, check_labels(y, len(x), _classes(im))
    if not needs_labels:
        return x, np.zeros(len(x), np.int64)
    _classes(im)
    return x, im.classes.from_logits(im.logits(x, batch_size))


def _classes(im: InstrumentedModel) -> int:
    """Return the number of a classifier's classes."""
    return check_classifier(im)


def reference_sample(im: InstrumentedModel, baseline: Baseline) -> np.ndarray | Inputs:
    """Return DeepLIFT's reference `(1, *input shape)` float32: `baseline`, or zeros."""
    if len(im.input_operations) > 1:
        given = baseline or {name: np.zeros(shape) for name, shape in im.input_shapes.items()}
        return im.check({name: np.asarray(array)[None] for name, array in dict(given).items()})
    if baseline is None:
        return np.zeros((1, *im.input_shape), np.float32)
    return check_array(np.asarray(baseline)[None], im.input_shape)


def _has_labels(x: DataLike, im: InstrumentedModel) -> bool:
    """Whether data must include labels: all but arrays, and data of several inputs."""
    is_array = hasattr(x, "shape") or (isinstance(x, Mapping) and len(x) == 1)
    return len(im.input_operations) == 1 and not is_array


def _is_stream(x: DataLike, im: InstrumentedModel) -> TypeGuard[Iterable[ArrayLike]]:
    """Whether data are read one element at a time."""
    in_memory = isinstance(x, (str, os.PathLike, Dataset, Mapping, list, tuple))
    return _has_labels(x, im) and not in_memory and isinstance(x, Iterable)


def _stream(
    im: InstrumentedModel, data: Iterable[ArrayLike], batch_size: int, needs_labels: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of an iterable, grouping single samples into batches."""
    if not needs_labels:
        for x in im.samples(data).batches(batch_size):
            yield x, np.zeros(len(x), np.int64)
        return
    classes = _classes(im)
    held: list[tuple[np.ndarray, np.ndarray]] = []
    count = 0
    for element in data:
        x, y = im.labelled([element])
        held.append((x, check_labels(y, len(x), classes)))
        count += len(x)
        if len(x) > 1 or len(held) == batch_size:
            yield _joined(held)
            held = []
    if held:
        yield _joined(held)
    if not count:
        raise InvalidArgumentError("The data set is empty: no samples were given.")


def _joined(parts: list[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, np.ndarray]:
    x, y = zip(*parts, strict=True)
    return np.concatenate(x), np.concatenate(y)


def _activations(
    im: InstrumentedModel, layers: Mapping[str, NeuronLayer], reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    names = {layer.name: layer.value for layer in layers.values()}

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        captured = im.capture(x, len(x), of=[*names.values(), *mask_names(layers)])
        return {k: _mean_over_data(layers[k], captured[v], captured) for k, v in names.items()}

    return values


def _deeplift(
    im: InstrumentedModel, layers: Mapping[str, NeuronLayer], reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    names = {layer.name: layer.value for layer in layers.values()}
    _refuse_recurrent("deeplift", layers)
    backward = Backward(im, list(names.values()), label_logit, rescale_rule)

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        found = backward(x, y, reference)
        masks = _masks(im, layers, x)
        terms = {
            k: _terms(layers[k], found[v][0] - found[v][1], found[v][2], masks)
            for k, v in names.items()
        }
        return {k: np.abs(term) for k, term in terms.items()}

    return values


def _taylor(
    im: InstrumentedModel, layers: Mapping[str, NeuronLayer], reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    names = {layer.name: layer.value for layer in layers.values()}
    backward = Backward(im, list(names.values()), _loss(im), gradient_rule)

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        found = backward(x, y, reference)
        masks = _masks(im, layers, x)
        terms = {k: _terms(layers[k], found[v][0], found[v][2], masks) for k, v in names.items()}
        return {k: np.abs(term) for k, term in terms.items()}

    return values


def _taylor_weights(
    im: InstrumentedModel, layers: Mapping[str, NeuronLayer], reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    # Σ over a neuron's weights of w · ∂L/∂w is Σ over positions of (z - b) · ∂L/∂z.
    _refuse_recurrent("taylor_weights", layers)
    names = {layer.name: layer.sum for layer in layers.values()}
    backward = Backward(im, list(names.values()), _loss(im), gradient_rule)
    biases = {k: im[v].params.read_bias() for k, v in names.items()}

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        found = backward(x, y, reference)
        masks = _masks(im, layers, x)
        sums = {
            k: found[v][0] if biases[k] is None else found[v][0] - biases[k]
            for k, v in names.items()
        }
        return {k: _terms(layers[k], sums[k], found[v][2], masks) ** 2 for k, v in names.items()}

    return values


def _loss(im: InstrumentedModel) -> Callable:
    """Return the gradient of the cross-entropy that fits the model's outputs."""
    return sigmoid_cross_entropy if im.classes.final == "sigmoid" else cross_entropy


def mask_names(layers: Mapping[str, NeuronLayer]) -> list[str]:
    """Return the names of the mask operations that mark which positions of layers are data."""
    return sorted({layer.mask for layer in layers.values() if layer.mask is not None})


def _masks(im: InstrumentedModel, layers: Mapping[str, NeuronLayer], x: np.ndarray) -> Values:
    names = mask_names(layers)
    return dict(im.capture(x, len(x), of=names)) if names else {}


def _refuse_recurrent(metric: str, layers: Mapping[str, NeuronLayer]) -> None:
    recurrent = [name for name, layer in layers.items() if isinstance(layer, RecurrentLayer)]
    if recurrent:
        raise UnsupportedLayerError(
            f"Metric '{metric}' has no rule through time, for layer '{recurrent[0]}'. Choose "
            "'taylor', 'avg', 'var' or 'ens'."
        )


def _terms(
    layer: NeuronLayer, values: np.ndarray, multipliers: np.ndarray, masks: Values
) -> np.ndarray:
    return _over_positions(layer.of_data(values * multipliers, masks), np.sum)


def _mean_over_data(layer: NeuronLayer, values: np.ndarray, masks: Mapping) -> np.ndarray:
    """Return the means over positions that are not padding, 0 if there are none."""
    means = _over_positions(layer.of_data(values, masks), np.mean)
    if layer.mask is None:
        return means
    data = masks[layer.mask] > 0
    share = data.reshape(len(data), -1).mean(axis=1, keepdims=True)
    return means / np.maximum(share, 1 / data[0].size)


def _over_positions(values: np.ndarray, reduce: Callable) -> np.ndarray:
    """Reduce `(samples, …, units)` to `(samples, units)` float64."""
    axes = tuple(range(1, values.ndim - 1))
    return reduce(values, axis=axes, dtype=np.float64) if axes else values.astype(np.float64)


def _mean(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return mean


def _variance(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return variance


def _ensemble(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return (_normalised(mean) + _normalised(variance)) / 2


def _normalised(scores: np.ndarray) -> np.ndarray:
    """Scale to [0, 1]; zeros where all are equal."""
    spread = np.ptp(scores)
    return (scores - scores.min()) / spread if spread > 0 else np.zeros_like(scores)


METRICS: dict[str, Metric] = {
    "avg": Metric(_activations, _mean, labels=False),
    "var": Metric(_activations, _variance, labels=False),
    "ens": Metric(_activations, _ensemble, labels=False),
    "deeplift": Metric(_deeplift, _mean),
    "taylor": Metric(_taylor, _mean),
    "taylor_weights": Metric(_taylor_weights, _mean),
}
"""The contribution metrics by name."""
