"""Orders of words: against closed forms of a linear classifier, and by hand."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.datasets import texts
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import plot_words
from reproduction.sentences import words
from reproduction.sentences.settings import WordSettings
from reproduction.zoo.models import zoo
from support.documents import unpack


@pytest.fixture(scope="module")
def linear():
    """Mean of embeddings, then a dense layer: each word adds its own share to the logits."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=True, name="embedding")(inputs)
    x = layers.GlobalAveragePooling1D(name="average")(x)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2, name="logits")(x)))
    rng = np.random.default_rng(0)
    x = rng.integers(2, 20, (30, 6)).astype(np.int32)
    for row, length in zip(x, rng.integers(3, 7, 30), strict=True):
        row[length:] = texts.PADDING
    return im, x


def test_gradients_are_exact_for_a_linear_model(linear):
    im, x = linear
    profile = nns.Profile.from_data(im, x, progress=False)
    labels = im.logits(x).argmax(axis=1)
    table, kernel = (
        keras.ops.convert_to_numpy(im.model.get_layer(n).weights[0])
        for n in ("embedding", "logits")
    )
    changes = (table[x] - profile.means["embedding"]) @ kernel
    lengths = (x != 0).sum(axis=1, keepdims=True)
    expected = changes[np.arange(30)[:, None], np.arange(6), labels[:, None]] / lengths
    for name in ("gradient × input", "integrated gradients", "amounts"):
        found = words.scorers(im, profile, 0)[name](x, labels)
        np.testing.assert_allclose(found[x != 0], expected[x != 0], rtol=1e-4, atol=1e-6)


def test_slices_name_words(linear):
    im, x = linear
    profile = nns.Profile.from_data(im, x, progress=False)
    labels = im.logits(x).argmax(axis=1)
    found = words.scorers(im, profile, 0)["slice, θ = 0.3"](x, labels)
    assert not found[x == texts.PADDING].any()
    slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
    change = im.logits(x)[0] - profile.means["logits"]
    own = slicer.slice(x[:1]).neurons[im.input_operation]
    np.testing.assert_array_equal(found[0], np.sign(change[labels[0]]) * own)


def test_slices_sized_by_changes(linear):
    """At θ = 0 each embedded value's contribution has the sign of what it adds to the logit."""
    im, x = linear
    profile = nns.Profile.from_data(im, x, progress=False)
    labels = im.logits(x).argmax(axis=1)
    found = words.scorers(im, profile, 0)["slice, × |Δ|, θ = 0.0"](x, labels)
    change = im.capture(x, of=["embedding"])["embedding"] - profile.means["embedding"]
    table = keras.ops.convert_to_numpy(im.model.get_layer("logits").kernel)
    there = x != texts.PADDING
    # By the sign of the change of the mean in between, which is one for each dimension.
    means = im.capture(x, of=["average"])["average"] - profile.means["average"]
    through = np.sign(means * table.T[labels])[:, None] * np.sign(means)[:, None] * np.sign(change)
    expected = (np.abs(change) * through).sum(axis=-1)
    np.testing.assert_allclose(found[there], expected[there], rtol=1e-4, atol=1e-5)


def test_the_first_words_and_what_is_left_of_a_sentence():
    x = np.array([[5, 6, 7, 8, 0], [9, 4, 0, 0, 0]], np.int32)
    values = np.array([[1.0, 3.0, 2.0, -1.0, 99.0], [0.0, 0.0, 9.0, 9.0, 9.0]])
    first = words.first_words(x, values, 0.5)
    assert first.tolist() == [[False, True, True, False, False], [True, False, False, False, False]]
    assert words.compact_words(x, first).tolist() == [[6, 7, 0, 0, 0], [9, 0, 0, 0, 0]]
    assert words.compact_words(x, ~first).tolist() == [[5, 8, 0, 0, 0], [4, 0, 0, 0, 0]]
    assert not words.first_words(x, values, 0.0).any()
    assert (words.first_words(x, values, 1.0) == (x != 0)).all()
    nothing = np.zeros_like(first)
    assert words.compact_words(x, nothing).tolist() == [[1, 0, 0, 0, 0], [1, 0, 0, 0, 0]]


def test_the_areas_of_a_linear_model_prefer_its_own_order(linear):
    """No order of words that add up deletes faster than that of their shares."""
    im, x = linear
    profile = nns.Profile.from_data(im, x, progress=False)
    labels = im.logits(x).argmax(axis=1)
    methods = words.scorers(im, profile, 0)
    scores = {name: methods[name](x, labels) for name in ("gradient × input", "random")}
    scores["reversed"] = -scores["gradient × input"]
    areas = (
        words.areas_under_curves(im, x, labels, scores)
        .groupby("method")[["deletion", "insertion"]]
        .mean()
    )
    assert areas["deletion"].idxmin() == "gradient × input"
    assert areas["insertion"].idxmax() == "gradient × input"
    assert areas["deletion"].idxmax() == "reversed"


def test_attention_rollout_of_one_layer():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5,), dtype="int32")
    x = layers.Embedding(9, 4, mask_zero=True, name="embedding")(inputs)
    attention = layers.MultiHeadAttention(2, 2, name="attention")
    y = layers.GlobalAveragePooling1D()(attention(x, x))
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(y)))
    tokens = np.array([[3, 4, 5, 0, 0], [1, 2, 3, 4, 5]], np.int32)
    found = words.by_attention(im)(tokens, np.zeros(2, int))
    embedded = keras.ops.convert_to_tensor(
        keras.ops.convert_to_numpy(im.model.get_layer("embedding").weights[0])[tokens]
    )
    mask = tokens != 0
    _, heads = attention(
        embedded,
        embedded,
        attention_mask=mask[:, None] & mask[:, :, None],
        return_attention_scores=True,
    )
    rolled = (keras.ops.convert_to_numpy(heads).mean(axis=1) + np.eye(5)) / 2
    for i, length in enumerate((3, 5)):
        np.testing.assert_allclose(found[i], rolled[i, :length].mean(axis=0), atol=1e-6)


def test_the_experiment_on_the_zoos_model(shared, monkeypatch, tmp_path):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    result = words.words(WordSettings(sentences=4, profile=20))
    header, _ = unpack(result.view().data)
    assert header["classes"] == ["negative", "positive"]
    assert [len(row["words"]) > 2 for row in header["rows"]] == [True] * 4
    table = result.tables[1].frame.set_index("method")
    assert table["deletion"].idxmin() != "random"
    assert len(result.figures[0].figure.axes) == 4


def test_the_zoos_models_know_sentiment(shared, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    vocabulary = texts.vocabulary()
    x = vocabulary.encode(["a warm , funny and moving film", "a dull , lifeless mess of a film"])
    for name in words.MODELS:
        assert zoo.load(name).predict(x, verbose=0).argmax(axis=1).tolist() == [1, 0]


def test_words_are_drawn():
    axes = plot_words(np.array([2.0, -1.0, 0.0, 7.0]), ["good", "bad", "film"])
    assert [text.get_text() for text in axes.texts] == ["good", "bad", "film"]
    boxes = [text.get_bbox_patch().get_facecolor() for text in axes.texts]
    assert [round(box[3], 2) for box in boxes] == [0.8, 0.4, 0.0]
    assert boxes[0][2] > boxes[0][0]  # blue
    assert boxes[1][0] > boxes[1][2]  # red
    lines = plot_words(np.ones(40), ["word"] * 40)
    assert len({text.get_position()[1] for text in lines.texts}) > 1
    with pytest.raises(InvalidArgumentError, match="finite"):
        plot_words(np.array([np.nan]), ["one"])
    with pytest.raises(InvalidArgumentError, match="2 words"):
        plot_words(np.ones(1), ["one", "two"])


def test_unknown_models():
    with pytest.raises(InvalidArgumentError, match="Did you mean 'text_lstm'"):
        words.words(WordSettings(model="text_lstms"))
