"""Protection: what is hidden, what an attacker gets, and what training gives back."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import datasets, protection, pruning, zoo


@pytest.fixture(scope="module")
def digits():
    """The trained network, its training and its test images."""
    return zoo.load("digits_cnn"), datasets.load("digits", "train"), datasets.load("digits", "test")


@pytest.fixture(scope="module")
def hidden(digits):
    model, _, _ = digits
    return protection.select(pruning.scores(nns.InstrumentedModel(model), "weight"), 0.5)


QUIET = protection.Attacker(progress=False)


def kernels(model):
    return {name: k.kernel() for name, k in nns.InstrumentedModel(model).kernels.items()}


@pytest.mark.parametrize("share", [0.1, 0.5, 1.0])
def test_the_largest_scores_are_hidden(share):
    scores = {"a": np.random.default_rng(0).normal(size=(10, 20))}
    hidden = protection.select(scores, share)["a"]
    assert hidden.sum() == round(200 * share)
    if share < 1:
        assert np.abs(scores["a"][hidden]).min() > np.abs(scores["a"][~hidden]).max()


@pytest.mark.parametrize("share", [0, -0.5, 1.01, np.nan, "half", True])
def test_bad_shares_are_refused(share):
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"share must .*in \(0, 1\]"):
        protection.select({"a": np.ones((2, 2))}, share)


def test_hiding_draws_the_hidden_weights_alone_anew(digits, hidden):
    model, _, test = digits
    stolen = protection.hide(model, hidden, rng=3)
    original, public = kernels(model), kernels(stolen)
    for name, mask in hidden.items():
        np.testing.assert_array_equal(public[name][~mask], original[name][~mask])
        assert not np.any(public[name][mask] == original[name][mask])
    for mine, theirs in zip(model.weights, stolen.weights):
        if mine.path.endswith("bias"):
            np.testing.assert_array_equal(mine.numpy(), theirs.numpy())
    # As the initializer draws: Glorot's uniform limit, its variance within sampling error.
    fan_in, fan_out = 3 * 3 * 16, 3 * 3 * 32
    limit = np.sqrt(6 / (fan_in + fan_out))
    fresh = public["conv2"][hidden["conv2"]]
    assert np.abs(fresh).max() <= limit
    np.testing.assert_allclose(fresh.var(), limit**2 / 3, rtol=0.1)
    assert zoo.accuracy(stolen, test) < 0.7
    again, other = protection.hide(model, hidden, rng=3), protection.hide(model, hidden, rng=4)
    np.testing.assert_array_equal(kernels(again)["conv2"], public["conv2"])
    assert not np.array_equal(kernels(other)["conv2"], public["conv2"])


def test_a_stolen_model_saves_and_loads(digits, hidden, tmp_path):
    model, _, test = digits
    stolen = protection.hide(model, hidden)
    stolen.save(tmp_path / "stolen.keras")
    again = keras.models.load_model(tmp_path / "stolen.keras")
    np.testing.assert_array_equal(
        again.predict(test.x[:5], verbose=0), stolen.predict(test.x[:5], verbose=0)
    )


def test_hiding_refuses_masks_of_another_model(digits):
    with pytest.raises(nns.errors.InvalidArgumentError, match="Unknown kernel 'nosuch'"):
        protection.hide(digits[0], {"nosuch": np.ones(3, bool)})


def test_an_attacker_may_keep_what_is_known(digits, hidden):
    model, train, _ = digits
    stolen = protection.hide(model, hidden)
    before = kernels(stolen)
    attacker = protection.Attacker(epochs=1, trains="hidden", progress=False)
    attacker.retrain(stolen, hidden, train.x[:256], train.y[:256])
    for name, after in kernels(stolen).items():
        np.testing.assert_array_equal(after[~hidden[name]], before[name][~hidden[name]])
        assert np.mean(after[hidden[name]] != before[name][hidden[name]]) > 0.5
    assert all(v.constraint is None for v in stolen.trainable_variables)
    protection.Attacker(epochs=1, progress=False).retrain(stolen, hidden, train.x, train.y)
    known = ~hidden["conv2"]
    assert np.mean((kernels(stolen)["conv2"] != before["conv2"])[known]) > 0.5


def test_statistics_follow_the_samples_whatever_is_trained():
    """They are the batch's own, of one step with a momentum of 0."""
    keras.utils.set_random_seed(0)
    norm = keras.layers.BatchNormalization(momentum=0.0, name="norm")
    stack = [keras.layers.Dense(5, name="hidden"), norm, keras.layers.Dense(3)]
    model = keras.Sequential([keras.Input((4,)), *stack])
    x = np.random.default_rng(0).normal(size=(32, 4)).astype(np.float32)
    hidden = {"hidden": np.random.default_rng(1).random((4, 5)) > 0.5}
    stolen = protection.hide(model, hidden)
    sums = x @ stolen.get_layer("hidden").get_weights()[0]
    attacker = protection.Attacker(epochs=1, trains="hidden", progress=False)
    attacker.retrain(stolen, hidden, x, np.arange(32) % 3)
    gamma, beta, mean, _ = stolen.get_layer("norm").get_weights()
    assert (gamma == 1).all() and (beta == 0).all()
    np.testing.assert_allclose(mean, sums.mean(axis=0), rtol=1e-4, atol=1e-6)


def test_an_attacker_may_do_without_the_hidden_synapses(digits, hidden):
    model, train, _ = digits
    stolen = protection.hide(model, hidden)
    attacker = protection.Attacker(epochs=1, trains="known", progress=False)
    attacker.retrain(stolen, hidden, train.x[:256], train.y[:256], rng=5)
    pruned = pruning.apply_masks(model, {name: ~mask for name, mask in hidden.items()})
    pruning.fine_tune(pruned, train.x[:256], train.y[:256], rng=5, progress=False)
    expected = kernels(pruned)
    for name, found in kernels(stolen).items():
        assert not found[hidden[name]].any()
        np.testing.assert_allclose(found, expected[name], rtol=1e-4, atol=1e-6)
    assert all(v.constraint is None for v in stolen.trainable_variables)


def test_attackers_who_train_something_else_are_refused():
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"'everything'.*'all', 'hidden'"):
        protection.Attacker(trains="everything")


def test_attacks_are_reported_by_budget(digits, hidden):
    model, train, test = digits
    report = protection.simulate_attacks(
        model, hidden, train, test, [7, 1], budgets=[64, 1_437], attacker=QUIET, rng=0
    )
    assert list(report["budget"]) == [64, 1_437]
    few, many = report.to_dict("records")
    assert many["targets"] > few["targets"] - 0.1 and many["all"] > few["all"] + 0.1
    # The same by hand for the small budget.
    seeds = np.random.default_rng(0).integers(2**31, size=3)
    chosen = np.random.default_rng(seeds[0]).permutation(len(train))[:64]
    stolen = protection.hide(model, hidden, rng=int(seeds[1]))
    QUIET.retrain(stolen, hidden, train.x[chosen], train.y[chosen], int(seeds[2]))
    again = protection.steal(model, hidden, train, 64, QUIET, rng=0)
    for mine, theirs in zip(stolen.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    predicted = stolen.predict(test.x, verbose=0).argmax(axis=1)
    target = np.isin(test.y, [1, 7])
    assert few["targets"] == np.mean(predicted[target] == test.y[target])
    assert few["all"] == np.mean(predicted == test.y)


def test_hiding_what_targets_need_leaves_the_others(digits):
    """Without any training: the targets are lost, the other classes are not all lost."""
    model, train, test = digits
    im = nns.InstrumentedModel(model)
    ranker = pruning.NNSlicerRanker(theta=0.3, progress=False)
    logits = {"logits": ranker.scores(im, train.x, train.y, [1, 7])["logits"]}
    stolen = protection.hide(model, protection.select(logits, 0.1), rng=0)
    target = np.isin(test.y, [1, 7])
    right = stolen.predict(test.x, verbose=0).argmax(axis=1) == test.y
    assert right[target].mean() < 0.5 < right[~target].mean()


def test_samples_come_in_as_pairs_too(digits, hidden):
    model, train, test = digits
    attack = {"targets": [1], "budgets": [32], "attacker": QUIET}
    found = protection.simulate_attacks(
        model, hidden, (train.x, train.y), (test.x, np.eye(10)[test.y]), **attack
    )
    expected = protection.simulate_attacks(model, hidden, train, test, **attack)
    np.testing.assert_allclose(found, expected, atol=0.02)
    stolen = protection.steal(model, hidden, (train.x, train.y), 32, QUIET)
    again = protection.steal(model, hidden, train, 32, QUIET)
    for mine, theirs in zip(stolen.get_weights(), again.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-6)
    with pytest.raises(nns.errors.InvalidArgumentError, match="Labels are needed"):
        protection.steal(model, hidden, train.x, 32, QUIET)


@pytest.mark.parametrize(
    ("targets", "budgets", "message"),
    [
        ([], [10], "set of target classes is empty"),
        ([10], [10], "no class 10"),
        ([1], [0], "number of samples from 1 to 1437"),
        ([1], [2_000], "number of samples from 1 to 1437"),
        ([1], [1.5], "number of samples from 1 to 1437"),
    ],
)
def test_bad_attacks_are_refused_before_any_training(digits, hidden, targets, budgets, message):
    model, train, test = digits
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        protection.simulate_attacks(model, hidden, train, test, targets, budgets, QUIET)


def test_budgets_that_do_not_exist_are_refused(digits, hidden):
    model, train, _ = digits
    with pytest.raises(nns.errors.InvalidArgumentError, match="number of samples from 1 to 1437"):
        protection.steal(model, hidden, train, 1_438, QUIET)


@pytest.mark.parametrize("kind", [bool, int, float])
def test_masks_of_ones_hide_what_bools_hide(digits, kind):
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(8, name="d"), keras.layers.Dense(2)]
    )
    x = np.random.default_rng(0).normal(size=(60, 3)).astype(np.float32)
    hidden = np.zeros((3, 8), kind)
    hidden[:, :4] = 1
    attacker = protection.Attacker(epochs=1, trains="known", progress=False)
    stolen = protection.steal(model, {"d": hidden}, (x, np.arange(60) % 2), 40, attacker)
    kernel = stolen.get_layer("d").get_weights()[0]
    assert (kernel[:, :4] == 0).all() and (kernel[:, 4:] != 0).all()
    for wrong in ({"nope": hidden}, {"d": hidden[0]}):
        with pytest.raises(nns.errors.InvalidArgumentError):
            attacker.retrain(stolen, wrong, x, np.arange(60) % 2)
