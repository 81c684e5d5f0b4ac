"""Rows of a table, and signals: domains whose ranges come from data.

Mutants stay within the range that each column, or the signals, have in the data. Columns of whole
numbers in the data, such as counts and codes, stay whole. One-hot columns are changed one by one;
to keep them consistent, write operators of your own.

Cost: microseconds per mutation.
"""

from collections.abc import Iterable, Sequence

import numpy as np

from nnslicer_tf.dflare.domain import Domain, Mutation, MutationOperator, Parameters
from nnslicer_tf.errors import InputShapeError

_WEAKEST, _STRONGEST = 0.01, 1.0  # noise, in standard deviations
_PARTS = (4, 16, 64)  # numbers of parts of a signal that are reset to the seed


class ReplaceValue(MutationOperator):
    """Replace one value of a row by that of another row.

    Args:
        data: Rows of the table, `(rows, columns)`.
    """

    name = "replace_value"

    def __init__(self, data: np.ndarray) -> None:
        self.data = data

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw a column, among those that differ from the row's value, and its new value."""
        others = self.data[rng.integers(len(self.data))]
        columns = np.flatnonzero(others != x)
        column = int(rng.choice(columns) if len(columns) else rng.integers(len(x)))
        return {"column": column, "value": float(others[column])}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the row with the value replaced."""
        mutant = x.copy()
        mutant[int(parameters["column"])] = parameters["value"]
        return mutant


class Noise(MutationOperator):
    """Add Gaussian noise to all values; the strength is in standard deviations of the data.

    Args:
        scale: Standard deviation, a number or one for each value.
    """

    name = "noise"

    def __init__(self, scale: np.ndarray | float) -> None:
        self.scale = scale

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the strength, uniformly on a log scale, and the seed of the noise."""
        strength = float(np.exp(rng.uniform(np.log(_WEAKEST), np.log(_STRONGEST))))
        return {"strength": strength, "seed": int(rng.integers(2**32))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the values with noise."""
        rng = np.random.default_rng(int(parameters["seed"]))
        return x + rng.standard_normal(x.shape) * parameters["strength"] * self.scale


class Amplify(MutationOperator):
    """Multiply a signal's differences from its mean by a factor of 0.5 … 2."""

    name = "amplify"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the factor, uniformly on a log scale."""
        return {"factor": float(2 ** rng.uniform(-1, 1))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the amplified signal."""
        mean = x.mean(axis=0)
        return mean + (x - mean) * parameters["factor"]


class Shift(MutationOperator):
    """Shift a signal by up to an eighth of its length, repeating the value at its edge."""

    name = "shift"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the steps, never 0."""
        steps = int(rng.integers(1, max(2, len(x) // 8 + 1)))
        return {"steps": steps if rng.random() < 0.5 else -steps}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the shifted signal."""
        return x[np.clip(np.arange(len(x)) - int(parameters["steps"]), 0, len(x) - 1)]


class Smooth(MutationOperator):
    """Replace each value by the mean of 2 … 5 neighbouring steps."""

    name = "smooth"

    def draw(self, rng: np.random.Generator, x: np.ndarray) -> Parameters:
        """Draw the number of steps."""
        return {"steps": int(rng.integers(2, 6))}

    def apply(self, x: np.ndarray, parameters: Parameters) -> np.ndarray:
        """Return the smoothed signal."""
        steps = int(parameters["steps"])
        moved = (np.arange(len(x))[:, None] + np.arange(steps) - steps // 2).clip(0, len(x) - 1)
        return x[moved].mean(axis=1)


class TableDomain(Domain):
    """Rows of a table, `(columns,)` of numbers.

    Args:
        data: Rows from which ranges, spreads and replacements come, `(rows, columns)`.
        operators: The pool of mutation operators; None for `ReplaceValue` and `Noise`.

    Raises:
        InputShapeError: if `data` is not a table of finite numbers.
    """

    _axes: tuple[int, ...] = (2,)
    _shape = "(rows, columns)"

    def __init__(
        self, data: np.ndarray, operators: Sequence[MutationOperator] | None = None
    ) -> None:
        data = np.asarray(data)
        self.check_seeds(data)
        data = data.astype(np.float64, order="C")  # sums must not depend on the layout
        self._low, self._high, self._whole = self._ranges(data)
        super().__init__(self._operators(data) if operators is None else operators)

    def _ranges(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the least and the largest value of each column, and whether all are whole."""
        return data.min(axis=0), data.max(axis=0), (data == np.rint(data)).all(axis=0)

    def _operators(self, data: np.ndarray) -> Sequence[MutationOperator]:
        return ReplaceValue(data), Noise(data.std(axis=0))

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` unless `seeds` are finite numbers of the domain's shape."""
        if seeds.ndim not in self._axes or seeds.dtype.kind not in "biuf" or not seeds.size:
            raise InputShapeError(
                f"Seeds must be numbers of the shape {self._shape}. Received: {seeds.dtype} of "
                f"shape {seeds.shape}"
            )
        finite = np.isfinite(seeds).reshape(len(seeds), -1).all(axis=1)
        if not finite.all():
            raise InputShapeError(
                f"Seed {int(finite.argmin())} has NaN or infinite values. Fill or leave out gaps."
            )

    def mutate(
        self, x: np.ndarray, operator: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, Mutation]:
        """Return a mutant of `x` within the ranges, and the mutation for the trace."""
        mutant, mutation = super().mutate(x, operator, rng)
        return self._valid(mutant, x), mutation

    def blend(self, x: np.ndarray, mutant: np.ndarray, share: float) -> np.ndarray:
        """Interpolate between `x` and `mutant`; whole numbers stay whole."""
        # In a replay the mutant may exceed the ranges.
        mutant = self._valid(mutant, x)
        return mutant if share == 1 else self._valid(x + share * (mutant - x), x)

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Yield each column."""
        return ((slice(column, column + 1),) for column in range(shape[0]))

    def _valid(self, mutant: np.ndarray, x: np.ndarray) -> np.ndarray:
        rounded = np.where(self._whole, np.rint(mutant), mutant)
        return np.clip(rounded, self._low, self._high).astype(x.dtype)


class SignalDomain(TableDomain):
    """Signals `(steps,)` or `(steps, channels)` of numbers.

    Args:
        data: Signals from which the range and the spread of each channel come,
            `(signals, steps)` or `(signals, steps, channels)`.
        operators: The pool of mutation operators; None for `Noise`, `Amplify`, `Shift` and
            `Smooth`.

    Raises:
        InputShapeError: if `data` is not a batch of signals of finite numbers.
    """

    _axes = (2, 3)
    _shape = "(signals, steps) or (signals, steps, channels)"

    def _ranges(self, data: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        low, high, whole = super()._ranges(data.reshape(-1, *data.shape[2:]))
        return low, high, whole & (high - low > 1)

    def _operators(self, data: np.ndarray) -> Sequence[MutationOperator]:
        return Noise(data.std(axis=(0, 1))), Amplify(), Shift(), Smooth()

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Yield parts of the steps, long ones first."""
        for parts in _PARTS:
            length = max(1, shape[0] // parts)
            yield from ((slice(first, first + length),) for first in range(0, shape[0], length))
