"""The parts of evidence: views, statistics, slices, spectra."""

import numpy as np
import pytest
from scipy import ndimage, signal

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf.detection import (
    Evidence,
    SliceDetector,
)
from nnslicer_tf.detection.images import VIEWS, residual_shares, spectrum, views
from nnslicer_tf.errors import InvalidArgumentError


def test_views_against_indexing():
    x = np.arange(2 * 3 * 4 * 1, dtype=np.float32).reshape(2, 3, 4, 1)
    shifted = list(views(x, "shift"))
    inner = {tuple(np.argwhere(v[0, :, :, 0] == x[0, 1, 1, 0])[0] - 1) for v in shifted}
    assert inner == {(0, 1), (1, 0), (-1, -1), (-1, 1)}
    assert all(v.shape == x.shape for v in shifted)
    down = next(v for v in shifted if v[0, 2, 1, 0] == x[0, 1, 1, 0])
    np.testing.assert_array_equal(down[:, 0], x[:, 0])
    mirrored = views(x, "mirror")
    for view, expected in zip(mirrored, views(x[:, :, ::-1], "shift"), strict=True):
        np.testing.assert_array_equal(view, expected)


def test_zoomed_views_against_scipy():
    x = np.random.default_rng(0).random((2, 7, 9, 3)).astype(np.float32)
    for view, factor in zip(views(x, "zoom"), (1.12, 0.9), strict=True):
        rows, columns = ((np.arange(n) - (n - 1) / 2) / factor + (n - 1) / 2 for n in (7, 9))
        places = np.meshgrid(rows, columns, indexing="ij")
        for sample in range(2):
            for channel in range(3):
                expected = ndimage.map_coordinates(
                    x[sample, :, :, channel], places, order=1, mode="nearest"
                )
                np.testing.assert_allclose(view[sample, :, :, channel], expected, atol=1e-5)
        assert view.dtype == np.float32


def test_channel_statistics_against_loops(slicer, normal):
    im, x = slicer.im, normal[:3]
    values = im.capture(x, of=["conv1"])["conv1"]
    found = Evidence(im, x).channel_statistics("conv1")
    channels = values.shape[-1]
    assert found.shape == (3, 4 * channels)
    for sample in range(3):
        for channel in range(channels):
            seen = values[sample, :, :, channel].astype(np.float64)
            expected = [seen.mean(), np.log(seen.std() + 1e-3), seen.max(), seen.min()]
            np.testing.assert_allclose(found[sample, channel::channels], expected, atol=1e-5)


def test_margins_of_views_against_the_models_logits(slicer, normal):
    im, x = slicer.im, normal[:20]
    evidence, rows = Evidence(im, x), np.arange(20)
    predicted = im.logits(x).argmax(axis=1)
    margins = []
    for seen in views(x, "shift"):
        others = im.logits(seen)
        own = others[rows, predicted].copy()
        others[rows, predicted] = -np.inf
        margins.append(others.max(axis=1) - own)
    np.testing.assert_allclose(evidence.view_margins("shift"), np.mean(margins, axis=0), rtol=1e-5)
    some = evidence.rows(np.array([3, 11]))
    np.testing.assert_allclose(some.logits, im.logits(x[[3, 11]]), rtol=1e-5)
    all_rows = evidence.view_margins("shift")
    np.testing.assert_allclose(some.view_margins("shift"), all_rows[[3, 11]], rtol=1e-5)


def test_slices_of_evidence_are_the_slicers(slicer, normal):
    evidence = Evidence(slicer.im, normal[:4], slicer)
    columns = np.array([0, 7, 30])
    rows = slicer.slice_each(normal[:4], kernels=["conv2"], operations=()).matrix
    found = evidence.slices(["conv2"], columns)
    assert np.array_equal(found, rows[:, columns].toarray())
    local = nns.Criterion({"conv2": "all"}, until="conv2")
    rows = slicer.slice_each(normal[:4], local, kernels=["conv2"], operations=()).matrix
    assert np.array_equal(
        evidence.slices(["conv2"], columns, local=True), rows[:, columns].toarray()
    )
    with pytest.raises(InvalidArgumentError, match="need a slicer"):
        Evidence(slicer.im, normal[:4]).slices(["conv2"], columns)
    # Of two kernels: each layer's own local slice, one beside the other.
    first = slicer.im.kernels["conv1"].size
    both = evidence.slices(["conv1", "conv2"], np.r_[2, 5, first + columns], local=True)
    assert np.array_equal(both[:, 2:], rows[:, columns].toarray())
    assert np.array_equal(both[:, :2], evidence.slices(["conv1"], np.array([2, 5]), local=True))
    columns_of_both = np.r_[2, 5, first + columns]
    seen = evidence.slices(["conv1", "conv2"], columns_of_both, view="zoom")
    zoomed = [
        Evidence(slicer.im, x, slicer).slices(["conv2"], columns, local=True)
        for x in views(normal[:4], "zoom")
    ]
    np.testing.assert_allclose(seen[:, 2:], np.mean(zoomed, axis=0))
    with pytest.raises(InvalidArgumentError, match=r"Unknown view 'shfit'. Did you mean 'shift'"):
        evidence.view_margins("shfit")


def test_what_scorers_share_is_computed_once(slicer, normal, monkeypatch):
    asked = {"logits": [], "iterate": []}

    def counted(owner, name):
        plain = getattr(owner, name)

        def count(self, x, *args, **kwargs):
            asked[name].append(len(x))
            return plain(self, x, *args, **kwargs)

        monkeypatch.setattr(owner, name, count)

    counted(nns.InstrumentedModel, "logits")
    counted(nns.Slicer, "iterate")
    count = sum(len(list(views(normal[:1], kind))) for kind in VIEWS)
    detector = SliceDetector(slicer, "stable", max_synapses=64).fit(normal[:400])
    # Of 400 inputs 225 are learned from, 75 are the p-values' reference, 100 are held out.
    # Views are not learned from; slices: for the prediction, and the two layers' own.
    assert asked["logits"] == [400] + count * [75] + count * [100]
    assert asked["iterate"] == 3 * [225] + 3 * [75] + 3 * [100]
    for calls in asked.values():
        calls.clear()
    detector.predict(normal[:50])
    assert asked == {"logits": [50] * (1 + count), "iterate": [50] * 3}


def test_powers_of_rings_against_a_direct_fourier_sum():
    x = np.random.default_rng(0).random((2, 6, 9, 3))
    height, width = 6, 9
    window = np.sin(np.pi * np.arange(1, 7) / 7)[:, None] ** 2
    window = window * np.sin(np.pi * np.arange(1, 10) / 10) ** 2
    rings = [[] for _ in range(13)]
    for u in range(height):
        for v in range(width // 2 + 1):
            plane = (x.mean(axis=3) - x.mean(axis=(1, 2, 3))[:, None, None]) * window
            wave = np.exp(
                -2j * np.pi * (u * np.arange(6)[:, None] / height + v * np.arange(9) / width)
            )
            frequency = np.hypot(min(u, height - u) / height, v / width)
            power = np.abs((plane * wave).sum(axis=(1, 2))) ** 2
            rings[min(int(frequency * 24), 12)].append(power)
    expected = [np.log(1e-6 + np.mean(ring, axis=0)) for ring in rings if ring]
    found = spectrum(x, "rings")
    assert found.shape == (2, 3 * len(expected))
    np.testing.assert_allclose(found[:, ::3], np.transpose(expected), rtol=1e-6)


def test_amplitudes_of_blocks_against_a_direct_cosine_sum():
    x = np.random.default_rng(0).random((2, 16, 16, 1))
    k, n = np.arange(16)[:, None], np.arange(16)
    cosines = np.cos(np.pi * (2 * n + 1) * k / 32) * np.sqrt(2 / 16)
    cosines[0] /= np.sqrt(2)
    logs = np.log(1e-4 + np.abs(cosines @ x[:, :, :, 0] @ cosines.T))
    expected = [logs[:, i : i + 2, j : j + 2].mean((1, 2)) for i in range(0, 16, 2) for j in n[::2]]
    np.testing.assert_allclose(spectrum(x, "blocks"), np.transpose(expected), rtol=1e-6)
    assert spectrum(x[:, :5, :7], "blocks").shape == (2, 5 * 7)  # fewer frequencies than blocks


def test_shares_of_small_residuals_against_convolution():
    x = np.random.default_rng(0).random((2, 6, 7, 3)).astype(np.float32) / 20
    planes = [x[..., 0], x[..., 1], x[..., 2], x[..., 1] - x[..., 0], x[..., 2] - x[..., 1]]
    planes.append(x[..., 2] - 2 * x[..., 1] + x[..., 0])
    second, first = np.array([[1, -2, 1]]), np.array([[1, -1]])
    kernels = [second.T, second, first.T @ first, second.T @ second / 2]
    expected = []
    for kernel in kernels:
        for size in (1, 2, 4, 8, 16):
            for plane in planes:
                r = np.stack([signal.convolve2d(image, kernel, "valid") for image in plane]) * 255
                expected.append(np.log(1e-3 + np.exp(-((r / size) ** 2) / 2).mean(axis=(1, 2))))
    np.testing.assert_allclose(residual_shares(x), np.transpose(expected), rtol=1e-4, atol=1e-4)
    assert residual_shares(x[..., :1]).shape == (2, 4 * 5)  # grey: no differences of channels


def test_noise_and_blur_move_the_power_of_high_frequencies():
    x = datasets.load("digits", "train[:50]").x
    noise = np.random.default_rng(0).choice([-0.05, 0.05], x.shape)
    plain, noisy = (spectrum(image, "rings")[:, -1] for image in (x, x + noise))
    blurred = spectrum(ndimage.gaussian_filter(x, (0, 1, 1, 0)), "rings")[:, -1]
    assert np.median(noisy) > np.median(plain) > np.median(blurred)
