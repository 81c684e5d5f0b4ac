"""JSMA, ADef, SinglePixel and LocalSearch on models where the right answer is known."""

import itertools

import foolbox
import numpy as np
import pytest
import tensorflow as tf
from scipy.ndimage import map_coordinates

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.attacks.adef import ADefAttack, deform
from reproduction.nnslicer.attacks.jsma import JSMAAttack, best_pairs
from reproduction.nnslicer.attacks.local_search import LocalSearchAttack
from reproduction.nnslicer.attacks.single_pixel import SinglePixelAttack

ATTACKS = [JSMAAttack(), ADefAttack(), SinglePixelAttack(), LocalSearchAttack()]


def _linear(weights, bias=0.0):
    """Return a model of two logits, -s and s, with s = Σ weights · x + bias."""
    weights = tf.constant(weights, tf.float32)

    def logits(x):
        score = tf.reduce_sum(x * weights, axis=(1, 2, 3)) + bias
        return tf.stack([-score, score], axis=1)

    return foolbox.TensorFlowModel(logits, bounds=(0, 1), device="/CPU:0")


def _attack(attack, model, x):
    labels = model(tf.constant(x)).numpy().argmax(axis=1)
    _, attacked, success = attack(
        model, tf.constant(x), tf.constant(labels, tf.int64), epsilons=None
    )
    return labels, attacked.numpy(), success.numpy()


def _images(count, shape=(5, 5, 1), seed=0):
    return np.random.default_rng(seed).random((count, *shape)).astype(np.float32)


def test_single_pixel_succeeds_where_any_pixel_can():
    rng = np.random.default_rng(1)
    weights = rng.normal(size=(5, 5, 2))
    x = _images(60, (5, 5, 2))
    labels, attacked, success = _attack(SinglePixelAttack(max_pixels=25), _linear(weights), x)
    scores = (x * weights).sum(axis=(1, 2, 3))
    for image, score, label, found in zip(x, scores, labels, success, strict=True):
        reachable = [
            score + (value * weights[r, c].sum() - (image[r, c] * weights[r, c]).sum())
            for r, c in itertools.product(range(5), range(5))
            for value in (0, 1)
        ]
        assert found == any((s > 0) != label for s in reachable)
    assert 5 < success.sum() < 55
    changed = (attacked != x).any(axis=-1).sum(axis=(1, 2))
    assert set(changed[success]) == {1}
    assert set(changed[~success]) == {0}


def test_single_pixel_keeps_its_budget():
    # Only one of 100 pixels matters: of 100 images, about a tenth meet it in ten tries.
    weights = np.zeros((10, 10, 1))
    weights[4, 7] = 2
    model = _linear(weights, bias=-1.0)
    _, _, success = _attack(
        SinglePixelAttack(max_pixels=10, rng=3), model, _images(100, (10, 10, 1))
    )
    assert 2 <= success.sum() <= 25


def test_jsma_takes_the_pairs_that_help_most():
    # Towards class 1 the saliency of a pair is (w_p + w_q)²: the largest weights first.
    rng = np.random.default_rng(2)
    weights = rng.normal(size=(5, 5, 1))
    x = _images(40) * 0.5
    labels, attacked, success = _attack(JSMAAttack(share=0.8), _linear(weights, -1.0), x)
    order = np.argsort(-weights.ravel())
    for image, after, label, found in zip(x, attacked, labels, success, strict=True):
        if label == 1:
            continue  # towards class 0 the smallest weights are best: by symmetry
        expected = image.copy().ravel()
        for pair in order.reshape(-1)[:20].reshape(-1, 2):
            expected[pair] = 1
            if (expected * weights.ravel()).sum() - 1 > 0:
                break
        assert found
        np.testing.assert_array_equal(after.ravel(), expected)
    assert (labels == 0).sum() > 10


def test_jsma_changes_no_more_than_its_share():
    x = _images(10)
    _, attacked, success = _attack(
        JSMAAttack(share=0.2), _linear(np.full((5, 5, 1), 1.0), -24.9), x
    )
    assert not success.any()
    assert ((attacked != x).sum(axis=(1, 2, 3)) == 4).all()  # 0.2 · 25 / 2 = 2 pairs


def testbest_pairs_against_all_pairs():
    rng = np.random.default_rng(3)
    towards, away = rng.normal(size=(2, 50, 12))
    free = rng.random((50, 12)) < 0.7
    pairs, found = best_pairs(towards, away, free)
    for t, a, f, pair, any_pair in zip(towards, away, free, pairs, found, strict=True):
        values = {}
        for p, q in itertools.combinations(np.flatnonzero(f), 2):
            gain, loss = t[p] + t[q], a[p] + a[q]
            if gain > 0 and loss < 0:
                values[p, q] = -gain * loss
        assert any_pair == bool(values)
        if values:
            assert tuple(sorted(pair)) == max(values, key=values.get)


def test_deform_against_scipy():
    rng = np.random.default_rng(4)
    x = rng.random((3, 7, 6, 2))
    field = rng.normal(scale=2, size=(3, 7, 6, 2))
    rows, columns = np.mgrid[:7, :6]
    for image, shift, got in zip(x, field, deform(x, field), strict=True):
        place = [rows + shift[..., 0], columns + shift[..., 1]]
        for channel in range(2):
            expected = map_coordinates(image[..., channel], place, order=1, mode="nearest")
            np.testing.assert_allclose(got[..., channel], expected, atol=1e-12)


def _blob(column):
    rows, columns = np.mgrid[:16, :16]
    return np.exp(-((rows - 8) ** 2 + (columns - column) ** 2) / 8)[..., None]


def test_adef_moves_what_the_model_looks_at():
    # The model sees on which side of the middle the mass is.
    side = np.broadcast_to((np.arange(16) - 7.5)[None, :, None], (16, 16, 1))
    x = np.stack([_blob(c) for c in (6.5, 7.0, 8.0, 8.5)]).astype(np.float32)
    labels, attacked, success = _attack(ADefAttack(max_shift=4.0), _linear(side), x)
    assert labels.tolist() == [0, 0, 1, 1]
    assert success.all()
    # Deformed, not painted: no value is beyond those of the image.
    assert (attacked.min() >= x.min()) and (attacked.max() <= x.max())


def test_adef_gives_up_what_needs_more_than_its_budget():
    side = np.broadcast_to((np.arange(16) - 7.5)[None, :, None], (16, 16, 1))
    x = _blob(2.0)[None].astype(np.float32)
    _, attacked, success = _attack(ADefAttack(max_shift=0.5), _linear(side), x)
    assert not success.any()
    # A shift of half a pixel changes no value by more than the steepest step does.
    assert np.abs(attacked - x).max() <= 0.5 * np.abs(np.diff(x, axis=2)).max() + 1e-6


def test_local_search_finds_the_pixels_that_matter():
    # Four pixels in a corner decide; each counts, alone none is enough.
    weights = np.zeros((8, 8, 1))
    weights[1:3, 1:3] = -1
    x = np.full((6, 8, 8, 1), 0.7, np.float32)
    attack = LocalSearchAttack(rounds=10, candidates=64, pixels_a_round=2, radius=2)
    labels, attacked, success = _attack(attack, _linear(weights, 2.95), x)
    assert (labels == 1).all()
    assert success.all()
    changed = (attacked != x)[..., 0]
    assert (changed.sum(axis=(1, 2)) == 2).all()
    assert (changed[:, 1:3, 1:3].sum(axis=(1, 2)) == 2).all()
    np.testing.assert_allclose(attacked[changed], 0.8, atol=1e-6)  # 0.5 + 1.5 · 0.2


def test_local_search_wraps_at_the_bounds():
    # 0.4 from the middle, times 1.5, is 0.6: beyond the bound by 0.1, hence 0.1.
    x = np.full((1, 4, 4, 1), 0.9, np.float32)
    attack = LocalSearchAttack(rounds=1, pixels_a_round=16)
    _, attacked, _ = _attack(attack, _linear(np.ones((4, 4, 1)), 100.0), x)
    np.testing.assert_allclose(attacked, 0.1, atol=1e-6)


def test_local_search_keeps_its_budget():
    weights = np.ones((8, 8, 1))
    x = _images(5, (8, 8, 1))
    attack = LocalSearchAttack(rounds=3, candidates=16, pixels_a_round=2)
    _, attacked, success = _attack(attack, _linear(weights, 1000.0), x)
    assert not success.any()
    assert ((attacked != x).sum(axis=(1, 2, 3)) <= 6).all()
    assert (attacked.min() >= 0) and (attacked.max() <= 1)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
def test_misclassified_images_are_left_alone(attack):
    x = _images(4)
    model = _linear(np.ones((5, 5, 1)))  # class 1, always
    _, attacked, success = attack(model, tf.constant(x), tf.zeros(4, tf.int64), epsilons=None)
    assert success.numpy().all()
    assert np.array_equal(attacked.numpy(), x)


@pytest.mark.parametrize("attack", ATTACKS, ids=lambda a: type(a).__name__)
def test_other_criteria_and_shapes_are_refused(attack):
    model = _linear(np.ones((5, 5, 1)))
    target = foolbox.TargetedMisclassification(tf.zeros(4, tf.int64))
    with pytest.raises(InvalidArgumentError, match="untargeted"):
        attack(model, tf.constant(_images(4)), target, epsilons=None)
    with pytest.raises(InvalidArgumentError, match=r"images .*shape \(4, 25\)"):
        attack(model, tf.zeros((4, 25)), tf.zeros(4, tf.int64), epsilons=None)


@pytest.mark.parametrize(
    ("factory", "arguments"),
    [
        (JSMAAttack, {"share": 0}),
        (ADefAttack, {"candidates": 1}),
        (SinglePixelAttack, {"max_pixels": 0}),
        (LocalSearchAttack, {"factor": 3}),
    ],
)
def test_wrong_budgets_are_refused(factory, arguments):
    with pytest.raises(InvalidArgumentError, match=str(next(iter(arguments.values())))):
        factory(**arguments)
