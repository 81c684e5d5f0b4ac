"""Recurrent kernels are masked, and recurrent units removed, with equal outputs."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.pruning import apply_masks, compact, masks, remove_units
from nnslicer_tf.pruning.removal import mask_units


def randomised(*stack, shape=(6, 3)):
    model = keras.Sequential([keras.Input(shape), *stack])
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(rng.normal(0, 0.7, weight.shape))
    return model


def data(model):
    x = np.random.default_rng(1).normal(size=(5, *model.input_shape[1:])).astype(np.float32)
    x[1, 3:] = 0
    return x


STACKS = {
    "simple": lambda: [layers.SimpleRNN(6, name="rnn"), layers.Dense(2)],
    "lstm": lambda: [layers.LSTM(6, name="rnn"), layers.Dense(2)],
    "gru": lambda: [layers.GRU(6, name="rnn"), layers.Dense(2)],
    "gru reset before": lambda: [layers.GRU(6, reset_after=False, name="rnn"), layers.Dense(2)],
    "without bias": lambda: [layers.LSTM(6, use_bias=False, name="rnn"), layers.Dense(2)],
    "read by another": lambda: [
        layers.LSTM(6, return_sequences=True, name="rnn"),
        layers.GRU(4),
        layers.Dense(2),
    ],
    "read at all times": lambda: [
        layers.GRU(6, return_sequences=True, go_backwards=True, name="rnn"),
        layers.Flatten(),
        layers.Dense(2),
    ],
}


@pytest.mark.parametrize("name", STACKS)
def test_removed_units_leave_smaller_layers_of_equal_outputs(name):
    model = randomised(*STACKS[name]())
    x = data(model)
    keep = np.array([True, False, True, True, False, True])
    masked = mask_units(model, {"rnn": keep})
    small = remove_units(model, {"rnn": keep})
    assert small.get_layer("rnn").units == 4
    assert small.count_params() < model.count_params()
    expected = masked(x).numpy()
    assert np.abs(expected - model(x).numpy()).max() > 1e-3
    np.testing.assert_allclose(small(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_a_removed_unit_is_zero_wherever_it_is_read():
    """The same by hand: the recurrent rows and outgoing weights of the unit set to zero."""
    model = randomised(layers.LSTM(4, name="rnn"), layers.Dense(2, name="out"))
    keep = np.array([True, True, False, True])
    by_hand = keras.models.clone_model(model)
    kernel, recurrent, bias, out, out_bias = (w.copy() for w in model.get_weights())
    recurrent[~keep], out[~keep] = 0, 0
    by_hand.set_weights([kernel, recurrent, bias, out, out_bias])
    x = data(model)
    small = remove_units(model, {"rnn": keep})
    expected = by_hand(x).numpy()
    np.testing.assert_allclose(small(x).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_units_that_nothing_reads_are_removed():
    model = randomised(layers.GRU(5, name="rnn"), layers.Dense(2, name="out"))
    weights = [w.copy() for w in model.get_weights()]
    weights[1][3], weights[3][3] = 0, 0  # unit 3: recurrent rows and what the logits read
    model.set_weights(weights)
    x = data(model)
    small = compact(model)
    assert small.get_layer("rnn").units == 4
    np.testing.assert_allclose(small(x).numpy(), model(x).numpy(), rtol=1e-4, atol=1e-5)


def test_what_cannot_be_made_smaller_stays_whole():
    model = randomised(layers.Bidirectional(layers.LSTM(4), name="both"), layers.Dense(2))
    small = compact(model)
    x = data(model)
    assert small.count_params() == model.count_params()
    np.testing.assert_array_equal(small(x).numpy(), model(x).numpy())
    padded = randomised(
        layers.Masking(0.0),
        layers.LSTM(6, return_sequences=True, name="rnn"),
        layers.GlobalAveragePooling1D(),
        layers.Dense(2),
    )
    keep = np.array([True, False, True, True, False, True])
    whole, left = mask_units(padded, {"rnn": keep}), remove_units(padded, {"rnn": keep})
    x = data(padded)
    expected = whole(x).numpy()
    np.testing.assert_allclose(left(x).numpy(), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(nns.errors.InvalidArgumentError, match="has shape"):
        remove_units(randomised(layers.LSTM(4, name="rnn"), layers.Dense(2)), {"rnn": [True]})


@pytest.mark.parametrize(
    "layer, kernel",
    [
        (lambda: layers.LSTM(4, name="rnn"), "rnn/recurrent_kernel"),
        (lambda: layers.GRU(4, name="rnn"), "rnn/kernel"),
        (lambda: layers.Bidirectional(layers.LSTM(4), name="rnn"), "rnn/backward/kernel"),
        (lambda: layers.RNN([layers.GRUCell(4)], name="rnn"), "rnn/cell0/recurrent_kernel"),
    ],
)
def test_masks_of_recurrent_kernels_stay_in_training(layer, kernel):
    model = randomised(layer(), layers.Dense(2))
    x = data(model)
    shape = nns.InstrumentedModel(model).kernels[kernel].shape
    keep = np.random.default_rng(3).random(shape) < 0.5
    pruned = apply_masks(model, {kernel: keep})
    np.testing.assert_array_equal(masks(pruned)[kernel], keep)
    pruned.compile("sgd", "mse")
    pruned.fit(x, np.ones((len(x), 2), np.float32), verbose=0)
    after = nns.InstrumentedModel(pruned).kernels[kernel].kernel()
    assert not after[~keep].any() and after[keep].all()


def test_weight_pruning_ranks_recurrent_synapses():
    model = randomised(layers.LSTM(4, name="rnn"), layers.Dense(2))
    im = nns.InstrumentedModel(model)
    scores = nns.pruning.scores(im, "weight")
    pruned = nns.pruning.prune(model, scores, 0.5)
    left = nns.InstrumentedModel(pruned).kernels["rnn/recurrent_kernel"].kernel()
    whole = im.kernels["rnn/recurrent_kernel"].kernel()
    assert 0.4 < (left == 0).mean() < 0.6
    assert np.abs(whole[left == 0]).max() <= np.abs(whole[left != 0]).min()
