"""Profiles: scalars, constant positions of texts, and names of a table's columns."""

import dataclasses
import json

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf._files import read_archive, write_archive

NAMES = ["age", "height", "weight"]
X = (np.random.default_rng(0).normal(size=(30, 3)) * [1, 5, 20]).astype(np.float32)


def table_model():
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(6, activation="relu")
    return keras.Sequential([keras.Input((3,)), hidden, layers.Dense(2, activation="softmax")])


def test_means_by_channel_of_scalars_are_the_means():
    x = keras.Input((3,))
    model = keras.Model(x, layers.Reshape(())(layers.Dense(1)(x)))
    profile = nns.Profile.from_data(model, X, progress=False)
    by_channel = profile.per_channel()
    for name, mean in profile.means.items():
        expected = mean.mean() if name.endswith("reshape") else mean
        np.testing.assert_array_equal(by_channel.means[name], expected)


@pytest.mark.parametrize("layer", [layers.LSTM, layers.GRU, layers.SimpleRNN])
def test_a_first_token_that_never_changes_has_its_own_means(layer):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(9, 4, mask_zero=True, name="table"),
            layer(3, return_sequences=True, name="states"),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    tokens = np.random.default_rng(1).integers(2, 9, (40, 6))
    tokens[:, 0] = 1
    tokens[::3, 4:] = 0
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, tokens, progress=False)
    table = model.get_layer("table").embeddings.numpy().astype(np.float64)
    np.testing.assert_allclose(profile.means["table"][0], table[1], rtol=1e-6)
    others = table[tokens[tokens != 0]].mean(axis=0)
    np.testing.assert_allclose(profile.means["table"][1:], np.tile(others, (5, 1)), rtol=1e-6)
    states = keras.Model(model.inputs, model.get_layer("states").output).predict(tokens, verbose=0)
    np.testing.assert_allclose(profile.means["states"][0], states[0, 0], rtol=1e-5)
    # What does not vary has no part in any slice.
    slices = nns.Slicer(im, profile, theta=0.0, progress=False).slice(tokens)
    assert not slices.neurons["table"][0].any()
    assert slices.neurons["table"][1:].any()


def sliced(slicer, x):
    return slicer.slice_each(x).to_array()


@pytest.fixture
def frame():
    return pd.DataFrame(X, columns=NAMES)


@pytest.fixture
def slicer(frame, tmp_path):
    model = table_model()
    nns.Profile.from_data(model, frame, progress=False).save(tmp_path / "profile.npz")
    profile = nns.Profile.load(tmp_path / "profile.npz")
    assert profile.columns == tuple(NAMES)
    return nns.Slicer(nns.InstrumentedModel(model), profile, theta=0.1, progress=False)


FORMS = {
    "data frame": lambda frame, folder: frame,
    "file": lambda frame, folder: frame.to_csv(folder / "x.csv", index=False) or folder / "x.csv",
    "data set": lambda frame, folder: nns.datasets.Dataset(
        frame.to_numpy(),
        np.zeros(len(frame), int),
        "mine",
        split="",
        normalise="none",
        classes=1,
        columns=tuple(frame),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_columns_in_another_order_are_put_into_that_of_the_profile(slicer, frame, form, tmp_path):
    expected = sliced(slicer, X)
    np.testing.assert_array_equal(sliced(slicer, FORMS[form](frame, tmp_path)), expected)
    swapped = FORMS[form](frame[["weight", "age", "height"]], tmp_path)
    with pytest.warns(UserWarning, match="match the model's: age, height"):
        np.testing.assert_array_equal(sliced(slicer, swapped), expected)


def test_a_row_in_another_order_is_explained_in_that_of_the_profile(slicer, frame):
    expected = slicer.explain(frame.iloc[2])
    with pytest.warns(UserWarning, match="match the model's"):
        found = slicer.explain(frame[["weight", "age", "height"]].iloc[2])
    assert found.columns == tuple(NAMES)
    np.testing.assert_array_equal(found.contributions, expected.contributions)


def test_other_columns_are_refused_by_name(slicer, frame):
    other = frame.rename(columns={"weight": "size"})
    with pytest.raises(nns.errors.InputShapeError, match=r"Missing here: \['weight'\], .*'size'"):
        slicer.slice(other)
    with pytest.raises(
        nns.errors.InputShapeError, match=r"Missing here: \[\], unknown: \['more'\]"
    ):
        slicer.slice(frame.assign(more=1.0))
    np.testing.assert_array_equal(sliced(slicer, other.to_numpy()), sliced(slicer, X))


def test_labelled_tables_are_put_into_order(slicer, frame):
    y = np.arange(len(X)) % 2
    with pytest.warns(UserWarning, match="match the model's"):
        x, _ = slicer.im.labelled(frame[["weight", "age", "height"]], y)
    np.testing.assert_array_equal(x, X)


def test_a_pickled_slicer_knows_the_columns_and_the_task(frame):
    import pickle

    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    im = nns.InstrumentedModel(model, task="binary")
    profile = nns.Profile.from_data(im, frame, progress=False)
    other = pickle.loads(pickle.dumps(nns.Slicer(im, profile, progress=False)))
    assert other.im.columns == tuple(NAMES)
    assert other.im.classes.is_binary


def of_code(code, factor=2.0):
    """A model with a layer `Own`, whose source is `code`, in a file that is gone."""
    names = {"layers": layers, "factor": factor, "ops": keras.ops}
    exec(code, names)
    nns.register_layer(names["Own"], lambda layer, call: [nns.Step("elementwise", layer.call)])
    keras.utils.set_random_seed(0)
    return nns.InstrumentedModel(
        keras.Sequential(
            [keras.Input((3,), name="x"), names["Own"](name="own"), layers.Dense(2, name="y")]
        )
    )


OWN = """
class Own(layers.Layer):
    def call(self, x):
        return x * ops.sigmoid(x)
"""


def test_a_profile_knows_the_code_of_own_layers(tmp_path):
    """Name, configuration and weights of the layers are equal; their code is not."""
    im, other = of_code(OWN), of_code(OWN.replace("sigmoid", "tanh"))
    profile = nns.Profile.from_data(im, X, progress=False)
    profile.save(tmp_path / "profile.npz")
    for one in (profile, profile.per_channel(), nns.Profile.load(tmp_path / "profile.npz")):
        one.check_model(im)
        remarked = OWN.replace("    def", "    # A remark.\n\n    def")
        one.check_model(of_code(remarked))
        with pytest.raises(nns.errors.ProfileMismatchError, match="code of a layer"):
            one.check_model(other)
        with pytest.raises(nns.errors.ProfileMismatchError, match="code of a layer"):
            nns.Slicer(other, one)


def test_codes_of_different_versions_of_python_are_not_compared():
    im = of_code(OWN)
    profile = nns.Profile.from_data(im, X, progress=False)
    version, code = profile.own_code.split()
    for known in ("", f"{version[::-1]}ff {code}", f"{version[::-1]}ff other"):
        dataclasses.replace(profile, own_code=known).check_model(im)
    assert nns.Profile.from_data(table_model(), X, progress=False).own_code == ""


def two_inputs():
    keras.utils.set_random_seed(0)
    numbers, tokens = keras.Input((3,), name="numbers"), keras.Input((4,), dtype="int32", name="t")
    flat = layers.Flatten()(layers.Embedding(5, 2)(tokens))
    outputs = layers.Dense(2)(layers.Concatenate()([numbers, flat]))
    return nns.InstrumentedModel(keras.Model([numbers, tokens], outputs))


def test_a_profile_keeps_a_sample_of_the_data_whatever_the_batches(tmp_path):
    im = two_inputs()
    rng = np.random.default_rng(3)
    numbers = np.arange(250, dtype=np.float32)[:, None] * [1, 2, 3]
    data = {"numbers": numbers, "t": rng.integers(0, 5, (250, 4))}
    profiles = [nns.Profile.from_data(im, data, size, progress=False) for size in (7, 64, 250)]
    for profile in profiles:
        index = profile.rows["numbers"][:, 0].astype(int)
        assert len(index) == 100 == len(set(index)) and (np.diff(index) > 0).all()
        for name, rows in profile.rows.items():
            assert rows.dtype == np.float32
            np.testing.assert_array_equal(rows, data[name][index])
        np.testing.assert_array_equal(index, profiles[0].rows["numbers"][:, 0])
    # Every sample has the same chance: of 20 of 40, the mean place is near the middle.
    stream = ({name: part[i : i + 9] for name, part in data.items()} for i in range(0, 40, 9))
    few = nns.Profile.from_data(im, stream, 5, progress=False, rows=20)
    assert len(few.rows["t"]) == 20 and 15 < few.rows["numbers"][:, 0].mean() < 27

    few.save(tmp_path / "profile.npz")
    loaded = nns.Profile.load(tmp_path / "profile.npz")
    assert list(loaded.rows) == list(few.rows)
    np.testing.assert_array_equal(im.check(loaded.rows)["t"], few.rows["t"])
    np.testing.assert_array_equal(loaded.per_channel().rows["t"], few.rows["t"])
    assert nns.Profile.from_data(im, data, progress=False, rows=0).rows == {}
    with pytest.raises(nns.errors.InvalidArgumentError, match="rows must be"):
        nns.Profile.from_data(im, data, progress=False, rows=-1)


def test_rows_take_bounded_memory(monkeypatch):
    monkeypatch.setattr("nnslicer_tf.slicing.profile._ROW_BYTES", 4 * 3 * 12 + 5)
    assert nns.Profile.from_data(table_model(), X, progress=False).rows.popitem()[1].shape == (
        12,
        3,
    )


def test_rows_in_files_are_checked(tmp_path):
    path = tmp_path / "profile.npz"
    profile = nns.Profile.from_data(table_model(), X, progress=False)
    profile.save(path)
    with read_archive(path, "nnslicer_tf profile 1", "profile") as file:
        arrays, header = dict(file.arrays()), dict(file.header)
    kind = header.pop("format")
    older = {name: value for name, value in header.items() if name != "rows"}
    write_archive(path, kind, older, {n: a for n, a in arrays.items() if n != "rows0"})
    assert nns.Profile.load(path).rows == {}
    rows = arrays["rows0"]
    for entry, array in [
        (["unknown"], rows),
        ("x", rows),
        (None, rows[:, :2]),
        (None, rows[:0]),
        (None, rows.astype(np.float64)),
        (None, rows * np.float32("nan")),
    ]:
        changed = header if entry is None else header | {"rows": entry}
        write_archive(path, kind, json.loads(json.dumps(changed)), arrays | {"rows0": array})
        with pytest.raises(nns.errors.CorruptFileError):
            nns.Profile.load(path)
