"""Preprocessing and bounds that are bound to a model."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import InputRangeError, InputRangeWarning, InvalidArgumentError


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6, 6, 3))
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = layers.Dense(5, name="dense")(layers.Flatten()(x))
    return keras.Model(inputs, x)


@pytest.fixture(scope="module")
def pixels():
    return np.random.default_rng(0).integers(0, 256, (20, 6, 6, 3)).astype(np.float32)


@pytest.mark.parametrize(
    "preprocess", [lambda x: x / 255, layers.Rescaling(1 / 255)], ids=["function", "layer"]
)
@pytest.mark.parametrize("kind", ["functional", "sequential"])
def test_the_analyses_see_prepared_inputs(model, pixels, preprocess, kind):
    if kind == "sequential":
        model = keras.Sequential([keras.Input((6, 6, 3)), *model.layers[1:]])
    plain = nns.InstrumentedModel(model)
    bound = nns.InstrumentedModel(model, preprocess=preprocess, bounds=(0, 255))
    scaled = pixels / np.float32(255)
    # Sums of 27 values and 64 units, with biases and the scaling: each rounds by 2⁻²⁴ of a sum of
    # magnitudes, which the model with the weights' magnitudes computes.
    sizes = keras.models.clone_model(model)
    sizes.set_weights([np.abs(weight) for weight in model.get_weights()])
    large = nns.InstrumentedModel(sizes)
    rounding = (27 + 64 + 3) * 2.0**-24
    atol = 2 * rounding * large.logits(scaled).max()  # of both sides
    np.testing.assert_allclose(bound.logits(pixels), plain.logits(scaled), rtol=0, atol=atol)
    assert set(bound.kernels) == set(plain.kernels) == {"conv", "dense"}
    of_pixels = bound.gradients(pixels, of=2)[bound.input_operation]
    of_scaled = plain.gradients(scaled, of=2)[plain.input_operation]
    # Back, 5 outputs' slopes pass 9 positions' 4 filters.
    slopes = large.gradients(scaled, of=2)[large.input_operation].max() / 255
    np.testing.assert_allclose(
        of_pixels, of_scaled / 255, rtol=0, atol=2 * (5 + 36 + 2) * 2.0**-24 * slopes
    )
    np.testing.assert_allclose(bound.model(pixels).numpy(), bound.predict(pixels), 0, atol)


@pytest.mark.parametrize("low, high", [(-1, 100), (5, 256), (-0.5, 255.5)])
def test_data_beyond_the_bounds_is_refused_everywhere(model, pixels, low, high):
    im = nns.InstrumentedModel(model, preprocess=lambda x: x / 255, bounds=(0, 255))
    profile = nns.Profile.from_data(im, pixels, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    wrong = pixels[:3].copy()
    wrong[1, 0, 0] = [low, high, 0]
    if low < 0 or high > 255:
        for use in (im.logits, slicer.slice, lambda x: list(im.capture_batches(iter(x)))):
            with pytest.raises(InputRangeError, match=r"Sample 1 .* bounds of the model are 0 and"):
                use(wrong)
    else:
        im.logits(wrong)


def test_arguments_are_checked(model):
    for bounds in (3, (1, 0), (0, 1, 2), ("a", "b"), (0, 0)):
        with pytest.raises(InvalidArgumentError, match="bounds must be"):
            nns.InstrumentedModel(model, bounds=bounds)
    with pytest.raises(InvalidArgumentError, match="for the model's inputs"):
        nns.InstrumentedModel(model, preprocess=lambda x: x[:, 1:])
    with pytest.raises(InvalidArgumentError, match="`preprocess` fails inside"):
        nns.InstrumentedModel(model, preprocess=lambda x: np.tanh(np.asarray(x)))


@pytest.mark.parametrize("factor, warns", [(1, False), (255, True), (1 / 255, True), (1.2, False)])
def test_inputs_unlike_those_of_the_profile_are_noticed(model, pixels, factor, warns, tmp_path):
    im = nns.InstrumentedModel(model)
    x = pixels / np.float32(255)
    nns.Profile.from_data(im, x, progress=False).save(tmp_path / "profile.npz")
    profile = nns.Profile.load(tmp_path / "profile.npz")
    assert profile.input_range == (x.min(), x.max())
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    data = x * np.float32(factor)
    if warns:
        with pytest.warns(InputRangeWarning, match="Scale inputs as for the profile"):
            slicer.slice(data)
        with pytest.warns(InputRangeWarning):
            slicer.slice_each(iter(data))
    else:
        slicer.slice(data)  # a warning would be an error here
    if not warns:
        assert profile.input_means == (x.mean(axis=(1, 2, 3)).min(), x.mean(axis=(1, 2, 3)).max())
        with pytest.warns(InputRangeWarning, match="The mean of the inputs is"):
            slicer.slice((1 + x) / 2)  # within the range, but shifted
        slicer.slice((1 + x[:1]) / 2)  # of single samples it is not asked
    unknown = nns.Profile(profile.means, profile.samples, profile.fingerprint)
    nns.Slicer(im, unknown, workers=0, progress=False).slice(data)
