"""Fixtures of the tests of reports."""

import matplotlib
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo

matplotlib.use("Agg")


@pytest.fixture(autouse=True)
def _no_figures_left():
    """Close the figures of a test."""
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture(scope="package")
def digits():
    """The digits network, its profile's slices of eight images, and the images."""
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    x = datasets.load("digits", "test").x[:8]
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
    return im, profile, slicer.slice_each(x, outputs="predicted"), x
