"""Commands that read two tables, or tables whose right answers are numbers."""

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns

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
