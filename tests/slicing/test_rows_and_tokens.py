"""Files of rows, classes of numbers, edges of one kernel, and amounts of padded tokens by hand."""

import keras
import numpy as np
import pytest
import scipy.sparse as sp
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf.slicing import _rows

BROKEN = {
    "a column too many": ("indices", 0, 3),
    "a column below 0": ("indices", 0, -1),
    "rows that begin late": ("indptr", 0, 1),
    "rows that end early": ("indptr", 2, 2),
    "rows that go back": ("indptr", 1, 4),
}


@pytest.mark.parametrize("name", ["whole", *BROKEN])
def test_rows_that_do_not_fit_are_refused(name, tmp_path):
    matrix = sp.csr_array(np.array([[1, 2, 0], [0, 0, 5]]))
    arrays = _rows.to_arrays("rows", matrix)
    if name in BROKEN:
        part, place, value = BROKEN[name]
        array = arrays[f"rows_{part}"] = arrays[f"rows_{part}"].copy()
        array[place] = value
    write_archive(tmp_path / "rows.npz", "rows 1", {}, arrays)
    with read_archive(tmp_path / "rows.npz", "rows 1", "file of rows") as file:
        if name == "whole":
            read = _rows.from_file("rows", file, 2, 3)
            np.testing.assert_array_equal(read.toarray(), matrix.toarray())
            return
        words = "are not within 3 columns" if "column" in name else "does not divide"
        with pytest.raises(nns.errors.CorruptFileError, match=words):
            _rows.from_file("rows", file, 2, 3)


def test_a_number_has_no_class():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    im = nns.InstrumentedModel(model, task="regression")
    x = np.random.default_rng(0).normal(size=(5, 3)).astype(np.float32)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), progress=False)
    (part,) = slicer.iterate(x, outputs=[0])
    assert part.predicted.tolist() == [-1] * 5


def test_amounts_of_padded_tokens():
    """The output is the mean of the weights of the tokens that are there; so is the reference."""
    rng = np.random.default_rng(0)
    tokens = keras.Input((4,), dtype="int32")
    read = layers.Embedding(6, 2, mask_zero=True, name="words")(tokens)
    model = keras.Model(tokens, layers.Dense(1)(layers.GlobalAveragePooling1D()(read)))
    table, kernel, bias = (rng.normal(size=weight.shape) for weight in model.weights)
    model.set_weights([table, kernel, bias])
    data = rng.integers(1, 6, (30, 4))
    data[::3, 3] = 0
    im = nns.InstrumentedModel(model, task="regression")
    profile = nns.Profile.from_data(im, data, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False, contribution="amount")
    for row in ([1, 5, 2, 0], [3, 4, 0, 0], [2, 2, 2, 2]):
        present = np.array(row) > 0
        change = (table[row] - profile.means["words"]) * present[:, None]
        expected = change @ kernel[:, 0] / present.sum()
        found = slicer.slice(np.array([row]), outputs=[0]).neurons
        np.testing.assert_allclose(found[im.input_operations[0]], expected, rtol=1e-4, atol=1e-6)


def test_edges_of_a_slice_with_one_of_two_kernels():
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(3, name="one"), layers.Dense(2, name="two")]
    )
    kernel = model.layers[1].kernel.numpy()
    contributions = np.array([[0, 4], [0, 0], [-2, 0]])
    table = nns.Slice({}, {"two": contributions}, {}).edges(model)
    assert table["kernel"].tolist() == ["two", "two"]
    assert table["from"].tolist() == ["one[0]", "one[2]"]
    assert table["to"].tolist() == ["two[1]", "two[0]"]
    assert table["contribution"].tolist() == [4, -2]
    np.testing.assert_array_equal(table["weight"], kernel[[0, 2], [1, 0]])


UNMASKED = {
    "Flatten": lambda e: layers.Flatten()(e),
    "Dense": lambda e: layers.Flatten()(layers.Dense(4, "tanh")(e)),
    "Conv1D": lambda e: layers.GlobalAveragePooling1D()(layers.Conv1D(4, 2)(e)),
    "maximum": lambda e: layers.GlobalMaxPooling1D()(e),
}


@pytest.mark.parametrize("reader", UNMASKED)
@pytest.mark.filterwarnings("ignore:.*destroy the mask information")  # Keras says so
def test_padding_that_is_read_without_a_mask_has_amounts(reader):
    """They add up to the change from the mean embedding; of Flatten they are a sum by hand."""
    keras.utils.set_random_seed(2)
    inputs = keras.Input((6,), dtype="int32", name="w")
    embedding = layers.Embedding(15, 5, mask_zero=True, name="emb", embeddings_initializer="normal")
    model = keras.Model(inputs, layers.Dense(2, name="out")(UNMASKED[reader](embedding(inputs))))
    table = np.random.default_rng(1).normal(size=(15, 5)).astype(np.float32)
    embedding.set_weights([table])
    x = np.random.default_rng(0).integers(1, 15, (20, 6))
    x[::2, 3:] = 0
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, 0.0, contribution="amount", progress=False)
    rest = keras.Sequential([keras.Input((6, 5)), *model.layers[2:]])
    mean = profile.means["emb"][None].astype(np.float32)
    for one in x[:4]:
        found = slicer.slice(one[None], outputs=[1])
        change = (rest(table[one][None]) - rest(mean)).numpy()[0, 1]
        for name in ("w", "emb", "out"):
            assert found.neurons[name].sum() == pytest.approx(change, abs=1e-5), name
        if reader == "Flatten":
            weights = model.get_layer("out").get_weights()[0][:, 1].reshape(6, 5)
            by_hand = (weights * (table[one] - mean[0])).sum(axis=1)
            np.testing.assert_allclose(found.neurons["w"], by_hand, atol=1e-5)
