import numpy as np
import pytest
from scipy import ndimage

from nnslicer_tf.dflare import ImageDomain
from nnslicer_tf.dflare.domain import Mutation
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError

OPERATORS = ImageDomain().operators


def applied(name, image, **parameters):
    """Return an image changed by an operator."""
    return OPERATORS[name].apply(image, parameters)


@pytest.fixture(params=[1, 3, 5], ids=lambda channels: f"{channels} channels")
def image(request):
    rng = np.random.default_rng(2)
    return rng.integers(0, 256, (16, 14, request.param), dtype=np.uint8)


@pytest.mark.parametrize("operator", OPERATORS.values(), ids=OPERATORS)
def test_mutants_are_images_and_repeatable(operator, image):
    before = image.copy()
    rng = np.random.default_rng(0)
    for _ in range(10):
        parameters = operator.draw(rng, image)
        mutant = operator.apply(image, parameters)
        assert mutant.shape == image.shape and mutant.dtype == np.uint8
        np.testing.assert_array_equal(operator.apply(image, parameters), mutant)
        assert (mutant != image).any()
    np.testing.assert_array_equal(image, before)


@pytest.mark.parametrize("value", [0, 255])
def test_noise_saturates_and_never_wraps_around(value):
    image = np.full((32, 32, 1), value, np.uint8)
    for name, strength in (("gaussian_noise", 40), ("multiplicative_noise", 0.9)):
        mutant = applied(name, image, strength=strength, seed=5)
        # half of the noise points outwards and must stay at the end of the range
        assert (mutant == value).mean() > 0.4
    black = np.zeros_like(image)
    assert (applied("multiplicative_noise", black, strength=1, seed=1) == 0).all()


def test_gaussian_noise_has_the_drawn_strength():
    image = np.full((200, 200, 1), 128, np.uint8)
    mutant = applied("gaussian_noise", image, strength=10.0, seed=3).astype(float)
    assert abs(mutant.mean() - 128) < 0.3
    assert abs(mutant.std() - 10) < 0.3


def test_multiplicative_noise_scales_with_the_value():
    image = np.repeat(np.array([50, 100], np.uint8), 20_000).reshape(200, 200, 1)
    mutant = applied("multiplicative_noise", image, strength=0.2, seed=3).astype(float)
    assert abs(mutant[:100].std() - 10) < 0.3
    assert abs(mutant[100:].std() - 20) < 0.5


def test_pixels_change_in_the_drawn_share():
    image = np.full((50, 50, 2), 100, np.uint8)
    changed = applied("random_pixels", image, strength=0.1, seed=1) != image
    assert 0.07 < changed.mean() < 0.1
    salted = applied("salt_and_pepper", image, strength=0.1, seed=1)
    assert set(np.unique(salted)) == {0, 100, 255}
    assert 0.08 < (salted != image).mean() < 0.1


def inner(x):
    """Away from the borders, where libraries differ."""
    return x[3:-3, 3:-3].astype(float)


def test_blurs_match_scipy(image):
    values = image.astype(float)
    box = applied("average_blur", image, size=3)
    oracle = ndimage.uniform_filter(values, (3, 3, 1))
    np.testing.assert_allclose(inner(box), inner(oracle), atol=0.51)
    median = applied("median_blur", image, size=5)
    np.testing.assert_array_equal(inner(median), inner(ndimage.median_filter(values, (5, 5, 1))))
    gaussian = applied("gaussian_blur", image, size=5, sigma=1.0)
    oracle = ndimage.gaussian_filter(values, (1, 1, 0), radius=(2, 2, 0))
    np.testing.assert_allclose(inner(gaussian), inner(oracle), atol=1.5)


def test_replay_follows_the_trace(image):
    trace = (
        Mutation("average_blur", {"size": 3}),
        Mutation("gaussian_noise", {"strength": 20.0, "seed": 9}, share=0.25),
    )
    domain = ImageDomain()
    blurred = applied("average_blur", image, size=3)
    noisy = applied("gaussian_noise", blurred, strength=20.0, seed=9)
    expected = np.rint(blurred * 0.75 + noisy * 0.25)
    np.testing.assert_array_equal(domain.replay(image, trace), expected)
    with pytest.raises(InvalidArgumentError, match="swirl"):
        domain.replay(image, [Mutation("swirl", {})])


@pytest.mark.parametrize(
    "seeds",
    [
        np.zeros((2, 8, 8, 1), np.float32),
        np.full((2, 8, 8, 1), 300),
        np.zeros((8, 8, 1), np.uint8),
        np.zeros((2, 8, 0, 1), np.uint8),
    ],
    ids=["float", "out of range", "no batch", "empty"],
)
def test_bad_seeds(seeds):
    with pytest.raises(InputShapeError, match="Seed images must"):
        ImageDomain().check_seeds(seeds)


def test_operator_names_must_differ():
    with pytest.raises(InvalidArgumentError, match="unique names"):
        ImageDomain([OPERATORS["average_blur"]] * 2)
    with pytest.raises(InvalidArgumentError, match="unique names"):
        ImageDomain([])
