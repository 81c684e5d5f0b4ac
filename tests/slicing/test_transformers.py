"""Transformers from capture to slice, and through every other analysis."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from support import transformers
from support.transformers import CLASSES, LENGTH, WORDS

transformers.register_class_token(nns)


def words(rng, samples):
    x = rng.integers(1, WORDS, (samples, LENGTH))
    lengths = rng.integers(1, LENGTH + 1, samples)
    return np.where(np.arange(LENGTH) < lengths[:, None], x, 0)


def images(rng, samples):
    return rng.normal(size=(samples, 8, 8, 2)).astype(np.float32)


MODELS = {
    "classifier": (transformers.classifier, words),
    "vision": (transformers.vision, images),
    "decoder": (transformers.decoder, words),
}


@pytest.fixture(scope="module", params=MODELS)
def made(request):
    """A model with random weights, data, and its profile."""
    build, data = MODELS[request.param]
    rng = np.random.default_rng(7)
    model = build()
    for weight in model.trainable_weights:
        weight.assign(rng.normal(size=weight.shape) / 2)
    im = nns.InstrumentedModel(model)
    x = data(rng, 10)
    return model, im, x, nns.Profile.from_data(im, x, progress=False)


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_slices_add_up_and_reach_the_input(made, theta):
    _, im, x, profile = made
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    whole, each = slicer.slice(x), slicer.slice_each(x)
    total = each[0]
    for i in range(1, len(x)):
        total = total + each[i]
    assert total == whole
    assert not any(whole.neurons[o.name].any() for o in im.operations if o.kind == "mask")
    if theta == 0:
        assert whole.neurons[im.input_operation].any()
        # The queries of a class token are the same for all images: nothing speaks through them.
        silent = [name for name, values in whole.synapses.items() if not values.any()]
        assert silent in ([], ["attention/query"])


def test_a_slice_is_a_model(made, tmp_path):
    model, im, x, profile = made
    slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
    one = slicer.slice(x[:2])
    small = one.apply(model, "zero")
    kernels = nns.InstrumentedModel(small).kernels
    for name, mask in one.synapse_mask().items():
        original = im.kernels[name].kernel()
        np.testing.assert_array_equal(kernels[name].kernel(), np.where(mask, original, 0))
    # With means, what inactive synapses contribute cannot be a constant after the layer.
    by_means = one.apply(model, profile)
    everything = nns.Slice({}, {n: np.ones_like(v) for n, v in one.synapses.items()}, {})
    whole = everything.apply(model, profile)
    np.testing.assert_allclose(whole(x[:2]), model(x[:2]), rtol=1e-4, atol=1e-5)
    by_means.save(tmp_path / "slice.keras")
    owned = {"ClassToken": transformers.ClassToken}
    again = keras.models.load_model(tmp_path / "slice.keras", owned)
    np.testing.assert_allclose(again(x[:2]), by_means(x[:2]), rtol=1e-5, atol=1e-6)
    assert not np.allclose(by_means(x[:2]), model(x[:2]), atol=1e-4)


def test_by_channel_it_is_refused_and_says_why(made):
    _, im, x, profile = made
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"scores.*granularity='activation'"):
        nns.Slicer(im, profile, 0.3, "channel", workers=0, progress=False).slice(x)


def test_masks_of_pruning_hold_in_training(made):
    model, im, x, _ = made
    scores = nns.pruning.scores(im, "weight")
    pruned = nns.pruning.prune(model, scores, 0.5)
    kernels = nns.InstrumentedModel(pruned).kernels
    share = np.mean(np.concatenate([k.kernel().ravel() == 0 for k in kernels.values()]))
    assert share >= 0.5
    masks = nns.pruning.masks(pruned)
    assert set(masks) == set(kernels)
    pruned.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    classes = im[im.logit_operation].shape[-1]
    pruned.fit(x, np.arange(len(x)) % classes, verbose=0)
    for name, mask in masks.items():
        assert not kernels[name].kernel()[~mask].any(), name
        assert kernels[name].kernel()[mask].any(), name


def test_compact_keeps_the_outputs(made):
    model, _, x, _ = made
    small = nns.pruning.compact(model)
    np.testing.assert_allclose(np.asarray(small(x)), np.asarray(model(x)), atol=1e-5)


@pytest.mark.parametrize("metric", ["avg", "var", "deeplift", "taylor"])
def test_contributions_of_the_attention_output(made, metric):
    _, im, x, _ = made
    y = im.logits(x).argmax(axis=1)
    found = nns.semantic.contributions(im, x, metric, y=y)
    attention = [name for name in found if "attention" in name]
    # Heads that share keys are no neurons, and neither are their output's channels.
    shares = any(isinstance(layer, keras.layers.GroupQueryAttention) for layer in im.model.layers)
    assert bool(attention) != shares
    assert all(np.isfinite(found[name]).all() and found[name].any() for name in attention)


def test_gradients_are_those_of_finite_differences(made):
    _, im, x, _ = made
    name = next(o.name for o in im.operations if o.kind == "softmax")
    chosen = np.zeros(len(x), int)
    gradient = im.gradients(x, of=chosen, wrt=[name])[name]
    h, place = 1e-2, np.unravel_index(np.abs(gradient[0]).argmax(), gradient.shape[1:])

    def logit(change):
        def changed(operation, value):
            if operation != name:
                return value
            step = np.zeros(value.shape, np.float32)
            step[(0, *place)] = change
            return value + step

        x32 = keras.ops.convert_to_tensor(x.astype(np.float32))
        logits = im.graph.run(x32, [im.logit_operation], changed)[im.logit_operation]
        return float(logits[0, 0])

    expected = (logit(h) - logit(-h)) / (2 * h)
    np.testing.assert_allclose(gradient[(0, *place)], expected, rtol=0.05)


def test_coverage_leaves_masks_out(made):
    _, im, x, _ = made
    coverage = nns.deepxplore.NeuronCoverage(im)
    coverage.update(x)
    assert not any(im[name].kind == "mask" for name in coverage.covered)
    assert 0 < coverage.total() <= 1


def test_exact_lines_refuse_what_is_not_piecewise_linear(made):
    _, im, x, _ = made
    with pytest.raises(nns.errors.UnsupportedLayerError, match="not piecewise linear"):
        nns.exactline.exact_line(im, x[0], x[1])


def test_the_models_have_what_they_are_to_show():
    assert CLASSES == 3
    kinds = {o.kind for o in nns.InstrumentedModel(transformers.decoder()).operations}
    assert {"lookup", "softmax", "product_sum", "mask", "weighted_sum"} <= kinds
    shared = nns.InstrumentedModel(transformers.decoder()).kernels
    assert list(shared).count("table") == 1
