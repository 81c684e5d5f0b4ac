"""Causal language models: the next token is a class; heads, patching, words of a tokenizer."""

from types import SimpleNamespace

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import _checks
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.slicing import patch

VOCABULARY = ["[PAD]", "[UNK]", "a", "b", "c", "d", "e", "f", "g"]


@pytest.fixture(scope="module")
def language_model():
    keras.utils.set_random_seed(4)
    ids = keras.Input((5,), dtype="int32", name="ids")
    x = layers.Embedding(9, 8)(ids)
    h = layers.MultiHeadAttention(4, 2, name="attention")(x, x, use_causal_mask=True)
    x = layers.LayerNormalization()(layers.Add()([x, h]))
    return keras.Model(ids, layers.Dense(9, name="tokens")(x))


@pytest.fixture(scope="module")
def texts():
    return np.random.default_rng(0).integers(2, 9, (12, 5)).astype("i4")


@pytest.fixture(scope="module")
def slicer(language_model, texts):
    im = nns.InstrumentedModel(language_model).at_position(-1)
    profile = nns.Profile.from_data(im, texts, progress=False)
    return nns.Slicer(im, profile, 0.0, workers=0, progress=False)


def test_the_next_token_is_the_class(slicer, language_model, texts):
    expected = np.asarray(language_model(texts))[:, -1]
    np.testing.assert_allclose(slicer.im.predict(texts), expected, atol=1e-5)
    assert slicer.im.classes.count == 9
    np.testing.assert_array_equal(
        slicer.im.classes.from_outputs(slicer.im.predict(texts)), expected.argmax(-1)
    )


def test_decisive_heads_keep_the_next_token(slicer, language_model, texts):
    found = slicer.decisive(texts[:1], level="head", others=0)
    row = found.to_frame().iloc[0]
    whole = np.asarray(language_model(texts[:1]), np.float64)[0, -1]
    assert row["answer"] == row["answer with slice alone"] == whole.argmax()
    probability = np.exp(whole - whole.max()).max() / np.exp(whole - whole.max()).sum()
    np.testing.assert_allclose(row["probability"], probability, rtol=1e-4)


def test_a_position_and_a_token_are_a_target_of_the_whole_model(language_model, texts):
    im = nns.InstrumentedModel(language_model)
    profile = nns.Profile.from_data(im, texts, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    explanation = slicer.explain(texts[:1], (3, 6), compare=False, decisive=False)
    value = np.asarray(language_model(texts[:1]))[0, 3, 6]
    np.testing.assert_allclose(explanation.whole, [value], rtol=1e-4)
    # Later tokens cannot have a part in position 3.
    contributions = np.abs(np.asarray(explanation.contributions).reshape(5, -1)).sum(1)
    assert contributions[4] < 1e-6 < contributions[:4].max()


def test_patching_takes_a_position_and_a_token(language_model, texts):
    """With all of a layer's values from the other run, the score is that of the other run."""
    clean, corrupt = texts[:1].copy(), texts[:1].copy()
    corrupt[0, 4] = (clean[0, 4] - 2 + 3) % 7 + 2
    with pytest.raises(nns.errors.InvalidArgumentError, match="score"):
        patch(language_model, clean, corrupt, target=(3, 6))
    corrupt[0, 1] = (clean[0, 1] - 2 + 3) % 7 + 2
    layer = language_model.layers[-2].name
    result = patch(language_model, clean, corrupt, target=(3, 6), operations=[layer])
    effects = result.table["effect"].to_numpy()
    np.testing.assert_allclose(effects, [0, 0, 0, 1, 0], atol=1e-4)  # position 3 alone leads there


def test_a_tokenizer_gives_the_words(slicer, texts):
    class Tokenizer:
        def id_to_token(self, i):
            return VOCABULARY[i]

    explanation = slicer.explain(texts[:1], words=Tokenizer(), compare=False, decisive=False)
    assert explanation.words == tuple(VOCABULARY[i] for i in texts[0])
    known = SimpleNamespace(id_to_token={}.__getitem__)
    with pytest.raises(nns.errors.InvalidArgumentError, match="`words` fails inside: KeyError"):
        slicer.explain(texts[:1], words=known, compare=False, decisive=False)


def test_a_tokenizer_names_the_tokens_and_not_the_segments(texts):
    """Segments are embedded, too; they come first by name."""

    class Tokenizer:
        def id_to_token(self, i):
            return VOCABULARY[i]

    inputs = {n: keras.Input((5,), dtype="int32", name=n) for n in ("segments", "tokens")}
    embedded = [
        layers.Embedding(rows, 4)(inputs[n]) for n, rows in zip(inputs, (2, 9), strict=True)
    ]
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(layers.Add()(embedded))))
    data = {"segments": np.zeros_like(texts), "tokens": texts}
    slicer = nns.Slicer(model, nns.Profile.from_data(model, data, progress=False), progress=False)
    sample = {name: values[:1] for name, values in data.items()}
    explanation = slicer.explain(sample, words=Tokenizer(), compare=False, decisive=False)
    assert explanation.words == tuple(VOCABULARY[i] for i in texts[0])


def test_contributions_that_are_nothing_have_their_reason():
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1, name="price")])
    model.set_weights([np.ones((2, 1)), np.array([5.0])])
    x = np.array([[0.0, 1.0], [2.0, 3.0], [1.0, 2.0]], np.float32)  # the last is the mean
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    options = {"background": "mean", "compare": False, "decisive": False}
    assert "the same score, 8." in slicer.explain(x[2], **options).finding
    assert "the same score" not in slicer.explain(x[1], **options).finding


def test_tokenizers_of_kerashub_give_the_words(slicer):
    hub = pytest.importorskip("keras_hub")
    tokenizer = hub.tokenizers.WordPieceTokenizer(vocabulary=VOCABULARY, sequence_length=5)
    ids = np.asarray(tokenizer(["b a d c"]), np.int32)
    explanation = slicer.explain(ids, words=tokenizer, compare=False, decisive=False)
    assert explanation.words == ("b", "a", "d", "c", "[PAD]")


def test_positions_that_are_not_there_are_refused(language_model):
    im = nns.InstrumentedModel(language_model)
    with pytest.raises(nns.errors.InvalidArgumentError, match="position 5"):
        im.at_position(5)
    with pytest.raises(nns.errors.InvalidArgumentError, match="positions, classes"):
        im.at_position(0).at_position(0)


def test_what_does_not_fit_in_memory_is_refused_before_it_is_tried(language_model, monkeypatch):
    from nnslicer_tf.instrument import ablation

    monkeypatch.setattr(ablation, "BYTES_OF_A_UNIT", 2**60)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"GiB.*are free.*level='head'"):
        Ablation(language_model, "zero", "synapse")
    Ablation(language_model, "zero", "head")
    _checks.check_memory(1.0, "One byte", "")
