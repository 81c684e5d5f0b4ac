"""The synapses that pruning removes, and the rankers that say so."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import _environment, datasets, pruning, zoo
from nnslicer_tf.pruning.rankers import RANKERS
from support.models import MODELS, set_dyadic_weights


@pytest.fixture(scope="module")
def digits():
    """The trained network, its training and its test images."""
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    return im, datasets.load("digits", "train"), datasets.load("digits", "test")


@pytest.fixture(scope="module")
def profile(digits):
    im, train, _ = digits
    return nns.Profile.from_data(im, train.x, progress=False)


def accuracy(model, data, classes):
    chosen = np.isin(data.y, classes)
    predicted = model(data.x[chosen]).numpy().argmax(axis=1)
    return np.mean(predicted == data.y[chosen])


@pytest.mark.parametrize("ratio", [0.0, 0.29, 0.5, 0.999])
def test_the_smallest_of_each_kernel_go(ratio):
    rng = np.random.default_rng(0)
    scores = {"a": rng.normal(size=(10, 10)), "b": rng.normal(size=(3, 3, 2, 4))}
    for name, keep in pruning.keep_masks(scores, ratio).items():
        count = {"a": {0.0: 0, 0.29: 29, 0.5: 50, 0.999: 99}, "b": {0.29: 20, 0.5: 36, 0.999: 71}}
        assert np.sum(~keep) == count[name].get(ratio, 0)
        magnitudes = np.abs(scores[name])
        if ratio:
            assert magnitudes[~keep].max() < magnitudes[keep].min()


def test_ties_go_by_position_and_signs_do_not_matter():
    scores = {"a": np.array([[0, -3, 0], [2, 0, -1]])}
    keep = pruning.keep_masks(scores, 0.5)["a"]
    np.testing.assert_array_equal(keep, [[False, True, False], [True, False, True]])
    keep = pruning.keep_masks(scores, 0.4)["a"]
    np.testing.assert_array_equal(keep, [[False, True, False], [True, True, True]])


def test_pruning_zeroes_what_the_masks_say(digits):
    im, _, test = digits
    scores = pruning.scores(im, "random")
    pruned = pruning.prune(im.model, scores, 0.7)
    kernels = nns.InstrumentedModel(pruned).kernels
    for name, keep in pruning.keep_masks(scores, 0.7).items():
        expected = np.where(keep, im.kernels[name].kernel(), 0)
        np.testing.assert_array_equal(kernels[name].kernel(), expected)
    whole = pruning.prune(im.model, scores, 0.0)
    np.testing.assert_array_equal(whole(test.x[:9]).numpy(), im.model(test.x[:9]).numpy())


def test_kernels_without_scores_stay(digits):
    im, _, _ = digits
    scores = {"conv2": pruning.scores(im, "weight")["conv2"]}
    pruned = pruning.prune(im.model, scores, 0.5)
    assert list(pruning.masks(pruned)) == ["conv2"]
    assert np.count_nonzero(pruned.get_layer("conv1").get_weights()[0] == 0) == 0


def test_global_ratios_prune_the_smallest_of_all():
    scores = {"a": np.array([1.0, 2.0, 3.0, 4.0]), "b": np.array([2.5, 10.0]), "c": np.zeros(2)}
    ratios = pruning.global_ratios(scores, 0.5)
    assert ratios == {"a": 0.5, "b": 0.0, "c": 0.5}  # 0, 0, 1, 2; one of c stays
    keep = pruning.keep_masks(scores, ratios)
    np.testing.assert_array_equal(keep["a"], [False, False, True, True])
    assert keep["b"].all()
    assert pruning.global_ratios({"a": np.arange(100.0)}, 0.29) == {"a": 0.29}


@pytest.mark.parametrize("ratio", [-0.1, 1, 1.5, np.nan, "half", True, None])
def test_bad_ratios_are_refused(digits, ratio):
    im, _, _ = digits
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"ratio must .*in \[0, 1\)"):
        pruning.prune(im.model, pruning.scores(im, "weight"), ratio)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"ratio must .*in \[0, 1\)"):
        pruning.global_ratios(pruning.scores(im, "weight"), ratio)


def test_bad_scores_are_refused(digits):
    im, _, _ = digits
    weight = pruning.scores(im, "weight")
    for scores, message in [
        ({"nosuch": np.ones(3)}, "Unknown kernel 'nosuch'"),
        ({"conv1": np.ones(3)}, "has shape"),
        ({"conv1": np.full_like(weight["conv1"], np.nan)}, "scores of kernel 'conv1' have NaN"),
    ]:
        with pytest.raises(nns.errors.InvalidArgumentError, match=message):
            pruning.prune(im.model, scores, 0.5)
    with pytest.raises(
        nns.errors.InvalidArgumentError, match=r"or a ratio, but not both: \['conv2'\]"
    ):
        pruning.prune(im.model, weight, {"conv1": 0.5, "logits": 0.5})
    surplus = dict.fromkeys([*weight, "conv9"], 0.5)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"not both: \['conv9'\]"):
        pruning.prune(im.model, weight, surplus)


@pytest.mark.parametrize("name", ["conv groups", "depthwise", "separable", "transposed same"])
def test_weight_and_channel_scores_in_closed_form(name):
    model = set_dyadic_weights(MODELS[name](), np.random.default_rng(1))
    im = nns.InstrumentedModel(model)
    weight, channel = pruning.scores(im, "weight"), pruning.scores(im, "channel")
    for kernel_name, kernel in im.kernels.items():
        w = np.abs(kernel.kernel())
        np.testing.assert_array_equal(weight[kernel_name], w)
        axes = {"conv groups": (0, 1, 2), "transposed same": (0, 1, 3)}.get(name, (0, 1, 2))
        if w.ndim == 2:
            axes = (0,)
        elif "depthwise" in (name, kernel_name.rpartition("/")[2]):
            axes = (0, 1)  # each channel's filters have neurons of their own
        expected = np.broadcast_to(w.mean(axis=axes, keepdims=True), w.shape)
        np.testing.assert_allclose(channel[kernel_name], expected, rtol=1e-6)


def test_random_scores_follow_the_seed(digits):
    im, _, _ = digits
    first, again = (pruning.scores(im, "random", rng=7) for _ in range(2))
    other = pruning.scores(im, "random", rng=8)
    np.testing.assert_array_equal(first["conv2"], again["conv2"])
    assert not np.array_equal(first["conv2"], other["conv2"])
    assert first["conv2"].shape == im.kernels["conv2"].shape


def test_nnslicer_scores_are_the_slices_of_the_classes(digits, profile):
    im, train, _ = digits
    x, y = train.x[:120], train.y[:120].copy()
    y[:2] = (y[:2] + 1) % 10  # wrongly classified now
    ranker = pruning.NNSlicerRanker(profile=profile, progress=False)
    found = pruning.scores(im, ranker, x, y, [2, 7])
    slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
    right = im.logits(x).argmax(axis=1) == y
    assert not right[:2].any()
    both = [slicer.slice(x[right & (y == c)], outputs=[c]) for c in (2, 7)]
    for name, scores in found.items():
        np.testing.assert_array_equal(scores, (both[0] + both[1]).synapses[name])
    by_class = ranker.by_class(im, x, y)
    np.testing.assert_array_equal(by_class[7]["conv2"] + by_class[2]["conv2"], found["conv2"])
    np.testing.assert_array_equal(by_class[2]["conv2"], both[0].synapses["conv2"])
    # The profile of the given samples, by default.
    own = nns.Profile.from_data(im, x, progress=False)
    explicit = pruning.NNSlicerRanker(profile=own, progress=False).scores(im, x, y, [2])
    np.testing.assert_array_equal(
        pruning.NNSlicerRanker(progress=False).scores(im, x, y, [2])["conv2"], explicit["conv2"]
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"theta": -0.1}, "theta must be at least 0"),
        ({"granularity": "neuron"}, "granularity"),
        ({"workers": -1}, "workers must be a non-negative integer"),
        ({"relative_to": "input"}, "relative_to"),
        ({"rectify": "skip"}, "rectify"),
        ({"collect": "means"}, "way to collect"),
    ],
)
def test_wrong_options_of_slices_are_refused_at_once(options, message):
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        pruning.NNSlicerRanker(**options)


@pytest.mark.parametrize("dtype", [int, np.float32])
def test_labels_may_be_one_hot(digits, dtype):
    im, train, _ = digits
    ranker = pruning.NNSlicerRanker(theta=0.0, progress=False)
    x, y = train.x[:60], train.y[:60]
    expected, found = ranker.by_class(im, x, y), ranker.by_class(im, x, np.eye(10, dtype=dtype)[y])
    assert list(found) == list(expected) == list(range(10))
    for target in expected:
        for name, scores in expected[target].items():
            np.testing.assert_array_equal(found[target][name], scores)
    assert list(ranker.by_class(im, x, np.eye(10, dtype=dtype)[y], classes=[3, 4])) == [3, 4]


class Samples(pruning.ClassRanker):
    """A ranker that only counts the samples of a class."""

    def class_scores(self, im, x, target):
        return {name: np.full(kernel.shape, len(x)) for name, kernel in im.kernels.items()}


def test_wrong_samples_count_if_wanted(digits):
    im, train, _ = digits
    x, y = train.x[:20], train.y[:20].copy()
    y[np.flatnonzero(y == 3)[0]] = 4  # of the label 4, this one is wrong
    assert (im.logits(x).argmax(axis=1) == train.y[:20]).all()
    assert (Samples().scores(im, x, y, [4])["conv1"] == np.sum(y == 4) - 1).all()
    y = (train.y[:20] + 1) % 10  # no label is right
    with pytest.raises(
        nns.errors.InvalidArgumentError, match="no samples of class 3 that the model"
    ):
        Samples().scores(im, x, y, [3])
    for scores in Samples(correct_only=False).scores(im, x, y, [3, 5]).values():
        assert (scores == np.isin(y, (3, 5)).sum()).all()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"method": "magic"}, "Unknown ranker 'magic'"),
        ({"method": "nnslicer"}, "needs labelled samples"),
        ({"classes": []}, "set of target classes is empty"),
        ({"classes": [3, 10]}, "no class 10: its classes are 0 … 9"),
        ({"classes": [-1]}, "no class -1"),
        ({"classes": [9], "short": True}, "no samples of class 9"),
        ({"lost": True}, "one class index for each of 49 samples"),
    ],
)
def test_bad_requests_are_refused(digits, arguments, message):
    im, train, _ = digits
    x, y = train.x[:50], train.y[:50]
    if arguments.pop("short", False):
        y = np.minimum(y, 8)
    if arguments.pop("lost", False):
        x = x[1:]
    if arguments.get("method") is None:
        arguments = {"method": Samples(), "x": x, "y": y} | arguments
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        pruning.scores(im, **arguments)


def test_targeted_pruning_keeps_the_target_classes(digits, profile):
    """The paper's claim on a small network: above all other methods on the targets."""
    im, train, test = digits
    targets = [1, 3, 5, 7]
    others = [0, 2, 4, 6, 8, 9]
    rankers = {"nnslicer": pruning.NNSlicerRanker(profile=profile, progress=False)}
    found = {}
    for method in RANKERS:
        scores = pruning.scores(im, rankers.get(method, method), train.x, train.y, targets)
        pruned = pruning.prune(im.model, scores, 0.7)
        found[method] = accuracy(pruned, test, targets)
        if method == "nnslicer":
            assert accuracy(pruned, test, others) < found[method] - 0.5
    assert found["nnslicer"] > 0.9
    assert max(found.pop("random"), found.pop("channel")) < 0.7


def test_a_user_may_add_a_ranker(digits):
    class Position(pruning.Ranker):
        def scores(self, im, x=None, y=None, classes=None):
            return {n: np.arange(k.size).reshape(k.shape) for n, k in im.kernels.items()}

    im, _, _ = digits
    keep = pruning.keep_masks(pruning.scores(im, Position()), 0.5)["logits"]
    assert not keep.ravel()[: keep.size // 2].any() and keep.ravel()[keep.size // 2 :].all()


def test_refined_scores_keep_the_order_of_the_scores(digits):
    im, _, _ = digits
    w = np.abs(im.kernels["conv1"].kernel())
    scores = {"conv1": np.where(w > np.median(w), 0, -2)}
    product = pruning.times_weight(im, scores, power=0.5)["conv1"]
    expected = np.where(scores["conv1"] == 0, w * 0.05**0.5, w * (2 + 0.05) ** 0.5)
    np.testing.assert_allclose(product, expected, rtol=1e-6)  # the mean magnitude is 1
    nothing = pruning.times_weight(im, {"conv1": np.zeros(w.shape)})["conv1"]
    assert (np.argsort(nothing, axis=None) == np.argsort(w, axis=None)).all()


@pytest.mark.parametrize("contribution", ["count", "amount"])
def test_magnitudes_of_samples_do_not_cancel(digits, profile, contribution):
    im, train, _ = digits
    x = train.x[train.y == 4][:70]
    options = {"theta": 0.0, "contribution": contribution, "progress": False}
    ranker = pruning.NNSlicerRanker(profile=profile, collect="magnitudes", **options)
    found = ranker.scores(im, x, np.full(70, 4), [4])
    slicer = nns.Slicer(im, profile, workers=0, **options)
    right = im.logits(x).argmax(axis=1) == 4
    expected = np.zeros(im.kernels["conv2"].shape)
    for sample in x[right]:
        expected += np.abs(slicer.slice(sample[None], outputs=[4]).synapses["conv2"])
    exact = 0 if contribution == "count" else 1e-5
    np.testing.assert_allclose(found["conv2"], expected, rtol=exact, atol=10 * exact)


@pytest.mark.parametrize("collect", pruning.rankers.COLLECT)
def test_rankings_do_not_depend_on_the_number_of_threads(
    digits, profile, collect, capsys, monkeypatch
):
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0)
    im, train, _ = digits
    x, y = train.x[:40], train.y[:40]
    found = []
    for workers in (0, None):
        ranker = pruning.NNSlicerRanker(profile=profile, collect=collect, workers=workers)
        found.append(ranker.scores(im, x, y, [4, 7]))
    for name, scores in found[0].items():
        assert scores.any()
        np.testing.assert_array_equal(found[1][name], scores)
    assert "Slic" in capsys.readouterr().err  # a bar


def test_a_model_may_be_a_sequential_without_input():
    model = keras.Sequential([layers.Dense(4, activation="relu"), layers.Dense(2)])
    model.build((None, 3))
    im = nns.InstrumentedModel(model)
    pruned = pruning.prune(model, pruning.scores(im, "weight"), 0.5)
    x = np.random.default_rng(0).normal(size=(3, 3)).astype(np.float32)
    small = pruning.compact(pruned)
    np.testing.assert_allclose(small(x), pruned(x), rtol=1e-6, atol=1e-6)


def test_a_scalar_output_is_one_channel():
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(6, "relu")(inputs)
    output = keras.ops.squeeze(keras.layers.Dense(1, "sigmoid")(hidden), -1)
    model = keras.Model(inputs, output)
    kernel, bias = model.layers[1].get_weights()
    kernel[:, :2] = 0
    model.layers[1].set_weights([kernel, bias])
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(9, 4)).astype(np.float32)
    whole = {name: np.ones(k.shape) for name, k in im.kernels.items()}
    small = pruning.compact(model)
    assert small.count_params() < model.count_params()
    for copy in (pruning.prune(model, whole, 0.0), small):
        np.testing.assert_allclose(copy(x).numpy(), model(x).numpy(), atol=1e-6)
