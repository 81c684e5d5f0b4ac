"""Labels that are names: their numbers are the model's, or the command says what is missing."""

import re

import keras
import numpy as np
import pandas as pd
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf.errors import InvalidArgumentError, PlausibilityWarning

NAMES = np.array(["mal", "ben"])  # in the model's order


@pytest.fixture(scope="module")
def table(tmp_path_factory):
    """A model whose class is 0 ("mal") where x0 < 0, its profile, and rows labelled by name."""
    folder = tmp_path_factory.mktemp("table")
    model = keras.Sequential(
        [keras.Input((2,)), keras.layers.Dense(2, activation="softmax", name="out")]
    )
    model.layers[0].set_weights([np.array([[-4.0, 4.0], [0.0, 0.1]]), np.zeros(2)])
    model.save(folder / "m.keras")
    x = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
    x[0] = -2, 0.5
    nns.Profile.from_data(model, x, progress=False).save(folder / "p.npz")
    frame = pd.DataFrame(x, columns=["a", "b"])
    frame.assign(label=NAMES[(x[:, 0] > 0).astype(int)]).to_csv(folder / "t.csv", index=False)
    frame.to_csv(folder / "unnamed.csv", index=False)
    return folder


def options(folder, *more):
    return ("--model", folder / "m.keras", "--data", folder / "t.csv", *more)


COMMANDS = {
    "explain": ("--profile", "p.npz", "--output", "e.html"),
    "explore": ("--profile", "p.npz", "--output", "x.html", "s.npz"),
    "inspect": ("--units", "out"),
    "causes": (),
    "semantic": (),
    "prune": (),
}


@pytest.mark.filterwarnings("default:The model seems to use another class order")
@pytest.mark.parametrize("command", COMMANDS)
def test_another_order_is_said(nnslicer, table, command):
    paths = [table / a if "." in a else a for a in COMMANDS[command]]
    if command == "explore":
        sliced = ("--profile", table / "p.npz", "--each", "--output", table / "s.npz")
        assert nnslicer("slice", *options(table), *sliced)[0] == 0
    paths += ["--classes", "0,1"] if command == "prune" else []
    code, _, errors = nnslicer(command, *options(table, *paths))
    option = "--names" if command == "prune" else "--classes"
    assert f"{option} mal,ben" in errors
    assert code == 0 or command in ("semantic", "prune")  # there is nothing to remove
    assert re.search(
        r"[0-4]% of its answers agree with that order, (9\d|100)% with another", errors
    )


def test_the_names_are_those_of_the_models_classes(nnslicer, table):
    given = options(table, "--profile", table / "p.npz", "--output", table / "e.html")
    code, out, errors = nnslicer("explain", *given, "--classes", "mal,ben")
    assert code == 0 and "alphabetical" not in errors
    assert "The model answers mal with" in out
    for target in ("mal", "0"):
        named = ("--classes", "mal,ben", "--target", target)
        assert nnslicer("explain", *given, *named)[1] == out
    # A name of digits is a name, too, as in Python.
    numbered = ("--data", table / "unnamed.csv", "--classes", "1,0", "--target", "1")
    _, turned, _ = nnslicer("explain", "--model", table / "m.keras", *given[4:], *numbered)
    assert "The model answers 1 with" in turned and ", 0 with" not in turned
    code, _, error = nnslicer("explain", *given, "--classes", "mal,ben", "--target", "[0")
    assert code == 2 and "--target must be a class such as" in error
    _, other, _ = nnslicer("explain", *given, "--classes", "mal,ben", "--target", "ben")
    assert re.search(r"The model answers mal with [\d.]+%, ben with 0.0%", other)
    code, _, errors = nnslicer("explain", *given, "--classes", "mal,good")
    assert code == 2 and "the label 'ben', which is not one of the classes mal, good" in errors


@pytest.mark.filterwarnings("default:Class numbers follow")
def test_an_order_that_fits_is_said(nnslicer, table, tmp_path):
    frame = pd.read_csv(table / "t.csv").replace({"mal": "a_mal"})
    frame.to_csv(tmp_path / "t.csv", index=False)
    given = ("--model", table / "m.keras", "--profile", table / "p.npz")
    given += ("--data", tmp_path / "t.csv", "--output", tmp_path / "e.html")
    code, out, errors = nnslicer("explain", *given)
    assert code == 0 and "The model answers a_mal with" in out
    assert "alphabetical order of the labels: 0 = a_mal, 1 = ben" in errors
    assert "--classes ben,a_mal" in errors


def test_in_python(table):
    im = nns.InstrumentedModel(keras.saving.load_model(table / "m.keras"))
    with pytest.warns(UserWarning, match=r"0 = ben, 1 = mal; use classes=\['mal', 'ben'\]"):
        guessed = datasets.load_data(table / "t.csv")
    with pytest.warns(PlausibilityWarning, match="another class order than"):
        _, y = im.labelled(guessed)
    assert np.array_equal(y, guessed.y)
    data = datasets.load_data(table / "t.csv", classes=["mal", "ben"])
    x, y = im.labelled(data)
    assert np.array_equal(y, (x[:, 0] > 0).astype(int))
    assert data.class_names == ("mal", "ben") and data.classes == 2
    with pytest.raises(InvalidArgumentError, match="classes has only 1 name"):
        path = table / "n.csv"
        pd.read_csv(table / "t.csv").assign(label=[0, 1] * 20).to_csv(path, index=False)
        datasets.load_data(path, classes=["mal"])


def test_more_classes(tmp_path):
    """Classes c, a, b of a model, and rows of a model that errs in a fifth of them."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Activation("softmax")])
    im = nns.InstrumentedModel(model)
    rng = np.random.default_rng(1)
    y = rng.integers(3, size=60)
    x = np.eye(3, dtype=np.float32)[np.where(rng.random(60) < 0.2, (y + 1) % 3, y)] * 5
    for names, fits in (("cab", False), ("abc", True), ("bac", False)):
        frame = pd.DataFrame(x, columns=list("xyz")).assign(label=np.array(list(names))[y])
        frame.to_csv(tmp_path / "t.csv", index=False)
        with pytest.warns(UserWarning, match="0 = a, 1 = b, 2 = c"):
            data = datasets.load_data(tmp_path / "t.csv")
        if fits:
            assert np.array_equal(im.labelled(data)[1], y)
        else:
            with pytest.warns(PlausibilityWarning, match="with another"):
                assert np.array_equal(im.labelled(data)[1], data.y)
    frame[frame["label"] != "a"].to_csv(tmp_path / "t.csv", index=False)
    with pytest.warns(UserWarning), pytest.raises(InvalidArgumentError, match="2 different labels"):
        im.labelled(tmp_path / "t.csv")
