"""What users hold can be pickled and copied, and gives the same answers afterwards."""

import copy
import pickle

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, debugging, deepxplore, detection, dflare, semantic, versions, zoo

DATA = datasets.load("digits", "train[:200]")
X = DATA.x[:10]


@pytest.fixture(scope="module")
def slicer():
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, DATA.x, progress=False)
    return nns.Slicer(im, profile, theta=0.0, workers=0, progress=False)


def covered(criterion, im):
    coverage = criterion(im)
    coverage.update(X[:5])
    return coverage


def noisy(model):
    copy, rng = keras.models.clone_model(model), np.random.default_rng(0)
    copy.set_weights([w + rng.normal(0, 0.1, w.shape) for w in model.get_weights()])
    return copy


# Name → (what makes it, its answers).
CASES = {
    "model": (lambda s: s.im, lambda im: im.logits(X)),
    "model with preprocessing": (
        lambda s: nns.InstrumentedModel(s.im.model, preprocess=lambda v: v / 2, bounds=(0, 1)),
        lambda im: np.append(im.logits(X), im.bounds),
    ),
    "slicer": (lambda s: s, lambda s: s.slice(X, outputs=[3]).to_vector()),
    **{
        f"ablation of {kind}s": (
            lambda s, kind=kind, options=options: nns.instrument.Ablation(s.im, **options),
            lambda a: a.outputs(np.arange(a.units) % 3 > 0, X),
        )
        for kind, options in {
            "synapse": {"reference": "zero"},
            "head": {"reference": "zero", "level": "head"},
            "donor": {"reference": nns.instrument.Samples(X[:2]), "level": "channel"},
            "group": {
                **{"reference": "zero", "level": "neuron", "target": 3},
                "of": iter(["conv1", "conv2"]),
                "groups": {"conv1": np.array([[0, 1], [5, 2]])},
            },
        }.items()
    },
    "explanation": (
        lambda s: s.explain(X[0], compare=False, decisive=False),
        lambda e: np.append(e.contributions, e.amounts.to_vector()),
    ),
    "layer comparison": (
        lambda s: debugging.compare_layers(s.im, noisy(s.im.model), X, by="values", progress=False),
        lambda c: np.append(c.mended([{c.places[1].operation}]), list(c.causes.values())),
    ),
    "flips": (
        lambda s: versions.explain_flips(s.im, noisy(s.im.model), DATA.x[:60], progress=False),
        lambda f: np.append(f.units[0], f.with_changes(0).predict(X, verbose=0)),
    ),
    "semantic slicer": (
        lambda s: semantic.SemanticSlicer(s.im, DATA.x, DATA.y),
        lambda c: np.concatenate([*c.scores.values(), *c.similarities.values()], axis=None),
    ),
    "pair with a TFLite model": (
        lambda s: dflare.ModelPair(s.im.model, dflare.compress(s.im.model, "dynamic"), tolerance=1),
        lambda p: p.ask(X).compressed,
    ),
    "neuron coverage": (
        lambda s: covered(deepxplore.NeuronCoverage, s.im),
        lambda c: [c.total(), c.samples],
    ),
    "top-k coverage": (
        lambda s: covered(deepxplore.TopKCoverage, s.im),
        lambda c: [c.total(), c.samples],
    ),
    "logit margin": (
        lambda s: detection.LogitMargin(s.im).fit(DATA.x),
        lambda d: d.score_samples(X),
    ),
    **{
        f"detector {preset}": (
            lambda s, preset=preset: detection.SliceDetector(s, preset).fit(DATA.x),
            lambda d: d.score_samples(X),
        )
        for preset in ("paper", "slices", "stable")
    },
}


@pytest.mark.parametrize("name", CASES)
def test_the_same_answers(slicer, name):
    make, answers = CASES[name]
    one = make(slicer)
    expected = answers(one)
    for again in (pickle.loads(pickle.dumps(one)), copy.deepcopy(one)):
        assert again is not one
        np.testing.assert_allclose(answers(again), expected, rtol=1e-5, atol=1e-6)


def test_a_deep_copy_has_weights_of_its_own(slicer):
    im = copy.deepcopy(slicer.im)
    before = slicer.im.logits(X)
    im.model.layers[-1].set_weights([0 * w for w in im.model.layers[-1].get_weights()])
    assert not im.logits(X).any()
    np.testing.assert_array_equal(slicer.im.logits(X), before)
