"""Rankings of synapses: where effects are known in closed form, and the experiment on digits."""

import re
import tomllib

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from reproduction.decisive.comparison import Kept, compare, methods
from reproduction.decisive.settings import DecisiveSettings
from reproduction.settings import DATA


@pytest.fixture(scope="module")
def linear():
    """A linear classifier: the effect of a synapse on a logit is weight times change."""
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, name="classes")])
    rng = np.random.default_rng(0)
    model.layers[0].set_weights([rng.normal(size=(5, 3)), rng.normal(size=3)])
    x = rng.normal(size=(40, 5)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    return Kept(im, nns.Profile.from_data(im, x, progress=False)), x


def test_kept_synapses_carry_their_change(linear):
    network, x = linear
    kernel, bias = network.im.model.get_weights()
    mask = np.random.default_rng(1).random(kernel.shape) < 0.5
    found = network.logits(x[0], np.flatnonzero(mask))
    expected = (x[0] - x.mean(axis=0)) @ (kernel * mask) + x.mean(axis=0) @ kernel + bias
    np.testing.assert_allclose(found[0], expected, atol=1e-5)


def test_all_synapses_are_the_network_also_on_tokens():
    im = nns.InstrumentedModel(nns.zoo.load("text_transformer"))
    x = np.random.default_rng(0).integers(0, 200, (6, *im.model.input_shape[1:]))
    x[:, 20:] = 0  # padding
    network = Kept(im, nns.Profile.from_data(im, x, progress=False))
    found = [network.logits(one, np.arange(network.units))[0] for one in x]
    np.testing.assert_allclose(found, im.logits(x), atol=1e-4)


@pytest.mark.parametrize("name", ["EAP", "EAP-IG", "amounts, θ = 0", "decisive"])
def test_rankings_of_a_linear_network(linear, name):
    network, x = linear
    kernel = network.im.model.get_weights()[0]
    change = x[0] - x.mean(axis=0)
    scores = next(m for m in methods(network, DecisiveSettings()) if m.name == name).score(
        x[:1], np.array([2])
    )
    of_class = scores.reshape(kernel.shape)[:, 2]
    expected = np.abs(change * kernel[:, 2])
    np.testing.assert_array_equal(np.argsort(of_class), np.argsort(expected))
    if name == "amounts, θ = 0" or name == "EAP-IG":  # of the logit itself
        np.testing.assert_allclose(of_class, expected, atol=1e-5)


def test_the_experiment_on_digits(tmp_path):
    s = DecisiveSettings("digits_cnn", samples=3, profile=50, learned=1, steps=3, work=tmp_path)
    result = compare(s)
    table = result.table("digits_cnn").set_index("method")
    assert table["samples"].drop("masks learned").eq(3).all()
    assert table.filter(like="kept, ").stack().between(0, 1).all()
    shares = result.table("digits_cnn_shares")
    assert (shares["kept, from"] <= shares["kept"]).all() and len(shares) == 9 * len(table)
    certificates = result.table("digits_cnn_certificates")
    assert (certificates["kept"] == 1).all() and certificates["KL"][1] <= 0.2
    assert compare(s).table("digits_cnn").equals(result.table("digits_cnn"))  # resumes


def test_committed_tables_say_what_they_were_measured_on():
    """The notes below tables are those of today, which say what leads were measured on."""
    notes = tomllib.loads((DATA.parent / "apps/reproduction/notes.toml").read_text())
    for path in (DATA / "results" / "decisive").glob("*.md"):
        if path.stem == "README" or path.stem.endswith(("_shares", "-bounds")):
            continue  # the table beside it has the note
        kind = path.stem.partition("-")[0] if "-" in path.stem else "methods"
        kind = "certificates" if path.stem.endswith("_certificates") else kind
        text = path.read_text()
        below = text.rstrip().split("\n\n")[-1]
        parts = []
        if "{data}" in notes[kind]:
            parts += [notes["unseen" if " of test" in text else "trained_on"]]
        parts += [notes["scope"]] if "| scope kept |" in text else []
        parts += re.split(r"\{\w+\}", notes[kind])
        for part in (" ".join(part.split()) for part in parts):
            assert part in below, path.name
