"""A trained network of digits, its data, and the behaviours of its units by hand."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo


@pytest.fixture(scope="session")
def digits():
    return datasets.load("digits", "train")


@pytest.fixture(scope="session")
def im():
    return nns.InstrumentedModel(zoo.load("digits_cnn"))


@pytest.fixture(scope="session")
def relu1(im, digits):
    """All activations `(records, 8, 8, 16)` float64."""
    return im.capture(digits.x, of=["relu1"])["relu1"].astype(np.float64)
