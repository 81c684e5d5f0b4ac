"""The one door for data: every form of the same samples gives the same arrays and labels."""

import warnings
from contextlib import nullcontext
from decimal import Decimal
from fractions import Fraction

import keras
import numpy as np
import pandas as pd
import pytest
import scipy.sparse
from PIL import Image

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf._files import write_archive
from nnslicer_tf.datasets.tables import split_frame
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    PlausibilityWarning,
)
from nnslicer_tf.instrument.data import Samples, read_labelled
from support.data_forms import LABELLED, SAMPLES, X, Y


@pytest.mark.parametrize("form", [*SAMPLES, *LABELLED])
def test_every_form_gives_the_same_samples(form):
    samples = Samples({**SAMPLES, **LABELLED}[form](), X.shape[1:])
    found = samples.array()
    assert found.dtype == np.float32
    assert np.array_equal(found, X)


@pytest.mark.parametrize("form", LABELLED)
def test_every_form_gives_the_same_labels(form):
    x, y = read_labelled(LABELLED[form](), None, X.shape[1:])
    assert np.array_equal(x, X) and np.array_equal(y, Y) and y.dtype == np.int64


def test_weights_of_samples_are_left_out():
    rows, labels = np.arange(8.0).reshape(4, 2), np.array([0, 1, 1, 0])
    x, y = read_labelled((rows, labels, np.ones(4)), None, (2,))
    assert np.array_equal(x, rows) and np.array_equal(y, labels)
    assert np.array_equal(Samples((rows, labels, np.ones(4)), (2,)).array(), rows)


def test_columns_of_several_dtypes_are_numbers():
    frame = pd.DataFrame({"a": [True, False], "b": [0.5, 1], "c": pd.array([1, 2], "Int64")})
    expected = [[1, 0.5, 1], [0, 1, 2]]
    assert Samples(frame, (3,)).array().tolist() == expected
    assert Samples(frame.astype(object), (3,)).array().tolist() == expected
    for column in (["x", "y"], [1, pd.NA], pd.Categorical(["x", "y"]), ["1", "2"]):
        with pytest.raises(InputShapeError, match=r"Column 'b' has ('x'|'1'|<NA>)\."):
            Samples(frame.assign(b=column), (3,)).array()


def test_decimals_and_fractions_are_numbers():
    """As drivers of data bases return them."""
    frame = pd.DataFrame({"a": [Decimal("0.5"), Decimal(2)], "b": [Fraction(1, 4), Fraction(3)]})
    assert Samples(frame, (2,)).array().tolist() == [[0.5, 0.25], [2, 3]]


def test_lists_of_rows_are_samples_not_pairs():
    rows = [[1, 2], [3, 4], [5, 6]]
    assert np.array_equal(Samples(rows, (2,)).array(), rows)
    assert np.array_equal(Samples(pd.DataFrame(rows), (2,)).array(), rows)
    x, y = read_labelled([([1, 2], 0), ([3, 4], 1)], None, (2,))
    assert x.tolist() == [[1, 2], [3, 4]] and y.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (None, "must be an array, list"),
        (3, "must be an array, list"),
        (np.float32(3), "must be an array, list"),
        ([1, 2, 3], "takes data of shape"),
        ([X[:2], X[:2, :2]], "element of shape"),
        ((x for x in [X[:1], X[:1, :2]]), "element of shape"),
        ([[1, 2], [3]], "element of shape"),
        ([X[0], X[0, :2]], "must have the same shape"),
        ({"sound": X}, "samples must be under one of"),
        (np.array(["a"]), "real numbers.*Turn text into numbers"),
        (["good", "bad"], "real numbers.*Turn text into numbers"),
    ],
)
def test_what_is_no_data_is_refused(data, message):
    with pytest.raises(InputShapeError, match=message):
        Samples(data, X.shape[1:]).array()


def ragged():
    tf = pytest.importorskip("tensorflow")
    return tf.ragged.constant([[1.0, 2.0], [3.0]])


def sparse_tensor():
    tf = pytest.importorskip("tensorflow")
    return tf.sparse.from_dense(np.eye(3, dtype=np.float32))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: scipy.sparse.csr_matrix(np.eye(3)), r"csr_matrix is sparse; pass x\.toarray"),
        (lambda: scipy.sparse.coo_array(np.eye(3)), r"coo_array is sparse; pass x\.toarray"),
        (sparse_tensor, r"SparseTensor is sparse; pass tf\.sparse\.to_dense"),
        (lambda: np.ma.masked_equal(np.eye(3), 0), r"has masked .*x\.filled"),
        (ragged, r"RaggedTensor has rows of different lengths; .*x\.to_tensor"),
    ],
)
def test_sparse_and_ragged_data_are_refused_with_the_remedy(make, message):
    for data in (make(), (make(), [0, 1, 2]), {"x": make()}, iter([make()])):
        with pytest.raises(InputShapeError, match=message):
            Samples(data, (3,)).array()
    with pytest.raises(InputShapeError, match=f"Input 'b': .*{message}"):
        Samples([np.eye(3), make()], {"a": (3,), "b": (3,)})


def test_streams_of_several_inputs_become_arrays():
    parts = [{"a": X[i : i + 2], "b": X[i : i + 2] + 1} for i in range(0, len(X), 2)]
    samples = Samples(iter(parts), {"a": X.shape[1:], "b": X.shape[1:]}).array()
    assert np.array_equal(samples["a"], X) and np.array_equal(samples["b"], X + 1)


@pytest.mark.parametrize("data", [X, list(X), datasets.Dataset(X, Y[:0], "", "", "none", 0)])
def test_missing_labels_are_asked_for(data):
    with pytest.raises(InvalidArgumentError, match="Labels are needed"):
        read_labelled(data, None, X.shape[1:])


@pytest.fixture
def folder(tmp_path):
    """The samples as a folder of PNG files for each class."""
    for i, (image, label) in enumerate(zip(X.astype(np.uint8), Y, strict=True)):
        path = tmp_path / "images" / "abc"[label] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image[..., 0]).save(path)
    return tmp_path / "images"


def test_folders_of_images(folder):
    found = datasets.load_data(folder, normalise="none")
    order = np.argsort(Y, kind="stable")
    assert np.array_equal(found.x, X[order]) and np.array_equal(found.y, Y[order])
    assert found.class_names == ("a", "b", "c")
    scaled = Samples(str(folder), X.shape[1:]).array()
    np.testing.assert_allclose(scaled, X[order] / 255, rtol=1e-6)
    one = datasets.load_data(folder / "a" / "0.png", normalise="none", labels=False)
    assert np.array_equal(one.x, X[:1]) and len(one.y) == 0
    coloured = datasets.load_data(folder, shape=(6, 4, 3))
    assert coloured.x.shape == (7, 6, 4, 3) and 0 <= coloured.x.min() <= coloured.x.max() <= 1


def test_folders_are_read_as_keras_reads_them(folder):
    import keras

    for name in ("b/more/0.png", "b/less/1.png", ".hidden/0.png"):
        (folder / name).parent.mkdir()
        Image.fromarray(np.full((3, 2), len(name), np.uint8)).save(folder / name)
    theirs = keras.utils.image_dataset_from_directory(
        folder, color_mode="grayscale", image_size=(3, 2), shuffle=False, verbose=False
    )
    x, y = read_labelled(theirs, None, X.shape[1:])
    ours = datasets.load_data(folder, normalise="none")
    assert np.array_equal(ours.x, x) and np.array_equal(ours.y, y) and len(y) == len(Y) + 2
    assert list(ours.class_names) == theirs.class_names


def test_hidden_names_are_no_classes_and_no_images(folder):
    expected = datasets.load_data(folder)
    for hidden in (".ipynb_checkpoints", "a/.ipynb_checkpoints"):
        (folder / hidden).mkdir()
        Image.fromarray(np.zeros((3, 2), np.uint8)).save(folder / hidden / "0.png")
    (folder / "a" / "._0.png").write_bytes(b"what another system wrote beside 0.png")
    found = datasets.load_data(folder)
    assert found.class_names == ("a", "b", "c")
    assert np.array_equal(found.x, expected.x) and np.array_equal(found.y, expected.y)


def test_a_class_without_images_is_refused(folder):
    (folder / "bc").mkdir()
    with pytest.raises(InvalidArgumentError, match=r"no images .* in the folder 'bc'"):
        datasets.load_data(folder)


def test_grey_images_of_16_bits_keep_their_values(tmp_path):
    values = np.array([[0, 200, 1_000], [30_000, 63_000, 65_535]], np.uint16)
    Image.fromarray(values).save(tmp_path / "deep.png")
    found = datasets.load_data(tmp_path / "deep.png", labels=False)
    assert found.x.shape == (1, 2, 3, 1)
    np.testing.assert_allclose(found.x[0, ..., 0], values / 65_535, rtol=1e-6)
    raw = datasets.load_data(tmp_path / "deep.png", labels=False, normalise="none")
    np.testing.assert_allclose(raw.x[0, ..., 0], values / 257, rtol=1e-6)
    coloured = datasets.load_data(tmp_path / "deep.png", labels=False, shape=(2, 3, 3))
    np.testing.assert_allclose(coloured.x, np.repeat(found.x, 3, axis=3))
    Image.fromarray(np.full((4, 4), 30_000, np.uint16)).save(tmp_path / "even.png")
    resized = datasets.load_data(tmp_path / "even.png", labels=False, shape=(2, 3, 1))
    np.testing.assert_allclose(resized.x, np.full((1, 2, 3, 1), 30_000 / 65_535), rtol=1e-5)


def test_tables_of_values(tmp_path):
    frame = pd.DataFrame(X.reshape(7, -1)).assign(label=np.array(["a", "b", "c"])[Y])
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(UserWarning, match="0 = a, 1 = b, 2 = c"):
        found = datasets.load_data(tmp_path / "t.csv", shape=X.shape[1:])
    assert np.array_equal(found.x, X) and np.array_equal(found.y, Y)
    assert found.class_names == ("a", "b", "c")
    frame.to_csv(tmp_path / "index.csv")
    with pytest.raises(CorruptFileError, match=r"no name.* to_csv\(path, index=False\)"):
        datasets.load_data(tmp_path / "index.csv")
    with pytest.raises(InputShapeError, match="has 6 columns"):
        datasets.load_data(tmp_path / "t.csv", shape=(5,))
    frame.assign(name="x").to_csv(tmp_path / "words.csv", index=False)
    with pytest.raises(CorruptFileError, match="'name' does not hold numbers: row 1 has 'x'"):
        datasets.load_data(tmp_path / "words.csv")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_of_tables(tmp_path, separator):
    frame = pd.DataFrame({"a": [1.5, 2], "b": [3, 4.5], "label": [0, 1]})
    frame.to_csv(tmp_path / "t.csv", index=False, sep=separator)
    found = datasets.load_data(tmp_path / "t.csv")
    assert found.x.tolist() == frame[["a", "b"]].to_numpy().tolist()
    assert found.columns == ("a", "b") and found.y.tolist() == [0, 1]


def test_files_without_names_of_columns_or_without_rows_are_refused(tmp_path):
    """Their first row would be taken for names, and be missing."""
    for names in (range(4), [400.5, 401, 401.5, 402]):  # of pandas, and wavelengths
        frame = pd.DataFrame(np.arange(12).reshape(3, 4), columns=names)
        frame.to_csv(tmp_path / "numbered.csv", index=False)
        scale = pytest.warns(PlausibilityWarning) if names != range(4) else nullcontext()
        with scale:
            assert datasets.load_data(tmp_path / "numbered.csv", labels=False).x.shape == (3, 4)
    rows_of = ("5.1,3.5,1.4,setosa\n4.9,3,1.4,setosa\n", "7,0,0,1\n3,0,0,1\n", "1,2,4\n1,2,4\n")
    for rows in (*rows_of, "0.1,0.7\n0.2,0.5\n", "5.1\n4.9\n"):
        (tmp_path / "plain.csv").write_text(rows)
        with pytest.raises(CorruptFileError, match="Add a line of columns' names"):
            datasets.load_data(tmp_path / "plain.csv", labels=False)
    (tmp_path / "empty.csv").write_text("a,b,label\n")
    with pytest.raises(CorruptFileError, match="no rows"):
        datasets.load_data(tmp_path / "empty.csv")


def read_table(tmp_path, labels, column="label"):
    """A file with one column of values and one of labels, as it is read."""
    rows = "".join(f"{i},{label}\n" for i, label in enumerate(labels))
    (tmp_path / "t.csv").write_text(f"value,{column}\n{rows}")
    return datasets.load_data(tmp_path / "t.csv")


@pytest.mark.parametrize(
    ("labels", "y", "names"),
    [
        (["dog", "cat", "cow", "dogfish"], [2, 0, 1, 3], ("cat", "cow", "dog", "dogfish")),
        (range(12), range(12), ()),
        ([f"{i}.0" for i in range(12)], range(12), ()),  # in the order of numbers, not of texts
        ([True, False, True], [1, 0, 1], ("False", "True")),
        (["10", "9", "ten"], [0, 1, 2], ("10", "9", "ten")),
    ],
)
def test_labels_of_tables(tmp_path, labels, y, names):
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Class numbers follow the alphabetical order")
        found = read_table(tmp_path, labels)
    assert found.y.tolist() == list(y) and found.y.dtype == np.int64
    assert found.class_names == names and found.classes == max(y) + 1


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        (["cat", "cow", "dog", "", "cow"], "row 4 of 5 has no label"),
        ([*range(11), ""], "row 12 of 12 has no label"),
        ([0, 0.5, 1], "row 2 of column 'label' has 0.5"),
        ([0, 1, "inf"], "row 3 of column 'label' has inf"),
        ([0, -1, 1], "row 2 of column 'label' has -1"),
    ],
)
def test_labels_that_are_no_classes_are_refused(tmp_path, labels, message):
    with pytest.raises(CorruptFileError, match=message):
        read_table(tmp_path, labels)


def test_the_column_of_labels(tmp_path):
    assert read_table(tmp_path, [1, 0], "y").y.tolist() == [1, 0]
    assert read_table(tmp_path, [1, 0], "Class").y.tolist() == [1, 0]
    (tmp_path / "points.csv").write_text("x,y,label\n1,2,0\n3,4,1\n")
    points = datasets.load_data(tmp_path / "points.csv")
    assert points.x.tolist() == [[1, 2], [3, 4]] and points.y.tolist() == [0, 1]
    (tmp_path / "two.csv").write_text("x,label,target\n1,2,0\n")
    with pytest.raises(CorruptFileError, match="'label', 'target' could hold the labels"):
        datasets.load_data(tmp_path / "two.csv")


def test_categories_are_what_they_stand_for():
    column = pd.Categorical([9, 10, 0], categories=[10, 9, 0])
    _, y, names = split_frame(pd.DataFrame({"value": [0.0, 1, 2], "label": column}), "it")
    assert y.tolist() == [9, 10, 0] and names == ()


def test_files_of_arrays(tmp_path):
    np.savez(tmp_path / "a.npz", x=X, y=np.eye(3, dtype=int)[Y])
    x, y = read_labelled(str(tmp_path / "a.npz"), None, X.shape[1:])
    assert np.array_equal(x, X) and np.array_equal(y, Y)
    np.save(tmp_path / "a.npy", X)
    assert np.array_equal(Samples(tmp_path / "a.npy", X.shape[1:]).array(), X)


@pytest.mark.parametrize(
    ("name", "labels", "message"),
    [
        ("nothing.npz", False, "no file"),
        ("nothing.parquet", False, "does not exist"),
        ("empty", False, "no images"),
        ("flat", True, "no labels"),
        ("mnits", False, "Did you mean 'mnist'"),
    ],
)
def test_what_cannot_be_read_says_why(tmp_path, monkeypatch, name, labels, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "flat").mkdir()
    Image.fromarray(np.zeros((2, 2), np.uint8)).save(tmp_path / "flat" / "a.png")
    with pytest.raises(InvalidArgumentError, match=message):
        datasets.load_data(name, labels=labels)


def test_damaged_images_are_named(tmp_path):
    (tmp_path / "a.png").write_bytes(b"no image")
    with pytest.raises(CorruptFileError, match=r"a\.png"):
        datasets.load_data(tmp_path)


def test_results_are_written_to_npz_files_only(tmp_path):
    with pytest.raises(InvalidArgumentError, match=r"end in \.npz"):
        write_archive(tmp_path / "p.json", "kind", {}, {})
    assert not list(tmp_path.iterdir())


def test_keras_models_are_taken_where_instrumented_ones_are():
    import nnslicer_tf as nns
    from nnslicer_tf import exactline, pruning, zoo

    model, digits = zoo.load("digits_cnn"), datasets.load("digits", "test[:20]")
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(model, digits, progress=False)
    assert profile.fingerprint == im.fingerprint
    slicer = nns.Slicer(model, profile, workers=0, progress=False)
    assert slicer.slice(digits).info["samples"] == 20
    expected = exactline.exact_line(im, digits.x[0], digits.x[1]).ratios
    assert np.array_equal(exactline.exact_line(model, digits.x[0], digits.x[1]).ratios, expected)
    weights = pruning.scores(model, "weight")
    assert np.array_equal(weights["conv1"], np.abs(im.kernels["conv1"].kernel()))


def test_data_without_an_end_are_refused():
    tf = pytest.importorskip("tensorflow")
    data = tf.data.Dataset.from_tensor_slices(X).batch(2)
    assert len(Samples(data, X.shape[1:]).array()) == len(X)
    with pytest.raises(InputShapeError, match="repeats endlessly"):
        Samples(data.repeat(), X.shape[1:])


UNMASKED = {
    "array": lambda: np.ma.array(X),
    "no invalid values": lambda: np.ma.masked_invalid(X),
    "a mask of False": lambda: np.ma.array(X, mask=np.zeros(X.shape, bool)),
    "pair": lambda: (np.ma.array(X), Y),
    "dict": lambda: {"x": np.ma.array(X), "y": Y},
    "batches": lambda: (np.ma.array(x) for x in (X[:3], X[3:])),
    "samples": lambda: (np.ma.array(x) for x in X),
}


@pytest.mark.parametrize("form", UNMASKED)
def test_masked_arrays_without_masked_values(form):
    found = Samples(UNMASKED[form](), X.shape[1:]).array()
    assert type(found) is np.ndarray and np.array_equal(found, X)


def test_masked_values():
    """Only these are refused, also in a later batch."""
    masked = np.ma.array(X, mask=np.zeros(X.shape, bool))
    masked[4, 0] = np.ma.masked
    with pytest.raises(InputShapeError, match=r"has masked values, .*x\.filled"):
        Samples(masked, X.shape[1:])
    with pytest.raises(InputShapeError, match="has masked values"):
        Samples((masked[i : i + 2] for i in range(0, len(X), 2)), X.shape[1:]).array()
    filled = Samples(masked.filled(0), X.shape[1:]).array()
    assert not filled[4, 0].any() and np.array_equal(filled[:4], X[:4])


def test_masked_rows_in_a_list_or_tuple():
    """Their hidden values were read."""
    im = nns.InstrumentedModel(keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)]))
    x = np.ma.masked_equal(np.arange(12.0, dtype=np.float32).reshape(4, 3), 5)
    for rows in (list(x), tuple(x), [x[:2], x[2:]], iter(x), [(row, 0) for row in x]):
        with pytest.raises(InputShapeError, match="has masked values"):
            nns.Profile.from_data(im, rows, progress=False)
    with pytest.raises(InputShapeError, match="has masked values"):
        im.labelled(np.zeros((4, 3)), np.ma.masked_equal([0, 1, 1, 0], 0))
    plain = nns.Profile.from_data(im, tuple(x.filled(7)), progress=False)
    assert plain.samples == 4
