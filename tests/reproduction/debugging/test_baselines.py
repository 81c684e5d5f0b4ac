"""The baselines of fault localisation, against their definitions, sample by sample."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.debugging import METHODS, Runs, suspicious
from nnslicer_tf.debugging.evidence import channel_scores
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.debugging.baselines import BASELINES, register, wrong_minus_right
from support.binary import twin_of


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, method in BASELINES.items():
        monkeypatch.setitem(METHODS, name, method)


@pytest.mark.parametrize("contribution", ["count", "amount"])
def test_contrast(im, pairs, runs, contribution):
    profile = nns.Profile.from_data(im, runs.passing.x, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, contribution=contribution, progress=False)
    assert slicer.theta == (0.3 if contribution == "count" else 0)
    name = "contrast" if contribution == "count" else "contrast:amount"
    found = suspicious(im, *pairs, name, progress=False)
    expected, slices = 0, []
    for label in range(3):
        means = []
        for part in (runs.failing, runs.passing):
            own = [slicer.slice(x[None], [label]) for x in part.x[part.right == label]]
            slices += own
            means.append(np.mean([one.synapses["inner"] for one in own], axis=0))
        weight = (runs.failing.right == label).mean()
        expected = expected + weight * np.abs(means[0] - means[1])
    # Amounts are of float32: from the logit back they are sums of 8 units, of 9 positions' 4
    # values, of 36 positions, and with the forward pass of 18 and 36 values and 36 more.
    largest = max(np.abs(one.synapses["inner"]).max() for one in slices)
    rounding = 1e-9 if contribution == "count" else (8 + 36 + 36 + 18 + 36 + 36) * 2**-24 * largest
    np.testing.assert_allclose(found.synapses["inner"], expected, atol=rounding)


@pytest.mark.parametrize("contribution", ["count", "amount"])
def test_wrong_minus_right(im, runs, contribution):
    profile = nns.Profile.from_data(im, runs.passing.x, progress=False)
    options = {"theta": 0.0, "contribution": contribution, "progress": False}
    slicer = nns.Slicer(im, profile, **options)
    found = wrong_minus_right(im, runs, **options)
    totals = {"neurons": 0, "synapses": 0}
    for x, right, wrong in zip(*vars(runs.failing).values(), strict=True):
        change = im.logits(x[None])[0] - profile.means["logits"]
        for label, sign in ((wrong, 1), (right, -1)):
            one = slicer.slice(x[None], [int(label)])
            for kind in totals:
                own = getattr(one, kind)["first" if kind == "synapses" else "out"]
                rose = np.sign(change[label]) if contribution == "count" else 1
                totals[kind] = totals[kind] + sign * rose * own
    count = len(runs.failing)
    for own, total in (
        (found.neurons["out"], totals["neurons"]),
        (found.synapses["first"], totals["synapses"]),
    ):
        rounding = 1e-9 if contribution == "count" else 1e-6  # amounts are of float32
        np.testing.assert_allclose(own, total / count, atol=rounding)


def test_the_gradient_is_weighted_by_the_deviation_from_the_class(im, pairs, runs):
    """Behind the last hidden units all is affine: wrong minus right weights by the deviation."""
    found = suspicious(im, *pairs, "gradient_contrast", progress=False)
    weights = keras.ops.convert_to_numpy(im.model.get_layer("logits").kernel)
    means = {
        label: im.capture(runs.passing.x[runs.passing.right == label])["hidden"].mean(axis=0)
        for label in np.unique(runs.passing.right)
    }
    values = im.capture(runs.failing.x, of=["hidden"])["hidden"]
    slopes = (weights[:, runs.failing.predicted] - weights[:, runs.failing.right]).T
    deviations = values - np.array([means[label] for label in runs.failing.right])
    expected = np.abs((slopes * deviations).mean(axis=0))
    np.testing.assert_allclose(found.neurons["hidden"], expected, rtol=1e-4, atol=1e-6)


def test_the_synapses_of_a_unit_add_up_to_the_unit(im, runs):
    """By the chain rule: Σ w·Δx·∂/∂y = Δy·∂/∂y, for contrasts, whose biases cancel."""
    found = METHODS["gradient_contrast"](im, runs)
    for operation, kernel in (("hidden:pre", "hidden"), ("inner", "inner")):
        np.testing.assert_allclose(
            channel_scores(found.synapses[kernel], add_up=True),
            channel_scores(found.neurons[operation], add_up=True),
            rtol=1e-3,
            atol=1e-5,
        )


def test_patching_replaces_one_channel(im, pairs, runs):
    found = suspicious(im, *pairs, "patching", progress=False)
    dense = im.model.get_layer("logits")
    weights, bias = (keras.ops.convert_to_numpy(w) for w in dense.weights)
    hidden = im.capture(runs.failing.x, of=["hidden:pre"])["hidden:pre"]
    gains = []
    for unit in range(8):
        patched = hidden.copy()
        for i, right in enumerate(runs.failing.right):
            passing = runs.passing.x[runs.passing.right == right]
            patched[i, unit] = im.capture(passing)["hidden:pre"].mean(axis=0)[unit]
        leads = []
        for values in (hidden, patched):
            logits = np.maximum(values, 0) @ weights + bias
            rows = np.arange(len(logits))
            own = logits[rows, runs.failing.right].copy()
            logits[rows, runs.failing.right] = -np.inf
            leads.append(own - logits.max(axis=1))
        gains.append((leads[1] - leads[0]).mean())
    np.testing.assert_allclose(found.channels["hidden:pre"], np.abs(gains), rtol=1e-3, atol=1e-5)


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


def test_classes_that_cannot_be_compared(im, runs):
    failing, passing = runs.failing, runs.passing
    one = failing.right == failing.right[0]
    other = passing.right != failing.right[0]
    for method in ("contrast", "gradient_contrast", "patching"):
        with pytest.raises(InvalidArgumentError, match="one by one"):
            suspicious(
                im,
                (failing.x[one], failing.right[one]),
                (passing.x[other], passing.right[other]),
                method,
                progress=False,
            )


@pytest.mark.parametrize("method", [name for name in BASELINES if name != "random"])
def test_suspicion_of_one_sigmoid_is_that_of_two_classes(binary, method):
    model, x, y = binary
    runs = Runs.split(nns.InstrumentedModel(model), x, y)
    one, two = (
        METHODS[method](nns.InstrumentedModel(m), runs, False) for m in (model, twin_of(model))
    )
    unit = 2 if method.endswith(":amount") else 1  # amounts are those of z; the twin's score is z/2
    for mine, twins in ((one.neurons, two.neurons), (one.synapses, two.synapses)):
        names = [name for name in mine if not name.startswith("out")]
        assert names
        for name in names:
            np.testing.assert_allclose(mine[name], unit * twins[name], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("method", list(BASELINES))
def test_every_baseline_scores_everything(im, pairs, method):
    found = suspicious(im, *pairs, method, progress=False)
    assert {name: v.shape for name, v in found.synapses.items()} == {
        name: kernel.shape for name, kernel in im.kernels.items()
    }
    assert all(im[name].shape == values.shape for name, values in found.neurons.items())
    assert all(np.isfinite(v).all() for v in (*found.neurons.values(), *found.synapses.values()))
