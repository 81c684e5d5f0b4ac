"""Which models a slicer, a profile and slices belong to, and which models there are."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns


def test_profile_of_another_model(im, profile):
    other = nns.InstrumentedModel(nns.instrument.copy_model(im.model))
    assert other.fingerprint == im.fingerprint
    kernel = other.model.get_layer("inner").kernel
    kernel.assign(np.asarray(kernel) * 1.001)
    with pytest.raises(nns.errors.ProfileMismatchError, match="different model"):
        nns.Slicer(other, profile)


def test_profile_of_an_equal_model_with_other_names():
    def build():
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])

    first, second = nns.InstrumentedModel(build()), nns.InstrumentedModel(build())
    assert first.fingerprint == second.fingerprint
    profile = nns.Profile.from_data(first, np.eye(3), progress=False)
    with pytest.raises(nns.errors.ProfileMismatchError, match="other names"):
        nns.Slicer(second, profile)


def test_slices_of_different_models_do_not_mix(im, profile, slicer, x):
    by_channel = nns.Slicer(im, profile, 0.3, "channel", workers=0, progress=False)
    with pytest.raises(nns.errors.ProfileMismatchError):
        slicer.slice(x[:1]) & by_channel.slice(x[:1])


@pytest.mark.parametrize("ending", ["keras", "h5"])
@pytest.mark.filterwarnings("ignore:You are saving your model as an HDF5 file")
def test_a_profile_fits_the_model_that_comes_back_from_a_file(tmp_path, ending):
    """Keras numbers tensors anew on loading; an input without a name keeps that of its layer."""
    keras.Input((1,))  # so that the numbers of the two inputs differ
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, activation="relu")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3)(hidden))
    data = np.random.default_rng(0).random((20, 6), np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    profile.save(tmp_path / "profile.npz")
    model.save(tmp_path / f"model.{ending}")

    loaded = keras.models.load_model(tmp_path / f"model.{ending}")
    kept = nns.Profile.load(tmp_path / "profile.npz")

    expected = nns.Slicer(model, profile, workers=0, progress=False).slice(data)
    found = nns.Slicer(loaded, kept, workers=0, progress=False).slice(data)
    assert found == expected and (found & expected) == expected


def test_a_map_of_sigmoids_is_sliced_for_each_sample():
    parts = keras.layers.Conv2D(2, 3, activation="relu"), keras.layers.Conv2D(1, 3)
    model = keras.Sequential([keras.Input((7, 7, 1)), *parts, keras.layers.Activation("sigmoid")])
    x = np.random.default_rng(0).random((6, 7, 7, 1), np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, workers=0, progress=False)
    target = {slicer.im.logit_operation: [0]}
    for theta in (0.0, 0.3):
        slicer = nns.Slicer(model, profile, theta, workers=0, progress=False)
        each, whole = slicer.slice_each(x, target), slicer.slice(x, target)
        assert (sum(one.to_vector() for one in each) == whole.to_vector()).all()
        assert (each.predicted == -1).all()  # each position has a class of its own


def test_an_output_without_axes_is_one_channel():
    """A Dense layer's output without its axis, and with it, have equal slices."""
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="relu")(inputs)
    output = keras.layers.Dense(1, activation="sigmoid")(hidden)
    x = np.random.default_rng(0).normal(size=(8, 4))
    slices = []
    for model in (keras.Model(inputs, output), keras.Model(inputs, keras.ops.squeeze(output, -1))):
        profile = nns.Profile.from_data(model, x, progress=False)
        slicer = nns.Slicer(model, profile, granularity="channel", workers=0, progress=False)
        slices.append(slicer.slice(x).to_vector())
    assert slices[0].any() and (slices[0] == slices[1]).all()


class Subclassed(keras.Model):
    """A model without a config."""

    def __init__(self, units):
        super().__init__()
        self.out = keras.layers.Dense(units, name="out")
        self.hidden = keras.layers.Dense(4, activation="relu", name="hidden")

    def call(self, x):
        return self.out(self.hidden(x))


def functional(base):
    inputs = keras.Input((6,))
    return keras.Model(inputs, base(inputs))


@pytest.mark.parametrize("with_means", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_subclassed_model_without_a_config(nested, with_means):
    data = np.random.default_rng(0).random((20, 6), np.float32)
    model = Subclassed(3)
    model(data)
    if nested:
        model = keras.Sequential([keras.Input((6,)), functional(model)])
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, data, progress=False)
    one = nns.Slicer(im, profile, workers=0, progress=False).slice(data)

    if nested and not with_means:
        with pytest.raises(nns.errors.UnsupportedLayerError, match="cannot be copied"):
            one.apply(im, "zero")
        return
    applied = one.apply(im, profile if with_means else "zero")

    keep = one.synapse_mask()
    first, second = im.kernels.values()
    inner, kernel = (k.kernel() * keep[k.name] for k in (first, second))
    names = [o.name for o in im.operations]  # input, sum, activation, output
    x, total, hidden, out = (profile.means[n] if with_means else 0.0 for n in names)
    expected = (np.maximum((data - x) @ inner + total, 0) - hidden) @ kernel + out
    np.testing.assert_allclose(applied(data).numpy(), expected, atol=1e-5)


def classifier_of_images(shape):
    keras.utils.set_random_seed(0)
    inputs = keras.Input(shape)
    features = keras.layers.Conv2D(3, 3, activation="relu", name="conv")(inputs)
    pooled = keras.layers.GlobalAveragePooling2D()(features)
    return keras.Model(inputs, keras.layers.Dense(2, name="out")(pooled))


@pytest.mark.parametrize("with_means", [False, True])
def test_models_of_any_size_are_sliced_as_those_of_one_size(with_means):
    data = np.random.default_rng(0).random((10, 6, 6, 1), np.float32)
    outputs = []
    for shape, given in (((None, None, 1), (6, 6, 1)), ((6, 6, 1), None)):
        im = nns.InstrumentedModel(classifier_of_images(shape), input_shape=given)
        profile = nns.Profile.from_data(im, data, progress=False)
        slicer = nns.Slicer(im, profile, workers=0, progress=False)
        applied = slicer.slice(data[:3], [0]).apply(im, profile if with_means else "zero")
        outputs.append((applied(data), slicer.explain(data[0]).kept))
    for of_any, of_one in zip(*outputs, strict=True):
        np.testing.assert_allclose(of_any, of_one, atol=1e-6)


def test_weights_that_changed_are_noticed(tmp_path):
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Dense(4)(inputs)))
    data = np.random.default_rng(0).random((20, 6), np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    slicer = nns.Slicer(model, profile, workers=0, progress=False)
    slicer.slice(data, checkpoint=tmp_path)
    kernel = model.layers[1].kernel
    before = keras.ops.convert_to_numpy(kernel).copy()
    kernel.assign(before + np.float32(1e-3))
    for action in (slicer.slice, slicer.slice_each, lambda x: next(slicer.iterate(x))):
        with pytest.raises(nns.errors.ProfileMismatchError, match="have changed"):
            action(data)
    kernel.assign(before)
    slicer.slice(data, checkpoint=tmp_path)


def test_an_output_and_its_logits_are_one_operation(x):
    inputs = keras.Input(x.shape[1:])
    flat = keras.layers.Flatten()(inputs)
    outputs = keras.layers.Dense(4, activation="softmax", name="out")(flat)
    model = keras.Model(inputs, outputs)
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, workers=0, progress=False)
    both = slicer.slice(x, outputs={"out": [0], "out:pre": [1]})
    assert both == slicer.slice(x, outputs=[0, 1])
