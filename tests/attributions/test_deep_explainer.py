"""`DeepExplainer` on recurrent networks, attention and others: sums are the outputs' changes."""

import keras
import numpy as np
import pytest
from gauntlet.analyses import Subject
from gauntlet.shap_sums import TOLERANCE, largest_error
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.attributions import DeepExplainer
from nnslicer_tf.errors import InvalidArgumentError, MissingPackageError

RNG = np.random.default_rng(0)


@pytest.mark.parametrize(
    "name",
    ["softmax", "softmax of a 1 × 1 map", "LSTM", "self-attention", "two inputs", "map of outputs"],
)
def test_values_add_up(name, tmp_path):
    assert largest_error(Subject(name, tmp_path), DeepExplainer) < TOLERANCE


def small():
    keras.utils.set_random_seed(3)
    hidden = [layers.Dense(6, "relu"), layers.Dense(3, "softmax")]
    return keras.Sequential([keras.Input((4,)), *hidden])


def test_a_linear_model_has_its_weights_times_the_change():
    """Beside a softmax every logit matters: p(1) falls as logit 0 rises."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    x, rows = RNG.normal(size=(2, 4)).astype("f4"), RNG.normal(size=(5, 4)).astype("f4")
    explainer = DeepExplainer(model, rows)
    expected = (x - rows.mean(axis=0))[:, :, None] * model.get_weights()[0][None]
    np.testing.assert_allclose(explainer.shap_values(x), expected, atol=1e-5)
    np.testing.assert_allclose(
        explainer.expected_value, model(rows).numpy().mean(axis=0), rtol=1e-5
    )

    end = keras.Sequential([keras.Input((3,)), layers.Softmax()])
    values = DeepExplainer(end, np.zeros((1, 3))).shap_values(np.array([[1.0, -1.0, 0.5]]))[0]
    p = np.exp([1, -1, 0.5]) / np.exp([1, -1, 0.5]).sum()
    np.testing.assert_allclose(values.sum(axis=0), p - 1 / 3, atol=1e-5)
    np.testing.assert_allclose(values.sum(axis=1), 0, atol=1e-5)  # probabilities add up to 1
    assert values[0, 1] < 0 < values[0, 0]


def test_ranked_outputs():
    model, x, rows = small(), RNG.normal(size=(3, 4)), RNG.normal(size=(5, 4))
    explainer = DeepExplainer(model, rows)
    every = explainer.shap_values(x)
    values, order = explainer.shap_values(x, ranked_outputs=2)
    outputs = model(x).numpy()
    np.testing.assert_array_equal(order, np.argsort(-outputs, axis=1)[:, :2])
    np.testing.assert_allclose(values, np.take_along_axis(every, order[:, None], axis=2))
    least = explainer.shap_values(x, ranked_outputs=1, output_rank_order="min")[1]
    np.testing.assert_array_equal(least[:, 0], outputs.argmin(axis=1))
    with pytest.raises(InvalidArgumentError, match="Unknown output_rank_order 'largest'"):
        explainer.shap_values(x, output_rank_order="largest")


def test_explanations_in_the_form_of_shap():
    shap = pytest.importorskip("shap")
    pd = pytest.importorskip("pandas")
    model, frame = small(), pd.DataFrame(RNG.normal(size=(8, 4)), columns=list("abcd"))
    found = DeepExplainer(model, frame)(frame[:2])
    assert isinstance(found, shap.Explanation) and found.feature_names == list("abcd")
    sums = found.values.sum(axis=1) + found.base_values
    np.testing.assert_allclose(sums, model(frame[:2].to_numpy()).numpy(), atol=1e-5)
    profile = nns.Profile.from_data(model, frame, progress=False)
    why = nns.Slicer(model, profile, progress=False).explain(
        frame[:1], decisive=False, compare=False
    )
    one = why.to_shap()
    logits = nns.InstrumentedModel(model).logits(frame)[:, why.predicted]
    assert one.values.sum() + one.base_values == pytest.approx(logits[0], abs=1e-4)
    assert one.base_values == pytest.approx(logits.mean(), abs=1e-4)
    np.testing.assert_allclose(one.values, why.background.values)


def test_without_shap_the_remedy_is_said(monkeypatch):
    monkeypatch.setattr("nnslicer_tf._environment.is_installed", lambda name: False)
    with pytest.raises(MissingPackageError, match=r"shap, which is not installed: .*\[shap\]"):
        DeepExplainer(small(), RNG.normal(size=(3, 4)))(RNG.normal(size=(1, 4)))
