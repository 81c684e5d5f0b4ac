"""From slicing to maintenance on one model: a small one, and the papers' large models.

That it runs, and that what is smaller or frozen is so; nothing is learned from a few samples.
"""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import semantic

LARGE = ("MobileNetV3Small", "MobileNetV3Large", "VGG16", "VGG19", "ResNet101")


def operators():
    """Operators on tensors, as in MobileNetV3, and its classifier: a flattened convolution."""
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, padding="same", name="first")(inputs)
    x = x * (layers.Conv2D(4, 1, activation="relu", name="second")(x) + 1.0)
    x = layers.GlobalAveragePooling2D(keepdims=True)(layers.ReLU()(x))
    x = layers.Conv2D(7, 1, activation="relu", name="wide")(x)
    return keras.Model(inputs, layers.Flatten()(layers.Conv2D(3, 1, name="classes")(x)))


def large(name):
    """Return a network of Keras for small images and three classes, with fresh weights."""
    options = {"include_preprocessing": False} if name.startswith("MobileNet") else {}
    build = getattr(keras.applications, name)
    shape = {"input_shape": (32, 32, 3), "classes": 3, "classifier_activation": None}
    return build(weights=None, **shape, **options)


@pytest.mark.parametrize(
    "name", ["operators", *(pytest.param(name, marks=pytest.mark.slow) for name in LARGE)]
)
def test_from_slicing_to_maintenance(name):
    keras.utils.set_random_seed(0)
    model = operators() if name == "operators" else large(name)
    x = np.random.default_rng(0).random((9, *model.inputs[0].shape[1:]), np.float32)
    y = np.arange(9) % 3
    im = nns.InstrumentedModel(model)

    slicer = semantic.SemanticSlicer(im, x, y, "deeplift", centred=True)
    critical = slicer.semantic_slice(0.9)
    assert 0 < critical.count < critical.total

    small = semantic.restructure(model, critical)
    masked = semantic.masked(model, critical)
    assert small.count_params() < model.count_params()
    np.testing.assert_allclose(small(x), masked(x), rtol=1e-3, atol=1e-4)

    options = {"epochs": 1, "batch_size": 4}
    adapted = semantic.readapt(model, critical, x, y, np.clip(x + 0.1, 0, 1), **options)
    developed = semantic.develop(model, critical, x[y > 0], y[y > 0], [0], **options)
    for trained, frozen in ((adapted, ~critical), (developed, critical)):
        moved = 0
        for layer, mask in frozen.items():
            before, after = (m.get_layer(layer).kernel.numpy() for m in (model, trained))
            np.testing.assert_array_equal(before[..., mask], after[..., mask])
            moved += (before != after).sum()
        assert moved > 0
