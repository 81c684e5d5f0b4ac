"""What a checkpoint of searches recognises: models, domain, options; and what it can keep."""

from functools import partial

import keras
import numpy as np
import pandas as pd
import pytest

from nnslicer_tf.dflare import (
    DeviationSet,
    DFlare,
    ImageDomain,
    ModelPair,
    MutationOperator,
    compress,
    find_deviations,
)
from nnslicer_tf.errors import ProfileMismatchError
from support.deviating import find


def search(original, compressed, seeds, folder, **options):
    options = {"max_queries": 20, "preprocess": np.float32, "progress": False, **options}
    return find(original, compressed, seeds, checkpoint=folder, **options)


def with_a_dead_unit(effect):
    """A model of 8×8 images; what its unit that no image reaches would do is `effect`."""
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Flatten(),
            keras.layers.Dense(2, activation="relu"),
            keras.layers.Dense(2, activation="softmax"),
        ]
    )
    first = np.stack([np.ones(64), np.ones(64)], axis=1) / 64
    second = np.array([[-9.0, 9.0], [effect, 0.0]])
    model.set_weights([first, np.array([0.0, -2.0]), second, np.array([4.5, -4.5])])
    return model


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_models_that_answer_all_seeds_alike_are_told_apart(seeds, tmp_path):
    first, again, other = (with_a_dead_unit(effect) for effect in (0.0, 0.0, 5.0))
    inputs = seeds.astype(np.float32)
    np.testing.assert_array_equal(first.predict(inputs), other.predict(inputs))
    search(first, first, seeds, tmp_path / "keras")
    search(again, again, seeds, tmp_path / "keras")
    file, other_file = compress(first, "dynamic"), compress(other, "dynamic")
    search(first, file, seeds, tmp_path / "files")
    search(first, file, seeds, tmp_path / "files")
    for folder, compressed in (("keras", other), ("files", other_file)):
        with pytest.raises(ProfileMismatchError, match=r"different run \(models="):
            search(first, compressed, seeds, tmp_path / folder)


def test_functions_are_known_by_their_answers_to_all_seeds(pair, seeds, tmp_path):
    def other(x):
        answers = pair[1](x)
        answers[x.reshape(len(x), -1).mean(axis=1) == seeds[-1].mean()] = 0.5
        return answers

    search(*pair, seeds, tmp_path)
    with pytest.raises(ProfileMismatchError, match=r"different run \(models="):
        search(pair[0], other, seeds, tmp_path)


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_other_preprocessing_is_noticed(seeds, tmp_path):
    models = with_a_dead_unit(0.0), with_a_dead_unit(5.0)
    search(*models, seeds, tmp_path)
    with pytest.raises(ProfileMismatchError, match=r"different run \(inputs="):
        search(*models, seeds, tmp_path, preprocess=lambda x: np.float32(x + 1))


# An operator whose parameters are NumPy's numbers.
BRIGHTER = MutationOperator(
    "brighter",
    lambda rng, x: {"by": rng.integers(1, 9), "share": np.float32(0.5)},
    lambda x, parameters: np.clip(x.astype(int) + parameters["by"], 0, 255).astype(np.uint8),
)


class Cautious(ImageDomain):
    """A domain with an option of its own."""

    def __init__(self, most):
        super().__init__([BRIGHTER])
        self.most = most


def test_the_domain_is_known_by_class_and_options(pair, seeds, tmp_path):
    search(*pair, seeds, tmp_path, domain=Cautious(3))
    search(*pair, seeds, tmp_path, domain=Cautious(3))
    for other in (Cautious(4), ImageDomain([BRIGHTER])):
        with pytest.raises(ProfileMismatchError, match=r"different run \(domain="):
            search(*pair, seeds, tmp_path, domain=other)


class Patient:
    """A fitness without a `repr` of its own, which may refer to itself."""

    def __init__(self, least):
        self.least = least
        self.myself = self

    def __call__(self, distance, best, new):
        return distance >= self.least

    def accepts(self, distance, best, new):
        return distance >= self.least


def at_least(distance, best, new, least):
    return distance >= least


def above_the_mean(values):
    """Return a fitness that holds a long array, whose `repr` leaves out most values."""
    long = np.zeros(5000)
    long[2500] = values
    return lambda distance, best, new: distance >= long.mean()


FITNESSES = {
    "object": Patient,
    "method": lambda least: Patient(least).accepts,
    "partial": lambda least: partial(at_least, least=least),
    "closure": lambda least: lambda distance, best, new: distance >= least,
    "array": above_the_mean,
}


@pytest.mark.parametrize("kind", FITNESSES)
def test_own_fitness_resumes_and_is_told_apart(pair, seeds, tmp_path, kind):
    make = FITNESSES[kind]
    first = search(*pair, seeds, tmp_path, search=DFlare(fitness=make(0.1)))
    again = search(*pair, seeds, tmp_path, search=DFlare(fitness=make(0.1)))
    np.testing.assert_array_equal(first.seconds, again.seconds)  # nothing was searched
    with pytest.raises(ProfileMismatchError, match=r"different run \(options="):
        search(*pair, seeds, tmp_path, search=DFlare(fitness=make(0.2)))


def test_parameters_may_be_numbers_of_numpy(pair, seeds, tmp_path):
    domain = Cautious(3)
    found = search(*pair, seeds, tmp_path / "kept", domain=domain, max_queries=500)
    found.save(tmp_path / "found.npz")
    assert found.found.any()
    for again in (
        DeviationSet.load(tmp_path / "found.npz"),
        search(*pair, seeds, tmp_path / "kept", domain=domain, max_queries=500),
    ):
        for old, new in zip(found, again, strict=True):
            assert old.deviation is None or old.deviation.trace == new.deviation.trace


def test_other_tolerances_and_tasks_are_noticed(tmp_path):
    """What counts as a deviation is another question, although models and seeds are the same."""
    keras.utils.set_random_seed(2)
    rng = np.random.default_rng(0)
    seeds = rng.normal(size=(4, 5)).astype(np.float32)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(3, activation="sigmoid")])
    other = keras.models.clone_model(model)
    other.set_weights([w + 0.1 * rng.normal(size=w.shape) for w in model.get_weights()])
    options = {"search": DFlare(max_queries=20), "checkpoint": tmp_path, "progress": False}

    def run(**of_pair):
        return find_deviations(ModelPair(model, other, **of_pair), seeds, **options)

    first = run(task="regression", tolerance=0.05).to_frame()
    pd.testing.assert_frame_equal(run(task="regression", tolerance=0.05).to_frame(), first)
    for of_pair in ({"task": "regression", "tolerance": 5.0}, {"task": "multilabel"}):
        with pytest.raises(ProfileMismatchError, match=r"different run \(task="):
            run(**of_pair)
