"""8-bit images: the mutation operators of the DFlare paper (Table 3).

The paper does not give their strength: every application draws one, between barely visible and
strong, and values saturate at 0 and 255. Blur starts at size 2, as size 1 changes nothing.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf.dflare.domain import Domain, MutationOperator, Parameters
from nnslicer_tf.errors import InputShapeError

cv2: Any = LazyModule("cv2")

_SIDES = (4, 8, 16)  # numbers of blocks along a side of an image that are reset to the seed

Noise = Callable[[np.random.Generator, np.ndarray, float], np.ndarray]


def noise_operator(
    name: str, weakest: float, strongest: float, noise: Noise, bits: Any = np.random.SFC64
) -> MutationOperator:
    """Return an operator with recorded noise seed; strengths are drawn uniformly on a log scale."""

    def draw(rng: np.random.Generator, x: np.ndarray) -> Parameters:
        strength = float(np.exp(rng.uniform(np.log(weakest), np.log(strongest))))
        return {"strength": strength, "seed": int(rng.integers(2**32))}

    def apply(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        return noise(np.random.Generator(bits(int(parameters["seed"]))), x, parameters["strength"])

    return MutationOperator(name, draw, apply)


def random_pixels(
    rng: np.random.Generator, x: np.ndarray, share: float, levels: int = 256
) -> np.ndarray:
    """Set a share of the values, at least one, to random ones, of equidistant levels."""
    count, mutant = max(1, round(share * x.size)), x.copy()
    values = rng.integers(0, levels, count) * (255 // (levels - 1))
    mutant.reshape(-1)[rng.integers(0, x.size, count)] = values
    return mutant


def salt_and_pepper(rng: np.random.Generator, x: np.ndarray, share: float) -> np.ndarray:
    """Set a share of the values, at least one, to 0 or 255."""
    return random_pixels(rng, x, share, levels=2)


def gaussian_noise(rng: np.random.Generator, x: np.ndarray, deviation: float) -> np.ndarray:
    """Add Gaussian noise with a standard deviation in grey levels."""
    noise = rng.standard_normal(x.shape, np.float32)
    return np.clip(np.rint(x + noise * np.float32(deviation)), 0, 255).astype(np.uint8)


def multiplicative_noise(rng: np.random.Generator, x: np.ndarray, deviation: float) -> np.ndarray:
    """Multiply by 1 + Gaussian noise."""
    noise = rng.standard_normal(x.shape, np.float32)
    return np.clip(np.rint(x * (1 + noise * np.float32(deviation))), 0, 255).astype(np.uint8)


def average_blur(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Blur with a box."""
    size = int(parameters["size"])
    return cv2.blur(x, (size, size)).reshape(x.shape)


def gaussian_blur(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Blur with a Gaussian."""
    size = int(parameters["size"])
    return cv2.GaussianBlur(x, (size, size), parameters["sigma"]).reshape(x.shape)


def median_blur(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Take the median of a square."""
    size = int(parameters["size"])
    if x.shape[2] in (1, 3, 4):  # the numbers of channels that OpenCV takes
        return cv2.medianBlur(x, size).reshape(x.shape)
    channels = [np.ascontiguousarray(x[:, :, c]) for c in range(x.shape[2])]
    return np.stack([cv2.medianBlur(channel, size) for channel in channels], axis=2)


IMAGE_OPERATORS = (
    noise_operator("random_pixels", 0.005, 0.2, random_pixels),
    noise_operator("gaussian_noise", 2.0, 60.0, gaussian_noise),
    noise_operator("multiplicative_noise", 0.05, 1.5, multiplicative_noise),
    noise_operator("salt_and_pepper", 0.005, 0.2, salt_and_pepper),
    MutationOperator(
        "average_blur", lambda rng, x: {"size": int(rng.integers(2, 6))}, average_blur
    ),
    MutationOperator(
        "gaussian_blur",
        lambda rng, x: {"size": int(rng.choice((3, 5))), "sigma": float(rng.uniform(0.5, 2.0))},
        gaussian_blur,
    ),
    MutationOperator("median_blur", lambda rng, x: {"size": int(rng.choice((3, 5)))}, median_blur),
)
"""The operators of Table 3, and salt-and-pepper noise, which the authors' program also has."""


class ImageDomain(Domain):
    """Images `(height, width, channels) uint8`, mutated by `operators`."""

    def __init__(self, operators: Sequence[MutationOperator] = IMAGE_OPERATORS) -> None:
        super().__init__(operators)

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` is `(batch, height, width, channels) uint8`."""
        if seeds.dtype != np.uint8:
            raise InputShapeError(
                "Seed images must be uint8 with values 0 … 255, before any `preprocess`. "
                f"Received: {seeds.dtype}. For other inputs, such as spectrograms, pass "
                "domain=SignalDomain(seeds)."
            )
        if seeds.ndim != 4 or 0 in seeds.shape[1:]:
            raise InputShapeError(
                "Seed images must have the shape (batch, height, width, channels). Received: "
                f"{seeds.shape}. Add an axis for one channel: seeds[..., None]; if the models have "
                "none, preprocess=lambda x: x[..., 0] takes it away again."
            )

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Yield blocks of pixels, from quarters of the sides down to sixteenths."""
        for side in _SIDES:
            height, width = (max(1, length // side) for length in shape[:2])
            for top in range(0, shape[0], height):
                for left in range(0, shape[1], width):
                    yield slice(top, top + height), slice(left, left + width)
