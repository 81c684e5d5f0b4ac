"""Decisive slices for an answer with two sides: one class and not another, a label on or off."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.instrument.target import resolve_target


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


@pytest.fixture(scope="module", params=["classes", "labels"])
def asked(request):
    """A linear network, samples, what is asked, and the scores by hand, with the names of sides."""
    rng = np.random.default_rng(2)
    x = rng.normal(size=(6, 5)).astype(np.float32)
    kernel = rng.normal(size=(5, 3))
    final = "softmax" if request.param == "classes" else "sigmoid"
    model = keras.Sequential([keras.Input((5,)), layers.Dense(3, final)])
    model.set_weights([kernel, np.zeros(3)])
    if request.param == "labels":
        model.compile(loss="binary_crossentropy")
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, np.concatenate([x, -x]), progress=False)  # means are 0
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    if request.param == "classes":
        return slicer, x, resolve_target(im, 2, 0), kernel[:, 2] - kernel[:, 0]
    return slicer, x, 1, kernel[:, 1]


def test_certificates_are_those_of_the_score_by_hand(asked):
    slicer, x, outputs, direction = asked
    found = slicer.decisive(x, outputs, level="input", max_share=1.0)
    scores = x @ direction
    assert {0, 1} == set(found.certificate["answer"])
    np.testing.assert_array_equal(found.certificate["answer"], scores > 0)
    odds = sigmoid(np.abs(scores))
    np.testing.assert_allclose(found.certificate["probability"], odds, rtol=1e-5)
    # With nothing active, the score is 0, which is not above 0.
    assert (found.certificate["empty answer"] == 0).all()
    for index, score in enumerate(scores):
        (mask,) = found.masks(index).values()
        alone = (x[index] * mask) @ direction
        p, q = sigmoid(score), sigmoid(alone)
        divergence = p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))
        assert found.certificate["divergence"][index] == pytest.approx(divergence, abs=1e-5)
        assert found.certificate["answer with slice alone"][index] == (score > 0)
        # The other side is the only other answer; it is asked for unless nothing active gives it.
        others = [label for label, _ in found.info["others"][index]]
        assert others == ([1] if score <= 0 else [])


def test_both_sides_have_names(asked):
    slicer, x, outputs, direction = asked
    found = slicer.decisive(x, outputs, level="input", max_share=1.0)
    is_difference = not isinstance(outputs, int)
    assert found.info["kind"] == "binary"
    assert found.info["names"] == ([2, 0] if is_difference else [1])
    for index, score in enumerate(x @ direction):
        on, off = "cat", "not cat"
        if is_difference:
            on, off = "bird rather than dog", "dog rather than bird"
        text = found.summary(index, ["dog", "cat", "bird"])
        assert f"the model answers {on if score > 0 else off} with" in text
        assert (f"{on}" in text.partition("The same search for ")[2]) == (score <= 0)


@pytest.mark.parametrize("level", ["weight", "layer", None])
def test_levels_of_slices_alone(asked, level):
    """Weights are units of ablations, not of slices."""
    slicer, x, outputs, _ = asked
    with pytest.raises(nns.errors.InvalidArgumentError, match=f"Unknown level {level!r}"):
        slicer.decisive(x[:1], outputs, level=level)


def test_what_is_said_of_numbers_of_a_model_of_labels():
    """A number is no label: none was chosen, and there are no probabilities."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    tags = layers.Dense(3, activation="sigmoid", name="tags")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu", name="h"), tags])
    im = nns.InstrumentedModel(model)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), progress=False)
    options = {"scope": None, "max_share": 1.0}
    found = slicer.decisive(x[:1], {"h": [2]}, **options)
    assert "most probable" not in found.summary() and not found.info["labels"]
    together = slicer.decisive(x[:3], {"h": [2]}, together=True, **options)
    assert "values are those of sample 0" in together.summary()
    assert "only the most probable one was kept" in slicer.decisive(x[:1], **options).summary()


@pytest.mark.parametrize("change", [0, 1e-7, 1e-5, 0.1])
def test_a_number_that_nothing_changes_is_kept(change):
    """At the mean all units give their means: a difference is rounding alone."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(1).normal(size=(50, 6)).astype(np.float32)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(1)])
    im = nns.InstrumentedModel(model, task="regression")
    profile = nns.Profile.from_data(im, x, progress=False)
    mean = profile.means[im.input_operation][None].copy()
    mean[:, 0] += change
    slicer = nns.Slicer(im, profile, progress=False)
    found = slicer.decisive(mean, level="input", scope=None, max_share=1.0)
    assert found.certificate["kept"].all()


def test_a_label_may_be_given_as_a_list_of_one():
    """It was compared with the most probable label, and refused with a false sentence."""
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(50, 4)).astype(np.float32)
    tags = layers.Dense(3, activation="sigmoid", name="tags")
    model = keras.Sequential([keras.Input((4,)), layers.Dense(4, "relu"), tags])
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    predicted = im.predict(x[:4]).argmax(axis=1)
    other = int(np.setdiff1d(range(3), predicted)[0]) if len({*predicted}) < 3 else 0
    plain = slicer.decisive(x[:4], other, others=0)
    for form in ([other], np.array([other]), {"tags": [other]}):
        found = slicer.decisive(x[:4], form, others=0)
        assert found.summary() == plain.summary()
    with pytest.raises(nns.errors.CriterionError, match="has as its most probable label"):
        slicer.decisive(x[:4], [other] * 4, others=0)
