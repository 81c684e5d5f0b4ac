"""Every public entry point that takes data, with every form of data: it works, or says why not."""

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import (
    debugging,
    deepbase,
    deepxplore,
    detection,
    dflare,
    exactline,
    pruning,
    semantic,
)
from support.data_forms import LABELLED, SAMPLES, X, Y

FORMS = {**SAMPLES, **LABELLED, "data frame": lambda: pd.DataFrame(X.reshape(len(X), -1))}
FORMS |= {"nothing": lambda: None, "number": lambda: 3, "text": lambda: "no such file"}

FEW = ("nested list", "generator", "Dataset", "data frame", "nothing", "number", "text")
SLOW = {
    "linearity",
    "quantize",
    "compare_layers",
    "shrink",
    "explain",
    "explore",
    "scores",
    "class profiles",
}
"""Entry points that take long; they get a few forms. `generate` gets what is no data."""


def forms(name):
    """The forms that an entry point gets."""
    chosen = FEW[4:] if name == "generate" else FEW if name in SLOW else tuple(FORMS)
    return {form: FORMS[form] for form in chosen}.items()


@pytest.fixture(scope="module")
def im():
    keras.utils.set_random_seed(0)
    inputs = keras.Input(X.shape[1:])
    x = layers.Conv2D(4, 2, activation="relu", name="conv")(layers.Rescaling(1 / 255)(inputs))
    x = layers.Dense(6, activation="relu", name="hidden")(layers.Flatten(name="flat")(x))
    return nns.InstrumentedModel(keras.Model(inputs, layers.Dense(3, name="logits")(x)))


@pytest.fixture(scope="module")
def slicer(im):
    return nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), workers=0, progress=False)


@pytest.fixture(scope="module")
def detector(slicer):
    return detection.SliceDetector(slicer, "margin").fit(np.repeat(X, 40, axis=0))


OF_SAMPLES = {
    "capture": lambda im, x: im.capture(x)["hidden"],
    "predict": lambda im, x: im.predict(x),
    "logits": lambda im, x: im.logits(x),
    "gradients": lambda im, x: im.gradients(x, of=("logits", 0), wrt="hidden"),
    "profile": lambda im, x: nns.Profile.from_data(im, x, progress=False).means["hidden"],
    "coverage": lambda im, x: _covered(im, x),
    "ranges": lambda im, x: deepxplore.NeuronRanges.from_data(im, x).high,
    "deepbase": lambda im, x: deepbase.inspect(im, x, {"class": Y}, units="hidden", progress=False)[
        "score"
    ],
    "generate": lambda im, x: (
        deepxplore.generate([im, im], x, max_iterations=1, progress=False).seed_index
    ),
    "find_deviations": lambda im, x: (
        dflare.find_deviations(
            dflare.ModelPair(agreeing, agreeing, domain=dflare.SignalDomain(X)),
            x,
            search=dflare.DFlare(max_queries=20),
            progress=False,
        ).queries
    ),
    "integrate": lambda im, x: exactline.integrated_gradients(im, x, X[0] * 0, 1),
    "compare_layers": lambda im, x: debugging.compare_layers(im, im.model, x, progress=False),
    "quantize": lambda im, x: dflare.compress(im.model, "int8", x),
    "explore": lambda im, x: nns.explore({"hidden": np.ones(6, bool)}, im, x, progress=False),
}
OF_LABELLED = {
    "contributions": lambda im, x, y: semantic.contributions(im, x, "avg")["hidden"],
    "semantic_slice": lambda im, x, y: semantic.SemanticSlicer(im, x, y, "avg").semantic_slice(0.9)[
        "hidden"
    ],
    "shrink": lambda im, x, y: (
        pruning.shrink(im, x, y, classes=[0, 1], ratio=0.3, progress=False).accuracy
    ),
    "scores": lambda im, x, y: pruning.scores(im, "weight", x, y)["hidden"],
    "runs": lambda im, x, y: debugging.Runs.split(im, x, y).passing.x,
}
OF_SLICER = {
    "slice": lambda slicer, x: slicer.slice(x).synapses["hidden"],
    "slice_each": lambda slicer, x: slicer.slice_each(x).matrix.toarray(),
    "explain": lambda slicer, x: slicer.explain(x),
}


def agreeing(x):
    """Probabilities of a black box."""
    return np.tile([0.2, 0.5, 0.3], (len(x), 1)).astype(np.float32)


def _covered(im, x):
    coverage = deepxplore.NeuronCoverage(im, 0.0)
    coverage.update(x)
    return coverage.covered["hidden"]


def attempt(call):
    """The result of a call, None after an error of this package; others are raised."""
    try:
        return call()
    except nns.errors.NNSlicerError as error:
        assert len(str(error)) > 20
        return None


@pytest.mark.parametrize("name", OF_SAMPLES)
def test_samples(im, name):
    call = OF_SAMPLES[name]
    expected = None if name == "generate" else attempt(lambda: call(im, X))
    for form, make in forms(name):
        found = attempt(lambda make=make: call(im, make()))
        if isinstance(expected, np.ndarray) and found is not None:
            np.testing.assert_array_equal(np.asarray(found), expected, err_msg=form)


@pytest.mark.parametrize("name", OF_LABELLED)
def test_labelled(im, name):
    for form, make in forms(name):
        attempt(
            lambda make=make, y=None if form in LABELLED else Y: OF_LABELLED[name](im, make(), y)
        )


@pytest.mark.parametrize("name", OF_SLICER)
def test_slicers(slicer, name):
    call = OF_SLICER[name]
    expected = attempt(lambda: call(slicer, X))
    for form, make in forms(name):
        found = attempt(lambda make=make: call(slicer, make()))
        if isinstance(expected, np.ndarray) and found is not None:
            np.testing.assert_array_equal(found, expected, err_msg=form)


def test_detectors(slicer, detector):
    expected = detector.predict(X)
    for form, make in FORMS.items():
        attempt(lambda make=make: detection.SliceDetector(slicer, "margin").fit(make()))
        found = attempt(lambda make=make: detector.predict(make()))
        if found is not None:
            np.testing.assert_array_equal(found, expected, err_msg=form)
