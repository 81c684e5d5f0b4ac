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
MASKED = {
    "LSTM": lambda e: layers.LSTM(4, return_sequences=True)(e),
    "GRU": lambda e: layers.Dense(4, "relu")(layers.GRU(4, return_sequences=True)(e)),
    "both": lambda e: layers.Bidirectional(layers.SimpleRNN(3, return_sequences=True))(e),
    "backwards": lambda e: layers.GRU(3, return_sequences=True, go_backwards=True)(e),
    "attention": lambda e: layers.MultiHeadAttention(2, 3)(e, e),
}


def _reader(rows, first, then):
    inputs = keras.Input((6,), dtype="int32", name="w")
    embedding = layers.Embedding(rows, 5, mask_zero=True, name="emb")
    read = MASKED[first](embedding(inputs)) if first else embedding(inputs)
    return keras.Model(inputs, layers.Dense(2, name="out")(UNMASKED[then](read)))


@pytest.mark.parametrize(
    ("first", "then"), [*((None, then) for then in UNMASKED), *((f, "Flatten") for f in MASKED)]
)
@pytest.mark.filterwarnings("ignore:.*destroy the mask information")  # Keras says so
def test_padding_that_is_read_without_a_mask_has_amounts(first, then):
    """They add up to the change from the mean embedding; of Flatten they are a sum by hand."""
    model, twin = _reader(15, first, then), _reader(21, first, then)
    rng = np.random.default_rng(2)
    weights = [rng.normal(0, 0.5, w.shape).astype(np.float32) for w in model.get_weights()]
    table, *rest = weights
    model.set_weights(weights)
    x = rng.integers(1, 15, (20, 6))
    x[::2, 3:] = 0
    profile = nns.Profile.from_data(model, x, progress=False)
    mean = profile.means["emb"].astype(np.float32)
    twin.set_weights([np.vstack([table, mean]), *rest])  # row 15 + i: the mean of place i
    slicer = nns.Slicer(model, profile, 0.0, contribution="amount", progress=False)
    for one in x[:2]:
        found = slicer.slice(one[None], outputs=[1]).neurons
        # Padding keeps its embedding, as the mask of a layer does not change.
        usual = np.where((one > 0) | (first is None), np.arange(15, 21), 0)
        change = np.subtract(model(one[None]), twin(usual[None]))[0, 1]
        for name in ("w", "emb", "out"):
            assert found[name].sum() == pytest.approx(change, rel=1e-4, abs=1e-5), name
        if (first, then) == (None, "Flatten"):
            kernel = rest[0][:, 1].reshape(6, 5)
            by_hand = (kernel * (table[one] - mean)).sum(axis=1)
            np.testing.assert_allclose(found["w"], by_hand, atol=1e-5)
