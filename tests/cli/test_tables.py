"""Commands that read two tables, or tables whose right answers are numbers."""

import base64
import re

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from support.documents import unpack

X = np.random.default_rng(0).normal(size=(80, 3))
TABLE = pd.DataFrame(X, columns=["a", "b", "c"])


@pytest.mark.filterwarnings("ignore:The columns were reordered")
@pytest.mark.parametrize("command", ["semantic", "cover"])
def test_the_second_table_may_have_another_order(command, nnslicer, tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((3,)), layers.Dense(6, "relu", kernel_initializer="normal"), layers.Dense(2)]
    )
    model.save(tmp_path / "m.keras")
    labels = model.predict(X, verbose=0).argmax(axis=1)
    for name, columns in (("t.csv", "abc"), ("o.csv", "cba")):
        TABLE[[*columns]].assign(label=labels).to_csv(tmp_path / name, index=False)
    known, more = ("--data", "--test"), ()
    if command == "cover":  # the neurons' ranges are of the training data, whose order counts
        known, more = ("--train", "--data"), ("--criterion", "k-multisection")
    printed = [
        nnslicer(command, "--model", tmp_path / "m.keras", known[0], tmp_path / "t.csv", known[1],
                 tmp_path / other, *more)[1]
        for other in ("t.csv", "o.csv")
    ]  # fmt: skip
    assert printed[0] == printed[1] and "%" in printed[0]


@pytest.mark.parametrize("ending", [".npz", ".csv"])
def test_right_answers_that_are_numbers(ending, nnslicer, tmp_path):
    """Costs and quality are those of Python; the column is named like labels."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(8, "relu"), layers.Dense(1)])
    model.compile("adam", "mse")
    y = X @ [1.0, 2, 3]
    model.fit(X, y, epochs=30, verbose=0)
    model.save(tmp_path / "m.keras")
    data = tmp_path / f"d{ending}"
    if ending == ".csv":
        TABLE.assign(target=y).to_csv(data, index=False)
    else:
        np.savez(data, x=X, y=y)
    options = ("--model", tmp_path / "m.keras", "--data", data)
    code, out, err = nnslicer("prune", *options, "--ratio", "0.3", "--output", tmp_path / "s.keras")
    assert code == 0, err
    assert "R²" in out
    code, out, err = nnslicer("causes", *options)
    assert code == 0, err
    code, out, err = nnslicer("inspect", *options)
    assert code == 2 and "are numbers. In Python, deepbase.inspect takes" in err
    data = nns.datasets.load_data(data, labels="any")
    np.testing.assert_allclose(data.y, y, rtol=1e-5)


def test_a_command_does_not_write_over_what_it_reads(nnslicer, tmp_path, files):
    """However the file is called: by another path, a link, as data or as a model."""
    for name in ("model.keras", "labelled.npz", "profile.npz"):
        (tmp_path / name).write_bytes((files / name).read_bytes())
    TABLE.assign(label=0).to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "link.npz").symlink_to(tmp_path / "labelled.npz")
    model, data, profile = (tmp_path / n for n in ("model.keras", "labelled.npz", "profile.npz"))
    before = {path: path.read_bytes() for path in (model, data, profile)}
    options = ("--model", model, "--data", data)
    for arguments in (
        ("prune", *options, "--epochs", 0, "--output", tmp_path / "." / "model.keras"),
        ("profile", *options, "--output", tmp_path / "link.npz"),
        ("slice", *options, "--profile", profile, "--output", profile),
        ("semantic", *options, "--output", model),
    ):
        code, _, err = nnslicer(*arguments)
        assert code == 2 and "would overwrite" in err and "which the command reads" in err
    assert {path: path.read_bytes() for path in before} == before


def test_labels_below_0_in_a_table(tmp_path):
    """They are integers still, and refused by their value, not by their type."""
    TABLE.assign(label=np.arange(80) % 3 - 1).to_csv(tmp_path / "t.csv", index=False)
    data = nns.datasets.load_data(tmp_path / "t.csv", labels="any")
    assert data.y.dtype == np.int64 and data.y.min() == -1
    TABLE.assign(label=np.arange(80) % 3 - 0.5).to_csv(tmp_path / "t.csv", index=False)
    assert nns.datasets.load_data(tmp_path / "t.csv", labels="any").y.dtype == np.float64


@pytest.mark.filterwarnings("ignore:The columns were reordered")
@pytest.mark.parametrize("orders", [("abc", "cba"), ("cba", "cba")])
def test_two_models_on_one_page(orders, nnslicer, tmp_path):
    """They are shown if their profiles have one order, in which the table need not be."""
    options, files = [], []
    TABLE.to_csv(tmp_path / "t.csv", index=False)
    for seed, order in enumerate(orders):
        keras.utils.set_random_seed(seed)
        model = keras.Sequential(
            [
                keras.Input((3,), name="i"),
                layers.Dense(6, "relu", name="h"),
                layers.Dense(2, "softmax", name="o"),
            ]
        )
        model.save(tmp_path / f"{seed}.keras")
        TABLE[[*order]].to_csv(tmp_path / f"{order}.csv", index=False)
        of_model = ("--model", tmp_path / f"{seed}.keras")
        known, file = tmp_path / f"p{seed}.npz", tmp_path / f"s{seed}.npz"
        data = ("--data", tmp_path / f"{order}.csv", "--output", known)
        assert nnslicer("profile", *of_model, *data)[0] == 0
        of_model += ("--profile", known)
        data = ("--data", tmp_path / "t.csv", "--each", "--output", file)
        assert nnslicer("slice", *of_model, *data)[0] == 0
        options += of_model
        files.append(file)
    data = ("--data", tmp_path / "t.csv", "--output", tmp_path / "e.html")
    code, _, errors = nnslicer("explore", *files, *options, *data)
    if orders[0] != orders[1]:
        assert code == 2 and "in different orders: a, b, c and c, b, a" in errors
        return
    assert code == 0, errors
    data = re.search(r'octet-stream">([^<]*)<', (tmp_path / "e.html").read_text("utf-8"))[1]
    header = unpack(base64.b64decode(data))[0]
    x = TABLE[["c", "b", "a"]].to_numpy(np.float32)
    for seed, exhibit in enumerate(header["exhibits"]):
        model = keras.models.load_model(tmp_path / f"{seed}.keras")
        for i in (0, 5):
            part = exhibit["parts"][i]
            said = [share for _, share in sorted(part["says"]["whole"])]
            np.testing.assert_allclose(said, model.predict(x[[i]], verbose=0)[0], atol=1e-5)
            shown = dict(word.split(" = ") for word in header["rows"][part["row"]]["words"])
            assert {k: float(v) for k, v in shown.items()} == pytest.approx(
                TABLE.iloc[i].to_dict(), rel=1e-3
            )


POINTS = {
    "half": ("1.7", False),
    "nan": ("nan", False),
    "infinite": ("inf", False),
    "minus infinite": ("-inf", False),
    "whole float": ("3.0", False),
    "exponent": ("1e0", False),
    "empty": ("", False),
    "a nan among values": ("0,nan,1", False),
    "overflow": ("0,1e999,1", False),
    "values": ("0,0.5,-1", True),
    "index": ("3", True),
}


@pytest.mark.parametrize("kind", POINTS)
def test_points(kind, nnslicer, tmp_path):
    """An index is a whole number, and values are finite; the error names the option."""
    text, is_right = POINTS[kind]
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(6, "relu"), layers.Dense(2)])
    model.save(tmp_path / "m.keras")
    np.savez(tmp_path / "x.npz", x=X)
    options = ("--model", tmp_path / "m.keras", "--data", tmp_path / "x.npz")
    for command, start, more in (
        ("lines", "--from", ("--to", "1")),
        ("lines", "--to", ("--from", "1")),
        ("planes", "--corner", ("--corner", "1", "--corner", "2")),
    ):
        code, _, errors = nnslicer(command, *options, f"{start}={text}", *more)
        assert code == (0 if is_right else 2), errors
        assert is_right or (f"{start} takes finite values" in errors and repr(text) in errors)
    code, _, errors = nnslicer("lines", *options, "--from=-1", "--to=0")
    assert code == 2 and "--from: the samples are 0 … 79. Received: -1" in errors
    code, _, errors = nnslicer("lines", *options, "--from=" + "9" * 400, "--to=0")
    assert code == 2 and "--from: the samples are 0 … 79" in errors
