"""Weights in half precision."""

import re

import numpy as np
import pytest

from nnslicer_tf._files import load_weights
from reproduction.settings import DATA
from reproduction.weights import halve, keep_weights, save_weights
from reproduction.zoo.models import zoo


def test_weights_in_half_precision(tmp_path):
    model = zoo.build("lenet5")
    path = tmp_path / "half.weights.h5"
    save_weights(model, path)
    size = path.stat().st_size
    halve(path)
    assert path.stat().st_size < 0.6 * size
    read = zoo.build("lenet5")
    load_weights(read, path)
    for own, other in zip(model.get_weights(), read.get_weights(), strict=True):
        assert other.dtype == np.float32
        np.testing.assert_allclose(other, own, rtol=2**-11, atol=2**-25)
        assert (own == 0).all() or (own != other).any()


@pytest.mark.parametrize(("name", "halved"), [("lenet5", False), ("mlp", True)])
def test_large_weights_are_kept_in_half_precision(tmp_path, name, halved):
    model = zoo.build(name)
    path = tmp_path / "kept.weights.h5"
    whole = [weights.copy() for weights in model.get_weights()]
    keep_weights(model, path)
    assert path.stat().st_size < (2.2 if halved else 4.2) * model.count_params() + 50_000
    read = zoo.build(name)
    load_weights(read, path)
    changed = False
    for own, kept, other in zip(model.get_weights(), read.get_weights(), whole, strict=True):
        np.testing.assert_array_equal(own, kept)  # the model has what the file has
        changed |= bool((own != other).any())
    assert changed == halved


def test_the_networks_that_the_page_on_transformers_names_load():
    page = (DATA.parent / "docs" / "transformers.md").read_text()
    names = re.findall(r'zoo\.load\("(\w+)"\)', page)
    assert set(names) == {"text_transformer", "text_lstm", "vit"}
    for name in names:
        assert zoo.load(name).count_params() > 10_000
