"""Guesses about mistakes in data and models: they warn, and never refuse a call.

A wrong scale, another order of classes or a missing softmax give plausible-looking results, so
that answers on the user's samples are compared with what they usually look like. Each guess can be
wrong; silence one with `warnings.filterwarnings("ignore", category=PlausibilityWarning)`.
"""

import warnings
from collections.abc import Callable, Sequence

import numpy as np
from scipy.optimize import linear_sum_assignment

from nnslicer_tf._checks import ArrayLike, check_labels
from nnslicer_tf.errors import InputRangeWarning, InvalidArgumentError, PlausibilityWarning

MIN_SAMPLES = 8
"""Fewer say nothing about a model."""

_MIN_RIGHT, _MIN_AGREE = 0.5, 0.25  # shares of samples
_CERTAIN = 1 - 1e-6
_SAME, _MIN_CHANGE = 0.01, 0.2  # differences of probabilities
_SCALINGS = {"x.astype('float32') / 255": (255, 0), "x.astype('float32') / 127.5 - 1": (127.5, 1)}
"""Common preprocessing of images of 0 to 255 → divisor, and what is subtracted afterwards."""

# Distance from the profiled range, as a share of its width, that no perturbed image has.
_MAX_DISTANCE = 0.5
# Inputs within a small part of the range are unusual, as after a wrong scaling.
_MIN_WIDTH = 0.02
# Samples all of whose values are this small a share of large means have probably been scaled.
_MIN_SHARE, _LARGE_MEAN = 0.2, 10.0


def warn(message: str, category: type[Warning] = PlausibilityWarning) -> None:
    """Warn of something that is probably, but not certainly, a mistake."""
    warnings.warn(message, category, stacklevel=4)


def warn_of_answers(
    predicted: np.ndarray, labels: ArrayLike | None, names: Sequence[str], remedy: str
) -> None:
    """Warn if models are wrong on most samples, or disagree on most: these are often unscaled.

    `predicted` are the models' classes, `(samples, models)`, `labels` the true ones, if known, and
    `names` the models that are compared with them. Raises InvalidArgumentError for too few labels.
    """
    truth = None if labels is None else check_labels(labels, len(predicted))
    if len(predicted) < MIN_SAMPLES:
        return
    if truth is not None:
        for name, answers in zip(names, predicted.T, strict=False):
            if (right := (answers == truth).mean()) < _MIN_RIGHT:
                return warn(f"{name} is right on {right:.0%} of {len(truth)} samples. {remedy}")
    agree = (predicted == predicted[:, :1]).all(axis=1).mean()
    if agree < _MIN_AGREE:
        warn(f"The models agree on {agree:.0%} of {len(predicted)} samples as they are. {remedy}")


def warn_of_scale(
    answer: Callable[[np.ndarray], np.ndarray],
    prepare: Callable[[np.ndarray], np.ndarray] | None,
    images: np.ndarray,
    probabilities: np.ndarray,
    labels: np.ndarray | None,
) -> None:
    """Warn if a classifier recognises images only, or better, when they are scaled differently.

    A network trained on scaled images saturates on unscaled ones and is certain of everything. One
    that scales its inputs itself sees images scaled before as black, and gives all the same class.

    `answer` gives the probabilities `(samples, classes)` of inputs, and `prepare` turns images
    `(samples, height, width, channels) uint8` into inputs, unless it is None.
    """

    def scaled(divisor: float, offset: float = 0) -> Callable[[np.ndarray], np.ndarray]:
        return lambda x: answer(x / np.float32(divisor) - np.float32(offset))

    def differs_from_black(ask: Callable[[np.ndarray], np.ndarray], of_images: np.ndarray) -> bool:
        black = ask(np.zeros_like(images[:1]))
        return bool(np.abs(of_images - black).max(axis=1).mean() > _MIN_CHANGE)

    def is_one_class(of_images: np.ndarray) -> bool:
        return len(images) >= MIN_SAMPLES and len(np.unique(of_images.argmax(axis=1))) == 1

    def recognises(ask: Callable[[np.ndarray], np.ndarray], of_images: np.ndarray) -> bool:
        """Whether answers are mostly confident, of several classes, and not those for black."""
        sure = of_images.max(axis=1).mean() >= (1 + 1 / of_images.shape[1]) / 2
        return sure and not is_one_class(of_images) and differs_from_black(ask, of_images)

    if prepare is not None:
        sees_black = is_one_class(probabilities) and not differs_from_black(
            lambda x: answer(prepare(x)), probabilities
        )
        if sees_black and recognises(scaled(1), scaled(1)(images)):
            warn(
                "After preprocess the original model answers as it does for black images, always "
                f"with class {int(probabilities[0].argmax())}; without it (0 to 255) it gives "
                "several classes. If it scales images by itself, pass preprocess=None."
            )
        return
    # A model that standardises each image by itself takes any scale.
    if np.abs(scaled(255)(images) - scaled(2550)(images)).max() < _SAME:
        return
    certain = float(np.mean(probabilities.max(axis=1) >= _CERTAIN))
    for name, scaling in _SCALINGS.items():
        rescaled = scaled(*scaling)(images)
        if labels is not None:
            both = (probabilities, rescaled)
            right, right_rescaled = ((p.argmax(axis=1) == labels).sum() for p in both)
            if right > right_rescaled:
                continue  # it was trained on such images
        sure = float(np.mean(rescaled.max(axis=1) >= _CERTAIN))
        if (certain >= 0.9 and sure < 0.5) or recognises(scaled(*scaling), rescaled):
            return warn(
                f"The original model is certain of {certain:.0%} of the images as they are (0 to "
                f"255), and of {sure:.0%} as {name}. If it was trained on scaled images, pass "
                f"preprocess=lambda x: {name}, or what it was trained with; with "
                "preprocess=lambda x: x.astype('float32') this warning does not appear."
            )


def warn_of_class_order(
    predicted: np.ndarray, y: np.ndarray, names: Sequence[str], remedy: str
) -> bool:
    """Warn if a model's classes agree better with another order of the labels' names.

    Classes and labels are `(samples,)`, and `names` those of the labels, as they are numbered. The
    order that agrees best is found by the Hungarian method. Returns whether it warned.
    """
    confusion = np.zeros((len(names), len(names)), np.int64)
    np.add.at(confusion, (y, predicted), 1)
    agreement = np.trace(confusion) / len(y)
    best = confusion[linear_sum_assignment(confusion, maximize=True)].sum() / len(y)
    # With few samples, a model that is often wrong may agree better with another order by chance.
    doubtful = best > agreement + 0.1 + 1 / np.sqrt(len(y))
    if doubtful:
        warn(
            f"The model seems to use another class order than the alphabetical one of the labels "
            f"({', '.join(names)[:100]}): {agreement:.0%} of its answers agree with that order, "
            f"{best:.0%} with another. Pass {remedy} for the model's order."
        )
    return doubtful


def warn_of_range(
    batch: np.ndarray,
    means: np.ndarray | None,
    known_range: tuple[float, float],
    known_means: tuple[float, float] | None,
    known: str = "profile",
) -> bool:
    """Warn if samples do not fit the profiled ones, in either direction; return whether it did.

    The profile has the mean of each input, `(…)` (None for models with several), and the smallest
    and largest value of its samples, and of their means.
    """

    def is_beyond(value: float, known: tuple[float, float]) -> bool:
        margin = _MAX_DISTANCE * (known[1] - known[0])
        return not known[0] - margin <= value <= known[1] + margin

    low, high = known_range
    least, largest, mean = float(batch.min()), float(batch.max()), float(batch.mean(dtype=float))
    are_many, width = len(batch) >= MIN_SAMPLES, largest - least
    is_narrow = are_many and width < _MIN_WIDTH * (high - low)
    if not is_narrow and means is not None and width > 0:
        large = np.abs(means) >= _LARGE_MEAN
        small = np.abs(batch).max(axis=0) < _MIN_SHARE * np.abs(means)
        is_narrow = bool(large.any() and small[large].all())
    if is_narrow or is_beyond(least, known_range) or is_beyond(largest, known_range):
        difference = (
            f"Inputs range from {least:.4g} to {largest:.4g}, the inputs of the {known} from "
            f"{low:.4g} to {high:.4g}"
        )
    elif are_many and known_means is not None and is_beyond(mean, known_means):
        difference = (
            f"The mean of the inputs is {mean:.4g}, those of the {known}'s samples are from "
            f"{known_means[0]:.4g} to {known_means[1]:.4g}"
        )
    else:
        return False
    warn(
        f"{difference}. Scale inputs as for the {known}, or bind the scaling to the model with "
        "InstrumentedModel(preprocess=…).",
        InputRangeWarning,
    )
    return True


def check_logits(logits: np.ndarray) -> None:
    """Reject outputs that are not `(N, classes)`; warn of what seem to be probabilities."""
    if logits.ndim != 2 or logits.shape[1] < 2:
        raise InvalidArgumentError(
            f"The model must be a classifier with logits (N, classes). It gave {logits.shape}."
        )
    if (logits >= 0).all() and np.allclose(logits.sum(axis=1), 1, atol=1e-4):
        warn(
            "The model's logits look like probabilities: none is negative and they add up to 1. "
            "Pass a model that ends in logits or in a softmax layer."
        )
