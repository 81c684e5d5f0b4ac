"""What is "for" a target raises its score: setting it to the baseline lowers it, and vice versa."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.attributions import ATTRIBUTIONS, metrics
from nnslicer_tf.attributions.methods import deeplift
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError

RNG = np.random.default_rng(0)


def randomised(model):
    for weight in model.weights:
        weight.assign(np.random.default_rng(len(model.weights)).normal(size=weight.shape))
    return nns.InstrumentedModel(model)


def mostly_linear(head, units):
    """Six features; a bend that is small against the linear part."""
    inputs = keras.Input((6,))
    bent = layers.Dense(4, activation="relu")(inputs)
    total = layers.Dense(units)(layers.Concatenate()([inputs, layers.Rescaling(0.05)(bent)]))
    return randomised(keras.Model(inputs, layers.Activation(head, name="answer")(total)))


TABLES = {"softmax": ("softmax", 3), "sigmoid": ("sigmoid", 1), "value": ("linear", 1)}
# Every table with every target: below and above its mean, both classes of a sigmoid, by name.
TARGETS = [
    ("softmax", 0),
    ("softmax", 1),
    ("softmax", 2),
    ("softmax", {"answer": [0, 2]}),
    ("sigmoid", 0),
    ("sigmoid", 1),
    ("value", 0),
    ("value", {"answer": "all"}),
]


@pytest.fixture(scope="module")
def tables():
    return {name: mostly_linear(*how) for name, how in TABLES.items()}


def score(im, target, x):
    """The target's score, written down independently."""
    logits = im.logits(np.atleast_2d(x)).astype(np.float64)
    if im["answer"].size == 1:
        return logits[:, 0] * (-1 if target == 0 and im.classes.is_binary else 1)
    return logits[:, [0, 2]].mean(axis=1) if isinstance(target, dict) else logits[:, target]


@pytest.mark.parametrize("method", [*ATTRIBUTIONS])
def test_features_for_a_target_raise_its_score(tables, method):
    for name, target in TARGETS:
        im = tables[name]
        for x, baseline in RNG.normal(size=(3, 2, 6)).astype(np.float32):
            try:
                values = ATTRIBUTIONS[method](im, x, baseline, target)
            except UnsupportedLayerError:
                assert method == "integrated gradients" and isinstance(target, dict)
                continue
            whole = score(im, target, x)
            clear = np.abs(values) > 0.05 * np.abs(values).max()
            for part, sign in ((values > 0, 1), (values < 0, -1)):
                changed = score(im, target, np.where(part & clear, baseline, x))
                assert not (part & clear).any() or sign * (whole - changed) > 0, (name, target)


def test_the_classes_of_a_sigmoid_are_opposites(tables):
    x, baseline = RNG.normal(size=(2, 6)).astype(np.float32)
    for name in ("DeepLIFT", "gradient × input", "occlusion"):
        values = [ATTRIBUTIONS[name](tables["sigmoid"], x, baseline, label) for label in (0, 1)]
        np.testing.assert_allclose(values[0], -values[1], rtol=1e-4, atol=1e-5)


# Any input and any target.


def test_pixels_and_regions_of_a_map_are_targets():
    inputs = keras.Input((6, 6, 1))
    im = randomised(keras.Model(inputs, layers.Conv2D(2, 3, padding="same", name="map")(inputs)))
    x = RNG.normal(size=(6, 6, 1)).astype(np.float32)
    kernel = im.kernels["map"].kernel()[:, :, 0, 1]
    at = ATTRIBUTIONS["gradient × input"](im, x, 0 * x, np.s_[2, 3, 1])[..., 0]
    expected = np.zeros((6, 6))
    expected[1:4, 2:5] = kernel * x[1:4, 2:5, 0]
    np.testing.assert_allclose(at, expected, rtol=1e-4, atol=1e-6)
    pixels = [deeplift(im, x, 0 * x, np.s_[i, j, 1]) for i in (2, 3) for j in (3, 4)]
    for region in (np.s_[2:4, 3:5, 1], {"map": np.s_[2:4, 3:5, 1]}):
        values = deeplift(im, x, 0 * x, region)
        np.testing.assert_allclose(values, np.mean(pixels, axis=0), rtol=1e-4, atol=1e-6)
    for wrong in (0, None, np.s_[9, 9, 0], {"map": "some"}, {"map": []}, {"map": 1, "x": 1}):
        with pytest.raises(InvalidArgumentError):
            deeplift(im, x, 0 * x, wrong)


def test_several_inputs_give_several_maps():
    """An input of numbers, one of tokens; each gets what it adds to a sum."""
    numbers, tokens = keras.Input((3,), name="numbers"), keras.Input((4,), name="tokens")
    embedded = layers.Embedding(9, 2, name="table")(tokens)
    parts = [layers.Dense(1, name="a")(numbers), layers.Dense(1)(layers.Flatten()(embedded))]
    im = randomised(keras.Model([numbers, tokens], layers.Add(name="sum")(parts)))
    x = {"numbers": RNG.normal(size=3), "tokens": np.array([1, 5, 5, 0])}
    baseline = {"numbers": np.zeros(3), "tokens": np.full(4, 8)}
    table, head = im.kernels["table"].kernel(), list(im.kernels.values())[-1].kernel()
    change = (table[x["tokens"]] - table[8]) * head.reshape(4, 2)
    for name in ("DeepLIFT", "gradient × input", "integrated gradients, 50 samples", "occlusion"):
        values = ATTRIBUTIONS[name](im, x, baseline, 0)
        expected = im.kernels["a"].kernel()[:, 0] * x["numbers"]
        np.testing.assert_allclose(values["numbers"], expected, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(values["tokens"], change.sum(axis=1), rtol=1e-3, atol=1e-4)
    curve = metrics.deletion(im, x, baseline, 0, values)
    ends = [{k: np.asarray(v)[None] for k, v in at.items()} for at in (x, baseline)]
    np.testing.assert_allclose(
        curve.answers[[0, -1]], [im.predict(end)[0, 0] for end in ends], rtol=1e-4
    )


def test_tokens_in_a_part_of_an_input_are_embedded():
    """Two columns are categories, the other two numbers."""
    inputs = keras.Input((4,))
    ids = layers.Cropping1D((0, 2))(layers.Reshape((4, 1))(inputs))
    rest = layers.Cropping1D((2, 0))(layers.Reshape((4, 1))(inputs))
    embedded = layers.Flatten()(layers.Embedding(5, 3)(layers.Reshape((2,))(ids)))
    h = layers.Concatenate()([embedded, layers.Flatten()(rest)])
    im = randomised(keras.Model(inputs, layers.Dense(1)(h)))
    x, baseline = np.array([1, 4, 0.5, 2.0]), np.array([0, 0, 1.0, 1.0])
    values = deeplift(im, x, baseline, 0)
    single = [im.predict(np.where(np.arange(4) == i, baseline, x)[None]) for i in range(4)]
    expected = [(im.predict(x[None]) - part).item() for part in single]
    np.testing.assert_allclose(values, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ATTRIBUTIONS["occlusion"](im, x, baseline, 0), expected, rtol=1e-3)


@pytest.mark.parametrize("recurrent", ["lstm", "gru", "both ways"])
def test_deeplift_adds_up_through_time(recurrent):
    layer = {
        "lstm": layers.LSTM(3),
        "gru": layers.GRU(3),
        "both ways": layers.Bidirectional(layers.LSTM(2)),
    }[recurrent]
    model = keras.Sequential([keras.Input((5,)), layers.Embedding(9, 4, mask_zero=True), layer])
    model.add(layers.Dense(2))
    im = randomised(model)
    x, baseline = np.array([3, 1, 4, 0, 0]), np.array([2, 2, 2, 0, 0])
    values = deeplift(im, x, baseline, 1)
    change = np.subtract(*im.logits(np.stack([x, baseline]))[:, 1])
    assert values.sum() == pytest.approx(change, abs=1e-4)
    assert not values[3:].any()
