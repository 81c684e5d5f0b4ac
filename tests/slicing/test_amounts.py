"""Contributions as amounts: completeness at every cut, and agreement with independent DeepLIFT."""

import re

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from support import sequence_models
from support.slices import check_complete


def slicer_of(model, profile_data):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, profile_data, progress=False)
    return nns.Slicer(im, profile, workers=0, progress=False, contribution="amount")


@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_amounts_of_attention_add_up(seed):
    rng = np.random.default_rng(seed)
    model = sequence_models.random_sequence_model(rng)
    slicer = slicer_of(model, sequence_models.tokens(rng, 6))
    check_complete(slicer, rng.integers(1, sequence_models.TOKENS, (3, sequence_models.LENGTH)))


@pytest.mark.parametrize(
    "layer",
    [
        layers.LayerNormalization(),
        layers.LayerNormalization(axis=[1, 2]),
        layers.GroupNormalization(2),
        layers.RMSNormalization(),
        layers.UnitNormalization(),
        layers.Softmax(),
        layers.Activation("gelu"),
        layers.Activation("tanh"),
    ],
    ids=lambda layer: layer.name,
)
def test_amounts_of_normalisations_and_activations_add_up(layer):
    rng = np.random.default_rng(0)
    inputs = keras.Input((3, 4))
    h = layers.Dense(4)(layer(layers.Dense(4)(inputs)))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(h)))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    slicer = slicer_of(model, rng.normal(size=(8, 3, 4)))
    x = np.clip(rng.normal(size=(5, 3, 4)), -2, 2)
    check_complete(slicer, x)


@pytest.mark.parametrize(
    "layer",
    [
        lambda: layers.LSTM(4),
        lambda: layers.GRU(4),
        lambda: layers.GRU(4, reset_after=False, go_backwards=True),
        lambda: layers.Bidirectional(layers.SimpleRNN(3)),
        lambda: layers.RNN([layers.LSTMCell(2), layers.GRUCell(3)]),
    ],
    ids=["lstm", "gru", "gru backwards", "both ways", "stacked"],
)
@pytest.mark.parametrize("masked", [False, True])
def test_amounts_through_time_add_up(layer, masked):
    rng = np.random.default_rng(0)
    first = [layers.Masking(0.0)] if masked else []
    model = keras.Sequential([keras.Input((5, 3)), *first, layer(), layers.Dense(3)])
    profile_data, x = rng.normal(size=(8, 5, 3)), rng.normal(size=(4, 5, 3))
    if masked:
        profile_data[::2, 3:], x[::2, 2:] = 0, 0
    slicer = slicer_of(model, profile_data)
    found = slicer.slice(x, outputs=[1])
    change = found.neurons[slicer.im.logit_operation].sum()
    assert found.neurons[slicer.im.input_operation].sum() == pytest.approx(change, abs=2e-5)


def test_amounts_have_no_threshold():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(2)])
    x = np.ones((3, 2), np.float32)
    slicer = slicer_of(model, x)
    assert slicer.theta == 0
    assert nns.Slicer(slicer.im, slicer.profile).theta == 0.3
    message = "Pass theta=0, or contribution='count'. Received: theta=0.3"
    with pytest.raises(nns.errors.InvalidArgumentError, match=re.escape(message)):
        nns.Slicer(slicer.im, slicer.profile, 0.3, contribution="amount")
    with pytest.raises(nns.errors.InvalidArgumentError, match=re.escape(message)):
        slicer.at_theta(0.3)
    with pytest.raises(nns.errors.InvalidArgumentError, match=re.escape(message)):
        nns.pruning.NNSlicerRanker(theta=0.3, contribution="amount")
    assert nns.pruning.NNSlicerRanker(contribution="amount").theta == 0


def test_a_column_that_is_added_to_a_square_in_a_batch_of_one():
    """y = 28 x0 + 56 x1: a column of as many rows, alone in its batch, is no bias."""
    inputs = keras.Input((2,))
    square = layers.Reshape((2, 2))(layers.Dense(4, use_bias=False)(inputs))
    column = layers.Reshape((2, 1))(layers.Dense(2, use_bias=False)(inputs))
    total = layers.Flatten()(layers.Add()([square, column]))
    model = keras.Model(inputs, layers.Dense(1, use_bias=False)(total))
    model.set_weights(
        [np.eye(2, 4) + 1, np.array([[1.0, 2], [3, 5]]), np.array([[1.0], [2], [3], [4]])]
    )
    im = nns.InstrumentedModel(model, task="regression")
    profile = nns.Profile.from_data(im, np.array([[0, 0], [2, 4]], np.float32), progress=False)
    x = np.array([3, 1], np.float32)
    assert im.predict(x[None]) == pytest.approx(140)
    slicer = nns.Slicer(im, profile, progress=False)
    why = slicer.explain(x, background="mean", compare=False, decisive=False)
    np.testing.assert_allclose(why.contributions, [28 * (3 - 1), 56 * (1 - 2)], rtol=1e-5)
