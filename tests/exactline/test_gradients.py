import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import (
    Attributor,
    exact_line,
    integrated_gradients,
)

from .lines import float64_model, run, sums_of_gradients
from .test_walk import MODELS, dense, ends, sequential, without_softmax


def relu_model(name="relu then pool"):
    model = float64_model(MODELS[name])
    (x,), (baseline,) = ends(model)
    return without_softmax(model), nns.InstrumentedModel(model), x, baseline


@pytest.mark.parametrize(
    "name", ["dense", "relu then pool", "residual", "inception", "leaky", "own operation"]
)
@pytest.mark.parametrize("target", [0, 2])
def test_completeness(name, target):
    model, im, x, baseline = relu_model(name)
    attributions = integrated_gradients(im, x, baseline, target)
    change = run(model, np.stack([x, baseline]))[:, target]
    assert abs(attributions.sum() - (change[0] - change[1])) < 1e-9
    assert attributions.shape == x.shape and attributions.dtype == np.float64


def test_float32_model_is_complete():
    """Weights are float32, all arithmetic is float64."""
    model = MODELS["relu then pool"]()
    (x,), (baseline,) = ends(model)
    exact = float64_model(MODELS["relu then pool"])
    exact.set_weights(model.get_weights())
    attributions = integrated_gradients(nns.InstrumentedModel(model), x, baseline, 1)
    change = run(exact, np.stack([x, baseline]))[:, 1]
    assert abs(attributions.sum() - (change[0] - change[1])) < 1e-9


def test_after_a_change_of_the_weights_attributions_are_of_the_new_ones():
    """They add up to the change of the output that the model gives now."""
    model = float64_model(MODELS["dense"])
    (x,), (baseline,) = ends(model)
    attributor = Attributor(nns.InstrumentedModel(model))
    for seed in (0, 1):
        model.set_weights(float64_model(MODELS["dense"], seed).get_weights())
        change = run(model, np.stack([x, baseline]))[:, 1]
        assert abs(attributor.exact(x, baseline, 1).sum() - (change[0] - change[1])) < 1e-9


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_weights_in_half_precision_are_taken_as_they_are(dtype):
    """The line of a model with the same weights in float32."""
    inputs = keras.Input((4,), dtype=dtype)
    hidden = keras.layers.Dense(12, "relu", dtype=dtype)(inputs)
    model = keras.Model(inputs, keras.layers.Dense(3, dtype=dtype)(hidden))
    single = sequential((4,), dense(12, "relu"), dense(3))()
    single.set_weights([np.asarray(w, np.float32) for w in model.get_weights()])
    (x,), (baseline,) = ends(single)
    found, expected = exact_line(model, baseline, x), exact_line(single, baseline, x)
    np.testing.assert_allclose(found.ratios, expected.ratios, atol=1e-6)
    np.testing.assert_allclose(found.outputs, expected.outputs, atol=1e-5)


def test_gradients_at_float32_inputs_are_those_at_their_values():
    im = nns.InstrumentedModel(MODELS["relu then pool"]())
    (x,), _ = ends(im.model)
    single = np.float32(x)[None]
    found = Attributor(im).gradients(single, 1)
    assert found.dtype == np.float64 and found.shape == single.shape
    np.testing.assert_array_equal(found, Attributor(im).gradients(np.float64(single), 1))


def test_closed_form():
    """ReLU(a) - 2 ReLU(b) on the line to (3, 1) from (-1, -1)."""
    model = float64_model(MODELS["dense"])
    first, second, last = model.layers
    for layer in (first, second, last):
        layer.set_weights([np.zeros_like(w) for w in layer.get_weights()])
    kernel = np.zeros((4, 12))
    kernel[0, 0] = kernel[1, 1] = 1
    first.kernel.assign(kernel)
    second.kernel.assign(np.eye(12))
    out = np.zeros((12, 3))
    out[:2, 0] = 1, -2
    last.kernel.assign(out)
    attributions = integrated_gradients(
        nns.InstrumentedModel(model), [3, 1, 5, 5], [-1, -1, 0, 0], 0
    )
    np.testing.assert_allclose(attributions, [3, -2, 0, 0], atol=1e-12)


def test_equals_many_samples():
    _, im, x, baseline = relu_model()
    exact = integrated_gradients(im, x, baseline, 0)
    for rule in ("left", "right", "trapezoid"):
        sampled = sums_of_gradients(Attributor(im), x, baseline, 0, 4_000, rule)
        assert np.abs(sampled - exact).sum() < 5e-3 * np.abs(exact).sum()


def test_sums_are_what_they_are_called():
    """On a function that is affine but for one kink all sums are known."""
    model = float64_model(MODELS["dense"])
    for layer in model.layers:
        layer.set_weights([np.zeros_like(w) for w in layer.get_weights()])
    one = np.zeros((4, 12))
    one[0, 0] = 1
    model.layers[0].kernel.assign(one)
    model.layers[1].kernel.assign(np.eye(12))
    model.layers[2].kernel.assign(np.eye(12)[:, :3])
    im = nns.InstrumentedModel(model)
    x, baseline = np.array([0.7, 0, 0, 0]), np.array([-0.3, 0, 0, 0])  # kink at 0.3
    expected = {"left": 2 / 4, "right": 3 / 4, "trapezoid": 2.5 / 4}
    for rule, value in expected.items():
        sums = sums_of_gradients(Attributor(im), x, baseline, 0, 4, rule)
        np.testing.assert_allclose(sums, [value, 0, 0, 0], atol=1e-12)
    path = Attributor(im).path(x, baseline, 0)
    np.testing.assert_allclose(path.exact(), [0.7, 0, 0, 0], atol=1e-12)


def test_gradients_of_parts_give_the_attributions():
    _, im, x, baseline = relu_model()
    attributor = Attributor(im, batch_size=7)
    path = attributor.path(x, baseline, 1)
    np.testing.assert_allclose(path.exact(), attributor.exact(x, baseline, 1), atol=1e-12)


def test_bad_arguments_are_refused():
    _, im, x, baseline = relu_model()
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"one of 3 logits\. Received: 3"):
        integrated_gradients(im, x, baseline, 3)
    with pytest.raises(nns.errors.InputShapeError, match="baseline"):
        Attributor(im).path(x, baseline[0], 0)
    with pytest.raises(nns.errors.NonFiniteActivationError, match="x is NaN"):
        Attributor(im).path(x * np.nan, baseline, 0)
