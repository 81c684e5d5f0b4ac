"""Heads of attention as neurons: scores, slices and maintenance of a small transformer."""

import keras
import numpy as np
import pytest
from keras import ops

import nnslicer_tf as nns
from nnslicer_tf import semantic
from support.classifiers import randomise
from support.landscapes import landscape, similarity
from support.transformers import LENGTH, WORDS, classifier, decoder

HEADS = "block_attention"


@pytest.fixture(scope="module")
def made():
    keras.utils.set_random_seed(0)
    model = randomise(classifier(), np.random.default_rng(3))
    rng = np.random.default_rng(0)
    x = rng.integers(1, WORDS, (24, LENGTH)).astype(np.int32)
    x[np.arange(LENGTH) >= rng.integers(3, LENGTH + 1, (24, 1))] = 0
    return model, nns.InstrumentedModel(model), x, np.arange(24) % 3


def test_heads_and_units_of_the_mlp_are_neurons(made):
    _, im, _, _ = made
    found = {k: (v.units, v.value) for k, v in semantic.neurons.neuron_layers(im).items()}
    assert found == {
        HEADS: (2, f"{HEADS}/context"),
        "block_mlp1": (12, "block_mlp1"),
        "block_mlp2": (8, "block_mlp2"),
    }
    heads_alone = semantic.neurons.neuron_layers(nns.InstrumentedModel(decoder()))
    assert {k: v.units for k, v in heads_alone.items()} == {
        "first_attention": 2,
        "second_attention": 2,
    }


def without(im, x, head):
    """The logits where one head hands on zeros."""

    def change(name, value):
        here = np.arange(2)[:, None] == head
        return ops.where(here, 0.0, value) if name == f"{HEADS}/context" else value

    tokens = ops.convert_to_tensor(x.astype(np.float32))
    found = im.graph.run(tokens, [im.logit_operation], change)
    return ops.convert_to_numpy(found[im.logit_operation])


@pytest.mark.parametrize("head", [0, 1])
def test_a_masked_head_hands_on_nothing_and_is_removed(made, head):
    model, im, x, _ = made
    critical = {HEADS: np.arange(2) != head}
    expected = without(im, x, head)
    np.testing.assert_allclose(semantic.masked(model, critical)(x), expected, rtol=1e-4, atol=1e-5)
    assert not np.allclose(expected, model(x), atol=1e-3)
    small = semantic.restructure(model, critical)
    np.testing.assert_allclose(small(x), expected, rtol=1e-4, atol=1e-5)
    assert small.get_layer(HEADS).num_heads == 1
    assert small.count_params() < model.count_params()
    removed = nns.pruning.remove_units(model, critical)
    np.testing.assert_allclose(removed(x), expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"not \(2,"):
        nns.pruning.remove_units(model, {HEADS: np.ones(8, bool)})


def test_taylor_scores_of_heads(made):
    """|Σ value · ∂loss/∂value| over a head's positions and features, from the logits' slopes."""
    _, im, x, y = made
    (name,) = (o.name for o in im.operations if o.name.endswith("/context"))
    slopes = [im.gradients(x, of=[c] * len(x), wrt=[name])[name] for c in range(3)]
    logits = im.logits(x)
    given = np.exp(logits - logits.max(axis=1, keepdims=True))
    given = given / given.sum(axis=1, keepdims=True) - np.eye(3)[y]
    slope = np.einsum("cbqhe,bc->bqhe", np.stack(slopes), given)
    terms = (im.capture(x, of=[name])[name] * slope).sum(axis=(1, 3))
    found = semantic.contributions(im, x, "taylor", y)
    np.testing.assert_allclose(found[HEADS], np.abs(terms).mean(axis=0), rtol=1e-3)
    means = [
        c[w != 0].mean(axis=(0, 2)) for c, w in zip(im.capture(x, of=[name])[name], x, strict=True)
    ]
    expected = np.mean(means, axis=0)  # padding is left out
    np.testing.assert_allclose(semantic.contributions(im, x, "avg", y)[HEADS], expected, rtol=1e-4)
    for metric in ("deeplift", "taylor_weights", "ens"):
        assert semantic.contributions(im, x, metric, y)[HEADS].shape == (2,)


def test_a_semantic_slice_compares_heads(made):
    _, im, x, y = made
    slicer = semantic.SemanticSlicer(im, x, y, "taylor")
    of_class = x[y == 1]
    context = np.array(im.capture(of_class, of=[f"{HEADS}/context"])[f"{HEADS}/context"])
    context[of_class == 0] = 0  # padding is left out
    first = slicer.category_scores[HEADS][1].argmax()
    expected = similarity(landscape(context[:, :, first]), landscape(context))
    assert slicer.similarities[HEADS][1][0] == pytest.approx(expected)
    assert slicer.similarities[HEADS][1][1] == pytest.approx(1)
    critical = slicer.semantic_slice(0.9)
    assert critical[HEADS].any() and 0 < critical.count <= critical.total


def test_only_chosen_heads_are_trained(made):
    model, _, x, y = made
    critical = {HEADS: np.array([True, False]), "block_mlp1": np.arange(12) < 6}
    options = {"epochs": 2, "batch_size": 8}
    adapted = semantic.readapt(model, critical, x, y, x, **options)
    before, after = model.get_layer(HEADS), adapted.get_layer(HEADS)
    for part in ("query_dense", "key_dense", "value_dense"):
        was, now = (getattr(layer, part).kernel.numpy() for layer in (before, after))
        np.testing.assert_array_equal(was[:, 1], now[:, 1])
    was, now = (layer.value_dense.kernel.numpy() for layer in (before, after))
    assert (was[:, 0] != now[:, 0]).any()


def test_heads_that_share_keys_are_not_neurons():
    """Their output channels cannot be removed either; what follows can."""
    keras.utils.set_random_seed(4)
    inputs = keras.Input((5, 8))
    attended = keras.layers.GroupQueryAttention(3, 4, 2, name="att")(inputs, inputs)
    hidden = keras.layers.Dense(6, "relu", name="hidden")(keras.layers.Flatten()(attended))
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    x = np.random.default_rng(0).normal(size=(90, 5, 8)).astype(np.float32)
    slicer = semantic.SemanticSlicer(nns.InstrumentedModel(model), x, np.arange(90) % 3)
    assert list(slicer.scores) == ["hidden"]
    critical = semantic.CriticalNeurons({"hidden": np.arange(6) < 4})
    restructured = semantic.restructure(model, critical)
    expected = semantic.masked(model, critical).predict(x, verbose=0)
    np.testing.assert_allclose(restructured.predict(x, verbose=0), expected, atol=1e-5)
