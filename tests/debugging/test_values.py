"""Compressed segmentations, regressions and autoencoders, compared layer by layer."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import debugging, dflare
from nnslicer_tf.debugging import compare_layers
from nnslicer_tf.errors import InvalidArgumentError
from support.outputs import autoencoder, images, noisy, regression, two_outputs, u_net

ROWS = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)


def test_of_a_linear_network_the_shares_are_those_of_the_errors():
    """y = W₂ W₁ x: each error adds its own part to the change of y, whatever the other is."""
    stack = [layers.Dense(5, use_bias=False, name=name) for name in ("one", "two")]
    model = keras.Sequential([keras.Input((6,)), *stack])
    im, other = nns.InstrumentedModel(model, task="regression"), noisy(model, 0.1)
    found = compare_layers(im, other, ROWS, progress=False)
    (w1, w2), (v1, v2) = model.get_weights(), other.get_weights()
    parts = {"one": ROWS @ (v1 - w1) @ w2, "two": ROWS @ v1 @ (v2 - w2)}
    change = ROWS @ v1 @ v2 - ROWS @ w1 @ w2
    for name, part in parts.items():
        share = (part * change).sum() / np.square(change).sum()
        assert found.causes[name] == pytest.approx(share, abs=1e-4)
        without = np.square(change - part).sum() / np.square(change).sum()
        assert found.alone[name] == pytest.approx(1 - without, abs=1e-4)
    table = found.to_frame().set_index("operation")
    ratio = 10 * np.log10(np.square(ROWS @ w1 @ w2).sum() / np.square(change).sum())
    assert table.loc["two", "SNR, dB"] == pytest.approx(ratio, abs=1e-3)
    assert found.labels is None and not found.by_labels and "compared by values" in repr(found)
    assert debugging.recipe(found, 1.0).mended == pytest.approx(1)


def test_a_map_deviates_where_its_labels_do():
    """Only positions whose label differs count, and a noisy layer alone explains them."""
    model, x = u_net(), images(12)
    im, other = nns.InstrumentedModel(model), noisy(model, 0.4, only="deep")
    found = compare_layers(im, other, x, progress=False)
    labels = np.stack([m.predict(x, verbose=0).argmax(-1) for m in (model, other)], axis=1)
    differs = (labels[:, 0] != labels[:, 1]).any(axis=(1, 2))
    np.testing.assert_array_equal(found.rows, np.flatnonzero(differs))
    np.testing.assert_array_equal(found.labels, labels[differs])
    assert found.by_labels and found.ranking[0].kernel == "deep"
    assert found.causes[found.ranking[0].operation] == pytest.approx(1, abs=1e-3)
    assert found.alone[found.ranking[0].operation] == 1
    made = compare_layers(im, other, x, progress=False, batch_size=5).channels
    for name, values in found.channels.items():
        np.testing.assert_allclose(made[name], values, atol=1e-4)


@pytest.mark.parametrize("build", [u_net, lambda: u_net(1, "sigmoid"), autoencoder, regression])
@pytest.mark.parametrize("kind", ["copy", "int8"])
def test_values_are_compared_where_labels_agree(build, kind):
    """Shares add up to the whole squared change of the logits or numbers."""
    model = build()
    x = images(10) if len(model.input_shape) > 2 else ROWS[:10]
    im = nns.InstrumentedModel(model)
    other = noisy(model, 0.001) if kind == "copy" else dflare.compress(model, "int8", x)
    found = compare_layers(im, other, x, by="values", progress=False)
    assert len(found.x) == 10 and sum(found.causes.values()) == pytest.approx(1, abs=0.02)
    assert found.mended([found._names])[0] == pytest.approx(1, abs=1e-6)
    assert np.isfinite(found.to_frame("channel")["cause"]).all()
    with pytest.raises(InvalidArgumentError, match="compute the same"):
        compare_layers(im, noisy(model, 0.0), x, progress=False)


def test_an_output_is_compared_by_name():
    model = two_outputs()
    im, other = nns.InstrumentedModel(model), noisy(model, 0.2, only="of_size")
    found = compare_layers(im, other, ROWS, output="size", progress=False)
    assert found.ranking[0].kernel == "of_size" and found.labels is None
    with pytest.raises(InvalidArgumentError, match="compute the same"):
        compare_layers(im, other, ROWS, output="kind", progress=False)
    with pytest.raises(InvalidArgumentError, match="Name one: output='kind'"):
        compare_layers(im, other, ROWS, progress=False)
