"""Models with several inputs and outputs: data as Keras takes it, outputs by name."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument.inputs import Inputs
from support.models import dyadic, set_dyadic_weights
from support.slices import check_equal
from support.slicing_oracle import ChannelOracle, Oracle

SHAPES = {"image": (3, 3, 2), "facts": (4,)}


def two_by_two(as_dict=True):
    """Two inputs of different shapes, two outputs that read both; one ends in a softmax."""
    image, facts = keras.Input((3, 3, 2), name="image"), keras.Input((4,), name="facts")
    seen = layers.Flatten()(layers.Conv2D(2, 2, activation="relu", name="conv")(image))
    known = layers.Dense(3, activation="relu", name="known")(facts)
    both = layers.Concatenate()([seen, known])
    kind = layers.Dense(3, activation="softmax", name="kind")(both)
    size = layers.Dense(2, name="size")(both)
    if as_dict:
        return keras.Model({"image": image, "facts": facts}, {"what": kind, "how big": size})
    return keras.Model([image, facts], [kind, size])


def data_of(rng, samples):
    return {
        name: dyadic(rng, (samples, *shape), -2, 2).astype(np.float32)
        for name, shape in SHAPES.items()
    }


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return set_dyadic_weights(two_by_two(), np.random.default_rng(0))


@pytest.fixture(scope="module")
def im(model):
    return nns.InstrumentedModel(model)


@pytest.fixture
def x():
    return data_of(np.random.default_rng(1), 4)


def test_operations_begin_with_the_inputs(im):
    assert set(im.input_operations) == {"image", "facts"}
    assert im.input_shapes == SHAPES
    assert [o.kind for o in im.operations[:3]] == ["input", "input", "weighted_sum"]
    assert im.outputs == {"kind": "kind", "size": "size", "what": "kind", "how big": "size"}


def test_data_comes_as_keras_takes_it(im, model, x):
    expected = model.predict(x, verbose=0)["how big"]
    listed = [x[name] for name in im.input_operations]
    for data in (x, listed, tuple(listed), im.check(x), (x, np.zeros(len(expected)))):
        np.testing.assert_allclose(im.predict(data, output="size"), expected, rtol=1e-6)
    np.testing.assert_array_equal(im.capture(x, of=["facts"])["facts"], x["facts"])


def test_streams_of_batches_and_samples(im, x):
    import tensorflow as tf

    labels = np.arange(4)
    expected = im.predict(x, output="size")
    tensors = tf.data.Dataset.from_tensor_slices
    by_name = tensors((x, labels))
    by_place = tensors((tuple(x[name] for name in im.input_operations), labels))
    pairs = ([x[name][i] for name in im.input_operations] for i in range(4))
    for data in (by_name, by_name.batch(3), by_place.batch(2), tensors(x), pairs):
        np.testing.assert_allclose(im.predict(data, 3, output="size"), expected, rtol=1e-6)


def test_the_inputs_of_a_list_are_in_order():
    model = set_dyadic_weights(two_by_two(as_dict=False), np.random.default_rng(0))
    im = nns.InstrumentedModel(model)
    x = data_of(np.random.default_rng(1), 3)
    expected, _ = model.predict([x["image"], x["facts"]], verbose=0)
    assert im.input_operations == ("image", "facts")
    np.testing.assert_allclose(im.predict([x["image"], x["facts"]]), expected, rtol=1e-6)
    np.testing.assert_allclose(im.predict(x), expected, rtol=1e-6)


def test_other_keys_than_the_inputs_names():
    a, b = keras.Input((2,), name="a"), keras.Input((3,), name="b")
    out = layers.Dense(1)(layers.Concatenate()([a, b]))
    with pytest.warns(UserWarning, match="keys in the dict|structure"):
        model = keras.Model({"left": a, "right": b}, out)
        im = nns.InstrumentedModel(model)
    x = {"left": np.ones((2, 2), np.float32), "right": np.ones((2, 3), np.float32)}
    expected = model.predict(x, verbose=0)
    np.testing.assert_allclose(im.predict(x), expected, rtol=1e-6)


@pytest.mark.parametrize(
    "change, match",
    [
        (lambda x: {"image": x["image"]}, "Missing: \\['facts'\\]"),
        (lambda x: {**x, "other": x["facts"]}, "unknown: \\['other'\\]"),
        (lambda x: [x["image"]], "Received 1"),
        (lambda x: x["image"], "2 inputs"),
        (lambda x: {**x, "facts": x["facts"][:2]}, "different numbers"),
        (lambda x: {**x, "facts": x["image"]}, "Input 'facts'"),
        (lambda x: {name: a[:0] for name, a in x.items()}, "empty"),
        (lambda x: iter(()), "empty"),
        (lambda x: iter([x["image"]]), "2 inputs"),
    ],
)
def test_bad_data_is_refused(im, x, change, match):
    with pytest.raises((nns.errors.InvalidArgumentError, nns.errors.InputShapeError), match=match):
        list(im.samples(change(x)).batches(2))


def test_values_that_are_not_finite_name_the_sample(im, x):
    x["facts"][2, 0] = np.nan
    with pytest.raises(nns.errors.NonFiniteActivationError, match="Sample 2"):
        im.predict(x)


def test_a_dict_of_one_array_goes_into_one_input():
    im = nns.InstrumentedModel(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(im.predict({"x": x}), im.predict(x))


@pytest.mark.parametrize("key", ["x", "image", "inputs"])
def test_a_dict_of_samples_and_labels_goes_into_one_input(key):
    im = nns.InstrumentedModel(keras.Sequential([keras.Input((2,)), layers.Dense(1)]))
    x = np.ones((3, 2), np.float32)
    np.testing.assert_array_equal(im.predict({"y": [0, 0, 0], key: 2 * x}), im.predict(2 * x))
    with pytest.raises(
        nns.errors.InputShapeError, match="keys sound, y; samples must be under one of x"
    ):
        im.predict({"sound": x, "y": x})


def test_inputs_are_cut_like_an_array(x):
    inputs = Inputs(x)
    assert len(inputs) == 4 and inputs.shape == (4,)
    np.testing.assert_array_equal(inputs[np.array([2, 0])]["facts"], x["facts"][[2, 0]])
    assert "facts: (2, 4)" in repr(inputs[1:3])


def test_gradients_with_respect_to_all_inputs(im, model, x):
    gradients = im.gradients(x, of=1)
    assert set(gradients) == {"image", "facts"}
    logits = keras.Model(model.inputs, model.get_layer("size").input)  # the first output
    kernel, bias = (np.asarray(w, np.float64) for w in model.get_layer("size").weights)

    def logit(facts):
        given = {**x, "facts": facts}
        hidden = np.asarray(logits([given[t.name] for t in model.inputs]), np.float64)
        return (hidden @ kernel + bias)[:, 1]

    step = 1e-2
    for i in range(4):
        moved = np.zeros((1, 4), np.float32)
        moved[0, i] = step
        slope = (logit(x["facts"] + moved) - logit(x["facts"] - moved)) / (2 * step)
        close = np.isclose(gradients["facts"][:, i], slope, atol=1e-3)
        assert close.mean() >= 0.75  # at a kink of the ReLU both one-sided slopes are right


def test_logits_of_an_output(im, model, x):
    logits = im.logits(x, output="what")
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
    np.testing.assert_allclose(probabilities, model.predict(x, verbose=0)["what"], rtol=1e-5)
    with pytest.raises(nns.errors.InvalidArgumentError, match="Unknown output 'whta'"):
        im.logits(x, output="whta")


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("theta", [0.0, 0.25, 1.0])
@pytest.mark.parametrize("output, start", [("what", "kind:pre"), ("size", "size")])
def test_slices_agree_with_the_oracle(im, x, granularity, theta, output, start):
    usual = data_of(np.random.default_rng(2), 4)
    profile = nns.Profile.from_data(im, usual, progress=False)
    of_samples = [{name: a[i] for name, a in usual.items()} for i in range(4)]
    oracle = (Oracle if granularity == "activation" else ChannelOracle)(im, of_samples)
    slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)
    sample = {name: a[:1] for name, a in x.items()}
    result = slicer.slice(sample, outputs={output: [0, 1]})
    one = {name: a[0] for name, a in x.items()}
    check_equal(result, *oracle.slice(one, {start: [(0,), (1,)]}, theta))


@pytest.mark.parametrize("theta", [0.0, 0.25])
def test_the_predicted_class_of_an_output(im, x, theta):
    profile = nns.Profile.from_data(im, data_of(np.random.default_rng(2), 4), progress=False)
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    each = slicer.slice_each(x, outputs={"what": "predicted"})
    top = im.logits(x, output="what").argmax(axis=1)
    np.testing.assert_array_equal(each.predicted, top)
    for i, target in enumerate(top):
        sample = {name: a[i : i + 1] for name, a in x.items()}
        alone = slicer.slice(sample, outputs={"what": [target]})
        for name, values in alone.synapses.items():
            np.testing.assert_array_equal(each[i].synapses[name], values, err_msg=name)
    together = slicer.slice(x, outputs={"what": "predicted"})
    np.testing.assert_array_equal(together.to_vector(), each.sum().to_vector())


def test_criteria_that_need_one_output_say_so(im, x):
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, progress=False)
    with pytest.raises(nns.errors.CriterionError, match="size, kind"):
        slicer.slice(x, outputs=[0])
    with pytest.raises(nns.errors.CriterionError, match="'predicted' needs an output vector"):
        slicer.slice(x, outputs={"conv": "predicted"})


def test_checkpoints_know_all_inputs(im, x, tmp_path):
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, 0.25, workers=0, progress=False)
    slicer.slice(x, {"size": [0]}, checkpoint=tmp_path)
    slicer.slice(x, {"size": [0]}, checkpoint=tmp_path)
    with pytest.raises(nns.errors.ProfileMismatchError, match="other data"):
        slicer.slice({**x, "facts": x["facts"] + 1}, {"size": [0]}, checkpoint=tmp_path)


def test_nested_and_subclassed_models_with_several_inputs(x):
    class Caller(keras.Model):
        def __init__(self):
            super().__init__()
            self.inner = two_by_two(as_dict=False)

        def call(self, inputs):
            return self.inner([inputs["image"], inputs["facts"]])[1]

    model = Caller()
    expected = model(x)
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x), expected, rtol=1e-5, atol=1e-6)
    assert any(o.name.endswith("/conv") for o in im.operations)


def test_a_list_for_a_dict_is_refused_where_inputs_could_be_exchanged():
    """Keras sorts the names of a dict; a list in the order of the dict would be taken wrongly."""
    b, a = keras.Input((4,), name="b"), keras.Input((4,), name="a")
    im = nns.InstrumentedModel(keras.Model({"b": b, "a": a}, layers.Dense(2)(b - 2 * a)))
    x = {name: np.random.default_rng(ord(name)).normal(size=(3, 4)) for name in "ba"}
    np.testing.assert_allclose(im.predict(x), im.model.predict(x, verbose=0), rtol=1e-5)
    with pytest.raises(nns.errors.InvalidArgumentError, match="as a dict by name"):
        im.predict(list(x.values()))


def test_elements_of_a_stream_have_the_shapes_of_the_inputs(im, x):
    short = {"image": x["image"], "facts": x["facts"][:, :3]}
    with pytest.raises(nns.errors.InputShapeError, match=r"Input 'facts': .*\(4, 3\)"):
        im.predict(part for part in (x, short))


def test_analyses_of_one_input_say_so(im, x):
    with pytest.raises(nns.errors.SeveralInputsError, match="2 inputs"):
        nns.exactline.exact_line(im, x["facts"][0], x["facts"][1])
    with pytest.raises(nns.errors.SeveralInputsError, match="2 inputs"):
        nns.deepxplore.generate([im, im], x["facts"])


def test_coverage_takes_several_inputs(im, x):
    coverage = nns.deepxplore.NeuronCoverage(im)
    coverage.update(x)
    assert 0 < coverage.total() <= 1
    with pytest.raises(
        nns.errors.InvalidArgumentError, match="preprocess needs a model with one input"
    ):
        nns.InstrumentedModel(im.model, preprocess=lambda x: x / 2)
