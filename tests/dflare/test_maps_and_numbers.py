"""Deviations and agreement of segmentations, independent labels, regressions and autoencoders."""

import keras
import numpy as np
import pytest
from keras import layers
from sklearn.metrics import jaccard_score, r2_score

import nnslicer_tf as nns
from nnslicer_tf import dflare
from nnslicer_tf.errors import InvalidArgumentError
from support.outputs import autoencoder, images, noisy, regression, u_net

ROWS = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
SEARCH = dflare.DFlare(max_queries=150, timeout=60)


def _bytes(count: int) -> np.ndarray:
    return np.rint(255 * images(count)).astype(np.uint8)


def _scaled(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32) / 255


def test_agreement_of_numbers_is_said_in_the_pairs_measure():
    """It gave the largest difference of each input, the column beside it the root mean square."""
    x = np.array([[0, 0, 0], [1, 1, 1], [3, 0, 0], [0.5, 0.5, 0.5]], np.float32)
    pair = dflare.ModelPair(lambda x: x, lambda x: 0 * x, tolerance=1, task="regression")
    found = dflare.agreement(pair, x)
    np.testing.assert_allclose(found.apart, [0, 1, np.sqrt(3), 0.5], rtol=1e-6)
    assert "numbers differ by 0.81 on average, by 1.7 at most" in repr(found)


def test_numbers_deviate_by_more_than_the_tolerance(tmp_path):
    model = regression(values=2)
    other = noisy(model, 0.02)
    pair = dflare.ModelPair(model, other, tolerance=0.1)
    found = dflare.find_deviations(pair, ROWS[:12], search=SEARCH, progress=False)
    assert found.found.any() and (found.labels == -1).all() and found.confidences is None
    outputs = [m.predict(found.images, verbose=0) for m in (model, other)]
    apart = np.sqrt(np.square(outputs[0] - outputs[1]).mean(axis=1))
    np.testing.assert_allclose(found.apart, apart, atol=1e-5)
    assert (apart > 0.1).all() and dflare.verify(pair, found).all()
    seeds = [m.predict(ROWS[:12], verbose=0) for m in (model, other)]
    before = np.sqrt(np.square(seeds[0] - seeds[1]).mean(axis=1))
    np.testing.assert_array_equal(found.status == "already_deviates", before > 0.1)
    least = dflare.minimise(pair, found, progress=False)
    assert (least.apart > 0.1).all() and (least.apart <= found.apart + 1e-4).mean() > 0.5
    found.save(tmp_path / "found.npz")
    again = dflare.DeviationSet.load(tmp_path / "found.npz")
    np.testing.assert_array_equal(again.apart, found.apart)
    assert again.to_frame()["original"].isna().all() and again.figure().axes
    with pytest.raises(InvalidArgumentError, match="tests compare labels"):
        dflare.export_suite(found, tmp_path)
    with pytest.raises(InvalidArgumentError, match="tolerance"):
        dflare.find_deviations(dflare.ModelPair(model, other), ROWS, progress=False)


def test_a_map_deviates_if_enough_positions_do():
    model = u_net()
    other = noisy(model, 0.01)
    pair = dflare.ModelPair(model, other, _scaled, tolerance=0.05)
    found = dflare.find_deviations(pair, _bytes(6), search=SEARCH, progress=False)
    for image, apart in zip(found.images, found.apart, strict=True):
        first, second = (
            m.predict(_scaled(image[None]), verbose=0).argmax(-1) for m in (model, other)
        )
        assert apart > 0.05 and apart == pytest.approx((first != second).mean(), abs=1 / 64)
    assert found.found.any()


def test_agreement_of_a_map():
    model, x = u_net(), _bytes(20)
    other = noisy(model, 0.05)
    y = np.random.default_rng(0).integers(3, size=(20, 8, 8))
    found = dflare.agreement(dflare.ModelPair(model, other, _scaled), x, y)
    both = [m.predict(_scaled(x), verbose=0).argmax(-1) for m in (model, other)]
    np.testing.assert_array_equal(found.labels, np.stack(both, axis=1))
    np.testing.assert_allclose(found.apart, (both[0] != both[1]).mean(axis=(1, 2)))
    np.testing.assert_array_equal(found.differs, found.apart > 0)
    for column, answers in enumerate(both):
        expected = jaccard_score(y.ravel(), answers.ravel(), average="macro")
        assert found.quality["mean IoU"][column] == pytest.approx(expected)
    assert "mean IoU" in repr(found) and "apart" in found.to_frame()


def test_agreement_of_an_autoencoder():
    """Its loss says that a map of values from 0 to 1 is no segmentation."""
    model = autoencoder()
    model.add(layers.Activation("sigmoid"))
    model.compile("adam", "mse")
    other, x = noisy(model, 0.05), _bytes(20)
    with pytest.raises(InvalidArgumentError, match="Numbers need a tolerance"):
        dflare.agreement(dflare.ModelPair(model, other, _scaled), x)
    found = dflare.agreement(dflare.ModelPair(model, other, _scaled, tolerance=0.01), x, _scaled(x))
    both = [m.predict(_scaled(x), verbose=0) for m in (model, other)]
    apart = np.sqrt(np.square(both[0] - both[1]).reshape(20, -1).mean(axis=1))
    np.testing.assert_allclose(found.apart, apart, atol=1e-6)
    np.testing.assert_array_equal(found.differs, apart > 0.01)
    flat = [values.reshape(20, -1) for values in (_scaled(x), *both)]
    expected = r2_score(flat[0], flat[2], multioutput="variance_weighted")
    assert found.quality["R²"][1] == pytest.approx(expected, abs=1e-4) and found.labels is None
    assert nns.InstrumentedModel(model).classes.is_number


def test_independent_labels_are_on_or_off():
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(4, "sigmoid")])
    other = noisy(model, 0.3)
    y = np.random.default_rng(0).integers(2, size=(40, 4))
    found = dflare.agreement(dflare.ModelPair(model, other, task="multilabel"), ROWS, y)
    both = [m.predict(ROWS, verbose=0) > 0.5 for m in (model, other)]
    np.testing.assert_array_equal(found.differs, (both[0] != both[1]).any(axis=1))
    assert found.quality["accuracy"][1] == pytest.approx((both[1] == y).mean())
    with pytest.raises(InvalidArgumentError, match="task='multilabel'"):
        dflare.agreement(dflare.ModelPair(model, other), ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"task": "number"}, "Unknown task"), ({"tolerance": -1.0}, "tolerance must be")],
)
def test_bad_options_are_refused(options, message):
    with pytest.raises(InvalidArgumentError, match=message):
        dflare.ModelPair(regression(), regression(), **options)


def test_one_of_several_outputs_by_name():
    from support.outputs import noisy, two_outputs

    x = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    original = two_outputs()
    copy = noisy(original, 0.1)
    outputs = [model.predict(x, verbose=0) for model in (original, copy)]
    result = dflare.agreement(dflare.ModelPair(original, copy, output="kind"), x)
    labels = np.stack([values["kind"].argmax(axis=-1) for values in outputs], axis=1)
    np.testing.assert_array_equal(result.labels, labels)
    pair = dflare.ModelPair(original, copy, output="size", task="regression", tolerance=0.1)
    moved = np.abs(outputs[0]["size"] - outputs[1]["size"])[:, 0]
    np.testing.assert_array_equal(dflare.agreement(pair, x).differs, moved > 0.1)
    with pytest.raises(InvalidArgumentError, match="output='name'"):
        dflare.ModelPair(original, copy)


@pytest.mark.parametrize("loss", [None, "binary_crossentropy"])
def test_a_plain_models_labels_are_labels_with_a_tolerance(loss):
    """Its last function or its loss tells: the share of labels that differ, not numbers."""
    models = []
    for seed in (0, 1):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((6,))
        models.append(keras.Model(inputs, keras.layers.Dense(5, activation="sigmoid")(inputs)))
    if loss:
        models[0].compile(loss=loss)
    x = np.random.default_rng(0).normal(size=(90, 6)).astype(np.float32)
    old, new = (model.predict(x, verbose=0) for model in models)
    agrees = ((old > 0.5) != (new > 0.5)).mean(axis=1) <= 0.4
    near = np.sqrt(np.square(old - new).mean(axis=1)) <= 0.4
    assert (agrees != near).any()
    with pytest.warns(nns.errors.PlausibilityWarning, match="count as independent labels"):
        plain = dflare.ModelPair(models[0], models[1], tolerance=0.4)
    known = dflare.ModelPair(nns.InstrumentedModel(models[0]), models[1], tolerance=0.4)
    for pair in (plain, known):
        np.testing.assert_array_equal(dflare.agreement(pair, x).differs, ~agrees)
    numbers = dflare.ModelPair(*models, tolerance=0.4, task="regression")
    np.testing.assert_array_equal(dflare.agreement(numbers, x).differs, ~near)


def test_images_without_a_loss_are_numbers_with_a_tolerance():
    inputs = keras.Input((8, 8, 3))
    h = layers.Conv2D(3, 3, padding="same", activation="sigmoid")(inputs)
    model, x = keras.Model(inputs, h), np.random.default_rng(0).random((20, 8, 8, 3))
    other = noisy(model, 0.1)
    found = dflare.agreement(dflare.ModelPair(model, other, tolerance=0.02), x)
    apart = model.predict(x, verbose=0) - other.predict(x, verbose=0)
    far = np.sqrt(np.square(apart).mean(axis=(1, 2, 3))) > 0.02
    np.testing.assert_array_equal(found.differs, far)


@pytest.mark.parametrize("labels", [5, 600])
def test_several_hard_labels_are_no_classes(labels):
    x = np.random.default_rng(0).random((30, 4)).astype(np.float32)

    def several(x):
        return np.eye(labels)[np.int64(4 * x[:, 0])] + np.eye(labels)[[4] * len(x)]

    with pytest.raises(InvalidArgumentError, match="task='multilabel'"):
        dflare.agreement(dflare.ModelPair(several, several), x)
