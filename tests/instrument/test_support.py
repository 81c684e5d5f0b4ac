"""The table of all classes of `keras.layers`."""

import importlib.util
import inspect
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns

PAGE = importlib.util.spec_from_file_location(
    "layer_pages", Path(__file__).parents[2] / "docs" / "layer_pages.py"
)
sys.modules[PAGE.name] = pages = importlib.util.module_from_spec(PAGE)
PAGE.loader.exec_module(pages)
ROWS = {row.name: row for row in pages.layer_support()}
CLASSES = {
    value.__name__: value
    for value in vars(layers).values()
    if inspect.isclass(value) and issubclass(value, layers.Layer)
}


def test_every_class_has_a_row_with_a_reason_if_it_is_refused():
    assert set(ROWS) == set(CLASSES)
    for row in ROWS.values():
        assert row.status in ("supported", "passes through at inference", "refused")
        if row.status == "refused":
            assert row.detail != "no rule is registered for it", row.name
    for name in ("MultiHeadAttention", "GroupedQueryAttention", "Embedding", "LSTM", "Dense"):
        assert ROWS[name].status == "supported", name


PASSING = [name for name, row in ROWS.items() if row.status == "passes through at inference"]
ARGUMENTS = {"Identity": (), "ActivityRegularization": (), "RandomPosterization": (4,)}


def made(name):
    for arguments in (ARGUMENTS.get(name, ()), (0.2,), (0.2, 0.2)):
        try:
            return CLASSES[name](*arguments)
        except (TypeError, ValueError):
            continue
    raise AssertionError(name)


@pytest.mark.parametrize("name", PASSING)
def test_what_passes_through_does_nothing_at_inference(name):
    layer = made(name)
    rank = int(name[-2]) if name.endswith(("1D", "2D", "3D")) else 2
    x = np.random.default_rng(0).uniform(size=(2, *(4,) * rank, 3)).astype(np.float32)
    np.testing.assert_array_equal(np.asarray(layer(x, training=False)), x)


def test_refused_layers_are_refused():
    inputs = keras.Input((4, 4, 3))
    for layer in (layers.RandomCrop(2, 2), layers.AutoContrast()):
        assert ROWS[type(layer).__name__].status == "refused"
        with pytest.raises(nns.errors.UnsupportedLayerError, match=layer.name):
            nns.InstrumentedModel(keras.Model(inputs, layer(inputs)))


TWO = [keras.Input((4, 6)), keras.Input((4, 6))]
VECTORS = [keras.Input((6,)), keras.Input((6,))]
# Class → layer and inputs, an example of each family of operations.
EXAMPLES = {
    "Dense": (layers.Dense(3), TWO[:1]),
    "Conv1D": (layers.Conv1D(3, 2), TWO[:1]),
    "EinsumDense": (layers.EinsumDense("btc,cd->btd", (4, 3)), TWO[:1]),
    "UpSampling2D": (layers.UpSampling2D(2, interpolation="bilinear"), [keras.Input((3, 4, 2))]),
    "Resizing": (layers.Resizing(5, 3), [keras.Input((3, 4, 2))]),
    "GlobalAveragePooling1D": (layers.GlobalAveragePooling1D(), TWO[:1]),
    "LayerNormalization": (layers.LayerNormalization(), TWO[:1]),
    "Multiply": (layers.Multiply(), TWO),
    "TimeDistributed": (layers.TimeDistributed(layers.Dense(2)), TWO[:1]),
    "Embedding": (layers.Embedding(9, 3), [keras.Input((4,), dtype="int32")]),
    "MultiHeadAttention": (layers.MultiHeadAttention(2, 3), TWO),
    "GroupedQueryAttention": (layers.GroupQueryAttention(3, 2, 1), TWO),
    "Attention": (layers.Attention(), [TWO]),
    "AdditiveAttention": (layers.AdditiveAttention(), [TWO]),
    "Softmax": (layers.Softmax(), TWO[:1]),
    "Dot": (layers.Dot(axes=2), [TWO]),
    "LSTM": (layers.LSTM(3), TWO[:1]),
    "GRU": (layers.GRU(3), TWO[:1]),
    "ConvLSTM1D": (layers.ConvLSTM1D(2, 2), [keras.Input((3, 4, 2))]),
    "Bidirectional": (layers.Bidirectional(layers.SimpleRNN(2)), TWO[:1]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_the_page_says_what_channels_take(name):
    layer, inputs = EXAMPLES[name]
    row = ROWS[name]
    used = inputs[0] if isinstance(inputs[0], list) else inputs
    if name == "Multiply":
        inputs = [inputs]
    y = layer(*inputs)
    model = keras.Model(used, layers.Dense(2)(layers.Flatten()(y)))
    im = nns.InstrumentedModel(model)
    data = [np.random.default_rng(k).integers(0, 5, (3, *i.shape[1:])) for k, i in enumerate(used)]
    data = [d.astype(np.float32) for d in data]
    profile = nns.Profile.from_data(im, data if len(data) > 1 else data[0], progress=False)

    def slice_it():
        slicer = nns.Slicer(im, profile, 0.3, "channel", workers=0, progress=False)
        return slicer.slice(data if len(data) > 1 else data[0], outputs=[0])

    if row.channels == "yes":
        assert slice_it().summary() is not None
    else:
        with pytest.raises(nns.errors.UnsupportedLayerError, match="granularity='activation'"):
            slice_it()


def test_products_of_vectors_have_channels():
    """Without positions an element is a channel, and both granularities are one."""
    model = keras.Model(VECTORS, layers.Dense(2)(layers.Dot(axes=1)(VECTORS)))
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(0)
    data = [rng.normal(size=(5, 6)).astype(np.float32) for _ in VECTORS]
    profile = nns.Profile.from_data(im, data, progress=False)
    found = [
        nns.Slicer(im, profile, 0.3, granularity, workers=0, progress=False).slice(data)
        for granularity in ("activation", "channel")
    ]
    assert found[0].neurons[im.input_operations[0]].any()
    for name, values in found[0].neurons.items():
        np.testing.assert_array_equal(found[1].neurons[name].ravel(), values.ravel(), err_msg=name)
    assert ROWS["Dot"].channels.startswith("of vectors")
