"""The baselines of fault localisation, against their definitions, sample by sample."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.debugging import METHODS, suspicious
from reproduction.debugging.baselines import BASELINES, register


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, method in BASELINES.items():
        monkeypatch.setitem(METHODS, name, method)


def formulas(failed, passed, all_failed, all_passed):
    """The three formulas, one number at a time, from their definitions."""
    share, other = failed / all_failed, passed / all_passed
    return {
        "tarantula": share / (share + other) if share + other else 0.0,
        "ochiai": failed / np.sqrt(all_failed * (failed + passed)) if failed + passed else 0.0,
        "dstar": failed**3 / (passed + all_failed - failed)
        if passed + all_failed > failed
        else None,
    }


def expected_by(name, failed, passed, sizes):
    return np.vectorize(lambda f, p: formulas(f, p, *sizes)[name], otypes=[object])(failed, passed)


def check(found, expected):
    """Equal where the formula is finite; where it is not, above all that are."""
    finite = expected != None  # noqa: E711  # element by element
    np.testing.assert_allclose(found[finite], expected[finite].astype(float), rtol=1e-12)
    if not finite.all():
        assert found[~finite].min() > found[finite].max(initial=0.0)


@pytest.mark.parametrize("name", ["tarantula", "ochiai", "dstar"])
def test_spectra_of_slices_and_of_activations(im, pairs, runs, name):
    profile = nns.Profile.from_data(im, runs.passing.x, progress=False)
    slicer = nns.Slicer(im, profile, 0.3, workers=0, progress=False)
    sizes = len(runs.failing), len(runs.passing)
    slices = [[slicer.slice(x[None]) for x in part.x] for part in (runs.failing, runs.passing)]
    found = suspicious(im, *pairs, name, progress=False)
    for kind, arrays in (("neurons", found.neurons), ("synapses", found.synapses)):
        for operation, scores in arrays.items():
            counts = [
                sum((getattr(one, kind)[operation] != 0).astype(int) for one in part)
                for part in slices
            ]
            check(scores, expected_by(name, *counts, sizes))
    found = suspicious(im, *pairs, f"deepfault_{name}", progress=False)
    for operation in ("first", "out", "hidden:pre"):
        counts = [(im.capture(x)[operation] > 0).sum(axis=0) for x, _ in pairs]
        check(found.neurons[operation], expected_by(name, *counts, sizes))
    channels = found.neurons["inner"].mean(axis=(0, 1))
    np.testing.assert_allclose(found.channels["inner"], channels)
    np.testing.assert_allclose(found.synapses["inner"], np.broadcast_to(channels, (3, 3, 4, 4)))


def test_chance_is_drawn_from_its_seed(im, pairs):
    scores = []
    for seed in (1, 2, 1):
        register(seed)
        scores.append(suspicious(im, *pairs, "random", progress=False).neurons["inner"])
    assert np.array_equal(scores[0], scores[2]) and not np.array_equal(scores[0], scores[1])
    first = im.operations[0]
    np.testing.assert_array_equal(
        METHODS["random"](im, None, None).neurons[first.name],
        np.random.default_rng(1).random(first.shape),
    )
