"""Axes of unknown size: the shape of the data at hand is used."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import instrument, pruning


def tokens(shape=(None,)):
    x = keras.Input(shape, dtype="int32", name="tokens")
    y = layers.GlobalAveragePooling1D()(layers.Embedding(20, 4)(x))
    return keras.Model(x, layers.Dense(2)(y))


def of_dict():
    ids = keras.Input((None,), dtype="int32", name="token_ids")
    present = keras.Input((None,), dtype="float32", name="present")
    y = layers.Embedding(20, 4)(ids) * layers.Reshape((-1, 1))(present)
    return keras.Model(
        {"token_ids": ids, "present": present}, layers.Dense(2)(layers.GlobalMaxPooling1D()(y))
    )


def signals():
    x = keras.Input((None, 5), name="x")
    return keras.Model(x, layers.Dense(2)(layers.GlobalMaxPooling1D()(layers.Conv1D(4, 3)(x))))


def images():
    x = keras.Input((None, None, 3), name="x")
    y = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3, activation="relu")(x))
    return keras.Model(x, layers.Dense(2)(y))


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(2)

    def call(self, x):
        return self.dense(x)


RNG = np.random.default_rng(0)
MODELS = {
    "tokens": (tokens, RNG.integers(0, 20, (8, 6))),
    "dict": (of_dict, {"present": np.ones((8, 6)), "token_ids": RNG.integers(0, 20, (8, 6))}),
    "signals": (signals, RNG.normal(size=(8, 7, 5))),
    "images": (images, RNG.normal(size=(8, 6, 9, 3))),
    "pairs": (images, (RNG.normal(size=(8, 6, 9, 3)), np.zeros(8, int))),
    "tf.data": (
        images,
        tf.data.Dataset.from_tensor_slices(RNG.normal(size=(8, 6, 9, 3)).astype("float32")),
    ),
    "subclassed": (Subclassed, RNG.normal(size=(8, 5))),
}


@pytest.mark.parametrize("name", MODELS)
def test_the_shape_of_the_data_is_used(name):
    build, x = MODELS[name]
    model = build()
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, 0.0, workers=0, progress=False)
    shapes = {len(shape) for shape in slicer.im.input_shapes.values()}
    assert shapes and None not in shapes
    if name == "subclassed":
        return
    twin = keras.models.clone_model(model)  # as read from a file: the profile knows the shape
    twin.set_weights(model.get_weights())
    assert nns.Slicer(twin, profile, 0.0, workers=0).im.input_shapes == slicer.im.input_shapes


def test_data_of_another_size_gives_another_view():
    model = images()
    small = nns.Profile.from_data(model, RNG.normal(size=(4, 6, 6, 3)), progress=False)
    large = nns.Profile.from_data(model, RNG.normal(size=(4, 9, 9, 3)), progress=False)
    for profile, size in ((small, 6), (large, 9)):
        slicer = nns.Slicer(model, profile, 0.0, workers=0, progress=False)
        assert slicer.im.input_shape == (size, size, 3)
    x = RNG.normal(size=(4, 7, 7, 3)).astype(np.float32)
    scores = pruning.scores(model, "nnslicer", x, np.argmax(model(x), axis=1))
    assert instrument.instrumented(model).input_shape == (7, 7, 3)
    assert scores


@pytest.mark.parametrize(
    ("build", "hint"),
    [
        (tokens, r"input_shape=\(length,\)\)"),
        (signals, r"input_shape=\(length, 5\)\)"),
        (images, r"input_shape=\(height, width, 3\)\)"),
        (of_dict, r"input_shape={'present': \(length,\), 'token_ids': \(length,\)}\)"),
    ],
)
def test_the_hint_names_the_models_own_inputs(build, hint):
    with pytest.raises(nns.errors.InputShapeError, match=hint):
        nns.InstrumentedModel(build())


def test_shapes_by_name():
    im = nns.InstrumentedModel(of_dict(), {"token_ids": (5,), "present": (5,)})
    assert im.input_shapes == {"present": (5,), "token_ids": (5,)}


def test_data_that_does_not_fit_is_refused():
    with pytest.raises(nns.errors.InputShapeError, match="length, 5"):
        nns.Profile.from_data(signals(), RNG.normal(size=(4, 6, 3)), progress=False)


def unknown(size=8):
    """A layer whose output has an axis that Keras does not know, as its documentation has it."""
    return layers.EinsumDense("abc,cd->abd", output_shape=(None, size), bias_axes="d", name="sum")


class Inside(layers.Layer):
    def __init__(self):
        super().__init__()
        self.sum, self.windows = unknown(), layers.Conv1D(3, 2, padding="same")

    def build(self, shape):
        self.sum.build(shape)
        self.windows.build((*shape[:-1], 8))

    def compute_output_shape(self, shape):
        return (shape[0], None, 3)

    def call(self, x):
        return self.windows(self.sum(x))


AFTER = {
    "activation": lambda h: layers.Activation("relu")(unknown()(h)),
    "reshape": lambda h: layers.Reshape((8, 4))(unknown()(h)),
    "nothing": lambda h: unknown()(h),
    "convolution": lambda h: layers.Conv1D(3, 2)(unknown()(h)),
    "attention": lambda h: layers.MultiHeadAttention(2, 4)(e := unknown()(h), e),
    "operations": lambda h: keras.ops.matmul(keras.ops.softmax(e := unknown(4)(h)), e),
    "two of them": lambda h: unknown(5)(layers.EinsumDense("abc,cd->abd", (None, 7))(h)),
    "own layer": lambda h: Inside()(h),
    "nested": lambda h: keras.Model(x := keras.Input(h.shape[1:]), unknown()(x))(h),
    "function": lambda h: layers.Lambda(lambda x: 2 * x[..., :3], output_shape=(None, 3))(h),
}


@pytest.mark.parametrize("shape", [(4, 6), (None, 6)])
@pytest.mark.parametrize("name", AFTER)
def test_axes_that_a_layer_leaves_open_follow_from_the_input(name, shape):
    keras.utils.set_random_seed(0)
    x = keras.Input(shape)
    mean = layers.GlobalAveragePooling1D()(AFTER[name](x))
    model = keras.Model(x, layers.Dense(2, use_bias=False)(mean))
    data = RNG.normal(size=(8, 4, 6)).astype("float32")
    im = nns.InstrumentedModel(model, input_shape=(4, 6))
    values = im.capture(data)
    assert all(values[o.name].shape[1:] == o.shape for o in im.operations)
    answers = model.predict(data, verbose=0)
    np.testing.assert_allclose(im.logits(data), answers, atol=1e-5)
    # All kernels at their references: the same answer for all samples.
    profile = nns.Profile.from_data(im, data, progress=False)
    ablation = nns.instrument.Ablation(im, profile)
    assert np.ptp(ablation.outputs(np.zeros(ablation.units), data), axis=0).max() < 1e-5
    assert nns.Slicer(im, profile, 0.0, workers=0, progress=False).slice(data[:2]).synapses


@pytest.mark.parametrize("call", [np.asarray, lambda x: x @ np.zeros((3, 3))])
def test_open_axes_of_a_layer_that_cannot_be_run(call):
    class Odd(layers.Layer):
        def call(self, x):
            return call(x)

        def compute_output_shape(self, shape):
            return (shape[0], None, 6)

    x = keras.Input((4, 6))
    y = layers.GlobalAveragePooling1D()(layers.Activation("relu")(Odd(name="odd")(x)))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'odd'"):
        nns.InstrumentedModel(keras.Model(x, layers.Dense(2)(y)))


def test_a_batch_axis_in_another_place_is_named_as_before():
    x = keras.Input((4, 6))
    y = layers.Activation("relu")(keras.ops.transpose(x, (1, 0, 2)))
    y = keras.ops.transpose(y, (1, 0, 2))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="batch axis must come first"):
        nns.InstrumentedModel(keras.Model(x, layers.Dense(2)(layers.Flatten()(y))))
