"""Index maps of routing layers, against the layer run on numbers that name positions."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.instrument.index_maps import INSERTED, routing_map

SHAPE = (4, 3, 2)


def operation_of(build, shape=SHAPE):
    inputs = keras.Input(shape)
    return nns.InstrumentedModel(keras.Model(inputs, build(inputs))).operations[-1]


@pytest.mark.parametrize(
    "build",
    [
        layers.Flatten(),
        layers.Reshape((2, 12)),
        layers.Permute((3, 1, 2)),
        layers.ZeroPadding2D(((1, 2), (0, 1))),
        layers.Cropping2D(((1, 0), (0, 2))),
        layers.UpSampling2D((2, 3)),
        layers.Dropout(0.5),
        layers.Identity(),
        layers.RandomFlip(),
        lambda x: x[:, 1:, ::-1],
        lambda x: ops.transpose(x, (0, 3, 2, 1)),
        lambda x: layers.Concatenate(axis=1)([x, x]),
        lambda x: ops.stack([x, x], axis=2),
    ],
)
def test_moved_values_come_from_where_the_map_says(build):
    operation = operation_of(build)
    assert operation.kind == "routing"
    source = routing_map(operation)
    assert source.shape == operation.shape
    x = np.random.default_rng(0).normal(size=(1, *SHAPE)).astype(np.float32)
    tensors = [ops.convert_to_tensor(x)] * len(operation.inputs)
    moved = ops.convert_to_numpy(operation.compute(*tensors))[0]
    values = np.tile(x.ravel(), len(tensors))
    expected = np.where(source == INSERTED, 0, values[source])
    assert np.array_equal(moved, expected)


def test_maps_by_hand():
    padding = operation_of(layers.ZeroPadding1D((1, 2)), shape=(2, 1))
    assert routing_map(padding).ravel().tolist() == [-1, 0, 1, -1, -1]
    repeated = operation_of(layers.UpSampling1D(2), shape=(2, 1))
    assert routing_map(repeated).ravel().tolist() == [0, 0, 1, 1]
    joined = operation_of(lambda x: layers.Concatenate()([x, x]), shape=(2, 1))
    assert routing_map(joined).tolist() == [[0, 2], [1, 3]]


def test_positions_beyond_float32_are_told_apart():
    """float32 holds integers up to 2²⁴ only."""
    rows = (1 << 24) + 8
    tail = operation_of(lambda x: x[:, -3:], shape=(rows,))
    assert routing_map(tail).tolist() == [rows - 3, rows - 2, rows - 1]


@keras.saving.register_keras_serializable("nnslicer_tests")
class Arithmetic(keras.layers.Layer):
    """Does more than move values."""

    def __init__(self, function, **options):
        super().__init__(**options)
        self.function = function

    def call(self, x):
        return self.function(x)


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x + 1,
        lambda x: 2 * x,
        lambda x: -x,
        lambda x: x / 2,
        lambda x: ops.mean(x, axis=1),
        lambda x: ops.sum(x, axis=1),
    ],
    ids=["shift", "double", "negate", "halve", "mean", "sum"],
)
def test_routing_that_changes_values_is_refused(function):
    nns.register_layer(Arithmetic, lambda layer, call: [nns.Step("routing", layer.call)])
    operation = operation_of(Arithmetic(function, name="arithmetic"))
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match="'arithmetic' is registered as routing"
    ):
        routing_map(operation)
