"""Versions of segmentations, regressions, autoencoders and two outputs, against NumPy and Keras."""

import keras
import numpy as np
import pytest

from nnslicer_tf import versions
from nnslicer_tf.errors import InvalidArgumentError
from support.outputs import autoencoder, images, noisy, regression, two_outputs, u_net

ROWS = np.random.default_rng(0).normal(size=(100, 6)).astype(np.float32)


def outputs(model: keras.Model, x: np.ndarray) -> np.ndarray:
    return model.predict(x, verbose=0)


@pytest.mark.parametrize("units", [3, 1])
def test_segmentations(units):
    old = u_net(units, "softmax" if units > 1 else "sigmoid")
    new, x = noisy(old, 0.03), images()
    first, second = (
        outputs(m, x).argmax(-1) if units > 1 else (outputs(m, x)[..., 0] > 0.5).astype(int)
        for m in (old, new)
    )
    truth = np.where(np.random.default_rng(1).uniform(size=first.shape) < 0.9, first, 0)
    result = versions.compare(old, new, x, truth, tolerance=0.05)
    np.testing.assert_array_equal(result.answers, np.stack([first, second], axis=1))
    wrong = [(part != truth).mean(axis=(1, 2)) for part in (first, second)]
    assert result.changed.tolist() == np.flatnonzero((first != second).mean((1, 2)) > 0.05).tolist()
    assert result.negative.tolist() == np.flatnonzero(wrong[1] - wrong[0] > 0.05).tolist()
    assert result.positive.tolist() == np.flatnonzero(wrong[0] - wrong[1] > 0.05).tolist()
    assert 0 < len(result.negative) < len(result.changed) < len(x)
    frame = result.to_frame().set_index("class")
    for label in range(max(units, 2)):
        row, here = frame.loc[label], truth == label
        assert row["positions"] == here.sum() and row["changed"] == (first != second)[here].sum()
        assert row["negative flips"] == (here & (first == label) & (second != label)).sum()
        for name, part in (("old", first), ("new", second)):
            iou = (here & (part == label)).sum() / (here | (part == label)).sum()
            assert row[f"IoU, {name}"] == pytest.approx(iou)
    assert frame.loc["all", "IoU, new"] == pytest.approx(frame["IoU, new"][:-1].mean())
    assert f"mean IoU {frame.loc['all', 'IoU, old']:.4g} →" in result.summary()
    assert len(versions.compare(old, new, x).changed) == (first != second).any(axis=(1, 2)).sum()


@pytest.mark.parametrize("kind", ["numbers", "image"])
def test_numbers(kind):
    old, x = (regression(values=2), ROWS) if kind == "numbers" else (autoencoder(), images())
    old.compile("adam", "mse")
    new = noisy(old, 0.05)
    new.compile("adam", "mse")
    first, second = (outputs(m, x).reshape(len(x), -1).astype(float) for m in (old, new))
    truth = first + np.random.default_rng(1).normal(0, 0.1, first.shape)
    apart, *errors = (
        np.sqrt(np.square(a - b).mean(axis=1))
        for a, b in ((first, second), (first, truth), (second, truth))
    )
    limit = float(np.median(apart)) / 4
    result = versions.compare(old, new, x, truth.reshape(outputs(old, x).shape), tolerance=limit)
    assert result.changed.tolist() == np.flatnonzero(apart > limit).tolist()
    assert result.negative.tolist() == np.flatnonzero(errors[1] - errors[0] > limit).tolist()
    assert result.positive.tolist() == np.flatnonzero(errors[0] - errors[1] > limit).tolist()
    assert len(result.negative)
    row = result.to_frame().iloc[0]
    assert row["RMSE, new"] == pytest.approx(np.sqrt(np.square(second - truth).mean()), rel=1e-4)
    # A layer's column is what Keras answers with that layer's old weights.
    for layer, share in result.layers.set_index("layer")["old answer without"].items():
        mixed = noisy(new, 0)
        mixed.get_layer(layer.rpartition("/")[2]).set_weights(
            old.get_layer(layer.rpartition("/")[2]).get_weights()
        )
        values = outputs(mixed, x).reshape(len(x), -1)[result.changed]
        left = np.sqrt(np.square(values - first[result.changed]).mean(axis=1)).sum()
        assert share == pytest.approx(1 - left / apart[result.changed].sum(), abs=1e-3)
    with pytest.raises(InvalidArgumentError, match="tolerance="):
        versions.compare(old, new, x)


def test_outputs_by_name():
    old = two_outputs()
    new = noisy(old, 0.4, "of_kind")
    labels = [outputs(model, ROWS)["kind"].argmax(-1) for model in (old, new)]
    result = versions.compare(old, new, ROWS, output="kind")
    np.testing.assert_array_equal(result.answers, np.stack(labels, axis=1))
    assert set(result.layers["layer"]) == {"shared", "of_kind", "kind"}
    assert result.layers.set_index("layer").loc["of_kind", "old answer without"] == 1
    assert not len(versions.compare(old, new, ROWS, output="size", tolerance=1e-4).changed)
    few = result.changed[:2]
    causes = versions.explain_flips(old, new, ROWS[few], output="kind", progress=False)
    for i, flip in enumerate(few):
        one = outputs(causes.with_changes(i), ROWS[flip : flip + 1])
        assert np.argmax(one) == labels[1][flip] != labels[0][flip]
    # A version with other names is matched by place.
    again = keras.Model(new.inputs, {"a": new.output["kind"], "b": new.output["size"]})
    other = versions.compare(old, again, ROWS, output="kind")
    np.testing.assert_array_equal(other.answers, result.answers)
    with pytest.raises(InvalidArgumentError, match="output='kind'"):
        versions.compare(old, new, ROWS)
    with pytest.raises(InvalidArgumentError, match="not a classifier"):
        versions.explain_flips(old, new, ROWS, output="size", progress=False)
    with pytest.raises(InvalidArgumentError, match="cannot be compared"):
        versions.compare(u_net(), u_net(4), images())


@pytest.mark.parametrize("build", [lambda: u_net(3, "softmax"), regression], ids=["map", "numbers"])
def test_a_model_and_itself_have_no_flips(build):
    model = build()
    x = images() if len(model.input_shape) == 4 else ROWS
    truth = outputs(model, x)
    truth = truth.argmax(-1) if truth.ndim == 4 else truth
    result = versions.compare(model, model, x, truth, tolerance=0.1)
    assert [len(result.changed), len(result.negative), len(result.positive)] == [0, 0, 0]
    assert "0.00%" in result.summary()
