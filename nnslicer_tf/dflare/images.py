"""8-bit images: the mutation operators of the DFlare paper (Table 3).

The paper names the operators, but not their strength. Here every application draws its own
strength, between barely visible and strong, and values saturate at 0 and 255. The smallest
blur has size 2, as size 1 changes nothing.

Cost: 10–40 µs for a 28 × 28 or 32 × 32 image.
"""

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from nnslicer_tf.dflare.domain import Domain, MutationOperator, Parameters
from nnslicer_tf.errors import InputShapeError

_SIDES = (4, 8, 16)  # numbers of blocks along a side of an image that are reset to the seed


class _Noise(MutationOperator):
    """An operator with a strength from a range, and noise from a recorded seed.

    Args:
        weakest: Smallest strength, above 0.
        strongest: Largest strength; strengths are drawn uniformly on a log scale.
    """

    weakest: float
    strongest: float

    def __init__(self, weakest: float | None = None, strongest: float | None = None) -> None:
        self.weakest = self.weakest if weakest is None else weakest
        self.strongest = self.strongest if strongest is None else strongest

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the strength and the seed of the noise."""
        low, high = np.log(self.weakest), np.log(self.strongest)
        strength = float(np.exp(rng.uniform(low, high)))
        return {"strength": strength, "seed": int(rng.integers(2**32))}


class RandomPixels(_Noise):
    """Set a share of the values to random ones in 0 … 255; the strength is the share."""

    name = "random_pixels"
    weakest, strongest = 0.005, 0.2

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the image with at least one value replaced."""
        rng = _generator(parameters)
        count = max(1, round(parameters["strength"] * x.size))
        mutant = x.copy()
        mutant.reshape(-1)[rng.integers(0, x.size, count)] = self.new_values(rng, count)
        return mutant

    def new_values(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw `count` values in 0 … 255."""
        return rng.integers(0, 256, count)


class GaussianNoise(_Noise):
    """Add Gaussian noise; the strength is its standard deviation in grey levels."""

    name = "gaussian_noise"
    weakest, strongest = 2.0, 60.0

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return image + noise."""
        noise = _generator(parameters).standard_normal(x.shape, np.float32)
        return self.to_bytes(x + noise * np.float32(parameters["strength"]))

    def to_bytes(self, values: np.ndarray) -> np.ndarray:
        """Return `values` rounded, and clipped to 0 … 255."""
        return np.clip(np.rint(values), 0, 255).astype(np.uint8)


class MultiplicativeNoise(GaussianNoise):
    """Multiply by 1 + Gaussian noise; the strength is the noise's standard deviation."""

    name = "multiplicative_noise"
    weakest, strongest = 0.05, 1.5

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return image + image × noise."""
        noise = _generator(parameters).standard_normal(x.shape, np.float32)
        return self.to_bytes(x * (1 + noise * np.float32(parameters["strength"])))


class WrappingGaussianNoise(GaussianNoise):
    """Gaussian noise as in the authors' program: values are truncated and wrap around at 256."""

    def to_bytes(self, values: np.ndarray) -> np.ndarray:
        """Return `values` modulo 256."""
        return values.astype(np.int64).astype(np.uint8)


class WrappingMultiplicativeNoise(WrappingGaussianNoise, MultiplicativeNoise):
    """Multiplicative noise as in the authors' program: truncated, wrapping around at 256."""


class SaltAndPepper(RandomPixels):
    """Set a share of the values to 0 or 255; the strength is the share."""

    name = "salt_and_pepper"

    def new_values(self, rng: np.random.Generator, count: int) -> np.ndarray:
        """Draw `count` values, each 0 or 255."""
        return rng.integers(0, 2, count) * 255


class AverageBlur(MutationOperator):
    """Blur with a box of 2 × 2 … 5 × 5."""

    name = "average_blur"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the size of the box."""
        return {"size": int(rng.integers(2, 6))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the blurred image."""
        import cv2

        size = int(parameters["size"])
        return cv2.blur(x, (size, size)).reshape(x.shape)


class GaussianBlur(MutationOperator):
    """Blur with a Gaussian of standard deviation 0.5 … 2 pixels, cut to 3 × 3 or 5 × 5."""

    name = "gaussian_blur"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw size and standard deviation."""
        return {"size": int(rng.choice((3, 5))), "sigma": float(rng.uniform(0.5, 2.0))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the blurred image."""
        import cv2

        size, sigma = int(parameters["size"]), parameters["sigma"]
        return cv2.GaussianBlur(x, (size, size), sigma).reshape(x.shape)


class MedianBlur(MutationOperator):
    """Take the median of 3 × 3 or 5 × 5."""

    name = "median_blur"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the size of the window."""
        return {"size": int(rng.choice((3, 5)))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the filtered image."""
        import cv2

        size = int(parameters["size"])
        return _per_channels(x, lambda part: cv2.medianBlur(part, size))


IMAGE_OPERATORS: tuple[MutationOperator, ...] = (
    RandomPixels(),
    GaussianNoise(),
    MultiplicativeNoise(),
    SaltAndPepper(),
    AverageBlur(),
    GaussianBlur(),
    MedianBlur(),
)
"""The operators of Table 3, and salt-and-pepper noise, which the authors' program also has."""


PROGRAM_OPERATORS: tuple[MutationOperator, ...] = (
    RandomPixels(),
    WrappingGaussianNoise(1 / 3, 1 / 3),
    WrappingMultiplicativeNoise(1.0, 1.0),
    SaltAndPepper(),
    AverageBlur(),
    GaussianBlur(),
    MedianBlur(),
)
"""For comparisons: noise as the authors' program makes it. Its additive noise has a standard
deviation of a third of a grey level, and values wrap around before they are clipped."""


class ImageDomain(Domain):
    """Images `(height, width, channels) uint8`.

    Args:
        operators: The pool of mutation operators.
    """

    def __init__(self, operators: Sequence[MutationOperator] = IMAGE_OPERATORS) -> None:
        super().__init__(operators)

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` is `(batch, height, width, channels) uint8`."""
        if seeds.dtype != np.uint8:
            numbers = seeds.size and seeds.dtype.kind in "biuf"
            span = f"{seeds.min()} … {seeds.max()}" if numbers else "no values"
            unit = numbers and seeds.min() >= 0 and seeds.max() <= 1
            remedy = (
                " For values 0 … 1 pass np.rint(seeds * 255).astype('uint8') with preprocess=lambda"
                " x: x.astype('float32') / 255."
            )
            raise InputShapeError(
                "Seed images must be uint8 with values 0 … 255, before any preprocessing (pass "
                f"that as `preprocess`). Received: {seeds.dtype} with {span}.{remedy * bool(unit)}"
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
            steps = [max(1, length // side) for length in shape[:2]]
            for top in range(0, shape[0], steps[0]):
                for left in range(0, shape[1], steps[1]):
                    yield slice(top, top + steps[0]), slice(left, left + steps[1])


def _generator(parameters: Parameters) -> np.random.Generator:
    return np.random.Generator(np.random.SFC64(int(parameters["seed"])))


def _per_channels(x: np.ndarray, blur: Callable[[np.ndarray], np.ndarray]) -> np.ndarray:
    """Apply an OpenCV filter that takes 1, 3 or 4 channels."""
    if x.shape[2] in (1, 3, 4):
        return blur(x).reshape(x.shape)
    return np.stack([blur(np.ascontiguousarray(x[:, :, c])) for c in range(x.shape[2])], axis=2)
