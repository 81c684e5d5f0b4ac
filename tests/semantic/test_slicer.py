"""Selection of critical neurons against Algorithm 1, written out."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.semantic import SemanticSlicer, contributions
from nnslicer_tf.semantic.neurons import neuron_layers
from support.classifiers import make, samples
from support.landscapes import landscape, similarity


@pytest.fixture(scope="module", params=["perceptron", "convolutional", "residual"])
def case(request):
    im = nns.InstrumentedModel(make(request.param))
    return im, *samples(im.model, 45)


def algorithm_1(values, scores, threshold, step):
    """The steps of Algorithm 1 for one category and layer."""
    ranked = list(np.argsort(-scores, kind="stable"))
    whole = landscape(values)
    chosen, rest = ranked[:step], ranked[step:]
    while rest and not similarity(landscape(values[..., chosen]), whole) > threshold:
        chosen, rest = chosen + rest[:step], rest[step:]
    return set(chosen)


@pytest.mark.parametrize(
    ("metric", "centred", "threshold", "step"),
    [
        ("avg", False, 0.8, 1),
        ("avg", True, 0.95, 2),
        ("avg", False, 0.95, 3),
        ("taylor", False, 0.95, 1),
        ("taylor", True, 0.9, 1),
    ],
)
def test_semantic_slice_is_algorithm_1(case, metric, centred, threshold, step):
    im, x, y = case
    slicer = SemanticSlicer(im, x, y, metric, centred=centred)
    found = slicer.semantic_slice(threshold, step)
    scores = [contributions(im, x[y == c], metric, y[y == c]) for c in range(3)]
    for layer in neuron_layers(im).values():
        expected = set()
        for c in range(3):
            values = im.capture(x[y == c], of=[layer.value])[layer.value].astype(float)
            values = values - values.mean(axis=0) if centred else values
            expected |= algorithm_1(values, scores[c][layer.name], threshold, step)
        assert set(np.flatnonzero(found[layer.name])) == expected


def test_shares(case):
    im, x, y = case
    scores = contributions(im, x, "taylor", y)
    by_category = [contributions(im, x[y == c], "taylor", y[y == c]) for c in range(3)]
    slicer = SemanticSlicer(im, x, y, "taylor")
    whole, united = slicer.global_slice(0.5), slicer.category_slice(0.5)
    for layer, score in scores.items():
        count = -(-len(score) // 2)
        assert whole[layer].sum() == count
        assert score[whole[layer]].min() >= score[~whole[layer]].max()
        tops = [np.argsort(-part[layer], kind="stable")[:count] for part in by_category]
        assert set(np.flatnonzero(united[layer])) == set(np.concatenate(tops))


def test_batches_and_centring_do_not_change_the_scores(case):
    im, x, y = case
    slicer = SemanticSlicer(im, x, y, "deeplift", batch_size=4)
    whole = SemanticSlicer(im, x, y, "deeplift")
    assert slicer.semantic_slice(0.9) == whole.semantic_slice(0.9)
    assert slicer.global_slice(0.3) == whole.global_slice(0.3)
    assert slicer.category_slice(0.3) == whole.category_slice(0.3)


def test_slices_grow(case):
    im, x, y = case
    slicer = SemanticSlicer(im, x, y, "taylor")
    sizes = [slicer.semantic_slice(t).count for t in (0.1, 0.9, 0.99, 0.9999, 1.0)]
    assert sizes == sorted(sizes)
    assert slicer.semantic_slice(1.0).count == slicer.semantic_slice(1.0).total
    assert slicer.global_slice(1.0).count == slicer.semantic_slice(1.0).total
    assert "45 samples in 3 categories" in repr(slicer)


def test_capturing_layer_by_layer_gives_the_same(case, monkeypatch):
    im, x, y = case
    expected = SemanticSlicer(im, x, y).similarities
    monkeypatch.setattr("nnslicer_tf.semantic.slicer.MAX_CAPTURED", 1)
    found = SemanticSlicer(im, x, y).similarities
    for layer, values in expected.items():
        np.testing.assert_allclose(found[layer], values, rtol=1e-5)


def test_real_labels_need_not_be_all():
    im = nns.InstrumentedModel(make("perceptron"))
    x, y = samples(im.model, 20)
    some = SemanticSlicer(im, x[y > 0], y[y > 0])
    assert some.categories.tolist() == [1, 2]


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda slicer: slicer.semantic_slice(0.0), "threshold must be in"),
        (lambda slicer: slicer.semantic_slice(1.01), "threshold must be in"),
        (lambda slicer: slicer.semantic_slice(float("nan")), "threshold must be"),
        (lambda slicer: slicer.semantic_slice(step=0), "step must be"),
        (lambda slicer: slicer.global_slice(0), "share must be in"),
        (lambda slicer: slicer.category_slice(2), "share must be in"),
    ],
)
def test_bad_arguments_of_slices_are_refused(call, message):
    im = nns.InstrumentedModel(make("perceptron"))
    slicer = SemanticSlicer(im, *samples(im.model, 9))
    with pytest.raises(InvalidArgumentError, match=message):
        call(slicer)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda im, x, y: SemanticSlicer(im, x, y + 1), "labels must be in 0 … 2"),
        (lambda im, x, y: SemanticSlicer(im, x, y, "tylor"), "Did you mean 'taylor'"),
    ],
)
def test_bad_arguments_are_refused(call, message):
    im = nns.InstrumentedModel(make("perceptron"))
    with pytest.raises(InvalidArgumentError, match=message):
        call(im, *samples(im.model, 9))
