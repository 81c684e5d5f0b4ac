"""Coverage of recurrent networks and transformers: states count, padding does not."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import deepxplore
from support.classifiers import randomise
from support.transformers import LENGTH, WORDS, classifier


@pytest.fixture(scope="module")
def words():
    rng = np.random.default_rng(0)
    x = rng.integers(1, WORDS, (20, LENGTH)).astype(np.int32)
    x[np.arange(LENGTH) >= rng.integers(2, LENGTH, (20, 1))] = 0  # the last is always padding
    return x


def recurrent():
    inputs = keras.Input((LENGTH,), dtype="int32", name="words")
    x = layers.Embedding(WORDS, 4, mask_zero=True, name="embedding")(inputs)
    x = layers.Bidirectional(layers.LSTM(3, return_sequences=True), name="both")(x)
    x = layers.GRU(5, name="gru")(x)
    return keras.Model(inputs, layers.Dense(2, name="logits")(x))


@pytest.fixture(scope="module", params=[classifier, recurrent])
def im(request):
    return nns.InstrumentedModel(randomise(request.param(), np.random.default_rng(1)))


def test_units_of_recurrent_layers_and_attention_are_counted():
    def counted(model):
        neurons = deepxplore.NeuronCoverage(nns.InstrumentedModel(model)).neurons
        return {name: np.prod(shape) for name, shape in neurons.shapes.items()}

    assert counted(recurrent()) == {
        "embedding": 4,
        "both:forward:h": 3,
        "both:backward:h": 3,
        "gru:h": 5,
        "logits": 2,
    }
    of = counted(classifier())
    assert of["block_attention"] == 8 and of["block_mlp1"] == 12 and of["embedding"] == 8


def outputs(im, x, name):
    """Each sample's values that are no padding, `(positions, channels)`, by hand."""
    operation = im[name]
    values = np.asarray(im.capture(x, of=[name])[name])
    if operation.mask is None:
        return [v.reshape(-1, v.shape[-1]) for v in values]
    present = x != 0
    if name == "both:backward:h":  # in the order of the steps
        present = present[:, ::-1]
    return [v[p] for v, p in zip(values, present, strict=True)]


def test_neuron_coverage_without_padding(im, words):
    coverage = deepxplore.NeuronCoverage(im, threshold=0.6)
    coverage.update(words, batch_size=7)
    for name, found in coverage.covered.items():
        expected = np.zeros(found.shape, bool)
        for values in outputs(im, words, name):
            scaled = (values - values.min()) / np.ptp(values)
            expected |= scaled.mean(axis=0) > 0.6
        np.testing.assert_array_equal(found, expected, name)
    assert 0 < coverage.total() < 1


def test_ranges_without_padding(im, words):
    ranges = deepxplore.NeuronRanges.from_data(im, words, batch_size=7, progress=False)
    for name in ranges.neurons.names:
        means = np.array([values.mean(axis=0) for values in outputs(im, words, name)])
        np.testing.assert_allclose(ranges.low[name], means.min(axis=0), rtol=1e-5)
        np.testing.assert_allclose(ranges.high[name], means.max(axis=0), rtol=1e-5)
    sections = deepxplore.KMultisectionCoverage(ranges, 10)
    sections.update(words, batch_size=7)
    for name, hits in sections.covered.items():
        assert hits[:, 0].all() and hits[:, -1].all(), name  # both ends of every range
    for corners in ("both", "upper"):
        coverage = deepxplore.BoundaryCoverage(ranges, corners)
        coverage.update(words, batch_size=7)
        assert coverage.total() == 0


def test_positions_that_are_always_padding_are_never_covered(im, words):
    ranges = deepxplore.NeuronRanges.from_data(im, words, "activation", progress=False)
    assert ranges.to_frame()["least"].notna().all()
    kinds = [
        deepxplore.NeuronCoverage(im, granularity="activation"),
        deepxplore.KMultisectionCoverage(ranges, 3),
        deepxplore.BoundaryCoverage(ranges),
        deepxplore.TopKCoverage(im, 10**6, "activation"),
    ]
    for coverage in kinds:
        coverage.update(words)
        positions = coverage.covered["embedding"].reshape(LENGTH, -1)
        assert not positions[-1].any(), coverage
        if not isinstance(coverage, deepxplore.BoundaryCoverage):
            assert positions[0].any(), coverage


def test_layers_of_a_distributed_model_are_counted_as_those_of_a_nested_one():
    inputs = keras.Input((8, 8, 1))
    x = layers.Conv2D(3, 3, activation="relu", name="conv")(inputs)
    x = layers.Flatten(name="flat")(layers.MaxPooling2D(name="pool")(x))
    x = layers.Dense(5, "tanh", name="dense")(layers.Dropout(0.5)(x))
    encoder = keras.Model(inputs, layers.Reshape((5,))(layers.Softmax(name="soft")(x)), name="e")
    frames = keras.Input((4, 8, 8, 1))
    state = layers.LSTM(4, name="lstm")(layers.TimeDistributed(encoder, name="each")(frames))
    model = keras.Model(frames, layers.Dense(2, name="out")(state))
    randomise(model, np.random.default_rng(0))
    counted = [f"each/{name}" for name in ("conv", "pool", "dense", "soft")]
    found = deepxplore.NeuronCoverage(nns.InstrumentedModel(model), 0.5)
    assert [*found.covered] == [*counted, "lstm:h", "out"]
    assert len(found.neurons) == 3 + 3 + 5 + 5 + 4 + 2
    # Each frame by itself: a filter is covered if its mean over frames and positions is.
    images = np.random.default_rng(0).normal(size=(6, 4, 8, 8, 1)).astype(np.float32)
    found.update(images)
    alone = keras.Model(inputs, [encoder.get_layer(n.split("/")[1]).output for n in counted])
    for name, values in zip(counted, alone.predict(images.reshape(24, 8, 8, 1)), strict=True):
        values = values.reshape(6, -1, values.shape[-1])
        low, high = (f(values, axis=(1, 2), keepdims=True) for f in (np.min, np.max))
        scaled = ((values - low) / (high - low)).mean(axis=1)
        np.testing.assert_array_equal(found.covered[name], (scaled > 0.5).any(axis=0))
