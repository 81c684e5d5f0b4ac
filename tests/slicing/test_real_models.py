"""Invariants of slices on real pretrained models and real images."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf.slicing import slicer as slicer_module


@pytest.fixture(scope="module", params=["lenet1", "resnet20"])
def real(request, shared_data):
    """(instrumented model, profile, images) of a published model."""
    if request.param == "lenet1":
        path, images = "lenet1.h5", datasets.load("mnist", "test[:64]").x
    else:
        path = "resnet.h5"
        images = datasets.load("cifar10", "test[:64]", normalise="none").x
        images = ((images - [125.31, 122.95, 113.87]) / [62.99, 62.09, 66.70]).astype(np.float32)
    model = keras.models.load_model(shared_data / "models" / "diffchaser" / path, compile=False)
    im = nns.InstrumentedModel(model)
    return im, nns.Profile.from_data(im, images, progress=False), images[:8]


def test_capture_equals_the_model(real):
    im, _, x = real
    np.testing.assert_allclose(im.predict(x), im.model.predict(x, verbose=0), atol=1e-5)


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_independence_of_batch_size_and_order(real, theta, granularity, monkeypatch):
    im, profile, x = real
    slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)
    whole = slicer.slice(x)
    assert whole.to_vector().any()
    for size in (1, 3):
        monkeypatch.setattr(slicer_module, "LARGEST_BATCH", size)
        assert slicer.slice(x[::-1]) == whole


@pytest.mark.whole  # starts a cluster
def test_independence_of_workers(real, monkeypatch):
    im, profile, x = real
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 2)
    here = nns.Slicer(im, profile, workers=0, progress=False).slice(x)
    assert nns.Slicer(im, profile, workers=2, progress=False).slice(x) == here


def test_a_union_of_samples_is_the_sum(real):
    im, profile, x = real
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    assert slicer.slice(x) == slicer.slice(x[:3]) + slicer.slice(x[3:])


def test_local_values_sum_to_the_change(real):
    """Σ w_i·Δx_i = Δy for every weighted sum."""
    im, profile, x = real
    values = im.capture(x)
    for operation in im.operations:
        if operation.kind == "weighted_sum":
            source, kernel = operation.inputs[0], operation.params
            dx = values[source] - profile.means[source]
            linear = kernel.apply(
                *map(keras.ops.convert_to_tensor, (dx, kernel.kernel().astype(np.float64)))
            )
            dy = values[operation.name] - profile.means[operation.name]
            scale = np.abs(dy).max()
            np.testing.assert_allclose(np.asarray(linear), dy, atol=1e-4 * scale)


def test_local_slices_shrink_with_theta(real):
    im, profile, x = real
    name = next(o.layer for o in im.operations if o.kind == "weighted_sum")
    operation = next(o.name for o in im.operations if o.layer == name)
    local = nns.Criterion({operation: "all"}, until=name)
    kept = [
        abs(
            nns.Slicer(im, profile, theta, workers=0, progress=False)
            .slice_each(x[:2], local, operations=())
            .matrix
        ).sum()
        for theta in (0.1, 0.4, 1.6)
    ]
    assert kept[0] > kept[1] > kept[2]
