"""Every model of keras.applications wraps, has rules, and gives the original's output."""

import inspect

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.kinds import EXCLUSION

# The smallest member of each family; the others are slow: all 40 take some minutes.
SMALLEST = (
    *("ConvNeXtTiny", "DenseNet121", "EfficientNetB0", "EfficientNetV2B0", "InceptionResNetV2"),
    *("InceptionV3", "MobileNet", "MobileNetV2", "MobileNetV3Small", "NASNetMobile"),
    *("ResNet50", "ResNet50V2", "VGG16", "VGG19", "Xception"),
)
ALL = tuple(
    name
    for name, value in inspect.getmembers(keras.applications, inspect.isfunction)
    if name[0].isupper()
)
# The least sizes of images that they take.
SIZES = (32, 71, 75)


def build(name):
    for size in SIZES:
        try:
            return getattr(keras.applications, name)(
                weights=None, classes=7, input_shape=(size, size, 3)
            )
        except ValueError as error:
            if "at least" not in str(error):
                raise
    raise AssertionError(f"{name} takes none of the sizes {SIZES}")


def test_the_default_run_has_every_family():
    families = {getattr(keras.applications, name).__module__ for name in ALL}
    assert {getattr(keras.applications, name).__module__ for name in SMALLEST} == families


@pytest.mark.parametrize(
    "name", [n if n in SMALLEST else pytest.param(n, marks=pytest.mark.slow) for n in ALL]
)
def test_application(name):
    keras.backend.clear_session()
    keras.utils.set_random_seed(0)
    model = build(name)
    im = nns.InstrumentedModel(model)
    assert all(operation.kind in EXCLUSION for operation in im.operations[1:])
    x = np.random.default_rng(1).uniform(0, 255, (2, *im.input_shape)).astype(np.float32)
    expected = np.asarray(model(x, training=False))
    np.testing.assert_allclose(
        im.compute(x, im.output_operations)[im.output_operations[0]], expected, rtol=1e-4, atol=1e-5
    )
    assert im[im.logit_operation].shape == (7,)
    assert sum(kernel.size for kernel in im.kernels.values()) <= model.count_params()
