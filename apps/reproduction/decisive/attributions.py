"""Attributions beside the library's: expected gradients, SmoothGrad, Grad-CAM, RISE.

Their arguments are those of `nnslicer_tf.attributions.Attribution`. Xplique has them, too, for
models of images.
"""

from collections.abc import Mapping
from typing import Any

import cv2
import numpy as np
from keras import ops

from nnslicer_tf._checks import as_generator, check_count
from nnslicer_tf.attributions import TargetLike
from nnslicer_tf.attributions.methods import between, mean_gradient
from nnslicer_tf.attributions.problem import Problem
from nnslicer_tf.errors import UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import resolve_target

_CELLS = 7  # of a random mask along an axis of an image


def expected_gradients(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return integrated gradients averaged over random baselines and places on the lines.

    Expected gradients (Erion et al., Nature Machine Intelligence 2021) of 200 places. `baseline`
    may be several, `(baselines, *input shape)`, such as training samples.
    """
    random, samples = np.random.default_rng(0), 200
    if len(im.input_operations) > 1 or np.ndim(baseline) != len(im.input_shape) + 1:
        problem = Problem(im, x, baseline, target)
        places = (np.arange(samples) + random.random(samples)) / samples  # one in each interval
        return mean_gradient(problem, between(problem, places))
    chosen = np.asarray(baseline)[random.integers(len(baseline), size=samples)]
    total: np.ndarray | float = 0.0
    for one in chosen:
        problem = Problem(im, x, one, target)
        total = total + mean_gradient(problem, between(problem, random.random(1))) / samples
    return np.asarray(total)


def smooth_gradients(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = 50,
    noise: float = 0.1,
    rng: int | np.random.Generator = 0,
) -> Any:
    """Return the mean gradient at noisy samples, times the difference from the baseline.

    SmoothGrad (Smilkov et al., 2017), in its form that multiplies by the input. The noise's
    standard deviation is the share `noise` of the range of the sample's values.
    """
    problem = Problem(im, x, baseline, target)
    random = as_generator(rng)
    around = {
        name: value + random.normal(0, noise * float(np.ptp(value)), (samples, *value.shape))
        for name, value in problem.x.items()
    }
    return mean_gradient(problem, around)


def grad_cam(im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> Any:
    """Return Grad-CAM (Selvaraju et al., ICCV 2017), non-negative and equal in all channels.

    The maps are the convolution's activation if it follows directly, else (after a batch
    normalisation) the convolution itself. The baseline is not used.

    Raises:
        UnsupportedLayerError: if the model has no convolution over images.
    """
    target = resolve_target(im, target)
    if len(im.input_operations) > 1 or len(im.input_shape) != 3:
        shapes = ", ".join(map(str, im.input_shapes.values()))
        raise UnsupportedLayerError(
            f"Grad-CAM needs a model of images with a convolution. '{im.model.name}' takes samples "
            f"of shape {shapes}."
        )
    before = im.graph.ancestors([target.operation])[:-1]
    sums = [o.name for o in before if o.kind == "weighted_sum" and len(o.shape) == 3]
    if not sums:
        raise UnsupportedLayerError(
            "Grad-CAM needs a model of images with a convolution before the target. "
            f"'{im.model.name}' has none."
        )
    following = [o for o in before if o.inputs == (sums[-1],)]
    is_activated = len(following) == 1 and following[0].kind in ("rectify", "elementwise")
    name = following[0].name if is_activated else sums[-1]

    weights = target.weights(im[target.operation].size)

    def score(values: Mapping[str, Any]) -> Any:
        flat = ops.reshape(values[target.operation], (-1, len(weights)))
        return ops.sum(flat * weights, axis=1)

    batch = np.asarray(x)[None]
    maps = im.capture(batch, of=[name])[name][0].astype(np.float64)
    compiled = im.prepared(("grad-cam", target), lambda: score)  # the same object each time
    gradient = im.gradients(batch, of=compiled, wrt=[name], needs=[target.operation])[name][0]
    coarse = np.maximum((maps * gradient.mean(axis=(0, 1))).sum(axis=-1), 0)
    height, width, channels = im.input_shape
    fine = cv2.resize(coarse, (width, height), interpolation=cv2.INTER_LINEAR)
    return np.repeat(fine[..., None], channels, axis=-1)


def rise(
    im: InstrumentedModel,
    x: Any,
    baseline: Any,
    target: TargetLike,
    *,
    samples: int = 1000,
    rng: int | np.random.Generator = 0,
) -> Any:
    """Return how much higher the mean score is over the masks that show a feature than over others.

    RISE's value is the first mean; the difference keeps the order and gives the sign a meaning.
    Each of the `samples` random masks hides half of the input; on images they are coarse grids,
    enlarged and shifted at random.
    """
    import cv2

    check_count("samples", samples)
    problem = Problem(im, x, baseline, target)
    random = as_generator(rng)
    blocks: list[np.ndarray] = []  # of masks from 0 to 1, where 1 shows a unit
    for shape in problem.unit_shapes.values():
        if len(shape) != 2 or min(shape) < _CELLS:
            blocks.append(random.random((samples, int(np.prod(shape)))) < 0.5)
            continue
        height, width = shape
        cells = [-(-length // _CELLS) for length in shape]
        grids = (random.random((samples, _CELLS, _CELLS)) < 0.5).astype(np.float32)
        tops, lefts = (random.integers(0, cell, samples) for cell in cells)
        masks = np.empty((samples, height, width))
        size = (width + cells[1], height + cells[0])
        for i, (grid, top, left) in enumerate(zip(grids, tops, lefts, strict=True)):
            large = cv2.resize(grid, size, interpolation=cv2.INTER_LINEAR)
            masks[i] = large[top : top + height, left : left + width]
        blocks.append(masks.reshape(samples, -1))
    shown = np.concatenate(blocks, axis=1).astype(np.float64)
    scores = problem.scores(problem.hidden(1 - shown))
    with_it = (scores @ shown) / np.maximum(shown.sum(axis=0), 1e-9)
    without = (scores @ (1 - shown)) / np.maximum((1 - shown).sum(axis=0), 1e-9)
    return problem.from_units(with_it - without)


METHODS = {
    "expected gradients": expected_gradients,
    "SmoothGrad": smooth_gradients,
    "Grad-CAM": grad_cam,
    "RISE": rise,
}
