"""Check on a few seeds that they suit the models, for example that images are scaled correctly.

With unsuitable inputs a search reports "deviations" that do not occur on proper ones.
"""

import warnings

import numpy as np

from nnslicer_tf.dflare.classifiers import rows_within_memory
from nnslicer_tf.dflare.domain import LABEL_MARGIN, class_probabilities
from nnslicer_tf.dflare.images import ImageDomain
from nnslicer_tf.dflare.model_pair import ModelPair
from nnslicer_tf.errors import InvalidArgumentError

_MAX_SEEDS = 64
_MIN_SEEDS = 8  # fewer say nothing about the models
_MIN_RIGHT, _MAX_DIFFERENT = 0.5, 0.75
_CERTAIN = 1 - 1e-6
_SAME, _MIN_CHANGE = 0.01, 0.2  # differences of probabilities

_SCALINGS = {"x.astype('float32') / 255": (255, 0), "x.astype('float32') / 127.5 - 1": (127.5, 1)}
"""Common preprocessing of images of 0 to 255 → divisor, and what is subtracted afterwards."""


def check_seeds_suit(pair: ModelPair, seeds: np.ndarray, truth: np.ndarray | None) -> None:
    """Reject seeds that do not suit the models, by the first 64; warn if the models are equal."""
    seeds = seeds[: max(_MIN_SEEDS, rows_within_memory(seeds.shape[1:], _MAX_SEEDS))]
    truth = None if truth is None else truth[: len(seeds)]
    answers = pair.ask(seeds)
    if isinstance(pair.domain, ImageDomain):
        _check_scale(pair, seeds, answers.original, truth)
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
    pair: ModelPair, seeds: np.ndarray, answers: np.ndarray, truth: np.ndarray | None
) -> None:
    """Reject images that the original recognises only, or better, when scaled differently.

    A network trained on scaled images saturates on unscaled ones and is certain of everything. One
    that scales its inputs itself sees images scaled before as black, and gives all the same class.
    """

    def original(x: np.ndarray, divisor: float, offset: float = 0) -> np.ndarray:
        inputs = x / np.float32(divisor) - np.float32(offset)
        return class_probabilities(pair.original.probabilities(inputs))

    def is_one_class(probabilities: np.ndarray) -> bool:
        classes = np.unique(probabilities.argmax(axis=1))
        return len(classes) == 1 and len(seeds) >= _MIN_SEEDS

    def recognises(probabilities: np.ndarray, divisor: float, offset: float = 0) -> bool:
        """Whether the original is mostly confident, and not of a black image's class."""
        sure = probabilities.max(axis=1).mean() >= (1 + 1 / probabilities.shape[1]) / 2
        if not sure or is_one_class(probabilities):
            return False
        black = original(np.zeros_like(seeds[:1]), divisor, offset)
        return bool(np.abs(probabilities - black).max(axis=1).mean() > _MIN_CHANGE)

    if pair.preprocess is not None:
        if truth is None and is_one_class(answers) and recognises(original(seeds, 1), 1):
            raise InvalidArgumentError(
                f"The original model gives all of the first {len(seeds)} seeds the class "
                f"{int(answers[0].argmax())} after preprocess, and tells them apart as they are "
                "(0 to 255): it probably scales images by itself. Pass preprocess=None."
            )
        return
    # A model that standardises each image by itself takes any scale.
    if np.abs(original(seeds, 255) - original(seeds, 2550)).max() < _SAME:
        return
    certain = float(np.mean(answers.max(axis=1) >= _CERTAIN))
    for name, scaling in _SCALINGS.items():
        scaled = original(seeds, *scaling)
        if truth is not None:
            right, right_scaled = ((p.argmax(axis=1) == truth).sum() for p in (answers, scaled))
            if right > right_scaled:
                continue  # it was trained on such images
        sure = float(np.mean(scaled.max(axis=1) >= _CERTAIN))
        if (certain >= 0.9 and sure < 0.5) or recognises(scaled, *scaling):
            raise InvalidArgumentError(
                f"The original model is certain of {certain:.0%} of the seeds as they are (0 to "
                f"255), and of {sure:.0%} as {name}, when it tells them apart as well: it was "
                f"probably trained on scaled images. Pass preprocess=lambda x: {name}, or what it "
                "was trained with; with preprocess=lambda x: x.astype('float32') the seeds are "
                "used as they are."
            )
