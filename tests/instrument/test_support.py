"""The table of all classes of `keras.layers`."""

import inspect

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument import layer_support
from nnslicer_tf.instrument.layers.support import layer_support_page

ROWS = {row.name: row for row in layer_support()}
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
    for layer in (layers.Resizing(2, 2), layers.Lambda(lambda x: x), layers.AutoContrast()):
        assert ROWS[type(layer).__name__].status == "refused"
        with pytest.raises(nns.UnsupportedLayerError, match=layer.name):
            nns.InstrumentedModel(keras.Model(inputs, layer(inputs)))


def test_the_page_has_a_line_for_each_class():
    page = layer_support_page()
    assert page.startswith("# ")
    assert all(f"| `{name}` |" in page for name in CLASSES)
