"""Measures of the paper: errors of sampled attributions, and linearity near images (section 5).

The Linear Explanation of adversarial examples (Goodfellow et al., 2015) assumes that an image
and its FGSM neighbour lie on one affine piece. Here the pieces between them, and those between
the image and a random neighbour, are counted, and their gradients are compared with that of the
first piece.
"""

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_generator, check_name
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import Attributor, LinearPartition
from nnslicer_tf.exactline.curve import TOLERANCE
from nnslicer_tf.exactline.gradients import PathGradients
from nnslicer_tf.instrument import InstrumentedModel

_MEASURES = ("norm", "components")

RULES = {"left": (1.0, 0.0), "right": (0.0, 1.0), "trapezoid": (0.5, 0.5)}
"""Rule of a sum → weights of the line's start and end, relative to those of points between."""


def density(partition: LinearPartition) -> float:
    """Return the number of parts per unit of Euclidean length, NaN if the line has no length."""
    return len(partition) / partition.length if partition.length else float("nan")


def fgsm(im: InstrumentedModel, x: np.ndarray, labels: np.ndarray, epsilon: float) -> np.ndarray:
    """Return x + epsilon · sign(gradient of the cross-entropy of the logits), clipped to [0, 1]."""
    x, labels = im.labelled(x, labels)
    out = np.array(x, np.float64)
    for label in np.unique(labels):

        def loss(values: Mapping[str, Any], label: int = int(label)) -> Any:
            return -keras.ops.log_softmax(values[im.logit_operation])[:, label]

        chosen = np.flatnonzero(labels == label)
        gradient = im.gradients(x[chosen], loss)
        out[chosen] += epsilon * np.sign(gradient[im.input_operation])
    return np.clip(out, 0, 1)


def random_neighbours(x: np.ndarray, epsilon: float, rng: int | np.random.Generator) -> np.ndarray:
    """Return x with every pixel changed by ± epsilon at random, clipped to [0, 1]."""
    signs = as_generator(rng).choice([-1.0, 1.0], size=np.shape(x))
    return np.clip(np.asarray(x, np.float64) + epsilon * signs, 0, 1)


def relative_change(path: PathGradients, by: str = "norm") -> float:
    """Return the mean relative change of the gradient over the line, its parts weighted by length.

    g is a part's gradient, g₀ the first part's. `by="norm"`: ‖g - g₀‖₁ / ‖g₀‖₁, NaN if g₀ is zero.
    `by="components"`: the components' mean |g - g₀| / |g + 1e-12|, as in the paper's program.
    """
    check_name("measure", by, _MEASURES)
    gradients = path.gradients.reshape(len(path.partition), -1)
    change = np.abs(gradients - gradients[0])
    if by == "norm":
        change = change.sum(axis=1) / (np.abs(gradients[0]).sum() or np.nan)
    else:
        change = (change / np.abs(gradients + 1e-12)).mean(axis=1)
    return float(np.diff(path.partition.ratios) @ change)


def relative_error(approximation: np.ndarray, exact: np.ndarray, by: str = "norm") -> float:
    """Return the relative error of an approximation.

    `by="norm"`: Σ|approximation - exact| / Σ|exact|. `by="components"`: the mean of
    |approximation - exact| / |exact + 1e-11|, as in the paper's program.
    """
    check_name("measure", by, _MEASURES)
    change = np.abs(approximation - exact)
    if by == "norm":
        return float(change.sum() / np.abs(exact).sum())
    return float((change / np.abs(exact + 1e-11)).mean())


def approximate(path: PathGradients, samples: int, rule: str = "left") -> np.ndarray:
    """Approximate integrated gradients by a sum (equation 5), of the shape of the input.

    Gradients are taken at the ratios k/samples, k from 0 to samples - 1 ("left"), from 1 to samples
    ("right"), or from 0 to samples ("trapezoid").
    """
    check_name("rule", rule, RULES)
    first, last = RULES[rule]
    # Each piece is as wide as the number of ratios k/samples, k < samples, in it.
    steps, (at_start, at_end) = path.steps, path.steps.at(np.array([0.0, 1.0]))
    counts = np.ceil(samples * steps.ratio - samples * TOLERANCE)
    total = (first - 1) * at_start + steps._replace(ratio=counts).integrals() + last * at_end
    start, end = path.partition.start, path.partition.end
    return (end - start) * (total / samples).reshape(start.shape)


def samples_for_completeness(
    path: PathGradients, within: float = 0.05, most: int = 1_000, least: int = 1
) -> int | None:
    """Return m̃, the smallest number of samples of the left sum that gives completeness, or None.

    Completeness: attributions add up to the change of the output, up to the share `within` of it.
    """
    outputs = path.partition.outputs.reshape(len(path.partition) + 1, -1)[:, path.target]
    change = outputs[-1] - outputs[0]
    for samples in range(least, most + 1):
        if abs(approximate(path, samples).sum() - change) <= within * abs(change):
            return samples
    return None


def samples_within(
    path: PathGradients,
    rule: str,
    error: float = 0.05,
    consecutive: int = 6,
    most: int = 1_000,
    by: str = "norm",
) -> int | None:
    """Return the smallest number of samples m, up to `most`, from which the error stays small.

    The `relative_error` of sums by one of `RULES` must be at most `error` for `consecutive` counts.
    """
    exact = path.exact()
    good = 0
    for samples in range(1, most + consecutive):
        near = relative_error(approximate(path, samples, rule), exact, by) <= error
        good = good + 1 if near else 0
        if good == consecutive:
            return samples - consecutive + 1
    return None


def linearity(
    im: InstrumentedModel, x: np.ndarray, y: np.ndarray, epsilon: float, rng: int
) -> pd.DataFrame:
    """Return a row for each image: the lines to its FGSM and random neighbours.

    The density is NaN where FGSM does not move an image, because the classifier is so confident
    that the gradient of its loss is zero.
    """
    x, y = im.labelled(x, y)
    attributor = Attributor(im)
    ends = {"fgsm": fgsm(im, x, y, epsilon), "random": random_neighbours(x, epsilon, rng)}
    predicted = im.logits(x).argmax(axis=1)
    adversarial = im.logits(ends["fgsm"]).argmax(axis=1)
    rows = []
    for i in track(range(len(x)), "Lines", len(x)):
        row = {"label": y[i], "predicted": predicted[i], "fgsm_predicted": adversarial[i]}
        for direction, end in ends.items():
            path = attributor.path(end[i], x[i], int(y[i]))
            row[f"{direction}_parts"] = len(path.partition)
            row[f"{direction}_density"] = density(path.partition)
            row[f"{direction}_gradient_error"] = relative_change(path)
        rows.append(row)
    return pd.DataFrame(rows)
