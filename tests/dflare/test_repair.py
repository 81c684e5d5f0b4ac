import numpy as np
import pytest
from sklearn.base import clone

from nnslicer_tf.dflare import ImageDomain, ModelPair, find_deviations
from nnslicer_tf.dflare.repair import (
    Repair,
    RepairData,
    RepairedClassifier,
    RepairScore,
    cross_validate,
    repair_data,
    score,
)
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError


def two_classes(first):
    return np.stack([first, 1 - first], axis=1)


@pytest.fixture(scope="module")
def data():
    """Triggers whose original label is 1 although the compressed model says 0 (0.5 … 0.7)."""
    rng = np.random.default_rng(0)
    seeds = np.concatenate([rng.uniform(0.8, 1, 50), rng.uniform(0, 0.4, 50)])
    return RepairData(
        two_classes(seeds),
        (seeds < 0.5).astype(int),
        two_classes(rng.uniform(0.52, 0.68, 100)),
        np.ones(100, int),
    )


def test_a_shifted_boundary_is_learned(data):
    table = cross_validate(data, rng=1)
    assert len(table) == 5
    assert (table.repair_ratio > 0.9).all() and (table.inducing_ratio < 0.1).all()
    np.testing.assert_allclose(table.repair_count, table.repair_ratio * 20)
    np.testing.assert_allclose(table.improvement_ratio, table.repair_ratio - table.inducing_ratio)


def test_score_by_hand():
    class Fixed:
        def predict(self, probabilities):
            return probabilities.argmax(axis=1)

    seeds, triggers = np.array([0.9, 0.8, 0.2, 0.1]), np.array([0.6, 0.6, 0.3, 0.4])
    data = RepairData(
        two_classes(seeds), np.array([0, 1, 1, 1]), two_classes(triggers), np.array([0, 0, 1, 0])
    )
    got = score(Fixed(), data)
    assert got == RepairScore(triggers=4, seeds=4, repair_count=3, inducing_count=1)
    assert (got.repair_ratio, got.inducing_ratio) == (0.75, 0.25)
    assert (got.improvement_count, got.improvement_ratio) == (2, 0.5)


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_repair_data_comes_from_a_search(pair, seeds):
    found = find_deviations(*pair, seeds, max_queries=20, progress=False)
    assert 0 < found.found.sum() < len(seeds)
    data = repair_data(ModelPair(*pair, ImageDomain()), seeds, found)
    chosen = seeds[found.found].reshape(found.found.sum(), -1).mean(axis=1)
    np.testing.assert_array_equal(data.seed_labels, chosen > 128)
    np.testing.assert_allclose(data.seeds[:, 1], 1 / (1 + np.exp(-0.05 * (chosen - 131))))
    assert (data.trigger_labels == 1).all() and (data.triggers.argmax(axis=1) == 0).all()
    hopeless = find_deviations(pair[0], pair[0], seeds, max_queries=2, progress=False)
    with pytest.raises(InvalidArgumentError, match="none was found"):
        repair_data(ModelPair(pair[0], pair[0], ImageDomain()), seeds, hopeless)


def test_repaired_classifier_gives_every_class(data):
    rng = np.random.default_rng(0)
    probabilities = rng.dirichlet([1, 1, 1], 100)
    labels = np.where(probabilities[:, 0] > 0.4, 0, 2)  # label 1 is never seen
    repair = Repair().fit(probabilities, labels)
    repaired = RepairedClassifier(lambda x: x, repair).probabilities(probabilities)
    assert repaired.shape == (100, 3) and not repaired[:, 1].any()
    np.testing.assert_allclose(repaired.sum(axis=1), 1, atol=1e-6)
    assert (repaired.argmax(axis=1) == labels).mean() > 0.95


def test_a_repair_that_knows_one_class():
    probabilities = np.random.default_rng(0).dirichlet([1, 1, 1], 10)
    repair = Repair().fit(probabilities, np.full(10, 2))
    np.testing.assert_array_equal(repair.predict(probabilities), 2)
    repaired = RepairedClassifier(lambda x: x, repair).probabilities(probabilities)
    np.testing.assert_array_equal(repaired, np.tile([0, 0, 1], (10, 1)))


def test_scikit_learn_takes_it(data):
    probabilities = np.concatenate([data.seeds, data.triggers])
    labels = np.concatenate([data.seed_labels, data.trigger_labels])
    repair = clone(Repair(hidden=60, random_state=3))
    assert repair.get_params()["hidden"] == 60
    first = repair.fit(probabilities, labels).predict_proba(probabilities)
    second = clone(repair).fit(probabilities, labels).predict_proba(probabilities)
    np.testing.assert_array_equal(first, second)
    assert repair.score(probabilities, labels) > 0.9


def test_bad_input(data):
    with pytest.raises(InputShapeError, match="labels"):
        Repair().fit(data.seeds, data.seed_labels[:-1])
    with pytest.raises(InvalidArgumentError, match="0 … 1"):
        Repair().fit(data.seeds, data.seed_labels + 1)
    with pytest.raises(InvalidArgumentError, match="folds"):
        cross_validate(data, folds=101)
