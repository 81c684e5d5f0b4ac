"""Segmentations, regressions, autoencoders and several outputs are ranked, shrunk and tuned."""

import keras
import numpy as np
import pytest
from sklearn.metrics import jaccard_score, mean_squared_error, r2_score

import nnslicer_tf as nns
from nnslicer_tf import debugging, pruning
from nnslicer_tf.errors import InvalidArgumentError
from support.outputs import autoencoder, images, regression, two_outputs, u_net

ROWS = np.random.default_rng(0).normal(size=(80, 6)).astype(np.float32)
QUIET = {"ratio": 0.4, "by": "weight", "progress": False}


def _labels(model: keras.Model, x: np.ndarray, wrong: float = 0.2) -> np.ndarray:
    """Return a model's classes, some of them changed."""
    y = model.predict(x, verbose=0).argmax(axis=-1)
    rng = np.random.default_rng(1)
    return np.where(rng.uniform(size=y.shape) < wrong, rng.integers(3, size=y.shape), y)


def test_a_smaller_u_net_has_the_quality_that_it_says():
    model, x, test = u_net(), images(60), images(20, seed=1)
    found = pruning.shrink(model, x, _labels(model, x), test=(test, _labels(model, test)), **QUIET)
    assert found.model.count_params() <= 0.6 * model.count_params()
    assert found.classes == () and found.model.output_shape == model.output_shape
    truth = _labels(model, test).ravel()
    for column, network in enumerate((model, found.model)):
        answers = network.predict(test, verbose=0).argmax(axis=-1).ravel()
        figures = {name: values[column] for name, values in found.quality.items()}
        assert figures.pop("accuracy") == pytest.approx((answers == truth).mean())
        expected = jaccard_score(truth, answers, average=None, labels=range(3))
        assert figures.pop("mean IoU") == pytest.approx(expected.mean())
        assert list(figures.values()) == pytest.approx(expected.tolist())
        assert list(figures) == [f"IoU of class {label}" for label in range(3)]
    assert "mean IoU" in repr(found) and found.accuracy == found.quality["accuracy"]
    assert found.to_frame()["what"].tolist()[-1] == "IoU of class 2"


def test_a_u_net_for_some_classes():
    """Positions of other classes are left out, and their output is gone."""
    model, x = u_net(), images(40)
    y = _labels(model, x)
    found = pruning.shrink(model, x, y, classes=[0, 2], **QUIET)
    outputs = found.model.predict(x, verbose=0)
    assert outputs.shape[-1] == 2 and set(found.quality) == {
        *("mean IoU", "accuracy", "IoU of class 0", "IoU of class 2")
    }
    among = y != 1
    answers = 2 * outputs.argmax(axis=-1)[among]
    expected = jaccard_score(y[among], answers, average=None, labels=[0, 2]).mean()
    assert found.quality["mean IoU"][1] == pytest.approx(expected)


def test_contributions_to_a_class_of_a_map_are_those_of_its_pixels():
    """They rank as the slice for all pixels of the class."""
    im, x = nns.InstrumentedModel(u_net()), images(5)
    y = im.predict(x).argmax(axis=-1)
    ranker = pruning.NNSlicerRanker(theta=0.0, progress=False, correct_only=False)
    profile = nns.Profile.from_data(im, x, progress=False)
    found = pruning.scores(im, pruning.NNSlicerRanker(profile, 0.0, progress=False), x, y, [1])
    rows = (y == 1).reshape(5, -1).any(axis=1)
    pixels = {im.logit_operation: np.arange(8 * 8 * 3).reshape(8, 8, 3)[..., 1].ravel().tolist()}
    expected = nns.Slicer(im, profile, 0.0, progress=False).slice(x[rows], pixels).synapses
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values)
    with pytest.raises(InvalidArgumentError, match=r"at each of \(8, 8\) positions"):
        pruning.scores(im, ranker, x, np.zeros(5, int))


@pytest.mark.parametrize("build", [regression, lambda: regression(values=3), autoencoder])
def test_numbers_are_measured_by_their_variance(build):
    model = build()
    x = images(60) if len(model.input_shape) > 2 else ROWS
    im = nns.InstrumentedModel(model, task="regression")
    y = model.predict(x, verbose=0)
    y = y + np.random.default_rng(0).normal(0, 0.1, y.shape)
    found = pruning.shrink(im, x, y, ratio=0.3, by="contributions", progress=False)
    truth = y.reshape(len(y), -1)
    for column, network in enumerate((model, found.model)):
        answers = network.predict(x, verbose=0).reshape(len(x), -1)
        r2 = r2_score(truth, answers, multioutput="variance_weighted")
        assert found.quality["R²"][column] == pytest.approx(r2, abs=1e-5)
        rmse = np.sqrt(mean_squared_error(truth, answers))
        assert found.quality["RMSE"][column] == pytest.approx(rmse, rel=1e-5)
    assert np.isnan(found.accuracy).all() and "R² " in repr(found)
    with pytest.raises(InvalidArgumentError, match="omit"):
        pruning.shrink(im, x, y, classes=[0, 1], **QUIET)
    with pytest.raises(InvalidArgumentError, match="right numbers for each of"):
        pruning.shrink(im, x, y[:-1], **QUIET)


def test_several_outputs_are_shrunk_by_name():
    model = two_outputs()
    outputs = model.predict(ROWS, verbose=0)
    y = {"kind": outputs["kind"].argmax(axis=1), "size": outputs["size"][:, 0] + 0.01 * ROWS[:, 0]}
    found = pruning.shrink(model, ROWS, y, ratio=0.4, progress=False)
    assert found.model.count_params() <= 0.6 * model.count_params()
    after = found.model.predict(ROWS, verbose=0)
    right = (after["kind"].argmax(axis=1) == y["kind"]).mean()
    assert found.quality["kind: accuracy"] == (1.0, pytest.approx(right))
    r2 = r2_score(y["size"], after["size"][:, 0])
    assert found.quality["size: R²"][1] == pytest.approx(r2, abs=1e-5)
    parts = [  # scores of both outputs are added
        pruning.scores(keras.Model(model.inputs, model.output[name]), "nnslicer", ROWS, y[name])
        for name in y
    ]
    both = pruning.scores(model, "nnslicer", ROWS, y)
    np.testing.assert_array_equal(both["shared"], parts[0]["shared"] + parts[1]["shared"])
    np.testing.assert_array_equal(both["of_kind"], parts[0]["of_kind"])
    with pytest.raises(InvalidArgumentError, match="several outputs: kind, size"):
        debugging.Runs.split(nns.InstrumentedModel(model), ROWS, y)
    with pytest.raises(InvalidArgumentError, match="Pass y as a dict by name"):
        pruning.shrink(model, ROWS, y["kind"], **QUIET)


def test_fine_tuning_lowers_each_kind_of_loss():
    """The loss is Keras's: cross-entropy of pixels, squared error of numbers, and their sum."""
    x, crossentropy = images(64), keras.losses.SparseCategoricalCrossentropy()
    model = u_net()
    y = (x[..., 0] > 0.5).astype(int)
    options = {"learning_rate": 0.01, "batch_size": 16, "progress": False}
    losses = [float(crossentropy(y, model(x)))]
    pruning.fine_tune(model, x, y, 8, **options)
    losses.append(float(crossentropy(y, model(x))))
    assert losses[1] < 0.6 * losses[0]
    one = u_net(1, "sigmoid")
    pruning.fine_tune(one, x, y[..., None], 8, **options)
    assert ((one.predict(x, verbose=0)[..., 0] > 0.5) == y).mean() > 0.9
    line = regression()
    values = ROWS[:, 0] - ROWS[:, 1]
    pruning.fine_tune(line, ROWS, values, 40, **options)
    assert r2_score(values, line.predict(ROWS, verbose=0)[:, 0]) > 0.9
    two = two_outputs()
    truth = {"kind": (ROWS[:, 0] > 0).astype(int), "size": values}
    pruning.fine_tune(two, ROWS, truth, 40, **options)
    outputs = two.predict(ROWS, verbose=0)
    assert r2_score(values, outputs["size"][:, 0]) > 0.9
    assert (outputs["kind"].argmax(axis=1) == truth["kind"]).mean() > 0.95
    with pytest.raises(InvalidArgumentError, match="Missing: size"):
        pruning.fine_tune(two, ROWS, {"kind": truth["kind"]}, **options)


def test_masked_weights_of_a_map_stay_zero():
    model, x = u_net(), images(16)
    masked = pruning.prune(model, pruning.scores(model, "weight"), 0.5)
    pruning.fine_tune(masked, x, (x[..., 0] > 0.5).astype(int), progress=False)
    for name in ("down", "deep", "up", "last"):
        before, after = (m.get_layer(name).kernel.numpy() for m in (model, masked))
        smallest = np.argsort(np.abs(before), axis=None, kind="stable")[: before.size // 2]
        assert not after.ravel()[smallest].any() and np.count_nonzero(after) > 0.4 * before.size
