"""Provable repair: the smallest change of a layer's weights that corrects given inputs.

With a fixed activation pattern (which ReLU is active, which input of a pool is largest), outputs
are affine in the weights of any one layer. A linear program changes them as little as possible,
such that every input keeps its pattern after the layer and is classified correctly by a margin.
Where the network is affine, this holds between the two ends of a segment as well.

Based on Sotoudeh and Thakur, PLDI 2021 (PRDNN), which fixes patterns with a second copy of the
network, and Tao et al., PLDI 2023 (APRNN), which keeps the architecture, as here.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pandas as pd
from keras import ops

from nnslicer_tf._checks import check_name, check_number, counted
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, NNSlicerError, UnsupportedLayerError
from nnslicer_tf.instrument import Affine, Elementwise, InstrumentedModel, Synapses
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.instrument.windows import windows
from nnslicer_tf.kinds.weighted_sum import sample_gradients

_SIZES = ("largest", "sum")
_MAX_ENTRIES = 50_000_000  # entries of the linear program: 400 MB
_AFFINE = ("weighted_sum", "average", "add", "subtract", "routing")
_ROWS = 512  # conditions that are differentiated at a time


class InfeasibleRepairError(NNSlicerError):
    """No change to the chosen weights makes the model classify the given inputs correctly."""


@dataclass(frozen=True, eq=False)
class ProvableRepair(ShownAsTable):
    """A repaired model."""

    model: keras.Model  # a copy of the model with the new weights
    kernel: str  # name of the kernel that was changed
    change: np.ndarray  # added to the weights, float32, of the kernel's shape
    points: int  # number of provably correct inputs
    margin: float  # smallest lead of the right logit, in exact arithmetic

    def to_frame(self) -> pd.DataFrame:
        """Return a table with one row: kernel, size of the change, points and margin."""
        changed = np.abs(self.change[self.change != 0])
        row = {"kernel": self.kernel, "weights": self.change.size, "changed": changed.size}
        row |= {"largest change": float(changed.max(initial=0.0))}
        row |= {"sum of changes": float(changed.sum())}
        return pd.DataFrame([row | {"points": self.points, "margin": self.margin}])

    def __repr__(self) -> str:
        changed = f"{np.count_nonzero(self.change):,} of {self.change.size:,} weights"
        points = counted(self.points, "point")
        return f"ProvableRepair({changed} of '{self.kernel}', right on {points})"


def repair(
    im: InstrumentedModel,
    kernel: str,
    x: np.ndarray,
    y: np.ndarray,
    *,
    among: np.ndarray | None = None,
    size: str = "sum",
    margin: float = 1e-3,
    groups: Sequence[int] | None = None,
) -> ProvableRepair:
    """Change few weights of one layer so that inputs are provably classified correctly.

    Args:
        im: The model, a classifier with ReLUs, max pooling and affine layers after the kernel.
        kernel: Name of the kernel whose weights may change; see `InstrumentedModel.kernels`.
        x: Inputs `(samples, *input_shape)` to correct, and others that should stay correct.
        y: Their right classes `(samples,)`.
        among: Which weights may change, bool, of the kernel's shape, such as a slice's members;
            all by default.
        size: What to minimise: the "sum" of the changes' magnitudes, which leaves most weights
            unchanged, or the "largest" of them.
        margin: Required lead of the right logit.
        groups: For segments: which inputs share one pattern, that at their mean, `(samples,)`
            integers, such as the two ends of each affine part of an exact line, between which
            everything is then correct. By default each input has its own pattern.

    Raises:
        InfeasibleRepairError: if no change of these weights corrects all inputs within their
            patterns.
        InvalidArgumentError: if an argument is out of range, or the program would be too large.
        UnsupportedLayerError: if the network after the kernel is not piecewise linear.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
    """
    check_name("size", size, _SIZES)
    check_name("kernel", kernel, im.kernels)
    check_number("margin", margin, "(0, inf)")
    check_classifier(im, exclusive=True)
    x, y = im.labelled(x, y)
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
    network = _FixedPattern(im, kernel)
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
    change[chosen] = _least(np.concatenate(slopes), np.concatenate(bounds), size, kernel)
    copy = im.copy()
    twin = copy.kernels[kernel]
    twin.variable().assign(twin.kernel() + change)
    return ProvableRepair(copy.model, kernel, change, len(x), margin)


def _least(slopes: np.ndarray, bounds: np.ndarray, size: str, kernel: str) -> np.ndarray:
    """Return the smallest w with slopes · w ≤ bounds; raise `InfeasibleRepairError` without one."""
    from scipy.optimize import linprog

    # Changes are differences of two non-negative variables, whose sum or bound is minimised.
    weights = slopes.shape[1]
    limits: list[tuple[float | None, float | None]]
    if size == "sum":
        costs = np.ones(2 * weights)
        matrix = np.hstack([slopes, -slopes])
        limits = [(0, None)] * (2 * weights)
    else:
        costs = np.append(np.zeros(weights), 1.0)
        below = np.hstack([np.eye(weights), -np.ones((weights, 1))])
        above = np.hstack([-np.eye(weights), -np.ones((weights, 1))])
        matrix = np.vstack([np.hstack([slopes, np.zeros((len(slopes), 1))]), below, above])
        bounds = np.concatenate([bounds, np.zeros(2 * weights)])
        limits = [(None, None)] * weights + [(0, None)]
    found = linprog(costs, A_ub=matrix, b_ub=bounds, bounds=limits, method="highs")
    if not found.success:
        raise InfeasibleRepairError(
            f"No change of these weights of '{kernel}' corrects all inputs and keeps their "
            f"patterns ({found.message.strip()}). Pass fewer inputs, more weights, or a later "
            "layer."
        )
    return found.x[:weights] - found.x[weights:] if size == "sum" else found.x[:weights]


class _FixedPattern:
    """The network after a kernel with a fixed activation pattern, affine in the kernel's weights.

    A condition, float64, holds if it is at most 0: for each active ReLU minus its input, for each
    inactive one its input; for each max-pooling window every other value minus the chosen one; and
    last, for each of the `others` classes, its logit minus the right one.
    """

    def __init__(self, im: InstrumentedModel, kernel: str) -> None:
        sums = [o for o in im.operations if isinstance(o.params, Synapses)]
        owners = [o for o in sums if o.params.name == kernel]
        if len(owners) != 1:
            raise UnsupportedLayerError(
                f"Kernel '{kernel}' is used more than once and cannot be repaired."
            )
        (self._owner,) = owners
        self._graph, self._logits = im.graph, im.logit_operation
        self._classes, self.others = im.classes, im.classes.count - 1
        self._behind = im.graph.between([self._owner.name], [self._logits])
        self._bends, self.conditions = set(), self.others
        for o in self._behind:
            if o.kind in _AFFINE or isinstance(o.params, Affine):
                continue
            is_relu = isinstance(o.params, Elementwise) and o.params.function == "relu"
            plain = o.kind == "rectify" and (o.params is None or is_relu)
            if not plain and o.kind != "maximum":
                raise UnsupportedLayerError(
                    f"Operation '{o.name}' ({o.kind}) is neither affine nor a ReLU nor a max "
                    "pooling; a repair allows only these after the layer. Choose a later layer."
                )
            self._bends.add(o.name)
            self.conditions += o.size * (o.params.taps.shape[1] if o.kind == "maximum" else 1)

    def conditions_of(
        self, x: np.ndarray, pattern_at: np.ndarray, label: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the conditions at `x`, with the pattern at another input, and their gradients."""
        inputs = (ops.convert_to_tensor(one[None].astype(np.float64)) for one in (pattern_at, x))
        tensors = (self._graph.run(one, [self._logits, self._owner.name]) for one in inputs)
        pattern, values_at = (
            {name: ops.convert_to_numpy(value) for name, value in values.items()}
            for values in tensors
        )

        def run(z: Any) -> Any:
            """Map the owner's output `(batch, …)` to the conditions `(batch, conditions)`."""
            values, conditions = {self._owner.name: z}, []
            for operation in self._behind:
                inputs = [
                    values[name]
                    if name in values  # else it does not depend on z
                    else ops.repeat(ops.convert_to_tensor(values_at[name]), ops.shape(z)[0], axis=0)
                    for name in operation.inputs
                ]
                if operation.name not in self._bends:
                    values[operation.name] = operation.compute(*inputs)
                    continue
                (y,), before = inputs, pattern[operation.inputs[0]]
                if operation.kind == "rectify":
                    active = before > 0
                    held = ops.reshape(y * np.where(active, -1.0, 1.0), (-1, operation.size))
                    values[operation.name] = y * active.astype(np.float64)
                else:
                    # The largest value of each window at the pattern's input.
                    taps, window = operation.params.taps, operation.input_shapes[0]
                    outside = (taps < 0)[None, :, :, None]
                    read = windows(window, ops.convert_to_tensor(before), taps)
                    read = ops.convert_to_numpy(read)
                    largest = np.where(outside, -np.inf, read).argmax(axis=2)
                    marks = np.arange(taps.shape[1])[:, None] == largest[:, :, None]
                    read = windows(window, y, taps)
                    value = ops.sum(read * marks.astype(np.float64), axis=2)
                    held = (read - value[:, :, None]) * (~outside).astype(np.float64)
                    held = ops.reshape(held, (ops.shape(y)[0], -1))
                    values[operation.name] = ops.reshape(value, (ops.shape(y)[0], *operation.shape))
                conditions.append(held)
            scores = values[self._logits]
            if self._classes.is_binary:
                scores = ops.concatenate([-scores, scores], axis=1) / 2
            others = np.flatnonzero(np.arange(self.others + 1) != label)
            conditions.append(ops.take(scores, others, axis=1) - scores[:, label : label + 1])
            return ops.concatenate(conditions, axis=1)

        at, kernel = values_at[self._owner.name], self._owner.params
        values = ops.convert_to_numpy(run(ops.convert_to_tensor(at)))[0]
        slopes = []
        for first in range(0, len(values), _ROWS):
            rows = np.eye(len(values))[first : first + _ROWS]
            repeated = ops.convert_to_tensor(np.repeat(at, len(rows), axis=0))
            (by_output,) = vector_jacobian_product(run, [repeated], ops.convert_to_tensor(rows))
            read = np.repeat(values_at[self._owner.inputs[0]], len(rows), axis=0)
            by_tap = sample_gradients(self._owner, ops.convert_to_tensor(read), by_output)
            slopes.append(kernel.to_kernel(ops.convert_to_numpy(by_tap)))
        return values, np.concatenate(slopes)
