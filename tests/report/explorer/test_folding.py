"""Folding: every operation once, blocks where the network branches."""

import itertools

import keras
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import zoo
from nnslicer_tf.report.explorer.structure import fold


def groups_of(model):
    im = nns.InstrumentedModel(model)
    groups = fold(im.operations)
    assert [m for g in groups for m in g.members] == [o.name for o in im.operations]
    return im, groups


def test_a_chain_is_grouped_by_its_sums():
    _, groups = groups_of(zoo.build("digits_cnn"))
    assert [(group.label, group.members) for group in groups] == [
        ("input", ("input",)),
        ("conv1", ("conv1", "relu1")),
        ("pool1", ("pool1",)),
        ("conv2", ("conv2", "relu2", "flatten")),
        ("logits", ("logits",)),
    ]


@pytest.mark.parametrize(("name", "blocks"), [("resnet10", 4), ("resnet20", 9)])
def test_residual_blocks_are_folded(name, blocks):
    _, groups = groups_of(zoo.build(name))
    found = [group for group in groups if any(m.endswith("_add") for m in group.members)]
    assert len(found) == blocks
    for group in found:
        assert all(member.startswith(group.label) for member in group.members)
    assert len(groups) == blocks + 4  # input, stem, average, logits


def test_blocks_of_numbered_layers_have_names_of_their_own():
    """Keras's own names have a common beginning that says nothing: conv2d_2, conv2d_3, …"""
    inputs = keras.Input((4, 4, 2))
    x = inputs
    for i in range(3):
        a = layers.Conv2D(2, 1, name=f"conv2d_{2 * i + 1}")(x)
        b = layers.Conv2D(2, 1, name=f"conv2d_{2 * i + 2}")(layers.ReLU(name=f"relu_{i}")(a))
        x = layers.Add(name=f"add_{i}")([x, b])
    model = keras.Model(inputs, layers.Dense(2, name="logits")(layers.Flatten(name="flat")(x)))
    assert [group.label for group in groups_of(model)[1]][1:4] == [
        "conv2d_1 … conv2d_2",
        "conv2d_3 … conv2d_4",
        "conv2d_5 … conv2d_6",
    ]


def test_every_group_has_one_way_in_and_one_way_out():
    im, groups = groups_of(zoo.build("resnet20"))
    for before, group in itertools.pairwise(groups):
        outside = {s for m in group.members for s in im[m].inputs if s not in group.members}
        assert outside == {before.members[-1]}


def test_a_transformer_s_layers_are_folded():
    """Six layers of a mixer, which branches as a transformer does."""
    inputs = keras.Input((6, 8))
    x = inputs
    for i in range(6):
        mixed = layers.Dense(8, name=f"layer{i}_mix")(x)
        x = layers.Add(name=f"layer{i}_add")([x, mixed])
        x = layers.LayerNormalization(name=f"layer{i}_norm")(x)
        inner = layers.Dense(16, activation="gelu", name=f"layer{i}_mlp_in")(x)
        inner = layers.Dense(8, name=f"layer{i}_mlp_out")(inner)
        x = layers.Add(name=f"layer{i}_mlp_add")([x, inner])
    model = keras.Model(inputs, layers.Dense(2, name="logits")(layers.Flatten()(x)))
    _, groups = groups_of(model)
    assert len(groups) == 14
    labels = [group.label for group in groups]
    assert labels[1:4] == ["layer0_mix", "layer0_mlp", "layer1_mix"]


def test_a_large_model_becomes_few_boxes():
    im, groups = groups_of(keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3)))
    assert len(im.operations) > 150 and len(groups) < 30
    assert sum("_block" in group.label for group in groups) == 16


def test_masks_do_not_keep_a_transformer_from_folding(transformer):
    im, _, _ = transformer
    assert [(group.label, group.members[-1]) for group in fold(im.operations)] == [
        ("words", "words"),
        ("embedding", "embedding"),
        ("attention", "norm"),
        ("average", "average"),
        ("logits", "logits"),
    ]
