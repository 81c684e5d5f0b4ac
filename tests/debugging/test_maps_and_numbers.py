"""Causes in segmentations, regressions, autoencoders and two outputs, against NumPy."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.debugging import Runs, mend, suspicious
from nnslicer_tf.errors import InvalidArgumentError
from support.outputs import autoencoder, images, noisy, regression, two_outputs, u_net

ROWS = np.random.default_rng(0).normal(size=(120, 6)).astype(np.float32)


def halves(runs):
    return (runs.failing.x, runs.failing.right), (runs.passing.x, runs.passing.right)


def negated(model: keras.Model, layer: str, unit: int) -> keras.Model:
    """Return a copy with one unit's weights negated."""
    copy = noisy(model, 0)
    kernel, bias = copy.get_layer(layer).get_weights()
    kernel[..., unit] *= -1
    copy.get_layer(layer).set_weights([kernel, bias - 2 * bias[unit] * np.eye(len(bias))[unit]])
    copy.compile("adam", "mse")
    return copy


@pytest.mark.parametrize("units", [3, 1])
def test_a_map_fails_by_its_share_of_wrong_positions(units):
    model = u_net(units, "softmax" if units > 1 else "sigmoid")
    im, x = nns.InstrumentedModel(model), images()
    values = model.predict(x, verbose=0)
    own = values.argmax(-1) if units > 1 else (values[..., 0] > 0.5).astype(int)
    truth = own * (np.random.default_rng(1).uniform(size=own.shape) < 0.9)
    wrong = (own != truth).mean(axis=(1, 2))
    runs = Runs.split(im, x, truth)
    np.testing.assert_array_equal(runs.failing.x, x[wrong > np.median(wrong)])
    np.testing.assert_array_equal(runs.failing.predicted, own[wrong > np.median(wrong)])
    assert len(Runs.split(im, x, truth, tolerance=0.1).failing) == (wrong > 0.1).sum()

    # The last layer is linear: its inputs' gradients are the differences of its weights.
    found = suspicious(im, *halves(runs), progress=False)
    kernel = np.asarray(model.get_layer("map").kernel)[0, 0]
    kernel = kernel if units > 1 else np.concatenate([-kernel, kernel], axis=1) / 2
    rows, right = own[wrong > np.median(wrong)], truth[wrong > np.median(wrong)]
    towards = kernel.T[rows] - kernel.T[right]  # 0 where the answer is right
    expected = np.abs((towards * im.capture(runs.failing.x, of=["last"])["last"]).mean(axis=0))
    np.testing.assert_allclose(found.neurons["last"], expected, rtol=1e-3, atol=1e-5)

    # Samples may be divided in another way, but not the other way round.
    least = np.argsort(-wrong)[:20], np.argsort(-wrong)[15:]
    parts = [(x[part], truth[part]) for part in least]
    assert len(Runs.of(im, *parts).failing) == 20
    with pytest.raises(InvalidArgumentError, match="Use Runs"):
        suspicious(im, *parts[::-1], progress=False)


@pytest.mark.parametrize("values", [1, 2])
def test_numbers_fail_by_their_distance(values):
    model = regression(values=values)
    im, own = nns.InstrumentedModel(model), model.predict(ROWS, verbose=0).astype(float)
    truth = own + np.random.default_rng(1).normal(0, 0.2, own.shape)
    distance = np.sqrt(np.square(own - truth).mean(axis=1))
    runs = Runs.split(im, ROWS, truth, tolerance=0.15)
    np.testing.assert_array_equal(runs.failing.x, ROWS[distance > 0.15])
    found = suspicious(im, *halves(runs), progress=False)
    slopes = ((own - truth) / (values * distance[:, None]))[distance > 0.15]
    hidden = im.capture(runs.failing.x, of=["thin"])["thin"]
    kernel = np.asarray(model.get_layer("value").kernel)
    expected = np.abs((slopes @ kernel.T * hidden).mean(axis=0))
    np.testing.assert_allclose(found.neurons["thin"], expected, rtol=1e-3, atol=1e-5)
    with pytest.raises(InvalidArgumentError, match="120 samples with errors up to 9: pass"):
        Runs.split(im, ROWS, truth, tolerance=9)
    far = own + np.repeat([0.0, 5.0], [40, 80])[:, None]  # the median is the largest distance
    with pytest.raises(InvalidArgumentError, match="120 samples with errors up to 5: pass"):
        Runs.split(im, ROWS, far)


def test_adjustments_of_a_map_of_sigmoids_by_hand():
    """The fall of the cross-entropy by the best adjustment of each channel of the last layer."""
    sound, x = u_net(1, "sigmoid"), images(40)
    y = (sound.predict(x, verbose=0)[..., 0] > 0.5).astype(int)
    im = nns.InstrumentedModel(negated(sound, "last", 5), task="binary")
    runs = Runs.split(im, x, y)
    found = suspicious(im, *halves(runs), "adjustment", progress=False).to_frame(most=None)

    parts = runs.failing, runs.passing
    both, right = (np.concatenate([getattr(p, n) for p in parts]) for n in ("x", "right"))
    weights = np.repeat([0.5 / len(part) for part in parts], [len(part) for part in parts])
    sums = im.capture(both, of=["last:pre"])["last:pre"].astype(np.float64)
    kernel, bias = (np.asarray(w, np.float64) for w in im.model.get_layer("map").get_weights())

    def loss(values):
        logits = np.maximum(values, 0) @ kernel[0, 0, :, 0] + bias[0]
        return weights @ np.logaddexp(0, np.where(right == 1, -logits, logits)).mean(axis=(1, 2))

    flat, falls = sums.reshape(-1, sums.shape[-1]), []
    shifts = {a: (0, 1, -1, 3, -3) for a in (0, -1, -0.4, 0.4, 2)} | {0.98: (1, -1, 3, -3, 9, -9)}
    for channel in range(sums.shape[-1]):
        mean, spread = sums[..., channel].mean(axis=0), flat[:, channel].std()
        spread = max(spread, np.median(flat.std(axis=0)))
        best = -np.inf
        for a, b in [(a, b) for a, of_a in shifts.items() for b in of_a]:
            values = sums.copy()
            values[..., channel] = mean + a * (values[..., channel] - mean) + b * spread
            best = max(best, loss(sums) - loss(values))
        falls.append(best)
    mine = found[found["operation"] == "last:pre"].set_index("channel")["score"].sort_index()
    exact = mine[mine > 0.5]  # of the finalists
    assert 5 in exact.index and len(exact) >= 3
    np.testing.assert_allclose(exact - 0.5, np.maximum(falls, 0)[exact.index], rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("kind", ["numbers", "image", "map"])
def test_a_negated_unit_is_found_and_mended(kind):
    sound, layer, x = {
        "numbers": (regression(), "wide", ROWS),
        "image": (autoencoder(), "code", images(40)),
        "map": (u_net(1, "sigmoid"), "last", images(40)),
    }[kind]
    y = sound.predict(x, verbose=0)
    y = (y[..., 0] > 0.5).astype(int) if kind == "map" else y
    im = nns.InstrumentedModel(
        negated(sound, layer, 5), task="binary" if kind == "map" else "regression"
    )
    found = suspicious(im, *halves(Runs.split(im, x, y)), "adjustment", progress=False)
    # Another channel of the map lowers the cross-entropy more: see the falls by hand above.
    place = 1 if kind == "map" else 0
    row = found.to_frame().iloc[place]
    assert (row["operation"].partition(":")[0], row["channel"]) == (layer, 5)
    options = {"epochs": 40, "learning_rate": 0.01, "channels": place + 1}
    mended = mend(im, found, x, y, "train", **options)
    for name, before, after in zip(
        (w.path for w in im.model.weights),
        im.model.get_weights(),
        mended.get_weights(),
        strict=True,
    ):
        assert np.array_equal(before, after) == (f"{layer}/kernel" not in name)
    worse, better = (
        im.classes.distances(
            im.classes.answers(m.predict(x, verbose=0)), im.classes.truth(y, len(x))
        )
        for m in (im.model, mended)
    )
    assert better.mean() < worse.mean() / 2


def test_outputs_by_name():
    sound = two_outputs()
    y = sound.predict(ROWS, verbose=0)["size"]
    model = negated(sound, "of_size", 2)
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    im = nns.InstrumentedModel(model)
    found = suspicious(
        im,
        *halves(Runs.split(im, ROWS, y, output="size")),
        "adjustment",
        output="size",
        progress=False,
    )
    assert found.to_frame().iloc[0][["operation", "channel"]].tolist() == ["of_size:pre", 2]
    assert not any("kind" in name for name in found.neurons)
    before, after = (
        m.predict(ROWS, verbose=0)
        for m in (model, mend(im, found, ROWS, y, output="size", learning_rate=0.01))
    )
    np.testing.assert_array_equal(before["kind"], after["kind"])
    assert np.square(after["size"] - y).mean() < np.square(before["size"] - y).mean() / 4
    with pytest.raises(InvalidArgumentError, match="output='kind'"):
        Runs.split(im, ROWS, y)
