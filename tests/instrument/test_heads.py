"""Heads of attention: which elements of which operation belong to a head."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns

LAYERS = {
    "multi-head": (lambda: layers.MultiHeadAttention(3, 2, name="mha"), 3, 3),
    "grouped": (lambda: layers.GroupQueryAttention(2, 4, 2, name="mha"), 4, 4),
    "cross": (lambda: layers.MultiHeadAttention(2, 3, value_dim=5, name="mha"), 2, 2),
}


def attending(build, cross):
    keras.utils.set_random_seed(0)
    x = keras.Input((4, 6))
    y = layers.Dense(6)(layers.UpSampling1D(2)(x)) if cross else x
    return keras.Model(x, build()(x, y))


@pytest.mark.parametrize("name", LAYERS)
def test_the_roles_of_an_attention(name):
    build, count, of_keys = LAYERS[name]
    im = nns.InstrumentedModel(attending(build, name == "cross"))
    heads = {o.heads.role: o for o in im.operations if o.heads}
    roles = {"query", "key", "value", "scores", "probabilities", "context"}
    assert set(heads) == roles
    assert all(o.heads.attention == "mha/context" for o in heads.values())
    assert [heads[r].heads.count for r in ("query", "context", "probabilities")] == [count] * 3
    assert heads["key"].heads.count == heads["value"].heads.count == of_keys
    for operation in heads.values():
        members = [operation.heads.members(operation.shape, h) for h in range(count)]
        np.testing.assert_array_equal(np.sum(members, axis=0), 1)


def test_a_head_without_context_is_a_head_without_output_weights():
    layer = layers.MultiHeadAttention(3, 2, name="mha")
    model = attending(lambda: layer, False)
    im = nns.InstrumentedModel(model)
    context = im["mha/context"]
    x = np.random.default_rng(0).normal(size=(3, 4, 6)).astype(np.float32)
    gone = context.heads.members(context.shape, 1)
    values = im.graph.run(
        keras.ops.convert_to_tensor(x),
        im.graph.outputs,
        lambda n, v: keras.ops.where(gone, 0.0, v) if n == "mha/context" else v,
    )
    kernel = layer._output_dense.kernel.numpy()
    kernel[1] = 0
    layer._output_dense.kernel.assign(kernel)
    np.testing.assert_allclose(values[im.graph.outputs[0]], model(x), atol=1e-5)


def test_attention_without_heads_has_none():
    x = keras.Input((4, 6))
    im = nns.InstrumentedModel(keras.Model(x, layers.Attention()([x, x])))
    assert not any(o.heads for o in im.operations)
