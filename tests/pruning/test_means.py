"""Pruned synapses that hand on the mean of what they carried."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, pruning, zoo
from nnslicer_tf.instrument import Ablation, Mean
from support.models import MODELS, set_dyadic_weights

CASES = (
    *("dense", "conv same", "conv strides same", "conv groups", "conv1d causal", "depthwise"),
    *("separable", "transposed same", "batch norm", "max pool"),
)


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def case(name, seed=0):
    rng = np.random.default_rng(seed)
    model = set_dyadic_weights(MODELS[name](), rng)
    im = nns.InstrumentedModel(model)
    x = rng.normal(size=(24, *im.input_shape)).astype(np.float32)
    return im, x, nns.Profile.from_data(im, x, progress=False)


@pytest.mark.parametrize("name", CASES)
def test_at_the_mean_input_of_a_layer_nothing_changes(name):
    """y = W'·(x − x̄) + ȳ: over the profiled data the mean of every sum stays what it was.

    Of the first sums, that is: the inputs of later ones are no longer those of the profile.
    """
    im, x, profile = case(name)
    scores = pruning.scores(im, "random", rng=1)
    pruned = nns.InstrumentedModel(pruning.prune(im.model, scores, 0.6, profile))
    first = next(o for o in im.operations if o.kind == "weighted_sum")
    kept = pruning.keep_masks(scores, 0.6)
    for kernel, mask in kept.items():
        assert not pruned.kernels[kernel].kernel()[~mask].any()
    if name == "separable":  # the second of its sums has the means
        first = im[
            next(
                o.name
                for o in im.operations
                if o.params and o.kind == "weighted_sum" and o.params.name.endswith("pointwise")
            )
        ]
    taker = next(o for o in pruned.operations if o.name == f"{first.layer}_mean")
    found = pruned.capture(x, of=[taker.name])[taker.name].mean(axis=0)
    np.testing.assert_allclose(found, profile.means[first.name], atol=1e-4)


@pytest.mark.parametrize("name", [c for c in CASES if c not in ("separable",)])
def test_the_predictor_gives_what_the_pruned_model_gives(name):
    im, x, profile = case(name)
    predictor = Ablation(im, profile)
    for seed in range(2):
        scores = pruning.scores(im, "random", rng=seed)
        expected = outputs(pruning.prune(im.model, scores, 0.5, profile), x)
        found = predictor.outputs(pruning.keep_masks(scores, 0.5), x, batch_size=10)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(predictor.outputs({}, x), outputs(im.model, x), rtol=1e-5, atol=1e-5)


def test_by_hand():
    """Two dense layers in closed form."""
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(2, activation="relu"), layers.Dense(1)]
    )
    first, second = np.array([[1.0, -2.0], [3.0, 1.0]]), np.array([[2.0], [5.0]])
    model.set_weights([first, np.array([0.5, 1.0]), second, np.array([-1.0])])
    im = nns.InstrumentedModel(model)
    data = np.array([[1.0, 2.0], [3.0, 0.0]], np.float32)
    profile = nns.Profile.from_data(im, data, progress=False)
    names = list(im.kernels)
    keep = {names[0]: np.array([[1, 0], [0, 1]]), names[1]: np.array([[0], [1]])}
    pruned = pruning.prune(model, keep, {names[0]: 0.5, names[1]: 0.5}, profile)
    x = np.array([2.0, 4.0])
    means = data.mean(axis=0)  # (2, 1)
    hidden = (x - means) @ (first * keep[names[0]]) + means @ first + [0.5, 1.0]
    hidden = np.maximum(hidden, 0)
    all_hidden = np.maximum(data @ first + [0.5, 1.0], 0).mean(axis=0)
    y = (hidden - all_hidden) @ (second * keep[names[1]]) + all_hidden @ second - 1
    np.testing.assert_allclose(outputs(pruned, x[None].astype(np.float32))[0], y, rtol=1e-6)


def test_a_mean_of_zero_prunes_plainly():
    im, x, profile = case("conv same")
    keep = pruning.keep_masks(pruning.scores(im, "random", rng=3), 0.5)
    zeros = {name: 0 * mean for name, mean in profile.means.items()}
    found = Ablation(im, Mean(zeros)).outputs(keep, x)
    expected = Ablation(im, "zero").outputs(keep, x)
    np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-5)
    for name, kernel in im.kernels.items():
        kernel.variable().assign(kernel.kernel() * keep[name])
    np.testing.assert_allclose(found, outputs(im.model, x), rtol=1e-5, atol=1e-5)


def test_means_help_a_trained_network_and_survive_training_and_files(tmp_path):
    model = zoo.load("digits_cnn")
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, train.x, progress=False)
    scores = pruning.scores(im, "weight")
    plain = pruning.prune(model, scores, 0.7)
    pruned = pruning.prune(model, scores, 0.7, profile)
    assert zoo.accuracy(pruned, test) > zoo.accuracy(plain, test)
    pruned.save(tmp_path / "pruned.keras")
    again = keras.models.load_model(tmp_path / "pruned.keras")
    np.testing.assert_allclose(outputs(again, test.x), outputs(pruned, test.x), rtol=1e-5)
    tuned = pruning.fine_tune(pruned, train.x[:200], train.y[:200], 1, progress=False)
    for name, mask in pruning.masks(tuned).items():
        assert not nns.InstrumentedModel(tuned).kernels[name].kernel()[~mask].any()


def test_a_shared_layer_hands_on_the_mean_of_each_call():
    im, x, profile = case("shared layer")
    scores = pruning.scores(im, "random", rng=2)
    expected = outputs(pruning.prune(im.model, scores, 0.5, profile), x)
    found = Ablation(im, profile).outputs(pruning.keep_masks(scores, 0.5), x)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_slices_apply_with_means():
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    profile = nns.Profile.from_data(im, train.x, progress=False)
    slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
    one = slicer.slice(test.x[:1])
    found = outputs(one.apply(im.model, profile), test.x[:3])
    expected = Ablation(im, profile).outputs(one.synapse_mask(), test.x[:3])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)
    whole = nns.Slice(one.neurons, {n: np.ones_like(v) for n, v in one.synapses.items()}, {})
    same = outputs(whole.apply(im.model, profile), test.x[:3])
    np.testing.assert_allclose(same, outputs(im.model, test.x[:3]), rtol=1e-5, atol=1e-5)


def test_what_does_not_fit_is_refused():
    im, _, profile = case("dense")
    other, _, _ = case("dense", seed=1)
    with pytest.raises(nns.errors.ProfileMismatchError):
        pruning.prune(other.model, pruning.scores(other, "weight"), 0.5, profile)
    with pytest.raises(nns.errors.ProfileMismatchError):
        Ablation(other, profile)
    nested, _, profile = case("nested")
    with pytest.raises(nns.errors.UnsupportedLayerError, match="nested"):
        pruning.prune(nested.model, pruning.scores(nested, "weight"), 0.5, profile)
    assert im is not other


@pytest.mark.parametrize("ratio", [0.5, 0.9])
def test_compacted_with_means(ratio):
    """The constants of the means are cut with the units that they belong to."""
    model, x = zoo.load("digits_cnn"), datasets.load("digits", "train[:200]").x
    profile = nns.Profile.from_data(model, x, progress=False)
    pruned = pruning.prune(model, pruning.scores(model, "weight"), ratio, profile)
    small = pruning.compact(pruned)
    assert ratio < 0.9 or small.count_params() < pruned.count_params()
    np.testing.assert_allclose(
        small.predict(x, verbose=0), pruned.predict(x, verbose=0), rtol=1e-4, atol=1e-4
    )
