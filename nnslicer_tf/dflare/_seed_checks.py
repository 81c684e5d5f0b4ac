"""Do the seeds suit the models? Answered by asking both models about a few of them.

A search finds "deviations" from any inputs, also from those that the models were not made for:
images that were not scaled, or scaled twice. Such findings do not exist on proper inputs.
"""

import warnings
from collections.abc import Callable

import numpy as np

from nnslicer_tf.dflare.domain import LABEL_MARGIN, class_probabilities
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InvalidArgumentError

_MAX_SEEDS = 64
_MIN_SEEDS = 8  # fewer say nothing about the models
_MIN_RIGHT, _MAX_DIFFERENT = 0.5, 0.75
_CERTAIN = 1 - 1e-6
_SAME, _MIN_CHANGE = 0.01, 0.2  # differences of probabilities

_SCALINGS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "x.astype('float32') / 255": lambda x: x / np.float32(255),
    "x.astype('float32') / 127.5 - 1": lambda x: x / np.float32(127.5) - 1,
}
"""Common preprocessing of images of 0 to 255."""


def check_seeds_suit(
    pair: ModelPair, seeds: np.ndarray, truth: np.ndarray | None, preprocessed: bool
) -> None:
    """Reject seeds for which the models do not seem to be made; warn of models that are equal.

    Args:
        pair: The models.
        seeds: The seeds; the first 64 are used.
        truth: Their true classes, if known.
        preprocessed: Whether the caller gave a preprocessing function.

    Raises:
        InvalidArgumentError: if another scaling of the images seems to be right, the original is
            wrong on most seeds, or the two models disagree on most.
    """
    seeds = seeds[:_MAX_SEEDS]
    truth = None if truth is None else truth[: len(seeds)]
    answers = pair.ask(seeds)
    if isinstance(pair.domain, ImageDomain):
        _check_scale(pair, seeds, answers.original, truth, preprocessed)
    if len(seeds) < _MIN_SEEDS:
        return
    remedy = (
        "Pass as preprocess what the models were trained with, such as "
        "lambda x: x.astype('float32') / 255."
    )
    right = 1.0 if truth is None else float((answers.labels[:, 0] == truth).mean())
    if right < _MIN_RIGHT:
        raise InvalidArgumentError(
            f"The original model is right on {right:.0%} of the first {len(seeds)} seeds. "
            f"{remedy} If these are its seeds nevertheless, leave out labels."
        )
    differ = float(answers.deviates.mean())
    if differ > _MAX_DIFFERENT:
        raise InvalidArgumentError(
            f"The two models disagree on {differ:.0%} of the first {len(seeds)} seeds as they "
            f"are. {remedy} If they are two versions of one model, look at their accuracies first."
        )
    if np.abs(answers.original - answers.compressed).max() < LABEL_MARGIN:
        warnings.warn(
            f"Both models answered identically on all {len(seeds)} seeds that were tried: the "
            "compression may have changed nothing, so that there is nothing to find. (TFLite's "
            "dynamic quantisation leaves kernels of fewer than 1,024 values as they are.)",
            stacklevel=3,
        )


def _check_scale(
    pair: ModelPair,
    seeds: np.ndarray,
    given: np.ndarray,
    truth: np.ndarray | None,
    preprocessed: bool,
) -> None:
    """Reject images that the original recognises only, or better, when scaled differently.

    Unscaled images saturate a network that was trained on scaled ones: it is certain of
    everything. A network that scales by itself takes images that were scaled before for black
    ones, and gives all of them the same class.
    """

    def original(scaling: Callable[[np.ndarray], np.ndarray], x: np.ndarray) -> np.ndarray:
        return class_probabilities(pair.original.probabilities(scaling(x)))

    def recognises(probabilities: np.ndarray, scaling: Callable[[np.ndarray], np.ndarray]) -> bool:
        """Whether the original is mostly sure, and of something else than for black images."""
        sure = probabilities.max(axis=1).mean() >= (1 + 1 / probabilities.shape[1]) / 2
        one_class = len(np.unique(probabilities.argmax(axis=1))) == 1
        if not sure or (one_class and len(seeds) >= _MIN_SEEDS):
            return False
        black = original(scaling, np.zeros_like(seeds[:1]))
        return bool(np.abs(probabilities - black).max(axis=1).mean() > _MIN_CHANGE)

    def accuracy(probabilities: np.ndarray) -> float:
        return -1.0 if truth is None else float((probabilities.argmax(axis=1) == truth).mean())

    if preprocessed:
        one_class = len(np.unique(given.argmax(axis=1))) == 1
        if truth is None and one_class and len(seeds) >= _MIN_SEEDS:
            raw = original(_unscaled, seeds)
            if recognises(raw, _unscaled):
                raise InvalidArgumentError(
                    f"The original model gives all of the first {len(seeds)} seeds the class "
                    f"{int(given[0].argmax())} after preprocess, and tells them apart as they are "
                    "(0 to 255): it probably scales images by itself. Pass preprocess=None."
                )
        return
    # A model that standardises each image by itself takes any scale.
    dark = original(lambda x: x / np.float32(255), seeds)
    darker = original(lambda x: x / np.float32(2550), seeds)
    if np.abs(dark - darker).max() < _SAME:
        return
    certain = float(np.mean(given.max(axis=1) >= _CERTAIN))
    for name, scaling in _SCALINGS.items():
        scaled = original(scaling, seeds)
        if accuracy(given) > accuracy(scaled):
            continue  # it was trained on such images
        sure = float(np.mean(scaled.max(axis=1) >= _CERTAIN))
        if (certain >= 0.9 and sure < 0.5) or recognises(scaled, scaling):
            raise InvalidArgumentError(
                f"The original model is certain of {certain:.0%} of the seeds as they are (0 to "
                f"255), and of {sure:.0%} as {name}, when it tells them apart as well: it was "
                f"probably trained on scaled images. Pass preprocess=lambda x: {name}, or what it "
                "was trained with; with preprocess=lambda x: x.astype('float32') the seeds are "
                "used as they are."
            )


def _unscaled(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float32)
