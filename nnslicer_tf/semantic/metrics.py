"""Contribution metrics: how much every neuron matters on a data set (section 2.3).

A filter's activation on a sample is the mean over its positions, a recurrent unit's that over its
steps, without padding; contributions and Taylor terms are summed. Gradients of recurrent units go
through time; `taylor_weights` rejects recurrent layers.

Cost: a forward pass for `avg`, `var` and `ens`, about three for the Taylor metrics, six for
DeepLIFT. Data are streamed; memory holds only means and squares.

`backward_walk` is a backward walk from the logits with multipliers or gradients.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import keras
import numpy as np
from keras import ops
from sklearn.preprocessing import StandardScaler, minmax_scale

from nnslicer_tf._checks import ArrayLike, check_count, check_labels, check_name
from nnslicer_tf._environment import track
from nnslicer_tf.attributions.multipliers import gradient, propagate_multipliers
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError, UnsupportedLayerError
from nnslicer_tf.instrument import DataLike, InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.instrument.recurrence import RECURRENCE, consumers_first
from nnslicer_tf.kinds.kind import MultiplierRule
from nnslicer_tf.kinds.rescale import multipliers_of
from nnslicer_tf.semantic.neurons import NeuronLayer, neuron_layers

Values = dict[str, np.ndarray]
Layers = Mapping[str, NeuronLayer]
Baseline = np.ndarray | Mapping[str, np.ndarray] | None
"""A sample, or for several inputs one for each by name; None: zeros."""


@dataclass(frozen=True)
class Metric:
    """A contribution metric; to add one, add it to `METRICS`.

    Attributes:
        prepare: Maps the instrumented model, its layers with neurons and the baseline `(1, *input
            shape)` to a function from samples and labels to one value per sample and neuron, layer
            → `(samples, units)`.
        score: Maps their means and variances over samples, float64 `(units,)`, to scores.
        labels: Whether the values depend on the labels.
    """

    prepare: Callable[..., Callable[[np.ndarray, np.ndarray], Values]]
    score: Callable[[np.ndarray, np.ndarray], np.ndarray]
    labels: bool = True


def contributions(
    im: ModelLike,
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
        x: Samples in any form of `DataLike`; data sets, loaders and generators are streamed.
        metric: A name of `METRICS`:
            `avg`: the mean activation.
            `var`: the variance of the activation.
            `ens`: the mean of both, each scaled to [0, 1] within its layer.
            `deeplift`: the mean absolute DeepLIFT contribution to the label's logit, by the rescale
                rule (Shrikumar et al., ICML 2017).
            `taylor`: the mean |activation · gradient| of the loss (Molchanov et al., ICLR 2017).
            `taylor_weights`: the mean squared sum of weight × gradient over the neuron's weights
                (Molchanov et al., CVPR 2019, eq. 8), per sample.
        y: Labels `(samples,)`, integers or one-hot. By default those in `x`, or the model's own.
        baseline: DeepLIFT's reference sample `(*input shape)`; zeros by default.
        batch_size: Samples in one pass; it does not change the scores.
        progress: Show a progress bar.

    Returns layer name → scores `(units,)` float64, larger for neurons that matter more. Only
    their order within a layer is meaningful.

    Raises InvalidArgumentError for an unknown metric, labels that do not fit or are missing, or a
    metric that needs labels on a model that is not a classifier of two or more classes;
    UnsupportedLayerError if the model has no layer with neurons; InputShapeError if the samples or
    the baseline have another shape.
    """
    check_name("metric", metric, METRICS)
    check_count("batch_size", batch_size)
    im = instrumented(im, x).named_by(x, baseline)
    options, layers = METRICS[metric], neuron_layers(im)
    values_of = options.prepare(im, layers, reference_sample(im, baseline))
    in_memory = isinstance(x, (str, os.PathLike, Dataset, Mapping, list, tuple))
    batches: Iterable[tuple[np.ndarray, np.ndarray]]
    if y is None and _has_labels(x, im) and not in_memory and isinstance(x, Iterable):
        batches, total = _stream(im, x, batch_size, options.labels), None
    else:
        x, y = labelled(im, x, y, batch_size, needs_labels=options.labels)
        starts = range(0, len(x), batch_size)
        batches = ((x[i : i + batch_size], y[i : i + batch_size]) for i in starts)
        total = len(starts)
    moments = {layer: StandardScaler() for layer in layers}
    for batch_x, batch_y in track(batches, "Contributions", total, progress):
        values = finite(values_of(batch_x, batch_y))
        for layer, of_layer in moments.items():
            of_layer.partial_fit(values[layer])
    return layer_scores(options, moments)


def finite(values: Values) -> Values:
    """Return a batch's values by layer; scikit-learn would leave out those that are NaN."""
    for layer, of_layer in values.items():
        if not np.isfinite(of_layer).all():
            raise NonFiniteActivationError(
                f"The values of layer '{layer}' are NaN or infinite for some samples. Check the "
                "weights and the preprocessing."
            )
    return values


def layer_scores(metric: Metric, moments: Mapping[str, StandardScaler]) -> Values:
    """Return the scores by layer, from the running means and variances of its values."""
    return {layer: metric.score(one.mean_, one.var_) for layer, one in moments.items()}


def labelled(
    im: InstrumentedModel,
    x: DataLike,
    y: ArrayLike | None,
    batch_size: int,
    needs_labels: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Return samples float32 and labels int64 as arrays, checked against the model.

    If labels are neither given nor part of `x`, they are the predictions for an array, or 0 if they
    are not needed. Raises InvalidArgumentError for bad labels, InputShapeError for bad samples.
    """
    check_count("batch_size", batch_size)
    if y is None and needs_labels and _has_labels(x, im):
        x, y = im.labelled(x)
    x = im.check(x)
    if y is not None:
        return x, check_labels(y, len(x), check_classifier(im))
    if not needs_labels:
        return x, np.zeros(len(x), np.int64)
    check_classifier(im)
    return x, im.classes.from_logits(im.logits(x, batch_size))


def reference_sample(im: InstrumentedModel, baseline: Baseline) -> np.ndarray | Inputs:
    """Return DeepLIFT's reference `(1, *input shape)` float32: `baseline`, or zeros."""
    if len(im.input_operations) > 1:
        parts = baseline or {name: np.zeros(shape) for name, shape in im.input_shapes.items()}
        parts = im.in_order(dict(parts))
        return im.check({name: np.asarray(part)[None] for name, part in parts.items()})
    if baseline is None:
        return np.zeros((1, *im.input_shape), np.float32)
    return im.check(im.points(baseline, "baseline")[None])


def mask_names(layers: Iterable[NeuronLayer]) -> list[str]:
    """Return the names of the layers' mask operations; see `NeuronLayer.mask`."""
    return sorted({layer.mask for layer in layers if layer.mask is not None})


def _has_labels(x: DataLike, im: InstrumentedModel) -> bool:
    """Whether data must include labels: all but arrays, and data of several inputs."""
    is_array = hasattr(x, "shape") or (isinstance(x, Mapping) and len(x) == 1)
    return len(im.input_operations) == 1 and not is_array


def _stream(
    im: InstrumentedModel, data: Iterable[ArrayLike], batch_size: int, needs_labels: bool
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield the batches of an iterable, grouping single samples into batches."""
    if not needs_labels:
        for x in im.samples(data).batches(batch_size):
            yield x, np.zeros(len(x), np.int64)
        return
    check_classifier(im)
    parts: list[tuple[np.ndarray, np.ndarray]] = []
    element = None
    for element in data:
        im = im.named_by(element)
        parts.append(im.labelled([element]))
        if len(parts[-1][0]) > 1 or len(parts) == batch_size:
            yield np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
            parts.clear()
    if parts:
        yield np.concatenate([x for x, _ in parts]), np.concatenate([y for _, y in parts])
    if element is None:
        raise InvalidArgumentError("The data set is empty: no samples were given.")


def _activations(
    im: InstrumentedModel, layers: Layers, reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    names = [*(layer.value for layer in layers.values()), *mask_names(layers.values())]

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        captured = im.capture(x, len(x), of=names)
        means = {}
        for name, layer in layers.items():
            means[name] = _over_positions(layer.of_data(captured[layer.value], captured), np.mean)
            if layer.mask is not None:  # the mean over positions that are not padding
                data = captured[layer.mask] > 0
                share = data.reshape(len(data), -1).mean(axis=1, keepdims=True)
                means[name] /= np.maximum(share, 1 / data[0].size)
        return means

    return values


def _backward_metric(
    metric: str, im: InstrumentedModel, layers: Layers, reference: np.ndarray
) -> Callable[[np.ndarray, np.ndarray], Values]:
    """Return the values of a metric that needs gradients or multipliers."""
    recurrent = [name for name, layer in layers.items() if layer.parts == "states"]
    of_weights = metric == "taylor_weights"
    if recurrent and of_weights:
        raise UnsupportedLayerError(
            f"Metric '{metric}' has no rule through time, for layer '{recurrent[0]}'. Choose "
            "'taylor', 'deeplift', 'avg', 'var' or 'ens'."
        )
    names = {k: layer.sum if of_weights else layer.value for k, layer in layers.items()}
    if metric == "deeplift":
        backward = backward_walk(im, list(names.values()), label_logit)
    else:
        loss = partial(cross_entropy, sigmoid=im.classes.task != "multiclass")
        backward = backward_walk(im, list(names.values()), loss, gradient)
    # Σ over a neuron's weights of w · ∂L/∂w is Σ over positions of (z - b) · ∂L/∂z.
    biases = {k: im[name].params.read_bias() if of_weights else None for k, name in names.items()}

    def values(x: np.ndarray, y: np.ndarray) -> Values:
        results = backward(x, y, reference)
        operations = mask_names(layers.values())
        masks = im.capture(x, len(x), of=operations) if operations else {}
        terms = {}
        for k, name in names.items():
            value, before, multipliers = results[name]
            if metric == "deeplift":
                value = value - before
            elif biases[k] is not None:
                value = value - biases[k]
            terms[k] = _over_positions(layers[k].of_data(value * multipliers, masks), np.sum)
        return {k: term**2 if of_weights else np.abs(term) for k, term in terms.items()}

    return values


def _over_positions(values: np.ndarray, reduce: Callable) -> np.ndarray:
    return reduce(values, axis=tuple(range(1, values.ndim - 1)), dtype=np.float64)


def _mean(mean: np.ndarray, variance: np.ndarray) -> np.ndarray:
    return mean


def backward_walk(
    im: InstrumentedModel,
    wanted: Sequence[str],
    seed: Callable[[Any, Any], Any],
    rule: MultiplierRule = multipliers_of,
) -> Callable[..., dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]]:
    """Return a function of samples, labels and a reference: the walk back from the logits.

    It gives operation → (values, reference values, multipliers), `(batch, …)` float32, for those
    `wanted`. `seed` maps logits and labels to the first multipliers of the logits; `rule` is that
    of `propagate_multipliers`.
    """
    logits = im.logit_operation
    recurrent = {im[name].params.unrolled for name in wanted if im[name].kind == RECURRENCE}
    members = {o.name for o in im.operations if getattr(o.params, "unrolled", 0) in recurrent}
    path = {o.name for o in im.graph.between({*wanted, *members}, [logits])}
    # The walk through time starts in a layer of which a member is wanted.
    order = consumers_first(o for o in im.operations if o.name in path | members)
    walked = {name for o in order for name in getattr(o, "members", (o.name,))}
    needed = tuple({logits, *wanted, *walked})

    def walk(x: list, y: Any, reference: list) -> tuple[list, list, list]:
        values = im.compute(x, needed)
        masks = {name: value for name, value in values.items() if im[name].kind == "mask"}
        if masks:  # the reference has the padding of the samples
            reference = [r + ops.zeros_like(v) for r, v in zip(reference, x, strict=True)]
        usual = im.graph.run(reference, needed, lambda name, value: masks.get(name, value))
        references = {name: v + ops.zeros_like(values[name]) for name, v in usual.items()} | masks
        start = {logits: seed(values[logits], y)}
        found = propagate_multipliers(im, order, start, values, references, rule)
        return (
            [values[name] for name in wanted],
            [references[name] for name in wanted],
            [found.get(name, ops.zeros_like(values[name])) for name in wanted],
        )

    compiled = compiled_function(walk)

    def run(
        x: np.ndarray | Inputs, y: np.ndarray, reference: np.ndarray | Inputs
    ) -> dict[str, tuple[np.ndarray, np.ndarray, np.ndarray]]:
        inputs, references = (
            [ops.convert_to_tensor(array) for array in arrays_of(samples)]
            for samples in (x, reference)
        )
        parts = compiled(inputs, ops.convert_to_tensor(y.astype(np.int32)), references)
        arrays = [[ops.convert_to_numpy(t) for t in part] for part in parts]
        return dict(zip(wanted, zip(*arrays, strict=True), strict=True))

    return run


def label_logit(logits: Any, y: Any) -> Any:
    """Return the cotangent that selects the score of each sample's label: its logit, or −z, z."""
    if logits.shape[-1] == 1:
        return ops.cast(2 * y[:, None] - 1, logits.dtype)
    return ops.one_hot(y, logits.shape[-1], dtype=logits.dtype)


def cross_entropy(logits: Any, y: Any, sigmoid: bool = False) -> Any:
    """Return the cross-entropy's gradient by logits, of a softmax or independent sigmoids."""
    if not sigmoid:
        return keras.activations.softmax(logits) - label_logit(logits, y)
    labels = ops.cast(y[:, None], logits.dtype) if logits.shape[-1] == 1 else label_logit(logits, y)
    return ops.sigmoid(logits) - labels


METRICS: dict[str, Metric] = {
    "avg": Metric(_activations, _mean, labels=False),
    "var": Metric(_activations, lambda mean, variance: variance, labels=False),
    # Zeros for one whose values are all equal
    "ens": Metric(_activations, lambda m, v: (minmax_scale(m) + minmax_scale(v)) / 2, labels=False),
    "deeplift": Metric(partial(_backward_metric, "deeplift"), _mean),
    "taylor": Metric(partial(_backward_metric, "taylor"), _mean),
    "taylor_weights": Metric(partial(_backward_metric, "taylor_weights"), _mean),
}
"""The contribution metrics by name."""
