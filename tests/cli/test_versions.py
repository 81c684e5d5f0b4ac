"""`nnslicer diff`: the gate between two versions."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from nnslicer_tf import zoo

DATA = "digits:test"


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Files of a classifier and of one whose class 3 takes over some answers."""
    folder = tmp_path_factory.mktemp("versions")
    model = zoo.load("digits_cnn")
    model.save(folder / "old.keras")
    kernel, bias = model.layers[-1].get_weights()
    bias[3] += 5
    model.layers[-1].set_weights([kernel, bias])
    model.save(folder / "new.keras")
    return folder / "old.keras", folder / "new.keras"


def test_the_upper_bound_decides(nnslicer, pair, tmp_path):
    from scipy.stats import beta

    from nnslicer_tf import datasets

    old, new = pair
    test = datasets.load("digits", "test")
    model = zoo.load("digits_cnn")
    logits = model.predict(test.x, verbose=0)
    before, after = logits.argmax(1), (logits + 5 * np.eye(10)[3]).argmax(1)
    worse = int(((before == test.y) & (after != test.y)).sum())
    bound = beta.ppf(0.95, worse + 1, len(test.x) - worse)

    page, junit = tmp_path / "page.html", tmp_path / "report.xml"
    files = ("--page", page, "--junit", junit)
    options = ("--data", DATA, "--flips", 1, "--level", "layer", *files)
    safe = np.ceil(1e4 * bound) / 1e4  # a bound is not rounded down
    code, out, _ = nnslicer("diff", old, new, *options, "--max-negative-flips", f"{safe:.2%}")
    assert code == 0 and f"Negative flips: {worse} of {len(test.x)}, at most {safe:.2%}" in out
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
    close = "--max-negative-flips", f"{100 * bound + 1e-6}%"
    code, out, _ = nnslicer("diff", old, new, "--data", DATA, "--flips", 0, *close)
    assert code == 0
    shown, limit = map(float, re.search("at most (.*)%; the limit is (.*)%: passed", out).groups())
    assert 100 * bound <= shown <= limit == pytest.approx(100 * bound + 1e-6, abs=1e-9)
    code, out, _ = nnslicer("diff", old, new, *options, "--max-negative-flips", f"{bound - 1e-4}")
    assert code == 1 and out.strip().endswith("failed.")
    (failure,) = ElementTree.parse(junit).getroot().iter("failure")
    assert f"{worse} of {len(test.x)}" in failure.get("message")
    text = page.read_text(encoding="utf-8")
    assert "old.keras → new.keras" in text and "data:image/" in text and "became 3" in text


def test_limits_are_shares(nnslicer, pair):
    for wrong in ("2", "-1%", "few"):
        code, _, err = nnslicer("diff", *pair, "--data", DATA, f"--max-negative-flips={wrong}")
        assert code == 2 and "--max-negative-flips is a share such as '1%' or '0.01'" in err


def test_a_wrong_number_of_names_is_refused_before_the_comparison(nnslicer, pair):
    code, out, err = nnslicer("diff", *pair, "--data", DATA, "--classes", "a,b", "--flips", 1)
    assert code == 2 and not out and "The model has 10 classes; received 2 names" in err


def test_the_gate_for_numbers(nnslicer, tmp_path):
    from support.outputs import noisy, regression

    old, x = regression(), np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    old.save(tmp_path / "old.keras")
    noisy(old, 0.1).save(tmp_path / "new.keras")
    y = old.predict(x, verbose=0)
    apart = np.abs(noisy(old, 0.1).predict(x, verbose=0) - y)[:, 0]
    np.savez(tmp_path / "data.npz", x=x, y=y)
    files = (tmp_path / "old.keras", tmp_path / "new.keras", "--data", tmp_path / "data.npz")
    task = ("--task", "regression", "diff", *files, "--max-negative-flips", "70%")
    code, out, _ = nnslicer(*task, "--tolerance", np.median(apart))
    assert code == 0 and "Negative flips: 30 of 60" in out
    assert float(re.search(r"RMSE (\S+) →", out).group(1)) < 1e-6  # 0 up to rounding
    code, out, _ = nnslicer(*task, "--tolerance", apart.min() / 2)
    assert code == 1 and "Negative flips: 60 of 60" in out
    code, _, err = nnslicer(*task)
    assert code == 2 and "--tolerance" in err


def test_versions_of_two_architectures(nnslicer, pair, tmp_path):
    """Flips are not explained by weights; the verdict and its files are there."""
    import keras

    junit, wider = tmp_path / "report.xml", tmp_path / "wider.keras"
    keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(10, name="other")]
    ).save(wider)
    options = ("--data", DATA, "--max-negative-flips", "99%", "--junit", junit)
    code, out, err = nnslicer("diff", pair[0], wider, *options)
    assert code == 0, err
    assert "no weights explain the flips" in out and "passed" in out
    assert ElementTree.parse(junit).getroot().get("failures") == "0"
