"""The hypotheses of one inspection, which are checked and evaluated block by block."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np
from numpy.typing import ArrayLike

from nnslicer_tf.deepbase.hypotheses import Behaviour
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError


class HypothesisSet:
    """Named functions and arrays of behaviours.

    Args:
        hypotheses: Name → function of a batch, or array over all records.
        binary: Whether all behaviours must be 0 or 1.

    Raises:
        InvalidArgumentError: if there are none, or one is neither a function nor an array.
    """

    def __init__(self, hypotheses: Mapping[str, Behaviour | np.ndarray], binary: bool) -> None:
        if not isinstance(hypotheses, Mapping) or not hypotheses:
            raise InvalidArgumentError(
                "hypotheses must map names to functions or arrays. Received: "
                f"{type(hypotheses).__name__}"
            )
        self._binary = binary
        self._hypotheses = {
            str(name): h if callable(h) else _as_array(str(name), h)
            for name, h in hypotheses.items()
        }

    @property
    def names(self) -> tuple[str, ...]:
        """The names."""
        return tuple(self._hypotheses)

    def check_length(self, records: int) -> None:
        """Reject arrays that do not have one behaviour for each record.

        Raises:
            InvalidArgumentError: with the hypothesis and the lengths.
        """
        for name, h in self._hypotheses.items():
            if not callable(h) and len(h) != records:
                raise InvalidArgumentError(
                    f"Hypothesis {name!r} has {len(h)} behaviours, and the data has {records} "
                    "records: there must be one for each."
                )

    def check_varies(self, blocks: Iterable[np.ndarray]) -> None:
        """Reject constant hypotheses, reading no more blocks than necessary.

        Raises:
            InvalidArgumentError: with the names of the constant hypotheses.
        """
        constant: dict[str, float] = {}
        for name in self.names:
            constant[name] = np.nan
        first = 0
        for x in blocks:
            rows = np.arange(first, first + len(x))
            for name, values in self.evaluate(x, rows, tuple(constant)).items():
                if first == 0:
                    constant[name] = values.flat[0]
                if (values != constant[name]).any():
                    del constant[name]
            if not constant:
                return
            first += len(x)
        listed = ", ".join(f"{name!r} (always {value:g})" for name, value in constant.items())
        raise InvalidArgumentError(
            f"These hypotheses are constant on the data, so that no affinity is defined: {listed}."
        )

    def evaluate(
        self, x: np.ndarray, rows: np.ndarray, names: Sequence[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return behaviours of a block, name → `(records,)` or `(records, *positions)`.

        Args:
            x: The records.
            rows: Their indices in the data set, `(records,)`.
            names: Names of the hypotheses to evaluate; all by default.

        Raises:
            InvalidArgumentError: if a hypothesis does not have one behaviour for each record, or
                should be 0 or 1 and is not.
            NonFiniteActivationError: if a behaviour is NaN or infinite.
        """
        return {
            name: self._check(name, self._values(name, x, rows), rows)
            for name in (self.names if names is None else names)
        }

    def _values(self, name: str, x: np.ndarray, rows: np.ndarray) -> np.ndarray:
        h = self._hypotheses[name]
        return _as_array(name, h(x)) if callable(h) else h[rows[rows < len(h)]]

    def _check(self, name: str, values: np.ndarray, rows: np.ndarray) -> np.ndarray:
        if len(values) != len(rows):
            raise InvalidArgumentError(
                f"Hypothesis {name!r} gives {len(values)} behaviours for {len(rows)} records, the "
                f"first of them number {rows[0]}: there must be one for each."
            )
        finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
        if not finite.all():
            raise NonFiniteActivationError(
                f"Hypothesis {name!r} is NaN or infinite for record {rows[finite.argmin()]}."
            )
        if self._binary and not np.isin(values, (0, 1)).all():
            raise InvalidArgumentError(
                f"Hypothesis {name!r} has other values than 0 and 1, which difference_of_means "
                "and logistic_probe need: compare it with a threshold, or inspect it apart."
            )
        return values


def fit_positions(name: str, values: np.ndarray, positions: tuple[int, ...]) -> np.ndarray:
    """Return behaviours at an operation's positions, `(records, number of positions)`.

    Args:
        name: The hypothesis, for messages.
        values: `(records, *its positions)`, each axis a multiple of the operation's, since
            blocks are averaged.
        positions: Shape of the operation's positions.

    Raises:
        InvalidArgumentError: if the positions do not fit.
    """
    own = values.shape[1:]
    fits = len(own) == len(positions) and all(
        p and q % p == 0 for q, p in zip(own, positions, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"Hypothesis {name!r} has behaviours at positions of shape {own}, an inspected "
            f"operation positions of shape {positions}; each axis must be a multiple. Choose "
            "other units, or average the hypothesis: deepbase.per_record(function)."
        )
    split = [part for q, p in zip(own, positions, strict=True) for part in (p, q // p)]
    blocks = values.reshape(len(values), *split)
    averaged = blocks.mean(axis=tuple(range(2, blocks.ndim, 2)))
    return averaged.reshape(len(values), -1)


def _as_array(name: str, values: ArrayLike) -> np.ndarray:
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise InvalidArgumentError(
            f"Hypothesis {name!r} must be a function, or an array of numbers, one for each "
            f"record. Received: {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.float64) if array.dtype.kind != "f" else array
