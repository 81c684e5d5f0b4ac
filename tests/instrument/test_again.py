"""What is instrumented or compiled once is not instrumented or compiled again."""

import gc
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import instrument
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import model as model_module

X = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)


def made(activation="relu"):
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [keras.Input((6,)), layers.Dense(5, activation=activation, name="a"), layers.Dense(3)]
    )


@pytest.fixture
def wrapped(monkeypatch):
    """The models that are instrumented, in order."""
    names = []
    compare = model_module.compare_with_original

    def counted(model, *rest):
        names.append(model.name)
        return compare(model, *rest)

    monkeypatch.setattr(model_module, "compare_with_original", counted)
    return names


def test_a_model_is_instrumented_once(wrapped):
    model = made()
    model.compile("sgd", "mse")
    im = instrument.instrumented(model)
    assert instrument.instrumented(model) is im
    profile = nns.Profile.from_data(model, X, progress=False)
    one = nns.Slicer(im, profile, 0.3, workers=0, progress=False).slice(X[:2], outputs=[0])
    small = one.apply(model, "zero")
    np.testing.assert_array_equal(one.apply(model, "zero")(X), small(X))
    assert wrapped == [model.name]
    model.fit(X, np.zeros((40, 3)), verbose=0)  # weights are read when they are needed
    assert instrument.instrumented(model) is im
    np.testing.assert_allclose(im.predict(X), model(X), atol=1e-6)


def test_a_changed_model_is_instrumented_again():
    model = made()
    im = instrument.instrumented(model)
    model.layers[0].activation = keras.activations.tanh
    again = instrument.instrumented(model)
    assert again is not im
    np.testing.assert_allclose(again.predict(X), model(X), atol=1e-6)
    model.layers[0].enable_lora(1)
    with pytest.raises(nns.errors.UnsupportedLayerError, match="LoRA"):
        instrument.instrumented(model)


def test_an_adapted_layer_is_instrumented_again():
    norm = layers.Normalization()
    norm.adapt(X)
    model = keras.Sequential([keras.Input((6,)), norm, layers.Dense(2)])
    instrument.instrumented(model).predict(X)
    norm.adapt(5 * X + 3)
    np.testing.assert_allclose(instrument.instrumented(model).predict(X), model(X), atol=1e-5)


def test_shapes_are_remembered_and_bounds_are_not():
    free = keras.Sequential(
        [keras.Input((None, None, 1)), layers.Conv2D(2, 3), layers.GlobalAveragePooling2D()]
    )
    nns.InstrumentedModel(free, input_shape=(6, 6, 1), bounds=(0, 1))
    with pytest.raises(nns.errors.InputShapeError, match="not fixed"):
        instrument.instrumented(free)
    im = nns.InstrumentedModel(free, input_shape=(6, 6, 1))
    assert instrument.instrumented(free) is im


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((6, 6, 2), "has inputs of shape .*not"),
        ((6, 6), "has inputs of shape .*not"),
        ([(6, 6, 1), (3,)], "has inputs of shape .*not"),
        ((2, 2, 1), "does not accept inputs of shape .*2, 2, 1"),  # smaller than the kernel
    ],
)
def test_shapes_that_do_not_fit_are_refused(shape, message):
    parts = layers.Conv2D(2, 3), layers.GlobalAveragePooling2D()
    free = keras.Sequential([keras.Input((None, None, 1)), *parts])
    with pytest.raises(nns.errors.InputShapeError, match=message):
        nns.InstrumentedModel(free, shape)


def test_models_are_freed():
    model = made()
    im = instrument.instrumented(model)
    im.predict(X)
    gone = weakref.ref(im), weakref.ref(model)
    del model, im
    gc.collect()
    assert [reference() for reference in gone] == [None, None]


def counting():
    calls = []

    def activation(x):
        calls.append(1)
        return keras.ops.maximum(x, 0)

    return made(activation), calls


def test_other_batch_sizes_compile_nothing_again():
    model, calls = counting()
    im = nns.InstrumentedModel(model)
    masked = instrument.Ablation(im, "zero")
    keep = {"a": np.ones((6, 5), bool)}

    def run(count):
        im.predict(X[:count])
        im.gradients(X[:count], of=1)
        masked.outputs(keep, X[:count])
        masked.outputs({"a": np.ones((count, 6, 5), bool)}, X[:count])

    run(5)
    run(3)  # TensorFlow learns that the axis varies
    before = len(calls)
    for count in (7, 1, 12, 2, 40, 9):
        run(count)
    assert len(calls) == before


@pytest.mark.parametrize("kind", ["Dense", "LSTM", "gate of an LSTM", "nested"])
def test_an_activation_that_is_replaced_is_seen(kind):
    """The graph has the function of before, and the fingerprint would be the new model's."""
    inner = layers.LSTM(3, name="a") if "LSTM" in kind else layers.Dense(3, "relu", name="a")
    outer = keras.Sequential([keras.Input((6,)), inner]) if kind == "nested" else inner
    given = keras.Input((4, 6) if "LSTM" in kind else (6,))
    model = keras.Model(given, layers.Dense(2)(outer(given)))
    x = np.ones((3, *given.shape[1:]), "float32")
    im = nns.InstrumentedModel(model)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), progress=False)
    name = "recurrent_activation" if "gate" in kind else "activation"
    owner = inner.cell if "LSTM" in kind else inner
    setattr(owner, name, keras.activations.softplus)
    for call in (im.predict, slicer.slice, lambda x: nns.Profile.from_data(im, x)):
        with pytest.raises(InvalidArgumentError, match=f"The {name} of layer '{owner.name}' was"):
            call(x)
    np.testing.assert_allclose(nns.InstrumentedModel(model).predict(x), model(x), rtol=1e-5)
