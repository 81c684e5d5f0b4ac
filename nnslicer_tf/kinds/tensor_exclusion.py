"""The exclusion rule as tensor operations of the backend, on any device.

The functions take the arguments of those in `_kernels.sums` and `_kernels.products`, and return the
same arrays. One sum is a row of local values. Its *bound* separates the values that are kept from
smaller ones, and is searched in all rows of a block at once, without sorting:

1. A pass adds up the values below the last candidate in float64. If their sum is below the
   threshold in magnitude, the candidate is the bound.
2. Otherwise the pass sums the values above each of a few magnitudes, and the magnitudes. The bound
   cannot lie between two of them if neither the positive nor the negative values there alone
   bring the remainder below the threshold. The next candidate is the upper end of the highest
   interval that is left, and the next pass divides only this interval. These are float32 sums,
   which skip an interval only if rounding cannot matter.
3. Rows whose bound is found drop out. In ResNet10 a row takes three to eleven passes on average, by
   layer, and one in fifty takes more than 20 or 30.

Memory is some 100 bytes for each of `BLOCK_VALUES`, and that of the arguments and results. The
backend needs float64. Local values below 1.2e-38 may count as 0.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache, partial
from typing import Any

import numpy as np

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._kernels import sums
from nnslicer_tf.instrument.backend import compiled_function

keras: Any = LazyModule("keras")
ops: Any = LazyModule("keras.ops")

# Number of local values that are processed together.
BLOCK_VALUES = 1 << 22
# Number of magnitudes by which a pass divides an interval, and the share of the largest value in it
# above which they lie.
_DIVISIONS = 4
_LEAST_SHARE = 1 / 16
# The rounding error of a float32 sum of n values, in any order, is below n · 2⁻²⁴ times the sum of
# their magnitudes; each comparison involves four sums.
_ROUNDING = 2.0**-22
# Less than any value that is not 0.
_NOTHING = 1e-46

Rows = dict[str, np.ndarray]
Tensors = Mapping[str, Any]


def _keys(v: Any) -> Any:
    """Return float64 keys, by magnitude then position, that keep float32 neighbours apart."""
    place = ops.cast(ops.arange(ops.shape(v)[1]), "float64")
    return ops.cast(ops.abs(v), "float64") * (1 + place * 2.0**-52)


def _interval(v: Any, at: Tensors) -> tuple[Any, Any, Any, Any]:
    """Return some rows' values, keys, which lie in the interval, and the sum of all below `high`.

    `at` has the rows' numbers, thresholds and intervals: values from `high` are kept, and the
    bound is sought from `low`.
    """
    v = ops.take(v, at["row"], axis=0)
    keys = _keys(v)
    below = keys < at["high"][:, None]
    left = ops.sum(ops.where(below, ops.cast(v, "float64"), 0.0), axis=1)
    return v, keys, below & (keys >= at["low"][:, None]), left


def _narrow(v: Any, at: Tensors) -> tuple[Any, Any, Any, Any]:
    """Make a pass over rows; return their next intervals, which are solved, and which are tied."""
    v, keys, inside, left = _interval(v, at)
    found = ops.abs(left) < at["threshold"]

    # Divide the interval between its largest value and its smallest, but not too far down.
    top = ops.max(ops.where(inside, keys, 0.0), axis=1)
    bottom = ops.minimum(ops.min(ops.where(inside, keys, np.inf), axis=1), top)
    tied = (ops.cast(top, "float32") == ops.cast(bottom, "float32")) & (top > bottom)
    step = (top - ops.maximum(bottom, top * _LEAST_SHARE)) / _DIVISIONS
    bounds = [top - k * step for k in range(_DIVISIONS)] + [at["low"]]
    above, weight = [0.0], [0.0]
    for bound in bounds:
        part = ops.where(inside & (keys >= bound[:, None]), v, 0.0)
        above.append(ops.cast(ops.sum(part, axis=1), "float64"))
        weight.append(ops.cast(ops.sum(ops.abs(part), axis=1), "float64"))

    # Choose the highest part in which the remainder may fall below the threshold. The largest value
    # alone is the first: it is kept. If there is none, all of the interval is kept.
    rounding = ops.cast(ops.shape(v)[1], "float64") * _ROUNDING * weight[-1]
    limit = at["threshold"] + rounding
    high, low = at["low"], ops.full_like(at["low"], _NOTHING)
    for k in reversed(range(len(bounds))):
        negative, positive = (0.5 * (above[k] + sign * weight[k]) for sign in (-1, 1))
        least = left - negative - 0.5 * (above[k + 1] + weight[k + 1])
        most = left - positive - 0.5 * (above[k + 1] - weight[k + 1])
        possible = ~((least >= limit) | (most <= -limit))  # a NaN sum rules nothing out
        high = ops.where(possible, bounds[max(k - 1, 0)], high)
        low = ops.where(possible, bounds[k] if k else at["low"], low)
    return ops.where(found, at["high"], high), low, found, tied & ~found


def _untie(v: Any, at: Tensors) -> tuple[Any, Any, Any]:
    """Search intervals of equal magnitudes, by sums over the last positions, as `_narrow` does."""
    v, keys, inside, left = _interval(v, at)
    part = ops.cast(ops.where(inside, v, 0.0), "float64")
    taken = ops.sum(part, axis=1, keepdims=True) - ops.cumsum(part, axis=1) + part
    small = inside & (ops.abs(left[:, None] - taken) < at["threshold"][:, None])
    bound = ops.max(ops.where(small, keys, 0.0), axis=1)
    found = bound > 0
    return ops.where(found, bound, at["low"]), ops.full_like(at["low"], _NOTHING), found


def _search(v: Any, threshold: np.ndarray) -> np.ndarray:
    """Return the bound of each row: values whose key is not below it are kept."""
    at = {
        "row": np.arange(len(threshold)),
        "low": np.full(len(threshold), _NOTHING),
        "high": np.where(threshold > 0, np.inf, _NOTHING),
        "threshold": threshold,
    }

    def step(function: Callable, rows: np.ndarray) -> list[np.ndarray]:
        some = _on_device({name: array[rows] for name, array in at.items()}, len(threshold))
        results = _compiled(function)(v, some)
        return [np.array(ops.convert_to_numpy(result)[: len(rows)]) for result in results]

    rows = np.flatnonzero(threshold > 0)
    while len(rows):
        high, low, found, tied = step(_narrow, rows)
        if tied.any():
            high[tied], low[tied], found[tied] = step(_untie, rows[tied])
        at["high"][rows], at["low"][rows] = high, low
        rows = rows[~found]
    return at["high"]


def _form(terms: Callable, arrays: Tensors, rows: Tensors) -> tuple[Any, Any]:
    """Return the local values of some sums, and their thresholds."""
    v, _ = terms(arrays, rows)
    total = ops.abs(ops.sum(ops.cast(v, "float64"), axis=1))
    return v, rows["fixed"] + rows["share"] * total


def _give(terms: Callable, arrays: Tensors, rows: Tensors, v: Any, bound: Any, totals: Any) -> Any:
    """Add what the kept values of some sums give to the totals."""
    _, effects = terms(arrays, rows)
    kept = _keys(v) >= bound[:, None]
    signs = ops.cast(ops.sign(v), "int32")
    sums_of = []
    for total, (columns, target, factor) in zip(totals, effects, strict=True):
        given = signs[:, columns] if factor is None else factor
        given = ops.where(kept[:, columns], rows["given"][:, None] * given, ops.zeros_like(given))
        given = ops.reshape(given, (-1, ops.shape(total)[1]))
        index = ops.reshape(target, (-1,))
        sums_of.append(total + ops.segment_sum(given, index, num_segments=ops.shape(total)[0]))
    return sums_of


def _expand_rows(
    terms: Callable, arrays: Rows, rows: Rows, width: int, shapes: Sequence[tuple[int, int]]
) -> list[np.ndarray]:
    """Expand sums in blocks; return what they give, arrays of these shapes, int32 or float32.

    `terms` maps the arrays and rows to the local values, and to what they give to each result:
    their columns, the rows of the result `(sums, …)`, and a multiplier's factor, None for signs.
    """
    counts = np.issubdtype(rows["given"].dtype, np.integer)
    rows = {**rows, "given": rows["given"].astype(np.int32 if counts else np.float32)}
    tensors = {
        name: ops.convert_to_tensor(array, "float32" if array.dtype.kind == "f" else "int32")
        for name, array in arrays.items()
    }
    totals = [ops.zeros(shape, "int32" if counts else "float32") for shape in shapes]
    form, give = _compiled(_form, terms), _compiled(_give, terms)
    size = max(1, BLOCK_VALUES // max(width, 1))
    for start in range(0, len(rows["given"]), size):
        block = _on_device(
            {name: array[start : start + size] for name, array in rows.items()}, size
        )
        v, threshold = form(tensors, block)
        bound = ops.convert_to_tensor(_search(v, ops.convert_to_numpy(threshold)), "float64")
        totals = give(tensors, block, v, bound, totals)
    return [ops.convert_to_numpy(total) for total in totals]


@cache
def _compiled(function: Callable, *arguments: Any) -> Callable:
    return compiled_function(partial(function, *arguments) if arguments else function)


def _on_device(rows: Rows, size: int) -> Tensors:
    """Return rows as tensors; JAX, which compiles for each length, gets one of three."""
    length = len(next(iter(rows.values())))
    if keras.backend.backend() == "jax":
        size = next(n for n in (-(-size // 16), -(-size // 4), size) if n >= length)
        rows = {name: np.pad(array, (0, size - length)) for name, array in rows.items()}
    return {
        name: ops.convert_to_tensor(array, "int32" if array.dtype.kind == "i" else array.dtype.name)
        for name, array in rows.items()
    }


def _thresholds(y: np.ndarray, theta: float, by_sum: bool, scale: Any = 1.0) -> Rows:
    """Return thresholds θ·|y|, times a scale, or their share of the sum's magnitude."""
    fixed = theta * np.abs(y.astype(np.float64)) * scale
    share = np.full(len(y), theta)
    return {"fixed": 0 * fixed, "share": share} if by_sum else {"fixed": fixed, "share": 0 * share}


def _expand_sums(
    signs: np.ndarray,
    y: np.ndarray,
    dx: np.ndarray,
    weights: np.ndarray,
    taps: np.ndarray,
    scale: np.ndarray,
    threshold: tuple[float, bool],
    each: bool,
    changes: np.ndarray | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Do what `sums.expand` does."""
    samples, places, channels = dx.shape
    copies = samples if each else 1
    groups, outputs, width = weights.shape
    sample, position, unit = np.nonzero(signs)
    of_thresholds = _thresholds(
        y[sample, position, unit], *threshold, scale[sample % len(scale), position]
    )
    rows = {
        "given": signs[sample, position, unit],
        "first": sample * (places + 1) * groups + unit // outputs,
        "position": position,
        "unit": unit,
        "synapses": (sample * groups * outputs if each else 0) + unit,
    }

    def by_group(x: np.ndarray) -> np.ndarray:
        """Return a row for each sample, position and group; the last position is padding."""
        return np.pad(x, ((0, 0), (0, 1), (0, 0))).reshape(-1, channels // groups)

    arrays = {
        "dx": by_group(dx),
        "weights": weights.reshape(-1, width),
        "taps": np.where(taps < 0, places, taps) * groups,
    }
    if changes is not None:
        arrays["changes"] = by_group(changes)
    shapes = [arrays["dx"].shape, (copies * groups * outputs, width)]
    inputs, synapses = _expand_rows(_terms_of_sums, arrays, rows | of_thresholds, width, shapes)
    inputs = inputs.reshape(samples, places + 1, channels)[:, :-1]
    if changes is not None:
        synapses = synapses * np.tile(arrays["weights"], (copies, 1))
    return inputs, synapses.reshape(-1, *weights.shape)


def _terms_of_sums(arrays: Tensors, rows: Tensors) -> tuple[Any, list]:
    read = rows["first"][:, None] + ops.take(arrays["taps"], rows["position"], axis=0)

    def window(x: Any) -> Any:
        return ops.reshape(ops.take(x, read, axis=0), (ops.shape(read)[0], -1))

    weights = ops.take(arrays["weights"], rows["unit"], axis=0)
    factors = (None, None) if "changes" not in arrays else (weights, window(arrays["changes"]))
    targets = (read, rows["synapses"])
    everything = [slice(None)] * 2
    return window(arrays["dx"]) * weights, list(zip(everything, targets, factors, strict=True))


weighted_sum = partial(sums.weighted_sum, expand=_expand_sums)
average = partial(sums.average, expand=_expand_sums)


def product_sum(
    signs: np.ndarray,
    y: np.ndarray,
    first: tuple[np.ndarray, np.ndarray],
    second: tuple[np.ndarray, np.ndarray],
    theta: float,
    by_sum: bool,
    middles: tuple[np.ndarray, np.ndarray] | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Do what `products.product_sum` does."""
    group, m, n = np.nonzero(signs)
    (a, delta_a), (b, delta_b) = first, second
    rows = {
        "given": signs[group, m, n],
        "a": group * a.shape[1] + m,
        "b": group * b.shape[1] + n,
        **_thresholds(y[group, m, n], theta, by_sum),
    }
    arrays = {"a": a, "delta a": delta_a, "b": b, "delta b": delta_b}
    if middles is not None:
        arrays |= {"middle a": middles[0], "middle b": middles[1]}
    arrays = {name: array.reshape(-1, array.shape[-1]) for name, array in arrays.items()}
    shapes = [arrays["a"].shape, arrays["b"].shape]
    to_a, to_b = _expand_rows(_terms_of_products, arrays, rows, 2 * a.shape[-1], shapes)
    return to_a.reshape(a.shape), to_b.reshape(b.shape)


def _terms_of_products(arrays: Tensors, rows: Tensors) -> tuple[Any, list]:
    """Return Δa·b for all products, then a·Δb."""
    of = {name: ops.take(x, rows[name[-1]], axis=0) for name, x in arrays.items()}
    v = ops.concatenate([of["delta a"] * of["b"], of["a"] * of["delta b"]], axis=1)
    half = ops.shape(of["a"])[1]
    return v, [
        (slice(half), rows["a"], of.get("middle b")),
        (slice(half, None), rows["b"], of.get("middle a")),
    ]


def softmax(
    signs: np.ndarray,
    y: np.ndarray,
    delta: np.ndarray,
    theta: float,
    by_sum: bool,
    means: np.ndarray | None = None,
) -> np.ndarray:
    """Do what `products.softmax` does."""
    row, entry = np.nonzero(signs)
    rows = {
        "given": signs[row, entry],
        "row": row,
        "entry": entry,
        **_thresholds(y[row, entry], theta, by_sum),
    }
    arrays = {"y": y, "delta": delta} | ({} if means is None else {"means": means})
    return _expand_rows(_terms_of_softmax, arrays, rows, y.shape[1], [y.shape])[0]


def _terms_of_softmax(arrays: Tensors, rows: Tensors) -> tuple[Any, list]:
    """Return y_i · (δ_ij − y_j) · Δx_j; 1 − y_i is the sum of the others, as in the kernel."""
    of = {name: ops.take(x, rows["row"], axis=0) for name, x in arrays.items()}
    entries = ops.arange(ops.shape(of["y"])[1])
    own = ops.cast(entries, "int32")[None, :] == rows["entry"][:, None]
    y_own = ops.sum(ops.where(own, of["y"], 0.0), axis=1, keepdims=True)
    others = ops.sum(ops.cast(ops.where(own, 0.0, of["y"]), "float64"), axis=1, keepdims=True)
    rest = ops.cast(others, "float32")
    v = ops.where(own, y_own * rest, -y_own * of["y"]) * of["delta"]
    factor = None
    if "means" in of:  # q_i · (δ_ij − q_j / Σ q)
        q = of["means"]
        q_own = ops.sum(ops.where(own, q, 0.0), axis=1, keepdims=True)
        share = q / (ops.sum(q, axis=1, keepdims=True) + 1e-30)
        factor = q_own * (ops.cast(own, "float32") - share)
    return v, [(slice(None), rows["row"], factor)]
