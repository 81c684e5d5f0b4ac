"""Suspicion: every method against its definition, sample by sample."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.debugging import METHODS, SuspicionScores, mend, suspicious
from nnslicer_tf.debugging.evidence import gradient
from nnslicer_tf.errors import InvalidArgumentError
from support.known_models import negated


@pytest.mark.parametrize("method", METHODS)
def test_outputs_are_no_suspects(im, pairs, method):
    ending = keras.Sequential([im.model, layers.Rescaling(2.0, name="scaled")])
    for one in (im, nns.InstrumentedModel(keras.Sequential([ending, layers.Softmax()]))):
        found = suspicious(one, *pairs, method, progress=False)
        after = [o.name for o in one.operations if o.shape == (3,)]
        logits = after.index(one.logit_operation)
        for name in after[logits:]:
            assert not found.neurons[name].any()
        hidden = [values for name, values in found.neurons.items() if "hidden" in name]
        assert any(values.any() for values in hidden)


@pytest.mark.parametrize("contrast", [False, True])
def test_gradients_by_finite_differences(im, pairs, runs, contrast):
    """A neuron adds the slope of the lead when its value is moved to the reference's."""
    usual = im.capture(runs.passing.x, of=["hidden"])["hidden"].mean(axis=0)
    found = gradient(im, runs, reference={"hidden": usual} if contrast else None)
    if not contrast:
        named = suspicious(im, *pairs, "gradient", progress=False)
        np.testing.assert_array_equal(named.neurons["hidden"], np.abs(found.neurons["hidden"]))
    graph, total = im.graph, np.zeros(im["hidden"].shape)
    for x, right, wrong in zip(*vars(runs.failing).values(), strict=True):
        reference = usual if contrast else np.zeros(len(total))

        def lead(share, unit, x=x, right=right, wrong=wrong, reference=reference):
            def change(name, value):
                if name != "hidden":
                    return value
                step = np.zeros(len(reference))
                step[unit] = share
                return value + step * (keras.ops.convert_to_numpy(value)[0] - reference)

            logits = graph.run(
                keras.ops.convert_to_tensor(x[None].astype(float)), ["logits"], change
            )
            logits = keras.ops.convert_to_numpy(logits["logits"])[0]
            return logits[wrong] - logits[right]

        total += [(lead(1e-4, u) - lead(-1e-4, u)) / 2e-4 for u in range(len(total))]
    np.testing.assert_allclose(
        found.neurons["hidden"], total / len(runs.failing), rtol=1e-3, atol=1e-5
    )


def test_adjustment_measures_the_best_change_of_one_unit(im, pairs, runs):
    """The last hidden units, in NumPy: each is set to its mean, mirrored, scaled or shifted."""
    found = suspicious(im, *pairs, "adjustment", progress=False)
    weights, bias = (keras.ops.convert_to_numpy(w) for w in im.model.get_layer("logits").weights)
    x = np.concatenate([runs.failing.x, runs.passing.x])
    right = np.concatenate([runs.failing.right, runs.passing.right])
    sizes = len(runs.failing), len(runs.passing)
    shares = np.repeat([0.5 / size for size in sizes], sizes)
    hidden = im.capture(x)["hidden:pre"].astype(np.float64)

    def loss(values):
        powers = np.exp(np.maximum(values, 0) @ weights + bias)
        return -shares @ np.log(powers[np.arange(len(x)), right] / powers.sum(axis=1))

    means, spreads = hidden.mean(axis=0), hidden.std(axis=0)
    spreads = np.maximum(spreads, np.median(spreads))
    gains = np.full(8, -np.inf)
    for unit, factor in np.ndindex(8, 6):
        a = (0.0, -1.0, -0.4, 0.4, 2.0, 0.98)[factor]
        for b in (1, -1, 3, -3, 9, -9) if a == 0.98 else (0, 1, -1, 3, -3):
            changed = hidden.copy()
            centred = hidden[:, unit] - means[unit]
            changed[:, unit] = means[unit] + a * centred + b * spreads[unit]
            gains[unit] = max(gains[unit], loss(hidden) - loss(changed))
    scores = found.channels["hidden:pre"]
    exact = scores > 0.5
    assert exact.sum() >= 3 and not found.channels["logits"].any()
    np.testing.assert_allclose(scores[exact] - 0.5, gains[exact], rtol=1e-2, atol=1e-4)
    assert gains[~exact].max(initial=0) <= gains.max()


@pytest.fixture(scope="module")
def digits_mlp(digits):
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input(digits.x.shape[1:]),
            layers.Flatten(),
            layers.Dense(24, "relu", name="first"),
            layers.Dense(16, "relu", name="second"),
            layers.Dense(10),
        ]
    )
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.fit(digits.x, digits.y, epochs=40, batch_size=16, verbose=0)
    return model


@pytest.mark.parametrize("kind", ["negate", "scale", "bias", "copy", "zero", "swap"])
def test_adjustment_finds_each_kind_of_fault(kind, digits_mlp, digits):
    """In a small network that was trained, with faults in its first and second layer."""
    model = keras.models.clone_model(digits_mlp)
    model.set_weights(digits_mlp.get_weights())
    whole = model.get_weights()
    ranks = []
    for place, name in ((0, "first"), (2, "second")):
        # The unit whose loss costs most; the other one of a swap is the next.
        costs = []
        for unit in range(whole[place].shape[1]):
            kernel, bias = whole[place].copy(), whole[place + 1].copy()
            own, other = unit, (unit + 1) % len(bias)
            if kind == "negate":
                kernel[:, own], bias[own] = -kernel[:, own], -bias[own]
            elif kind == "scale":
                kernel[:, own] *= 4
            elif kind == "bias":
                bias[own] += 3
            elif kind == "copy":
                kernel[:, own], bias[own] = kernel[:, other], bias[other]
            elif kind == "zero":
                kernel[:, own] = 0
            else:
                kernel[:, [own, other]] = kernel[:, [other, own]]
                bias[[own, other]] = bias[[other, own]]
            faulty = [*whole[:place], kernel, bias, *whole[place + 2 :]]
            model.set_weights(faulty)
            right = model.predict_on_batch(digits.x).argmax(axis=1) == digits.y
            costs.append((right.mean(), unit, faulty))
        _, unit, faulty = min(costs, key=lambda cost: cost[0])
        model.set_weights(faulty)
        im = nns.InstrumentedModel(model)
        runs = nns.debugging.Runs.split(im, digits.x, digits.y).sampled(64)
        pair = [(part.x, part.right) for part in (runs.failing, runs.passing)]
        frame = suspicious(im, *pair, "adjustment", progress=False).to_frame()
        culprits = (unit, (unit + 1) % len(faulty[place + 1])) if kind == "swap" else (unit,)
        is_fault = (frame["operation"] == f"{name}:pre") & frame["channel"].isin(culprits)
        ranks.append(int(frame.index[is_fault][0]) + 1)
    assert min(ranks) <= 5 and sum(ranks) <= 15  # of 50 units; training differs a little by run


@pytest.mark.parametrize("method", list(METHODS))
def test_every_method_scores_everything(im, pairs, method):
    found = suspicious(im, *pairs, method, progress=False)
    assert {name: v.shape for name, v in found.synapses.items()} == {
        name: kernel.shape for name, kernel in im.kernels.items()
    }
    assert all(im[name].shape == values.shape for name, values in found.neurons.items())
    assert set(found.channels) == {"first:pre", "inner", "hidden:pre", "logits"}
    assert all(np.isfinite(v).all() for v in (*found.neurons.values(), *found.synapses.values()))
    again = suspicious(im, *pairs, method, progress=False)
    np.testing.assert_array_equal(found.synapses["inner"], again.synapses["inner"])


def test_a_method_of_your_own(im, pairs, monkeypatch):
    """It gets the model and the runs; synapses have their channels' scores."""

    def largest(model, runs, progress):
        assert model is im and len(runs.failing) == len(pairs[0][0]) and not progress
        values = im.capture(runs.failing.x)
        neurons = {o.name: np.float64(values[o.name].max(axis=0)) for o in im.operations}
        return SuspicionScores.by_channel(im, neurons)

    monkeypatch.setitem(METHODS, "largest", largest)
    found = suspicious(im, *pairs, "largest", progress=False)
    inner = im.capture(pairs[0][0])["inner"].max(axis=0)
    np.testing.assert_allclose(found.neurons["inner"], np.abs(inner))
    channels = np.abs(inner.mean(axis=(0, 1)))
    np.testing.assert_allclose(found.synapses["inner"], np.broadcast_to(channels, (3, 3, 4, 4)))


def test_rankings(im, pairs):
    found = suspicious(im, *pairs, progress=False)
    channels = found.to_frame()
    assert list(channels.columns) == ["rank", "operation", "channel", "score"]
    assert len(channels) == 4 + 4 + 8 + 3
    assert channels["score"].is_monotonic_decreasing
    first = channels.iloc[0]
    assert first["score"] == found.channels[first["operation"]][first["channel"]]
    synapses = found.to_frame("synapse", 5)
    top = synapses.iloc[0]
    assert top["score"] == max(v.max() for v in found.synapses.values())
    assert found.synapses[top["kernel"]][top["synapse"]] == top["score"]
    assert found.to_frame("layer")["operation"].is_unique
    with pytest.raises(InvalidArgumentError, match="Did you mean 'channel'"):
        found.to_frame("channels")
    with pytest.raises(InvalidArgumentError, match="Did you mean 'gradient"):
        suspicious(im, *pairs, "gradients")
    assert "Suspicion(gradient: first is channel" in repr(found)


def test_a_planted_fault_is_found(digits_model, digits):
    """A channel of the trained model that is negated three times over comes first."""
    from nnslicer_tf.debugging import Runs

    im = negated(digits_model, "conv1", 0)
    runs = Runs.split(im, digits.x, digits.y)
    assert len(runs.failing) > 20
    pair = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    for method in ("gradient", "adjustment"):
        found = suspicious(im, *pair, method, progress=False)
        hidden = [v for name, v in found.channels.items() if name != im.logit_operation]
        more = np.concatenate(hidden) > found.channels["conv1"][0]
        assert more.sum() <= 1


def test_kernels_that_a_layer_computes_are_no_suspects():
    class Doubled(layers.Layer):
        def build(self, input_shape):
            self.v = self.add_weight(shape=(input_shape[-1], 7), name="v")
            self.built = True

        def call(self, x):
            return keras.ops.matmul(x, 2 * self.v)

    keras.utils.set_random_seed(0)
    hidden = layers.Dense(8, activation="relu", name="hidden")
    model = keras.Sequential([keras.Input((6,)), hidden, Doubled(name="own")])
    model.add(layers.Dense(3, name="classes"))
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    runs = nns.debugging.Runs.split(im, x, np.arange(90) % 3)
    pairs = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    found = suspicious(im, *pairs)
    assert set(found.synapses) == {"hidden", "classes"} and "own/matmul" in found.neurons


@pytest.mark.parametrize("ending", ["divided", "reshaped"])
@pytest.mark.parametrize("method", ["gradient", "adjustment"])
def test_what_only_scales_or_moves_the_logits_is_no_suspect(ending, method):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    z = keras.layers.Dense(3, name="out")(keras.layers.Dense(9, "relu", name="h")(inputs))
    z = z / 2 if ending == "divided" else keras.layers.Reshape((3,))(z)
    model = keras.Model(inputs, keras.layers.Softmax()(z))
    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    right = model.predict(x, verbose=0).argmax(axis=1)
    right[::3] = (right[::3] + 1) % 3
    parts = (x[::3], right[::3]), (np.delete(x, np.s_[::3], 0), np.delete(right, np.s_[::3]))
    found = suspicious(nns.InstrumentedModel(model), *parts, method, progress=False)
    assert not found.channels["out"].any() and found.channels["h:pre"].any()


@pytest.mark.parametrize("cell", ["GRU", "LSTM", "SimpleRNN"])
def test_recurrent_units_are_ranked_and_not_mended(cell):
    """All gates of a recurrent unit are faulty: it comes first among all channels."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((5, 4), name="x")
    model = keras.Model(
        inputs,
        keras.layers.Dense(3, name="o")(getattr(keras.layers, cell)(6, name="g")(inputs)),
    )
    rng = np.random.default_rng(0)
    for variable in model.trainable_variables:
        variable.assign(rng.normal(size=variable.shape))
    x = rng.normal(size=(600, 5, 4)).astype(np.float32)
    y = model.predict(x, verbose=0).argmax(axis=1)
    kernel, *rest = model.get_layer("g").get_weights()
    kernel[:, 2::6] *= -6
    model.get_layer("g").set_weights([kernel, *rest])
    im = nns.InstrumentedModel(model)
    failing = model.predict(x, verbose=0).argmax(axis=1) != y
    pair = [(x[part], y[part]) for part in (failing, ~failing)]
    found = suspicious(im, *pair, "adjustment", progress=False)
    first = found.to_frame().iloc[0]
    neuron = found.to_frame("neuron").iloc[0]
    assert (first["operation"], first["channel"]) == (neuron["operation"], neuron["neuron"][-1])
    assert first["operation"].startswith("g:") and first["channel"] == 2
    assert found.to_frame("layer")["operation"].iloc[0] == first["operation"]
    with pytest.raises(nns.errors.UnsupportedLayerError, match="of a recurrent layer"):
        mend(im, found, x[:20], y[:20])
