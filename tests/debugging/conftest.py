"""A small classifier that gets some samples wrong, and the digits' network."""

import pytest

from nnslicer_tf import datasets, zoo
from support.binary import binary  # noqa: F401
from support.failing import data, im, pairs, runs, samples  # noqa: F401


@pytest.fixture(scope="module")
def digits_model():
    return zoo.load("digits_cnn")


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", "test")
