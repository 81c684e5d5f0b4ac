"""Weights that read critical neurons are frozen, too."""

import numpy as np

import nnslicer_tf as nns
from nnslicer_tf.semantic import masked
from reproduction.neusemslice.sealed import develop_sealed, sealed_masks
from support.classifiers import make, randomise, samples
from support.transformers import classifier

from ...semantic.test_recurrent_units import UNITS, network


def test_outgoing_weights_can_be_frozen_too():
    model = make("convolutional")
    x, y = samples(model, 24)
    critical = {
        "c1": np.arange(4) == 1,
        "c2": np.arange(5) >= 3,
        "d": np.array([True, False, False, False, True, True]),
    }
    trained = develop_sealed(model, critical, x, y, [0], epochs=2, batch_size=6)
    changed = {
        v.path.split("/")[-2] + "/" + v.name: np.asarray(v) != np.asarray(w)
        for v, w in zip(model.weights, trained.weights, strict=True)
    }
    assert not changed["c1/kernel"][..., 1].any()
    assert not changed["c2/kernel"][:, :, 1].any()
    assert not changed["c2/kernel"][..., 3:].any()
    assert changed["c2/kernel"][:, :, [0, 2, 3]][..., :3].any()
    by_channel = changed["d/kernel"].reshape(2, 2, 5, 6)  # Flatten of (2, 2, 5)
    assert not by_channel[:, :, 3:].any()
    assert by_channel[:, :, :3, [1, 2, 3]].all(axis=(0, 1)).any()
    expected = np.outer(~critical["d"], [False, True, True])
    assert (changed["probabilities/kernel"] <= expected).all()
    assert changed["probabilities/kernel"].any()
    # The critical neurons alone give every class, the new ones too, what they gave before.
    kept = [masked(m, critical) for m in (model, trained)]
    bias = trained.get_layer("probabilities").bias
    kept[0].get_layer("probabilities").bias.assign(bias)
    np.testing.assert_allclose(kept[0](x), kept[1](x), rtol=1e-6)


def test_outgoing_weights_of_a_sum_are_frozen_with_both_its_terms():
    """In the residual model the skip adds c1 to c3: a channel is read by c4 and the logits."""
    model = make("residual")
    im = nns.InstrumentedModel(model)
    kernel = model.get_layer("c4").kernel
    chosen = {"c4": np.ones(3, bool)}
    half = sealed_masks(im, chosen, {"c1": np.arange(4) < 2})
    assert half[id(kernel)].all()
    whole = sealed_masks(im, chosen, {"c1": np.arange(4) < 2, "c3": np.arange(4) < 3})
    assert whole[id(kernel)][0, 0].all(axis=1).tolist() == [False, False, True, True]


def test_what_reads_critical_heads_is_frozen():
    """The rows of the output's kernel are the heads'."""
    model = randomise(classifier(), np.random.default_rng(3))
    im = nns.InstrumentedModel(model)
    masks = sealed_masks(
        im,
        {"block_mlp2": np.ones(8, bool), "block_attention": np.array([False, True])},
        {"block_attention": np.array([True, False]), "block_mlp1": np.arange(12) < 6},
    )
    reads = masks[id(model.get_layer("block_mlp2").kernel)]
    assert not reads[:6].any() and reads[6:].all()


def test_weights_that_read_critical_units_can_stay():
    model = network("lstm")
    im = nns.InstrumentedModel(model)
    critical = np.arange(UNITS) < 2
    masks = sealed_masks(im, {"first": ~critical, "second": np.ones(4, bool)}, {"first": critical})
    first, second = (model.get_layer(name).cell for name in ("first", "second"))
    own = np.tile(~critical, 4)
    assert (masks[id(first.kernel)] == own).all()
    expected = own & ~critical[:, None]  # no unit learns from critical ones
    np.testing.assert_array_equal(masks[id(first.recurrent_kernel)], expected)
    read = np.broadcast_to(~critical[:, None], (UNITS, 16))
    np.testing.assert_array_equal(masks[id(second.kernel)], read)
    assert masks[id(second.recurrent_kernel)].all()
