"""Units of recurrent layers as neurons: scores, slices and maintenance of small networks."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import datasets, semantic, zoo
from nnslicer_tf.semantic.metrics import backward_walk, label_logit
from support.classifiers import randomise

STEPS, WORDS, UNITS, CLASSES = 6, 9, 5, 3
KINDS = {
    "simple": lambda: layers.SimpleRNN(UNITS, name="first", return_sequences=True),
    "lstm": lambda: layers.LSTM(UNITS, name="first", return_sequences=True),
    "gru": lambda: layers.GRU(UNITS, name="first", return_sequences=True),
    "gru, reset before": lambda: layers.GRU(
        UNITS, name="first", return_sequences=True, reset_after=False
    ),
}


def network(kind):
    """Two recurrent layers on words with padding."""
    words = keras.Input((STEPS,), dtype="int32")
    x = layers.Embedding(WORDS, 4, mask_zero=True, name="embedding")(words)
    x = KINDS[kind]()(x)
    x = layers.LSTM(4, name="second")(x)
    x = layers.Dense(6, activation="relu", name="hidden")(x)
    model = keras.Model(words, layers.Dense(CLASSES, name="logits")(x))
    return randomise(model, np.random.default_rng(3))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    x = rng.integers(1, WORDS, (18, STEPS)).astype(np.int32)
    x[np.arange(STEPS) >= rng.integers(2, STEPS + 1, (18, 1))] = 0
    return x, np.arange(18) % CLASSES


@pytest.mark.parametrize("kind", KINDS)
def test_units_are_neurons_and_masked_ones_are_removed(kind, data):
    x, _ = data
    model = network(kind)
    im = nns.InstrumentedModel(model)
    found = {k: (v.units, v.value) for k, v in semantic.neurons.neuron_layers(im).items()}
    assert found == {
        "first": (UNITS, "first:h"),
        "second": (4, "second:h"),
        "hidden": (6, "hidden"),
    }
    critical = {"first": np.arange(UNITS) != 1, "second": np.arange(4) != 2}
    masked = semantic.masked(model, critical)
    states = nns.InstrumentedModel(masked).capture(x, of=["first:h", "second:h"])
    assert not states["first:h"][..., 1].any() and not states["second:h"][..., 2].any()
    assert states["first:h"][..., 0].any()
    small = semantic.restructure(model, critical)
    np.testing.assert_allclose(small(x), masked(x), rtol=1e-4, atol=1e-5)
    assert not np.allclose(small(x), model(x), atol=1e-3)
    assert small.get_layer("first").units == UNITS - 1
    assert small.count_params() < model.count_params()


def states(layer, x, present, factors):
    """The states at all steps, multiplied before anything reads them, by Keras's own cell."""
    cell = layer.cell
    count = 2 if isinstance(layer, layers.LSTM) else 1
    state, found = [ops.zeros((len(x), layer.units))] * count, []
    for t in range(x.shape[1]):
        h, new = cell(x[:, t], state)
        here = present[:, t, None]
        rest = list(new[1:]) if isinstance(new, (list, tuple)) else []
        h = ops.where(here, h * factors, state[0])
        state = [h, *(ops.where(here, a, b) for a, b in zip(rest, state[1:], strict=True))]
        found.append(h)
    return ops.stack(found, axis=1)


@pytest.mark.parametrize("kind", ["simple", "lstm", "gru"])
def test_taylor_scores_are_slopes_by_factors_of_the_states(kind, data):
    """d loss / d factor, where a unit's state is multiplied by 1 at every step."""
    import tensorflow as tf

    x, y = data
    model = network(kind)
    factors = [tf.ones((len(x), units)) for units in (UNITS, 4)]
    present = x != 0
    with tf.GradientTape() as tape:
        tape.watch(factors)
        h = model.get_layer("embedding")(x)
        h = states(model.get_layer("first"), h, present, factors[0])
        h = states(model.get_layer("second"), h, present, factors[1])[:, -1]
        logits = model.get_layer("logits")(model.get_layer("hidden")(h))
        loss = keras.ops.sum(keras.losses.sparse_categorical_crossentropy(y, logits, True))
    np.testing.assert_allclose(logits, model(x), rtol=1e-4, atol=1e-5)
    slopes = tape.gradient(loss, factors)
    found = semantic.contributions(nns.InstrumentedModel(model), x, "taylor", y, batch_size=9)
    for name, slope in zip(("first", "second"), slopes, strict=True):
        np.testing.assert_allclose(found[name], np.abs(slope).mean(axis=0), rtol=1e-3, atol=1e-6)


def test_padding_enters_no_mean_and_no_landscape(data):
    x, y = data
    im = nns.InstrumentedModel(network("gru"))
    h = np.asarray(im.capture(x, of=["first:h"])["first:h"])
    present = x != 0
    means = (h * present[..., None]).sum(axis=1) / present.sum(axis=1, keepdims=True)
    assert not np.allclose(means, h.mean(axis=1), atol=1e-3)
    for metric, expected in (("avg", means.mean(axis=0)), ("var", means.var(axis=0))):
        found = semantic.contributions(im, x, metric, y)["first"]
        np.testing.assert_allclose(found, expected, rtol=1e-4)
    slicer = semantic.SemanticSlicer(im, x, y, "avg")
    of_class = np.where(present[..., None], h, 0)[y == 1]
    best = slicer.category_scores["first"][1].argmax()
    part, whole = (f.reshape(len(f), -1) for f in (of_class[..., best], of_class))
    part, whole = part @ part.T, whole @ whole.T
    expected = (part * whole).sum() / np.sqrt((part**2).sum() * (whole**2).sum())
    assert slicer.similarities["first"][1][0] == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["simple", "gru"])
def test_only_chosen_units_are_trained(kind, data):
    x, y = data
    model = network(kind)
    chosen = np.arange(UNITS) == 2
    adapted = semantic.readapt(model, {"first": chosen}, x, y, x, epochs=1, batch_size=12)
    pairs = zip(model.get_layer("first").weights, adapted.get_layer("first").weights, strict=True)
    for before, after in pairs:
        changed = (before.numpy() != after.numpy()).reshape(-1, before.shape[-1]).any(axis=0)
        by_gate = changed.reshape(-1, UNITS)
        assert not by_gate[:, ~chosen].any() and by_gate[:, chosen].any()
    for layer in ("embedding", "second", "hidden"):
        was, now = (m.get_layer(layer).get_weights() for m in (model, adapted))
        assert all((a == b).all() for a, b in zip(was, now, strict=True))


def test_weights_through_time_have_no_metric(data):
    im = nns.InstrumentedModel(network("simple"))
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"'taylor_weights'.*'first'"):
        semantic.contributions(im, data[0], "taylor_weights", data[1])


@pytest.mark.parametrize("kind", ["simple", "lstm", "gru"])
@pytest.mark.parametrize("padded", [False, True])
def test_deeplift_through_time_adds_up(kind, padded):
    """Once the input is the baseline's, the states' contributions are the change of the logit."""
    rng = np.random.default_rng(0)
    layer = {"simple": layers.SimpleRNN, "lstm": layers.LSTM, "gru": layers.GRU}[kind]
    masking = [layers.Masking(-1.0)] if padded else []
    stack = [keras.Input((6, 2)), *masking, layer(3, name="first"), layers.Dense(3)]
    model = keras.Sequential(stack)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    x = rng.normal(size=(5, 6, 2)).astype(np.float32)
    x[:, 3:] = 0.25
    if padded:
        x[::2, 4:] = -1
    y, baseline = rng.integers(3, size=5), np.full((1, 6, 2), 0.25, np.float32)
    im = nns.InstrumentedModel(model)
    # The reference has the padding of the sample.
    reference = np.where(x == -1, x, baseline)
    rows = np.arange(5)
    change = im.logits(x)[rows, y] - im.logits(reference)[rows, y]
    walk = backward_walk(im, ["first:h"], label_logit)
    value, usual, multipliers = walk(x, y, baseline)["first:h"]
    total = ((value - usual) * multipliers).sum(axis=2)  # (samples, steps)
    # Padding has no neurons, and an LSTM's other state carries a part before the last step.
    present = (x != -1).all(axis=2) & (np.arange(6) >= (5 if kind == "lstm" else 3))
    expected = np.broadcast_to(change[:, None], total.shape)
    np.testing.assert_allclose(total[present], expected[present], rtol=2e-3, atol=2e-4)


def test_wrapped_layers_have_no_such_neurons():
    inputs = keras.Input((4, 3))
    x = layers.Bidirectional(layers.LSTM(3), name="both")(inputs)
    x = layers.Dense(4, activation="relu", name="hidden")(x)
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(x)))
    assert list(semantic.neurons.neuron_layers(im)) == ["hidden"]
    gates = keras.Sequential([inputs, layers.GRU(3, activation="sigmoid"), layers.Dense(2)])
    with pytest.raises(nns.errors.UnsupportedLayerError, match="wrapped recurrent"):
        semantic.neurons.neuron_layers(nns.InstrumentedModel(gates))


def test_units_of_the_zoos_lstm(shared_data):
    """Without the quarter of the units with the lowest scores more is recognised."""
    model = zoo.load("lstm_rows")
    test = datasets.load("mnist", "test[:300]")
    slicer = semantic.SemanticSlicer(nns.InstrumentedModel(model), test.x, test.y, "taylor")
    best = slicer.global_slice(0.75)
    worst = {"lstm": np.argsort(np.argsort(slicer.scores["lstm"])) < 48}
    recognised = {
        name: zoo.accuracy(semantic.masked(model, masks), test)
        for name, masks in {"best": best, "worst": worst}.items()
    }
    assert recognised["best"] > recognised["worst"] + 0.1
    small = semantic.restructure(model, best)
    assert small.get_layer("lstm").units == 48
    assert zoo.accuracy(small, test) == pytest.approx(recognised["best"], abs=0.01)
