"""All of it on the papers' large models, with a few samples: nothing but that it runs."""

import os

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, semantic, zoo

LARGE = ("mobilenet_v3_small", "mobilenet_v3_large", "vgg16", "vgg19", "resnet101")
ALL_WANTED = os.environ.get("NNSLICER_ALL_APPLICATIONS") == "1"


@pytest.mark.parametrize("name", LARGE)
def test_from_slicing_to_maintenance(name):
    if name != LARGE[0] and not ALL_WANTED:
        pytest.skip("only the smallest; NNSLICER_ALL_APPLICATIONS=1 takes all")
    keras.utils.set_random_seed(0)
    model = zoo.build(name, (32, 32, 3), 4)
    rng = np.random.default_rng(0)
    x, y = rng.random((8, 32, 32, 3), np.float32), np.arange(8) % 4
    data = datasets.Dataset(x, y, "noise", "", "unit", 4)
    im = nns.InstrumentedModel(model)

    slicer = semantic.SemanticSlicer(im, x, y, "deeplift", centred=True)
    critical = slicer.semantic_slice(0.9)
    assert 0 < critical.count < critical.total

    small = semantic.restructure(model, critical)
    masked = semantic.Masker(model).neurons(critical)
    assert small.count_params() < model.count_params()
    np.testing.assert_allclose(small(x), masked(x), rtol=1e-3, atol=1e-4)
    found = semantic.compress(small, "lamp", lambda m: zoo.accuracy(m, data), 0.0, most=1)
    assert found.iterations == 1

    options = {"epochs": 1, "batch_size": 4}
    adapted = semantic.readapt(model, critical, x, y, np.clip(x + 0.1, 0, 1), **options)
    developed = semantic.develop(
        model, critical, x[y > 1], y[y > 1], [0, 1], sealed=True, **options
    )
    for trained, frozen in ((adapted, ~critical), (developed, critical)):
        moved = 0
        for layer, mask in frozen.items():
            before, after = (m.get_layer(layer).kernel.numpy() for m in (model, trained))
            np.testing.assert_array_equal(before[..., mask], after[..., mask])
            moved += (before != after).sum()
        assert moved > 0

    similarities = semantic.layer_similarities(im, x)
    assert all(0 <= value <= 1 + 1e-9 for value in similarities.values())
