"""Distillation: students answer like their teachers, and what is refused."""

import keras
import numpy as np
import pytest

from nnslicer_tf.dflare import with_softmax
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.distillation import distill


def test_distillation_teaches_the_student(model, inputs):
    keras.utils.set_random_seed(1)
    student = with_softmax(
        keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])
    )
    before = student.get_weights()
    options = {"epochs": 60, "batch_size": 16, "learning_rate": 0.01, "progress": False}
    taught = distill(model, student, inputs, **options)
    teaching = model.predict(inputs, verbose=0)
    errors = [np.abs(m.predict(inputs, verbose=0) - teaching).mean() for m in (student, taught)]
    assert errors[1] < 0.3 * errors[0]
    for old, new in zip(before, student.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    again = distill(model, student, inputs, **options)
    np.testing.assert_array_equal(taught.get_weights()[0], again.get_weights()[0])


def test_distillation_with_dropout_is_determined_by_its_seed(model, inputs):
    student = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.5),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    first, again, other = (
        distill(model, student, inputs, epochs=1, batch_size=16, rng=rng, progress=False)
        for rng in (0, 0, 1)
    )
    np.testing.assert_array_equal(first.get_weights()[0], again.get_weights()[0])
    assert not np.array_equal(first.get_weights()[0], other.get_weights()[0])


def test_what_is_refused(model, inputs):
    other = keras.Sequential([keras.Input((6, 6, 1)), keras.layers.Flatten()])
    with pytest.raises(InvalidArgumentError, match="the same size"):
        distill(model, other, inputs)
    with pytest.raises(InvalidArgumentError, match="temperature"):
        distill(model, model, inputs, temperature=0)
    with pytest.raises(InvalidArgumentError, match="temperature must be a number"):
        distill(model, model, inputs, temperature="hot")
    with pytest.raises(InvalidArgumentError, match="epochs must be a non-negative integer"):
        distill(model, model, inputs, epochs="two")
