"""Deleted heads and synapses: against closed forms, and against models with the parts taken out."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from reproduction.sentences.parts import (
    contexts,
    deletable,
    head_scores,
    parts,
    synapse_scores,
    without_heads,
)
from reproduction.sentences.settings import PartSettings
from reproduction.sentences.words import lead

WORDS = 12


@pytest.fixture(scope="module")
def small():
    """A block of attention with two heads, before a mean and a dense layer."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(WORDS, 4, name="embedding")(inputs)
    x = layers.MultiHeadAttention(2, 3, name="attention")(x, x)
    x = layers.GlobalAveragePooling1D()(x)
    model = keras.Model(inputs, layers.Dense(3, name="logits")(x))
    rng = np.random.default_rng(1)
    model.set_weights([rng.normal(0, 0.7, w.shape) for w in model.get_weights()])
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).integers(1, WORDS, (20, 5)).astype(np.int32)
    return im, x, nns.Profile.from_data(im, x, progress=False)


def test_lead_by_hand():
    logits = np.array([[1.0, 5.0, 2.0], [4.0, 0.0, 3.5]])
    np.testing.assert_allclose(lead(logits, np.array([1, 2])), [3.0, -0.5])


def test_a_deleted_head_hands_on_its_mean(small):
    im, x, profile = small
    deleted = np.zeros((len(x), 2), bool)
    np.testing.assert_allclose(without_heads(im, profile, x, deleted), im.logits(x), rtol=1e-5)
    deleted[:, 1] = True
    (name,) = contexts(im)
    context = im.capture(x, of=[name])[name].copy()
    context[:, :, 1] = profile.means[name][:, 1]
    attention, dense = im.model.get_layer("attention"), im.model.get_layer("logits")
    kernel, bias = attention.output_dense.get_weights()
    given = np.einsum("bthf,hfo->bto", context, kernel) + bias
    expected = given.mean(axis=1) @ dense.get_weights()[0] + dense.get_weights()[1]
    np.testing.assert_allclose(without_heads(im, profile, x, deleted), expected, atol=1e-4)


def test_gradient_scores_of_heads_add_up(small):
    """From heads on the network is linear: scores add up to the change of the logit."""
    im, x, profile = small
    labels = im.logits(x).argmax(axis=1)
    scores = head_scores(im, profile, x, labels, 0)["gradient × change"]
    change = im.logits(x) - profile.means["logits"]
    np.testing.assert_allclose(scores.sum(axis=1), change[np.arange(20), labels], atol=1e-5)


def test_gradients_of_synapses_are_slopes(small):
    im, x, profile = small
    labels = im.logits(x).argmax(axis=1)
    scores = synapse_scores(im, profile, x[:3], labels[:3])["gradient × weight"]
    names = deletable(im)
    ends = np.cumsum([im.kernels[name].size for name in names])[:-1]
    step = 1e-2
    for k, name in enumerate(names):
        variable = im.kernels[name].variable()
        kept = np.array(variable)
        found = np.split(scores(1), ends)[k].reshape(kept.shape)
        place = np.unravel_index(np.abs(found).argmax(), kept.shape)
        around = []
        for sign in (1, -1):
            moved = kept.copy()
            moved[place] += sign * step
            variable.assign(moved)
            around.append(im.logits(x[1:2])[0, labels[1]])
        variable.assign(kept)
        slope = (around[0] - around[1]) / (2 * step)
        assert found[place] == pytest.approx(slope * kept[place], rel=0.02), name


def test_the_experiment_on_the_zoos_model(tmp_path, monkeypatch):
    rows = ["a warm and funny film .\t1", "it is dull and far too long .\t0", "not good\t0"]
    folder = tmp_path / "sst2"
    folder.mkdir()
    for name in ("train.tsv", "dev.tsv"):
        (folder / name).write_text("\n".join(["sentence\tlabel", *rows]) + "\n")
    monkeypatch.setenv("GLUE_DIR", str(tmp_path))
    found = parts(PartSettings(sentences=3, profile=3, work=tmp_path))
    leads = found.table("heads_leads")
    assert leads.groupby("method").size().eq(3 * 7).all()
    synapses = found.table("synapses")
    assert "random" in set(synapses["method"]) and np.isfinite(synapses["0.1"]).all()
