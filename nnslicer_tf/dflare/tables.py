"""Rows of a table, and signals: domains whose ranges come from data.

Mutants stay within the range of each column or channel in the data, and columns of whole numbers
stay whole. One-hot columns change one by one; operators of your own can keep them consistent.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from nnslicer_tf.dflare.domain import Domain, MutationOperator, Parameters
from nnslicer_tf.dflare.images import noise_operator
from nnslicer_tf.errors import InputShapeError
from nnslicer_tf.instrument.data import column_names

_WEAKEST, _STRONGEST = 0.01, 1.0  # noise, in standard deviations
_PARTS = (4, 16, 64)  # numbers of parts of a signal that are reset to the seed


def replace_value(data: np.ndarray) -> MutationOperator:
    """Return an operator that copies one value from another row of `data`."""

    def draw(rng: np.random.Generator, x: np.ndarray) -> Parameters:
        # A column, among those that differ from the row's value.
        others = data[rng.integers(len(data))]
        columns = np.flatnonzero(others != x)
        column = int(rng.choice(columns) if len(columns) else rng.integers(len(x)))
        return {"column": column, "value": float(others[column])}

    def apply(x: np.ndarray, parameters: Parameters) -> np.ndarray:
        mutant = x.copy()
        mutant[int(parameters["column"])] = parameters["value"]
        return mutant

    return MutationOperator("replace_value", draw, apply)


def noise(scale: np.ndarray | float) -> MutationOperator:
    """Return an operator that adds Gaussian noise; `scale` is the data's standard deviation."""

    def add(rng: np.random.Generator, x: np.ndarray, strength: float) -> np.ndarray:
        return x + rng.standard_normal(x.shape) * strength * scale

    return noise_operator("noise", _WEAKEST, _STRONGEST, add, np.random.PCG64)


def amplify(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Multiply a signal's differences from its mean by a factor."""
    mean = x.mean(axis=0)
    return mean + (x - mean) * parameters["factor"]


def draw_shift(rng: np.random.Generator, x: np.ndarray) -> Parameters:
    """Draw a shift of up to an eighth of the signal, never 0."""
    steps = int(rng.integers(1, max(2, len(x) // 8 + 1)))
    return {"steps": steps if rng.random() < 0.5 else -steps}


def shift(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Shift a signal, repeating the value at its edge."""
    return x[np.clip(np.arange(len(x)) - int(parameters["steps"]), 0, len(x) - 1)]


def smooth(x: np.ndarray, parameters: Parameters) -> np.ndarray:
    """Replace each value by the mean of neighbouring steps."""
    steps = int(parameters["steps"])
    moved = (np.arange(len(x))[:, None] + np.arange(steps) - steps // 2).clip(0, len(x) - 1)
    return x[moved].mean(axis=1)


SIGNAL_OPERATORS = (
    MutationOperator("amplify", lambda rng, x: {"factor": float(2 ** rng.uniform(-1, 1))}, amplify),
    MutationOperator("shift", draw_shift, shift),
    MutationOperator("smooth", lambda rng, x: {"steps": int(rng.integers(2, 6))}, smooth),
)


class TableDomain(Domain):
    """Rows of a table, `(columns,)` of numbers.

    Args:
        data: Rows of finite numbers that define ranges, spreads and replacements, `(rows,
            columns)`; else InputShapeError is raised.
        operators: The pool; None: replace a value by another row's, or add noise.
    """

    _axes: tuple[int, ...] = (2,)
    _shape = "(rows, columns)"

    def __init__(
        self, data: np.ndarray, operators: Sequence[MutationOperator] | None = None
    ) -> None:
        self.columns = column_names(data)
        data = np.asarray(data)
        self.check_seeds(data)
        data = data.astype(np.float64, order="C")  # sums must not depend on the layout
        self._low, self._high, self._whole = self._ranges(data)
        super().__init__(self._operators(data) if operators is None else operators)

    def _ranges(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the minimum and maximum of each column, and whether all its values are whole."""
        return data.min(axis=0), data.max(axis=0), (data == np.rint(data)).all(axis=0)

    def _operators(self, data: np.ndarray) -> Sequence[MutationOperator]:
        return replace_value(data), noise(data.std(axis=0))

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` are finite numbers of the domain's shape."""
        if seeds.ndim not in self._axes or seeds.dtype.kind not in "biuf" or not seeds.size:
            raise InputShapeError(
                f"Seeds must be numbers, {self._shape}. Received: {seeds.dtype}, {seeds.shape}"
            )
        finite = np.isfinite(seeds).reshape(len(seeds), -1).all(axis=1)
        if not finite.all():
            raise InputShapeError(
                f"Seed {int(finite.argmin())} has NaN or infinite values. Fill or remove gaps."
            )

    def valid(self, mutant: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Clip the mutant to the ranges, and round where the data are whole."""
        rounded = np.where(self._whole, np.rint(mutant), mutant)
        return np.clip(rounded, self._low, self._high).astype(x.dtype)

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Yield each column."""
        return ((slice(column, column + 1),) for column in range(shape[0]))


class SignalDomain(TableDomain):
    """Signals `(steps,)`, `(steps, channels)` or `(steps, …)` of numbers, such as spectrograms.

    Args:
        data: Signals that define range and spread of each channel, `(signals, steps)`,
            `(signals, steps, channels)` or `(signals, steps, bands, channels)`.
        operators: The pool; None: noise, amplification, shifts and smoothing.

    Raises InputShapeError if `data` is not a batch of signals of finite numbers.
    """

    _axes = (2, 3, 4)
    _shape = "(signals, steps), (signals, steps, channels) or (signals, steps, bands, channels)"

    def _ranges(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high, whole = super()._ranges(data.reshape(-1, *data.shape[2:]))
        return low, high, whole & (high - low > 1)

    def _operators(self, data: np.ndarray) -> Sequence[MutationOperator]:
        return noise(data.std(axis=(0, 1))), *SIGNAL_OPERATORS

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Yield parts of the steps, long ones first."""
        for parts in _PARTS:
            length = max(1, shape[0] // parts)
            yield from ((slice(first, first + length),) for first in range(0, shape[0], length))
