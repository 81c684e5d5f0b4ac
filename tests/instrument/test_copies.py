"""Copies of models."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns


@pytest.mark.parametrize("names", [None, ("a", "b")])
def test_copies_call_their_inputs_as_the_model_does(names):
    keras.Input((1,))  # so that the numbers of the inputs and of their tensors differ
    first, second = (keras.Input((4,), name=name) for name in names or (None, None))
    inputs = dict(zip(names, (first, second), strict=True)) if names else [first, second]
    model = keras.Model(inputs, keras.layers.Dense(4)(first) + second)
    im = nns.InstrumentedModel(model)
    copy = im.copy()
    assert [o.name for o in copy.operations] == [o.name for o in im.operations]
    x = [np.ones((2, 4), np.float32), np.zeros((2, 4), np.float32)]
    x = dict(zip(names, x, strict=True)) if names else x
    np.testing.assert_array_equal(copy.predict(x), im.predict(x))


def test_copies_have_the_batch_size_of_the_model():
    """Without it Keras refuses layers whose state stays from batch to batch."""
    inputs = keras.Input(batch_shape=(2, 4, 3))
    hidden = keras.layers.LSTM(3, stateful=True)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden))
    copy = nns.instrument.copy_model(model)
    x = np.random.default_rng(0).random((2, 4, 3), np.float32)
    np.testing.assert_array_equal(copy(x), model(x))
