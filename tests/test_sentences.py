"""Sentences by name, and vocabularies."""

from collections import Counter

import numpy as np
import pytest

from nnslicer_tf import datasets
from nnslicer_tf.datasets import texts
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError


@pytest.fixture(params=["sst2", "SST-2"])
def glue(request, tmp_path, monkeypatch):
    """A folder of GLUE with three sentences for training, and two for testing."""
    folder = tmp_path / request.param
    folder.mkdir()
    (folder / "train.tsv").write_text(
        "sentence\tlabel\nwarm and funny \t1\na dull , dull film \t0\nfunny\x85film \t1\n"
    )
    (folder / "dev.tsv").write_text("sentence\tlabel\na funny film . \t1\ndull \t0\n")
    monkeypatch.setenv("GLUE_DIR", str(tmp_path))
    return folder


def test_splits_of_glues_files(glue):
    train = texts.load("sst2", "train")
    assert train.text == ("warm and funny", "a dull , dull film", "funny\x85film")
    assert train.y.tolist() == [1, 0, 1]
    both = texts.load("sst2", "train[1:2]+test")
    assert both.text == ("a dull , dull film", "a funny film .", "dull")
    assert both.y.tolist() == [0, 1, 0]


def test_damaged_and_missing_files(glue):
    (glue / "dev.tsv").write_text("sentence\tlabel\nno label\n")
    with pytest.raises(CorruptFileError, match=r"dev\.tsv"):
        texts.load("sst2", "test")
    (glue / "dev.tsv").unlink()
    with pytest.raises(
        InvalidArgumentError, match=r"GLUE_DIR has no readable '(sst2|SST-2)/dev\.tsv'"
    ):
        texts.load("sst2", "test")


@pytest.mark.parametrize("split", ["dev", "train[", "train[1:2]+validation"])
def test_unknown_splits(glue, split):
    with pytest.raises(InvalidArgumentError, match="Unknown split"):
        texts.load("sst2", split)


def test_an_empty_split(glue):
    with pytest.raises(InvalidArgumentError, match=r"'train\[:0\]' of 'sst2' is empty"):
        datasets.load("sst2", "train[:0]")
    with pytest.raises(InvalidArgumentError, match="Unknown normalisation 'units'"):
        datasets.load("sst2", "train", normalise="units")


def test_words_are_numbered_in_order():
    words = texts.Vocabulary("bca")
    assert words.words == ("", "[unknown]", "b", "c", "a")
    numbers = words.encode(["C d b", "a a a a"], length=3)
    assert numbers.dtype == np.int32
    assert numbers.tolist() == [[3, 1, 2], [4, 4, 4]]
    assert words.encode("b", length=3).tolist() == [[2, 0, 0]]
    assert words.decode(numbers[0]) == ["c", "[unknown]", "b"]


def test_a_sentence_without_words():
    with pytest.raises(InvalidArgumentError, match="no words"):
        texts.Vocabulary(["a"]).encode(["a", "  "])


@pytest.mark.parametrize("numbers", [[3], [-1], [float("nan")], [[2]], ["a"], 2])
def test_numbers_that_are_no_words(numbers):
    with pytest.raises(InvalidArgumentError, match="Tokens are 0 … 2"):
        texts.Vocabulary(["a"]).decode(numbers)


@pytest.mark.parametrize("sentences", [[None], [3], [b"a"]])
def test_sentences_that_are_no_texts(sentences):
    with pytest.raises(InvalidArgumentError, match="must be a string"):
        texts.Vocabulary(["a"]).encode(sentences)


def test_sentences_as_a_data_set(glue):
    data = datasets.load("sst2", "test")
    assert data.x.shape == (2, texts.LENGTH)
    assert data.classes == 2
    assert texts.vocabulary().decode(data.x[0]) == ["a", "funny", "film", "."]


def test_the_zoos_vocabulary_is_that_of_the_training_sentences(shared, monkeypatch):
    monkeypatch.setenv("GLUE_DIR", str(shared / "text"))
    sentences = texts.load("sst2", "train")
    assert len(sentences) == 67_349
    counts = Counter(word for sentence in sentences.text for word in sentence.split())
    most_frequent = sorted(counts, key=lambda word: (-counts[word], word))[:13_998]
    assert texts.vocabulary().words[2:] == tuple(most_frequent)
    assert len(texts.load("sst2", "test")) == 872


def test_tensorflow_datasets_features(monkeypatch):
    """Rows are those of TFDS's `glue/sst2`; its validation split is the one for tests."""
    import tensorflow as tf

    asked = []

    def rows(name, split, supervised):
        asked.append((name, split))
        features = {"sentence": ["a film ", "b"], "label": [1, 0], "idx": [0, 1]}
        return tf.data.Dataset.from_tensor_slices(features)

    monkeypatch.delenv("GLUE_DIR", raising=False)
    monkeypatch.setattr(texts, "tfds_split", rows)
    sentences = texts.load("sst2", "test[:2]")
    assert asked == [("glue/sst2", "validation[:2]")]
    assert (sentences.text, sentences.y.tolist()) == (("a film", "b"), [1, 0])
