"""Contribution metrics against closed forms, automatic differentiation and DeepLIFT's sums."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.semantic import METRICS, Metric, SemanticSlicer, contributions
from nnslicer_tf.semantic.metrics import backward_walk, label_logit
from nnslicer_tf.semantic.neurons import neuron_layers
from support.classifiers import MODELS, make, randomise, samples
from support.data_forms import LABELLED, SAMPLES, X, Y


def activations(im, x):
    """Layer → values (samples, units), means over positions."""
    names = {k: v.value for k, v in neuron_layers(im).items()}
    values = im.capture(x, of=names.values())
    axes = {k: tuple(range(1, values[v].ndim - 1)) for k, v in names.items()}
    return {k: values[v].astype(float).mean(axis=axes[k]) for k, v in names.items()}


@pytest.mark.parametrize("name", MODELS)
def test_avg_var_and_ens(name):
    im = nns.InstrumentedModel(make(name))
    x, _ = samples(im.model, 23)
    found = {metric: contributions(im, x, metric, batch_size=7) for metric in ("avg", "var", "ens")}
    for layer, values in activations(im, x).items():
        mean, variance = values.mean(axis=0), values.var(axis=0)
        np.testing.assert_allclose(found["avg"][layer], mean, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(found["var"][layer], variance, rtol=1e-4, atol=1e-6)
        scaled = [(s - s.min()) / (s.max() - s.min()) for s in (mean, variance)]
        np.testing.assert_allclose(found["ens"][layer], sum(scaled) / 2, atol=1e-4)


def test_keras_models_are_instrumented():
    model = make(next(iter(MODELS)))
    x, _ = samples(model, 9)
    im = nns.InstrumentedModel(model)
    for layer, scores in contributions(im, x, "taylor").items():
        np.testing.assert_array_equal(contributions(model, x, "taylor")[layer], scores)
    assert list(neuron_layers(model)) == list(neuron_layers(im))
    labels = np.arange(9) % 2
    slicers = [SemanticSlicer(m, x, labels, "taylor") for m in (model, im)]
    for layer, scores in slicers[1].scores.items():
        np.testing.assert_array_equal(slicers[0].scores[layer], scores)


def test_ens_of_equal_scores_is_zero():
    model = keras.Sequential(
        [keras.Input((2,)), layers.Dense(3, activation="relu"), layers.Dense(2)]
    )
    model.set_weights([np.ones_like(w) for w in model.get_weights()])
    found = contributions(nns.InstrumentedModel(model), np.ones((4, 2), np.float32), "ens")
    assert all(not scores.any() for scores in found.values())


@pytest.mark.parametrize("name", MODELS)
def test_taylor_metrics_against_gradients_by_the_weights(name):
    """Summed over a neuron's weights and bias, w · ∂L/∂w is z · ∂L/∂z at its weighted sum."""
    model = make(name)
    im = nns.InstrumentedModel(model)
    found = neuron_layers(im)
    x, y = samples(model, 6)
    from_logits = im.logit_operation in im.output_operations
    squared = {k: [] for k in found}
    for i in range(len(x)):
        with tf.GradientTape() as tape:
            outputs = model(x[i : i + 1], training=False)
            loss = keras.losses.sparse_categorical_crossentropy(
                y[i : i + 1], outputs, from_logits=from_logits
            )
        kernels = {k: layer.chain[0].params.variable() for k, layer in found.items()}
        gradients = tape.gradient(loss, [v.value for v in kernels.values()])
        for (k, kernel), gradient in zip(kernels.items(), gradients, strict=True):
            terms = (gradient * kernel).numpy()
            squared[k].append(terms.reshape(-1, terms.shape[-1]).sum(axis=0) ** 2)
    scores = contributions(im, x, "taylor_weights", y)
    for k, expected in squared.items():
        np.testing.assert_allclose(scores[k], np.mean(expected, axis=0), rtol=2e-3, atol=1e-7)


@pytest.mark.parametrize("name", MODELS)
def test_taylor_against_finite_differences(name):
    """The first-order change of the loss when a neuron's values shrink by a factor."""
    model = make(name)
    im = nns.InstrumentedModel(model)
    x, y = samples(model, 4)
    scores = contributions(im, x, "taylor", y)
    for layer in neuron_layers(im).values():
        expected = [finite_difference(im, layer, unit, x, y) for unit in range(layer.units)]
        np.testing.assert_allclose(scores[layer.name], expected, rtol=0.03, atol=2e-4)


def finite_difference(im, layer, unit, x, y, step=2e-3):
    """Mean over samples of |Δ loss / Δ factor| at factor 1."""

    def loss(factor):
        def change(name, value):
            scale = np.ones(layer.units, np.float32)
            scale[unit] = factor
            return value * scale if name == layer.value else value

        logits = im.graph.run(tf.constant(x), [im.logit_operation], change)[im.logit_operation]
        return keras.losses.sparse_categorical_crossentropy(y, logits, from_logits=True).numpy()

    return np.mean(np.abs(loss(1 + step) - loss(1 - step)) / (2 * step))


def wirings():
    """Chains whose first layer's neurons are all that the logits depend on."""
    conv = layers.Conv2D
    stacks = {
        "dense": [layers.Flatten(), layers.Dense(8, name="first"), layers.ReLU()],
        "max pool": [conv(4, 3, name="first"), layers.ReLU(), layers.MaxPooling2D(2)],
        "overlapping max pool": [conv(4, 3, name="first"), layers.MaxPooling2D(3, 1)],
        "average pool": [conv(4, 3, name="first"), layers.AveragePooling2D(2), layers.ELU()],
        "norm": [conv(4, 3, name="first"), layers.BatchNormalization(), layers.Activation("silu")],
        "depthwise": [conv(4, 3, name="first"), layers.DepthwiseConv2D(2), layers.ReLU()],
    }
    for name, stack in stacks.items():
        tail = [layers.Flatten(), layers.Dense(5, activation="tanh"), layers.Dense(3)]
        yield pytest.param(keras.Sequential([keras.Input((6, 6, 2)), *stack, *tail]), id=name)
    inputs = keras.Input((6, 6, 2))
    x = layers.Conv2D(4, 3, name="first")(inputs)
    gate = layers.Dense(4, activation="sigmoid")(layers.GlobalAveragePooling2D(keepdims=True)(x))
    x = layers.Multiply()([layers.ReLU()(x), gate])
    x = layers.Concatenate()([x, layers.Maximum()([x, layers.Conv2D(4, 1)(x)])])
    x = layers.Add()([x, layers.Conv2D(8, 1)(x)])
    x = layers.Dense(3, activation="softmax")(layers.Flatten()(x))
    yield pytest.param(keras.Model(inputs, x), id="branches")


@pytest.mark.parametrize("model", list(wirings()))
@pytest.mark.parametrize("given", [False, True], ids=["zeros", "baseline"])
def test_deeplift_sums_to_the_change_of_the_logit(model, given):
    """Contributions of all neurons of a layer that cuts the model add up to Δ logit."""
    im = nns.InstrumentedModel(randomise(model, np.random.default_rng(3)))
    x, y = samples(model, 9)
    reference = x[:1] * 0.5 + 0.1 if given else np.zeros_like(x[:1])
    backward = backward_walk(im, ["first"], label_logit)
    values, before, multipliers = backward(x, y, reference)["first"]
    total = ((values - before) * multipliers).reshape(len(x), -1).sum(axis=1)
    rows = np.arange(len(x))
    change = im.logits(x)[rows, y] - im.logits(np.repeat(reference, len(x), 0))[rows, y]
    np.testing.assert_allclose(total, change, rtol=2e-3, atol=2e-3)


def test_the_reference_has_the_padding_of_the_sample():
    inputs = keras.Input((6, 2))
    h = layers.Dense(4, name="first")(layers.Masking(-1.0)(inputs))
    h = layers.Dense(5, activation="tanh")(layers.GlobalAveragePooling1D()(h))
    im = nns.InstrumentedModel(
        randomise(keras.Model(inputs, layers.Dense(3)(h)), np.random.default_rng(3))
    )
    rng = np.random.default_rng(0)
    x, y, rows = rng.normal(size=(7, 6, 2)).astype(np.float32), np.arange(7) % 3, np.arange(7)
    x[::2, 4:] = -1
    baseline = rng.normal(size=(1, 6, 2)).astype(np.float32)
    values, before, multipliers = backward_walk(im, ["first"], label_logit)(x, y, baseline)["first"]
    total = ((values - before) * multipliers).sum(axis=(1, 2))
    change = im.logits(x)[rows, y] - im.logits(np.where(x == -1, x, baseline))[rows, y]
    np.testing.assert_allclose(total, change, rtol=1e-4, atol=1e-5)


def test_deeplift_of_one_hidden_layer():
    """Rescale: a ReLU's multiplier is Δ output / Δ input, so a unit contributes Δa · w."""
    model = make("perceptron")
    im = nns.InstrumentedModel(model)
    x, y = samples(model, 8)
    baseline = np.full(6, 0.3, np.float32)
    last = model.get_layer("logits").get_weights()[0]
    hidden = im.capture(np.concatenate([x, baseline[None]]), of=["b"])["b"]
    expected = np.abs((hidden[:-1] - hidden[-1]) * last[:, y].T).mean(axis=0)
    scores = contributions(im, x, "deeplift", y, baseline=baseline)
    np.testing.assert_allclose(scores["b"], expected, rtol=1e-4)


@pytest.mark.parametrize("metric", METRICS)
def test_scores_do_not_depend_on_the_batches(metric):
    im = nns.InstrumentedModel(make("convolutional"))
    x, y = samples(im.model, 11)
    whole = contributions(im, x, metric, y, batch_size=11)
    parts = contributions(im, x, metric, y, batch_size=3)
    for layer, scores in whole.items():
        np.testing.assert_allclose(parts[layer], scores, rtol=1e-4, atol=1e-6)


def test_data_sets_and_predicted_labels():
    im = nns.InstrumentedModel(make("convolutional"))
    x, y = samples(im.model, 9)
    expected = contributions(im, x, "taylor", y)
    pairs = tf.data.Dataset.from_tensor_slices((x, y))
    for data in (pairs, pairs.batch(4)):
        found = contributions(im, data, "taylor")
        for layer, scores in expected.items():
            np.testing.assert_allclose(found[layer], scores, rtol=1e-5)
    predicted = contributions(im, x, "taylor", im.logits(x).argmax(axis=1))
    unlabelled = contributions(im, x, "taylor")
    assert all(np.array_equal(unlabelled[k], predicted[k]) for k in predicted)


@pytest.fixture(scope="module")
def of_images():
    """A classifier of the samples in `data_forms`, whose predictions are not their labels."""
    inputs = keras.Input(X.shape[1:])
    x = layers.Conv2D(4, 2, activation="relu", name="conv")(layers.Rescaling(1 / 255)(inputs))
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(x)))
    im = nns.InstrumentedModel(randomise(model, np.random.default_rng(4)))
    assert (im.logits(X).argmax(axis=1) != Y).any()
    return im


def labelled_forms(folder):
    np.savez(folder / "mine.npz", x=X, y=Y)
    forms = {form: make() for form, make in LABELLED.items()}
    forms |= {"file": str(folder / "mine.npz"), "dictionary": {"image": X, "label": Y}}
    dictionaries = tf.data.Dataset.from_tensor_slices({"image": X, "label": Y})
    return forms | {"dictionaries of tf.data": dictionaries.batch(2)}


def test_the_labels_that_data_have_are_used(of_images, tmp_path):
    expected = contributions(of_images, X, "taylor", Y)["conv"]
    assert np.abs(contributions(of_images, X, "taylor")["conv"] - expected).max() > 1e-3
    sizes = contributions(of_images, X, "avg")["conv"]
    for form, data in labelled_forms(tmp_path).items():
        found = contributions(of_images, data, "taylor", batch_size=2)["conv"]
        np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=form)
    for form, data in labelled_forms(tmp_path).items():
        found = contributions(of_images, data, "avg")["conv"]
        np.testing.assert_allclose(found, sizes, rtol=1e-5, err_msg=form)
    by_category = SemanticSlicer(of_images, X, Y).category_scores["conv"]
    for form, data in labelled_forms(tmp_path).items():
        slicer = SemanticSlicer(of_images, data)
        assert slicer.categories.tolist() == [0, 1, 2]
        scores = slicer.category_scores["conv"]
        np.testing.assert_allclose(scores, by_category, rtol=1e-5, err_msg=form)


@pytest.mark.parametrize("form", SAMPLES)
def test_metrics_without_labels_take_samples_alone(of_images, form):
    found = contributions(of_images, SAMPLES[form](), "avg", batch_size=2)["conv"]
    expected = contributions(of_images, X, "avg")["conv"]
    np.testing.assert_allclose(found, expected, rtol=1e-5)


def test_labels_that_are_missing_are_asked_for(of_images):
    for data in ((x for x in X), tf.data.Dataset.from_tensor_slices(X), X.tolist()):
        with pytest.raises(InvalidArgumentError, match="pass y, or data with labels"):
            contributions(of_images, data, "taylor")
    with pytest.raises(InvalidArgumentError, match="empty"):
        contributions(of_images, iter(()), "taylor")


def test_a_data_set_is_read_batch_by_batch(monkeypatch):
    """Every batch is scored before the next is read."""
    im = nns.InstrumentedModel(make("perceptron"))
    x, y = samples(im.model, 12)
    events = []

    def read():
        for start in range(0, 12, 4):
            events.append("read")
            yield x[start : start + 4], y[start : start + 4]

    def noted(im, found, reference):
        def values(x, y):
            events.append("scored")
            return {k: np.ones((len(x), v.units)) for k, v in found.items()}

        return values

    monkeypatch.setitem(METRICS, "noted", Metric(noted, lambda mean, variance: mean))
    contributions(im, read(), "noted")
    assert events == ["read", "scored"] * 3


def test_a_metric_of_ones_own(monkeypatch):
    def largest(im, found, reference):
        return lambda x, y: {
            k: im.capture(x, of=[v.value])[v.value].reshape(len(x), -1, v.units).max(axis=1)
            for k, v in found.items()
        }

    monkeypatch.setitem(METRICS, "largest", Metric(largest, lambda mean, variance: mean))
    im = nns.InstrumentedModel(make("perceptron"))
    x, y = samples(im.model, 5)
    found = contributions(im, x, "largest", y)
    np.testing.assert_allclose(found["b"], im.capture(x, of=["b"])["b"].mean(axis=0), rtol=1e-6)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metric": "tailor"}, "Did you mean 'taylor'"),
        ({"y": np.array([0, 1, 3])}, "labels must be in 0 … 2"),
        ({"y": np.array([0, -1, 1])}, "labels must be in 0 … 2"),
        ({"y": np.array([0, 1])}, "each of 3 samples"),
        ({"y": np.array([0.0, 1.0, 2.0])}, "class index"),
        ({"x": np.zeros((0, 6), np.float32), "y": None}, "empty"),
        ({"batch_size": 0}, "batch_size"),
        ({"x": [np.zeros(6)] * 3, "y": None}, "pairs"),
        ({"x": [(np.zeros((2, 6)), np.array([0, 3]))], "y": None}, "labels must be in 0 … 2"),
    ],
)
def test_bad_arguments_are_refused(change, message):
    im = nns.InstrumentedModel(make("perceptron"))
    x, y = samples(im.model, 3)
    arguments = {"x": x, "metric": "taylor", "y": y, **change}
    with pytest.raises(InvalidArgumentError, match=message):
        contributions(im, **arguments)


def test_bad_shapes_are_refused():
    im = nns.InstrumentedModel(make("perceptron"))
    x, y = samples(im.model, 3)
    with pytest.raises(InputShapeError):
        contributions(im, x[:, :5], "avg", y)
    with pytest.raises(InputShapeError):
        contributions(im, x, "deeplift", y, baseline=np.zeros(5))


def test_models_with_one_output_are_refused():
    stack = [layers.Dense(3, name="dense"), layers.ReLU(), layers.Dense(1)]
    model = keras.Sequential([keras.Input((4,)), *stack])
    im, x = nns.InstrumentedModel(model), np.ones((2, 4), np.float32)
    with pytest.raises(InvalidArgumentError, match="is not a classifier"):
        contributions(im, x, "avg", [0, 0])
    for metric in ("taylor", "deeplift", "taylor_weights"):
        with pytest.raises(InvalidArgumentError, match="is not a classifier"):
            contributions(im, x, metric)
    with pytest.raises(InvalidArgumentError, match="is not a classifier"):
        SemanticSlicer(im, x, metric="avg")
    np.testing.assert_allclose(*(contributions(im, x[:n], "avg")["dense"] for n in (1, 2)))
