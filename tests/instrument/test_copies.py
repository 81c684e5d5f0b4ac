"""Copies of models."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import pruning, semantic
from nnslicer_tf.instrument import copies


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


def adapted():
    layer = layers.Normalization()
    layer.adapt(RNG.normal(5, 3, (100, 4)).astype(np.float32))
    return layer


def discretized():
    layer = layers.Discretization(num_bins=4)
    layer.adapt(RNG.normal(5, 3, (100, 4)).astype(np.float32))
    return layer


def head(*stack, shape=(4,)):
    return keras.Sequential([keras.Input(shape), *stack, layers.Dense(1, activation="sigmoid")])


def transfer():
    base = keras.Sequential([keras.Input((4,)), adapted(), layers.Dense(6, "relu")], name="base")
    inputs = keras.Input((4,))
    return keras.Model(inputs, layers.Dense(3)(base(inputs)))


def shared():
    a, b = keras.Input((4,)), keras.Input((4,))
    norm, dense = adapted(), layers.Dense(3)
    return keras.Model([a, b], layers.Add()([dense(norm(a)), dense(norm(b))]))


RNG = np.random.default_rng(0)
STATEFUL = {
    "normalisation": lambda: head(adapted(), layers.Dense(8, activation="relu")),
    "discretisation": lambda: head(discretized()),
    "nested": transfer,
    "shared": shared,
    "batch norm": lambda: head(layers.BatchNormalization()),
    "inside": lambda: head(layers.TimeDistributed(adapted()), layers.Flatten(), shape=(3, 4)),
    "bytes": lambda: head(layers.Rescaling(1 / 255), layers.Flatten(), shape=(3, 4)),
}


@pytest.mark.parametrize("name", STATEFUL)
def test_copies_have_all_state(name, tmp_path):
    model = STATEFUL[name]()
    for variable in model.trainable_variables:
        variable.assign(RNG.normal(size=variable.shape))
    copy = nns.instrument.copy_model(model)
    x = [RNG.normal(5, 3, (7, *i.shape[1:])).astype(np.float32) for i in model.inputs]
    x = x if len(x) > 1 else x[0]
    expected = keras.ops.convert_to_numpy(model(x))
    np.testing.assert_array_equal(copy(x), expected)
    copy.save(tmp_path / "copy.keras")
    np.testing.assert_array_equal(keras.models.load_model(tmp_path / "copy.keras")(x), expected)


def test_lora_weights_are_merged():
    model = head(layers.Dense(8, activation="relu", name="hidden"))
    model.get_layer("hidden").enable_lora(2)
    model.get_layer("hidden").lora_kernel_b.assign(np.ones((2, 8)))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'hidden'.*copy_model"):
        nns.InstrumentedModel(model)
    copy = nns.instrument.copy_model(model)
    x = RNG.normal(size=(5, 4)).astype(np.float32)
    np.testing.assert_allclose(copy(x), model(x), rtol=1e-6)
    pruned = pruning.prune(copy, pruning.scores(copy, "weight"), 0.5)
    kernel = keras.ops.convert_to_numpy(pruned.get_layer("hidden").kernel)
    assert (kernel == 0).sum() == 16


def half(x):
    return keras.ops.relu(x) / 2


class Forgetful(layers.Layer):
    """Keeps a factor that is no variable."""

    factor = 1.0

    def call(self, x):
        return x * self.factor


@pytest.mark.parametrize(
    "use",
    [
        nns.instrument.copy_model,
        lambda model: pruning.prune(model, pruning.scores(model, "weight"), 0.5),
        lambda model: pruning.shrink(
            model, np.ones((9, 4)), np.arange(9) % 2, classes=[0, 1], progress=False
        ),
        lambda model: semantic.restructure(model, {"own": np.arange(8) < 4}),
    ],
)
def test_functions_that_are_not_registered_are_named_first(use):
    model = head(layers.Dense(8, activation=half, name="own"))
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"'own'.*'half'.*register_keras_serial"
    ):
        use(model)


def test_the_first_layer_that_differs_is_named():
    odd = Forgetful(name="odd")
    model = head(layers.Dense(8), odd, layers.Dense(3))
    odd.factor = 2.0
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'odd'"):
        nns.instrument.copy_model(model)


def test_copies_leave_the_states_of_stateful_layers():
    inputs = keras.Input(batch_shape=(2, 4, 3))
    model = keras.Model(inputs, layers.LSTM(3, stateful=True)(inputs))
    x = RNG.normal(size=(2, 4, 3)).astype(np.float32)
    model(x)
    before = [keras.ops.convert_to_numpy(s) for s in model.layers[1].states]
    nns.instrument.copy_model(model)
    for old, state in zip(before, model.layers[1].states, strict=True):
        np.testing.assert_array_equal(state, old)


@keras.saving.register_keras_serializable("tests")
class AttentionFirst(keras.layers.Layer):
    """An attention, which creates its layers when it is built, and a sequential model, which then
    has an input, before layers with activations."""

    def __init__(self, **options):
        super().__init__(**options)
        self.parts = {"attention": keras.layers.MultiHeadAttention(2, 2)}
        self.inside = keras.Sequential([keras.layers.Dense(4, "tanh"), keras.layers.Dense(4)])
        self.up = keras.layers.Dense(5, "gelu")
        self.down = keras.layers.Dense(4)

    def call(self, x):
        return self.down(self.up(self.inside(self.parts["attention"](x, x))))


def test_functions_stay_in_their_layers_where_an_attention_is_not_built():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((3, 4))
    model = keras.Model(inputs, AttentionFirst(name="own")(inputs))
    x = np.random.default_rng(0).normal(size=(5, 3, 4)).astype(np.float32)
    copy = copies.rebuild(model)
    own = copy.get_layer("own")
    functions = [layer.activation.__name__ for layer in (*own.inside.layers, own.up, own.down)]
    assert functions == ["tanh", "linear", "gelu", "linear"]
    np.testing.assert_allclose(copy(x), model(x), rtol=1e-5, atol=1e-6)
