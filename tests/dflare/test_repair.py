import numpy as np
import pytest

from nnslicer_tf.dflare import ModelPair, as_classifier, repair_labels
from nnslicer_tf.dflare.deviations import Deviation, DeviationSet, SearchOutcome
from nnslicer_tf.dflare.repair import repair_data
from nnslicer_tf.errors import InvalidArgumentError
from support.deviating import find


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_repair_data_comes_from_a_search(pair, seeds):
    found = find(*pair, seeds, max_queries=20)
    assert 0 < found.found.sum() < len(seeds)
    before, after, seed_labels, trigger_labels = repair_data(ModelPair(*pair), found)
    chosen = seeds[found.found].reshape(found.found.sum(), -1).mean(axis=1)
    np.testing.assert_array_equal(seed_labels, chosen > 128)
    np.testing.assert_allclose(before[:, 1], 1 / (1 + np.exp(-0.05 * (chosen - 131))))
    assert (trigger_labels == 1).all() and (after.argmax(axis=1) == 0).all()
    hopeless = find(pair[0], pair[0], seeds, max_queries=2)
    with pytest.raises(InvalidArgumentError, match="none was found"):
        repair_labels(ModelPair(pair[0], pair[0]), hopeless)


def taught(original, compressed, seeds, triggers, **options):
    """Return the repair that learns from seeds and triggering inputs."""
    labels = [tuple(m(x[None])[0].argmax() for m in (original, compressed)) for x in triggers]
    outcomes = [
        SearchOutcome("found", 1, 0.1, Deviation(x, 1, 0.1, answers, None))
        for x, answers in zip(triggers, labels, strict=True)
    ]
    return repair_labels(ModelPair(original, compressed), DeviationSet(outcomes, seeds), **options)


def by_first(threshold):
    """Two classes: class 0 where the first value is above a threshold."""

    def probabilities(x):
        first = 1 / (1 + np.exp(-10 * (np.asarray(x, np.float64)[:, 0] - threshold)))
        return np.stack([first, 1 - first], axis=1)

    return probabilities


def test_a_shifted_boundary_is_learned():
    """The compressed model says 0 from 0.5 on, the original only from 0.7 on."""
    rng = np.random.default_rng(0)
    models = by_first(0.7), by_first(0.5)
    seeds = np.concatenate([rng.uniform(0.8, 1, (50, 1)), rng.uniform(0, 0.4, (50, 1))])
    triggers = rng.uniform(0.52, 0.68, (100, 1))
    repaired = taught(*models, seeds, triggers, rng=1)
    x = np.concatenate([rng.uniform(0, 0.45, (50, 1)), rng.uniform(0.55, 0.65, (50, 1))])
    right = models[0](x).argmax(axis=1)
    assert (models[1](x).argmax(axis=1) == right).mean() == 0.5
    assert (repaired.probabilities(x).argmax(axis=1) == right).mean() > 0.95
    again = taught(*models, seeds, triggers, rng=1)
    np.testing.assert_array_equal(again.probabilities(x), repaired.probabilities(x))
    assert as_classifier(repaired) is repaired
    assert taught(*models, seeds, triggers, hidden=60).network.hidden_layer_sizes == (60,)


def test_a_repair_gives_every_class():
    rng = np.random.default_rng(0)
    compressed = lambda x: x  # noqa: E731
    original = lambda x: np.eye(3)[np.where(x[:, 0] > 0.4, 0, 2)]  # noqa: E731
    x = rng.dirichlet([1, 1, 1], 100)
    repaired = taught(original, compressed, x[:50], x[50:]).probabilities(x)
    assert repaired.shape == (100, 3) and not repaired[:, 1].any()  # label 1 is never seen
    np.testing.assert_allclose(repaired.sum(axis=1), 1, atol=1e-6)
    assert (repaired.argmax(axis=1) == original(x).argmax(axis=1)).mean() > 0.95
    one_class = lambda x: np.eye(3)[np.full(len(x), 2)]  # noqa: E731
    repaired = taught(one_class, compressed, x[:5], x[5:10]).probabilities(x)
    np.testing.assert_array_equal(repaired, np.tile([0, 0, 1], (100, 1)))
