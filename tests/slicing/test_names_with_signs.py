"""Layers whose names have a # and digits, as the graph names further calls of shared layers."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.channels import ChannelGraph
from nnslicer_tf.pruning.groups import channel_groups, own_layer

X = np.random.default_rng(5).normal(size=(60, 4)).astype(np.float32)
PLAIN = {name: name for name in ("a", "b", "d", "e", "o")}
SIGNED = {"a": "fc#1", "b": "fc#2", "d": "d#7", "e": "e#1", "o": "out#9"}


def network(names):
    """Two layers of one width, a layer that is called twice, and one in a nested model."""
    keras.utils.set_random_seed(1)
    inner = keras.Input((6,))
    nested = keras.Model(inner, layers.Dense(6, "tanh", name=names["e"])(inner), name="n")
    inputs = keras.Input((4,), name="i")
    x = layers.Dense(6, "relu", name=names["a"])(inputs)
    x = layers.Dense(6, "relu", name=names["b"])(x)
    shared = layers.Dense(6, "tanh", name=names["d"])
    x = nested(shared(shared(x)))
    return keras.Model(inputs, layers.Dense(3, "softmax", name=names["o"])(x))


def explained(model):
    profile = nns.Profile.from_data(model, X, progress=False)
    return nns.Slicer(model, profile, theta=0.1, progress=False, workers=0).explain(
        X[0], compare=False, decisive=False
    )


def test_channels_of_each_layer_and_call():
    plain, signed = (explained(network(names)).channels() for names in (PLAIN, SIGNED))
    calls = {"a:pre", "b:pre", "d:pre", "d#1:pre", "n/e:pre", "o:pre"}
    assert {*plain["layer"]} == calls
    renamed = {f"{old}{end}": f"{new}{end}" for old, new in SIGNED.items() for end in ("", "#1")}
    renamed = {f"{old}:pre": f"{new}:pre" for old, new in renamed.items()}
    renamed["n/e:pre"] = f"n/{SIGNED['e']}:pre"
    plain["layer"] = plain["layer"].map(renamed)
    assert plain.equals(signed)


def test_another_layer_is_no_further_call():
    inputs = keras.Input((4,), name="i")
    x = layers.Dense(6, name="d")(inputs)
    x = layers.Activation("relu", name="d#1")(x)
    found = explained(keras.Model(inputs, layers.Dense(3, "softmax", name="o")(x)))
    assert {*found.channels()["layer"]} == {"d", "o:pre"}


def test_pruning_does_not_take_layers_for_calls_of_one():
    """The channels of fc#1 and fc#2 are groups of their own, as those of the layers a and b are."""
    found = []
    for names in (PLAIN, SIGNED):
        groups = channel_groups(ChannelGraph(InstrumentedModel(network(names))))
        found.append([*groups.of.values()])
        first, second = (groups.of[names[name]].tolist() for name in "ab")
        assert not {*first} & {*second} and len({*first, *second}) == 12
        calls = [groups.of[f"{names['d']}{end}"].tolist() for end in ("", "#1")]
        assert calls[0] == calls[1]
    assert all(map(np.array_equal, *found))


@keras.saving.register_keras_serializable("signs")
class Own(layers.Layer):
    def build(self, shape):
        self.kernel = self.add_weight(shape=(shape[-1], shape[-1]), name="kernel")

    def call(self, x):
        return ops.relu(ops.matmul(x, self.kernel) + 1.0)


@pytest.mark.parametrize("name", ["own", "own#2"])
@pytest.mark.parametrize("nested", [False, True])
def test_the_own_layer_around_an_operation(name, nested):
    inputs = keras.Input((4,), name="i")
    own = Own(name=name)
    outputs = own(own(inputs))
    if nested:
        inner = keras.Model(inputs, outputs, name="n#1")
        inputs = keras.Input((4,), name="i")
        outputs = inner(inputs)
    model = keras.Model(inputs, layers.Dense(3, name="o")(outputs))
    im = InstrumentedModel(model)
    owners = {o.name: own_layer(im, o) for o in im.operations}
    assert owners.pop("i") == owners.pop("o") == "" and len(owners) >= 6
    assert {*owners.values()} == {name}
