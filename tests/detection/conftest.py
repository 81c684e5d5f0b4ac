"""Detectors on a real model, and what FGSM makes of test images."""

import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import (
    SliceDetector,
)
from nnslicer_tf.detection.attacks import MNIST_ATTACKS, generate


@pytest.fixture(scope="module")
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="module")
def slicer(normal):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, normal, progress=False)
    return nns.Slicer(im, profile, theta=0.0, progress=False)


@pytest.fixture(scope="module")
def fgsm(slicer):
    """Test images that FGSM turned, and what it made of them."""
    data = datasets.load("digits", "test")
    spec = MNIST_ATTACKS["FGSM_4"]
    made = generate(slicer.im.model, spec, data.x, data.y, progress=False)
    return data.x[made.success], made.x[made.success]


@pytest.fixture(scope="module")
def fitted(slicer, normal):
    """A fitted detector for each preset, made when it is first asked for."""
    made = {}

    def get(preset: str) -> SliceDetector:
        if preset not in made:
            made[preset] = SliceDetector(slicer, preset, max_synapses=512).fit(normal)
        return made[preset]

    return get
