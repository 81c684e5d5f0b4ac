"""Shared by several packages: the training loop, choice by magnitude, checks."""

import keras
import numpy as np
import pytest

from nnslicer_tf._checks import check_labels
from nnslicer_tf._numerics import OutputClasses, largest, smallest
from nnslicer_tf._training import compile_loss, loss_of, train_epoch, train_epochs
from nnslicer_tf.errors import InvalidArgumentError


def recorded(**options):
    batches = []

    def step(rows, rng):
        batches.append(rows.tolist())
        return float(len(rows))

    means = train_epochs(step, rng=np.random.default_rng(3), progress=False, **options)
    return batches, means


def test_every_epoch_has_every_sample_in_the_order_of_the_generator():
    batches, means = recorded(samples=7, epochs=2, batch_size=3)
    assert [len(batch) for batch in batches] == [3, 3, 1, 3, 3, 1]
    assert means == [7 / 3, 7 / 3]
    rng = np.random.default_rng(3)
    expected = [*rng.permutation(7), *rng.permutation(7)]
    assert [row for batch in batches for row in batch] == expected


def test_a_last_batch_that_is_not_full_can_be_left_out():
    whole, _ = recorded(samples=7, epochs=1, batch_size=3)
    batches, means = recorded(samples=7, epochs=1, batch_size=3, drop_last=True)
    assert batches == whole[:2] and means == [3.0]
    assert len(recorded(samples=6, epochs=1, batch_size=3, drop_last=True)[0]) == 2


def test_a_step_may_draw_from_the_generator():
    drawn = []
    train_epoch(
        lambda rows, rng: drawn.append(rng.integers(1000)) or 0.0,
        4,
        2,
        np.random.default_rng(1),
        progress=False,
    )
    rng = np.random.default_rng(1)
    rng.permutation(4)
    assert drawn == rng.integers(1000, size=2).tolist()


@pytest.mark.parametrize("from_logits", [True, False])
def test_classifiers_are_compiled_for_cross_entropy(from_logits):
    model = keras.Sequential([keras.Input((3,)), keras.layers.Activation("linear")])
    kind = OutputClasses("" if from_logits else "softmax", (3,))
    compile_loss(model, keras.optimizers.SGD(0.0), loss_of(kind))
    x = np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8]], np.float32)
    y = np.array([0, 2])
    p = np.exp(x) / np.exp(x).sum(axis=1, keepdims=True) if from_logits else x
    expected = -np.log(p[[0, 1], y]).mean()
    assert float(model.evaluate(x, y, verbose=0)) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int64])
def test_choice_by_magnitude_takes_the_first_of_equal_values(dtype):
    rng = np.random.default_rng(0)
    values = rng.integers(-3, 4, (4, 5)).astype(dtype)
    for count in range(21):
        low, high = np.zeros(20, bool), np.zeros(20, bool)
        low[np.argsort(values, axis=None, kind="stable")[:count]] = True
        high[np.argsort(-values, axis=None, kind="stable")[:count]] = True
        np.testing.assert_array_equal(smallest(values, count), low.reshape(4, 5))
        np.testing.assert_array_equal(largest(values, count), high.reshape(4, 5))


def test_labels_come_back_as_int64():
    labels = check_labels(np.array([0, 2, 1], np.uint8), 3, 3)
    assert labels.dtype == np.int64 and labels.tolist() == [0, 2, 1]
    assert check_labels([5], 1).tolist() == [5]
    assert check_labels([[1], [2]], 2, 3).tolist() == [1, 2]  # a column, as Keras takes it


@pytest.mark.parametrize(
    ("y", "samples", "classes", "message"),
    [
        ([], 0, 3, "The data set is empty"),
        ([1], 2, 3, r"each of 2 samples.*Received: int64 of shape \(1,\)"),
        ([[1, 2], [2, 1]], 2, 3, r"shape \(2, 2\)"),
        ([0.0, 1.0], 2, 3, "Received: float64"),
        ([0, 3], 2, 3, r"in 0 … 2.*from 0 to 3"),
        ([-1, 3], 2, None, "0 or more; leave out samples without a class"),
    ],
)
def test_wrong_labels_are_refused(y, samples, classes, message):
    with pytest.raises(InvalidArgumentError, match=message):
        check_labels(y, samples, classes)
