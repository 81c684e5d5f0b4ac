"""Provable repair: the smallest change of a layer's weights that corrects given inputs.

With the pattern of a piecewise-linear network fixed (which ReLU is active, which input of a pool is
the largest), its outputs are affine in the weights of any one layer. A linear program changes these
weights as little as possible, so that every given input keeps its pattern after the layer and is
classified correctly by a margin. If both ends of a segment on which the network is affine keep the
segment's pattern, so does everything in between: whole segments are repaired by their ends.

Based on Sotoudeh and Thakur, "Provable repair of deep neural networks", PLDI 2021 (PRDNN), which
fixes patterns with a second copy of the network, and Tao et al., "Architecture-preserving provable
repair of deep neural networks", PLDI 2023 (APRNN), which like this keeps the architecture.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import keras
import numpy as np

from nnslicer_tf._checks import check_labels, check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging._fixed_pattern import FixedPattern
from nnslicer_tf.debugging.runs import check_classifier
from nnslicer_tf.errors import InfeasibleRepairError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, copy_model

if TYPE_CHECKING:
    import pandas as pd

_SIZES = ("largest", "sum")
_MAX_ENTRIES = 50_000_000  # entries of the linear program: 400 MB


@dataclass(frozen=True, eq=False)
class ProvableRepair(ShownAsTable):
    """A repaired model.

    Attributes:
        model: A copy of the model with the new weights.
        kernel: Name of the kernel that was changed.
        change: The change added to the weights, float32, of the kernel's shape.
        points: Number of inputs that are provably right.
        margin: Smallest lead of the right logit, in exact arithmetic.
    """

    model: keras.Model
    kernel: str
    change: np.ndarray
    points: int
    margin: float

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row: what was changed, and by how much."""
        import pandas as pd

        changed = np.abs(self.change[self.change != 0])
        row = {
            "kernel": self.kernel,
            "weights": self.change.size,
            "changed": changed.size,
            "largest change": float(changed.max(initial=0.0)),
            "sum of changes": float(changed.sum()),
            "points": self.points,
            "margin": self.margin,
        }
        return pd.DataFrame([row])

    def __repr__(self) -> str:
        return (
            f"ProvableRepair({np.count_nonzero(self.change):,} of {self.change.size:,} weights of "
            f"'{self.kernel}', right on {self.points} points)"
        )


def repair(
    im: InstrumentedModel,
    kernel: str,
    x: np.ndarray,
    y: np.ndarray,
    *,
    among: np.ndarray | None = None,
    size: str = "sum",
    margin: float = 1e-3,
    most: float | None = None,
    groups: Sequence[int] | None = None,
) -> ProvableRepair:
    """Change few weights of one layer so that inputs are provably right.

    Args:
        im: The model, a classifier with ReLUs, max pooling and affine layers after the kernel.
        kernel: Name of the kernel whose weights may change; see `InstrumentedModel.kernels`.
        x: Inputs `(samples, *input_shape)`: those that should become right, and others that
            should remain right.
        y: Their right classes `(samples,)`.
        among: Which weights may change, bool, of the kernel's shape, such as a slice's members;
            all by default.
        size: What to minimise: the "sum" of the changes' magnitudes, which leaves most weights
            unchanged, or the "largest" of them.
        margin: Required lead of the right logit.
        most: Largest change of a weight; None for no limit.
        groups: For segments: which inputs share one pattern, `(samples,)` integers. The pattern
            is that at the mean of the group's inputs, so pass the two ends of each part of an
            exact line, on which the network is affine; everything in between is then right as
            well. By default each input has its own.

    Raises:
        InfeasibleRepairError: if no change of these weights makes all inputs right with their
            patterns kept. Fewer inputs, a later layer or more weights may be feasible.
        InvalidArgumentError: if an argument is out of range, or the program would be too large.
        UnsupportedLayerError: if the network after the kernel is not piecewise linear.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_name("size", size, _SIZES)
    check_name("kernel", kernel, im.kernels)
    if not margin > 0:
        raise InvalidArgumentError(f"margin must be above 0. Received: {margin!r}")
    x = im.check(x)
    check_classifier(im)
    y = check_labels(y, len(x), im.classes.count)
    patterns = np.arange(len(x)) if groups is None else np.asarray(groups)
    if patterns.shape != (len(x),) or patterns.dtype.kind not in "iu":
        raise InvalidArgumentError(
            f"groups must be one integer for each of {len(x)} inputs. Received: {patterns.dtype} "
            f"of shape {patterns.shape}"
        )
    shape = im.kernels[kernel].shape
    chosen = np.ones(shape, bool) if among is None else np.asarray(among)
    if chosen.shape != shape or chosen.dtype != bool or not chosen.any():
        raise InvalidArgumentError(
            f"among must be a bool array of the shape {shape} of '{kernel}', with at least one "
            f"True. Received: {chosen.dtype} {chosen.shape}"
        )
    network = FixedPattern(im, kernel)
    entries = len(x) * network.conditions * int(chosen.sum())
    if entries > _MAX_ENTRIES:
        raise InvalidArgumentError(
            f"The linear program would have {entries:,} entries, more than {_MAX_ENTRIES:,}. "
            "Choose a later layer, fewer inputs, or fewer weights (among=…)."
        )
    slopes, bounds = [], []
    for i, label in enumerate(y):
        pattern_at = x[patterns == patterns[i]].mean(axis=0)
        values, by_weight = network.conditions_of(x[i], pattern_at, int(label))
        slopes.append(by_weight[:, chosen])
        values[-network.others :] += margin
        bounds.append(-values)
    change = np.zeros(shape, np.float32)
    change[chosen] = _least(np.concatenate(slopes), np.concatenate(bounds), size, most, kernel)
    model = copy_model(im.model)
    twin = InstrumentedModel(model).kernels[kernel]
    twin.variable().assign(twin.kernel() + change)
    return ProvableRepair(model, kernel, change, len(x), margin)


def _least(
    slopes: np.ndarray, bounds: np.ndarray, size: str, most: float | None, kernel: str
) -> np.ndarray:
    """Return the smallest w with slopes · w ≤ bounds.

    Raises:
        InfeasibleRepairError: if there is none.
    """
    from scipy.optimize import linprog

    # Changes are differences of two non-negative variables, whose sum or bound is minimised.
    weights = slopes.shape[1]
    limits: list[tuple[float | None, float | None]]
    if size == "sum":
        costs = np.ones(2 * weights)
        matrix = np.hstack([slopes, -slopes])
        limits = [(0, most)] * (2 * weights)
    else:
        costs = np.append(np.zeros(weights), 1.0)
        below = np.hstack([np.eye(weights), -np.ones((weights, 1))])
        above = np.hstack([-np.eye(weights), -np.ones((weights, 1))])
        matrix = np.vstack([np.hstack([slopes, np.zeros((len(slopes), 1))]), below, above])
        bounds = np.concatenate([bounds, np.zeros(2 * weights)])
        limits = [(None, None)] * weights + [(0, most)]
    found = linprog(costs, A_ub=matrix, b_ub=bounds, bounds=limits, method="highs")
    if not found.success:
        raise InfeasibleRepairError(
            f"No change of these weights of '{kernel}' makes all inputs right with their patterns "
            f"kept ({found.message.strip()}). Give fewer inputs, more weights, or a later layer."
        )
    return found.x[:weights] - found.x[weights:] if size == "sum" else found.x[:weights]
