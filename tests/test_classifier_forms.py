"""Forms of one classifier of two classes: every analysis says the same of all of them."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import detection, dflare, pruning, semantic
from support.documents import unpack

X = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)


def classifier(form):
    keras.utils.set_random_seed(3)
    x = keras.Input((5,))
    hidden = layers.Dense(9, activation="relu", name="hidden")(x)
    score = layers.Dense(1, name="score")(hidden)
    if form == "sigmoid":
        return keras.Model(x, layers.Activation("sigmoid")(score))
    if form == "falling":
        model = keras.Model(x, 1 - layers.Activation("sigmoid")(score))
        model.get_layer("score").set_weights([-w for w in model.get_layer("score").get_weights()])
        return model
    model = keras.Model(x, score)
    model.compile("sgd", keras.losses.BinaryCrossentropy(from_logits=True))
    return model


@pytest.fixture(scope="module", params=["falling", "logit"])
def pair(request):
    """A classifier with one sigmoid, and the same in another form."""
    return [nns.InstrumentedModel(classifier(form)) for form in ("sigmoid", request.param)]


@pytest.fixture(scope="module")
def labels(pair):
    y = (pair[0].predict(X)[:, 0] > 0.5).astype(int)
    assert 40 < y.sum() < 160
    return y


def slicer(im, **options):
    profile = nns.Profile.from_data(im, X, progress=False)
    return nns.Slicer(im, profile, **{"theta": 0.1, "progress": False} | options)


def test_slices_and_predictions(pair, labels):
    first, second = (slicer(im).slice_each(X) for im in pair)
    np.testing.assert_array_equal(first.predicted, labels)
    np.testing.assert_array_equal(second.predicted, labels)
    # The score's kernel is negated in one of them; what it does to the score is the same.
    np.testing.assert_array_equal(first.to_array() != 0, second.to_array() != 0)


@pytest.mark.parametrize("target", [0, 1, None])
def test_explanations(pair, target):
    first, second = (slicer(im).explain(X[0], target=target) for im in pair)
    assert first.predicted == second.predicted
    for name in ("whole", "kept", "removed", "contributions"):
        np.testing.assert_allclose(getattr(first, name), getattr(second, name), atol=1e-5)


def test_decisive_slices(pair):
    first, second = (slicer(im).decisive(X[:8]).certificate for im in pair)
    for name in first:
        np.testing.assert_allclose(first[name], second[name], atol=1e-5, err_msg=name)


def test_pruning_by_class(pair, labels):
    ranker = pruning.NNSlicerRanker(progress=False)
    found = [pruning.scores(im, ranker, X, labels, [1]) for im in pair]
    for kernel in found[0]:
        np.testing.assert_array_equal(np.abs(found[0][kernel]), np.abs(found[1][kernel]))
    for im, one in zip(pair, found, strict=True):
        assert pruning.prune(im, one, 0.3).count_params() == im.model.count_params()


def test_shrunk_models_are_as_accurate(pair, labels):
    shrunk = [
        pruning.shrink(im, X, labels, classes=[0, 1], ratio=0.3, progress=False) for im in pair
    ]
    assert shrunk[0].accuracy == shrunk[1].accuracy
    other = [
        pruning.shrink(im, X, labels, classes=[0], other=True, ratio=0.3, progress=False)
        for im in pair
    ]
    assert other[0].accuracy == other[1].accuracy
    np.testing.assert_allclose(
        *(one.model.predict(X, verbose=0) for one in other), rtol=1e-4, atol=1e-5
    )


def test_semantic_scores(pair, labels):
    for metric in ("taylor", "deeplift"):
        first, second = (semantic.contributions(im, X, metric, labels) for im in pair)
        np.testing.assert_allclose(first["hidden"], second["hidden"], rtol=1e-4, atol=1e-6)


def test_detectors(pair):
    scores = [
        detection.SliceDetector(slicer(im, theta=0.0), rng=0).fit(X).score_samples(X[:20])
        for im in pair
    ]
    np.testing.assert_allclose(*scores, rtol=1e-4, atol=1e-4)


def test_deviations_are_those_of_probabilities(pair, labels):
    models = []
    for im in pair:
        model = dflare.with_softmax(im.model) if im.classes.are_logits else im.model
        p = model.predict(X, verbose=0)[:, 0]
        np.testing.assert_array_equal(p > 0.5, labels)
        models.append(model)
    found = dflare.find_deviations(
        dflare.ModelPair(*models), X[:6], search=dflare.DFlare(max_queries=20), progress=False
    )
    assert not found.found.any()


def test_a_probability_without_a_logit_is_explored():
    """The mean of two sigmoids; the page shows the operation that is added for it, too."""
    x = keras.Input((5,))
    model = keras.Model(x, layers.Average()([layers.Dense(1, "sigmoid")(x) for _ in range(2)]))
    of_mean = slicer(nns.InstrumentedModel(model), workers=0)
    one = of_mean.slice(X[:3])
    page = nns.explore(one, of_mean.im, X[:3], profile=of_mean.profile, progress=False)
    header, arrays = unpack(page.data)
    names = [operation["name"] for operation in header["operations"]]
    (part,) = header["exhibits"][0]["parts"]
    for place, reference in part["neurons"].items():
        np.testing.assert_array_equal(arrays[reference], one.neurons[names[int(place)]])
    assert of_mean.im.logit_operation in names
