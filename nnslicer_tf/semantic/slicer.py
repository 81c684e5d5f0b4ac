"""Selection of critical neurons: global, category-wise and semantic slicing (section 3).

Global slicing selects the top-scoring share of every layer on the whole data set, category-wise
slicing the union of those on each category. Semantic slicing selects, for each category, the fewest
top-scoring neurons whose embedding landscape is like the layer's (Algorithm 1); then the union.

Memory: the values of some layers for one category's samples (`MAX_CAPTURED` numbers at most, or one
layer), and a float64 matrix samples × samples or values × values. Time: the metric's, one forward
pass, and about one such matrix product for each category and layer.
"""

import math
from functools import cached_property
from typing import Any

import numpy as np
from sklearn.preprocessing import StandardScaler

from nnslicer_tf._checks import ArrayLike, check_count, check_name, check_number, counted
from nnslicer_tf._environment import one_thread_a_product, track
from nnslicer_tf._numerics import largest
from nnslicer_tf.instrument import DataLike, ModelLike, instrumented
from nnslicer_tf.semantic import metrics
from nnslicer_tf.semantic.neurons import CriticalNeurons, NeuronLayer, neuron_layers

MAX_CAPTURED = 50_000_000  # numbers, 200 MB


class SemanticSlicer:
    """Computes scores and similarities of a model's neurons on a data set, and slices from them.

    The scores and similarities are computed once; use one slicer to try many thresholds.

    The arguments are those of `contributions`, and:

    Args:
        centred: Compare centred landscapes, as the centred kernel alignment does that Equation 2
            refers to (Kornblith et al., ICML 2019, section 3), but does not print. Within one
            category, values vary little around their mean, which a few neurons suffice to
            reproduce; centred landscapes require the differences between samples as well.

    Attributes:
        categories: The labels that occur, ascending, `(categories,)`.
        scores: Layer → scores on all samples `(units,)`.
        category_scores: Layer → scores on each category `(categories, units)`.

    Raises InvalidArgumentError for an unknown metric, labels that do not fit or are missing, or a
    model that is not a classifier of two or more classes; UnsupportedLayerError if the model has no
    layer with neurons; InputShapeError if the samples or the baseline have another shape.
    """

    def __init__(
        self,
        im: ModelLike,
        x: DataLike,
        y: ArrayLike | None = None,
        metric: str = "taylor",
        *,
        centred: bool = False,
        baseline: metrics.Baseline = None,
        batch_size: int = 256,
        progress: bool = False,
    ) -> None:
        check_name("metric", metric, metrics.METRICS)
        self.metric, self.centred = metric, centred
        self._im = im = instrumented(im, x).named_by(x, baseline)
        self._batch_size, self._progress = batch_size, progress
        self._layers = neuron_layers(im)
        self._x, self._y = metrics.labelled(im, x, y, batch_size)
        self.categories = np.unique(self._y)
        options, reference = metrics.METRICS[metric], metrics.reference_sample(im, baseline)
        values_of = options.prepare(im, self._layers, reference)
        whole, scores = {layer: StandardScaler() for layer in self._layers}, []
        for c in track(self.categories, "Categories", len(self.categories), progress):
            part = {layer: StandardScaler() for layer in self._layers}
            members = np.flatnonzero(self._y == c)
            for batch in np.split(members, range(batch_size, len(members), batch_size)):
                values = metrics.finite(values_of(self._x[batch], self._y[batch]))
                for layer in self._layers:
                    part[layer].partial_fit(values[layer])
                    whole[layer].partial_fit(values[layer])
            scores.append(metrics.layer_scores(options, part))
        self.scores = metrics.layer_scores(options, whole)
        self.category_scores = {k: np.stack([s[k] for s in scores]) for k in self._layers}

    def __getstate__(self) -> dict:
        return {**vars(self), "_layers": None}  # operations cannot be pickled

    def __setstate__(self, state: dict) -> None:
        vars(self).update(state, _layers=neuron_layers(state["_im"]))

    @cached_property
    def similarities(self) -> dict[str, np.ndarray]:
        """Layer → similarity of the k top neurons for each category, at [category, k - 1]."""
        rows: dict[str, list[np.ndarray]] = {name: [] for name in self._layers}
        for row, c in enumerate(track(self.categories, "Similarity", progress=self._progress)):
            samples = self._x[self._y == c]
            # Layers are captured in groups that fit into memory.
            groups: list[list[NeuronLayer]] = [[]]
            size = 0
            for layer in self._layers.values():
                size += len(samples) * self._im[layer.value].size
                if groups[-1] and size > MAX_CAPTURED:
                    groups.append([])
                    size = len(samples) * self._im[layer.value].size
                groups[-1].append(layer)
            for layers in groups:
                names = [*(layer.value for layer in layers), *metrics.mask_names(layers)]
                values = self._im.capture(samples, self._batch_size, of=names)
                for layer in layers:
                    order = np.argsort(-self.category_scores[layer.name][row], kind="stable")
                    features = layer.of_data(values[layer.value], values)
                    if self.centred:
                        features = features - features.mean(axis=0, dtype=np.float64)
                    with one_thread_a_product():
                        rows[layer.name].append(prefix_similarities(features, order))
        return {name: np.stack(parts) for name, parts in rows.items()}

    def global_slice(self, share: float) -> CriticalNeurons:
        """Return the top share of every layer by the scores on all samples.

        Args:
            share: Share of the neurons, (0, 1]; at least one neuron is selected.

        Raises InvalidArgumentError if `share` is out of range.
        """
        check_number("share", share, "(0, 1]")
        return CriticalNeurons({k: largest(s, _count(share, s)) for k, s in self.scores.items()})

    def category_slice(self, share: float) -> CriticalNeurons:
        """Return the union over categories of the top share of every layer by their scores."""
        check_number("share", share, "(0, 1]")
        masks = {
            layer: np.any([largest(s, _count(share, s)) for s in scores], axis=0)
            for layer, scores in self.category_scores.items()
        }
        return CriticalNeurons(masks)

    def semantic_slice(self, threshold: float = 0.95, step: int = 1) -> CriticalNeurons:
        """Return the union of each category's shortest prefix that is similar enough.

        Args:
            threshold: Θ in (0, 1]: the similarity with the whole layer must be above it.
            step: Algorithm 1's interval i: the number of neurons by which prefixes grow.

        Raises InvalidArgumentError if an argument is out of range.
        """
        check_number("threshold", threshold, "(0, 1]")
        check_count("step", step)
        union = {}
        for layer, scores in self.category_scores.items():
            masks = []
            for score, similarities in zip(scores, self.similarities[layer], strict=True):
                # The shortest prefix above the threshold, or the whole order.
                lengths = np.append(np.arange(step, len(score), step), len(score))
                above = similarities[lengths - 1] > threshold
                count = lengths[np.argmax(above)] if above.any() else len(score)
                masks.append(largest(score, int(count)))
            union[layer] = np.any(masks, axis=0)
        return CriticalNeurons(union)

    def __repr__(self) -> str:
        neurons = sum(layer.units for layer in self._layers.values())
        metric = f"{self.metric}, centred" if self.centred else self.metric
        return (
            f"SemanticSlicer({self._im.model.name!r}, {metric}, {counted(len(self._x), 'sample')} "
            f"in {len(self.categories)} categories, {counted(neurons, 'neuron')} in "
            f"{counted(len(self._layers), 'layer')})"
        )


def _count(share: float, scores: np.ndarray) -> int:
    return max(1, math.ceil(round(share * len(scores), 9)))


def prefix_similarities(features: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return the similarity of every prefix of an order of neurons with the whole layer.

    That of two landscapes M = F·Fᵀ, where a row of F holds a sample's values, is their cosine, not
    centred (equations 1, 2 and 4). As M = Σ F_i·F_iᵀ over neurons, all prefixes cost little more
    than M. If samples outnumber values, ⟨F_i·F_iᵀ, F_j·F_jᵀ⟩ = ‖F_iᵀ·F_j‖² is cheaper.

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
