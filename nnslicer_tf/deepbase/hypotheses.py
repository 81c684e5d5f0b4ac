"""Hypotheses: concepts that a unit may have learned, as behaviours over the records.

A hypothesis is an array of behaviours for the whole data set, or a function from a batch of records
`(batch, …)` to behaviours `(batch,)` or, per position, `(batch, height, width)`. Those here are for
images with RGB or grey values, and need no Keras.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from nnslicer_tf._checks import ArrayLike, as_array, check_labels, check_number, of_user
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError

Behaviour = Callable[[np.ndarray], np.ndarray]


def brightness(x: np.ndarray) -> np.ndarray:
    """Return each pixel's mean over the channels, `(batch, height, width)`."""
    return np.asarray(x).mean(axis=-1)


def edge_direction(degrees: float) -> Behaviour:
    """Return the hypothesis "an edge passes here, and brightness changes in this direction".

    It is the magnitude of the brightness gradient (Sobel) in a direction of 0 … 180 degrees, from
    left to right (a vertical edge) at 0, from top to bottom at 90.
    """
    angle = np.deg2rad(check_number("degrees", degrees, "(-inf, inf)"))
    cosine, sine = np.cos(angle), np.sin(angle)

    def behaviour(x: np.ndarray) -> np.ndarray:
        grey = np.pad(brightness(x), ((0, 0), (1, 1), (1, 1)), mode="edge")
        down = grey[:, :-2] + 2 * grey[:, 1:-1] + grey[:, 2:]  # smoothed over rows
        across = grey[:, :, :-2] + 2 * grey[:, :, 1:-1] + grey[:, :, 2:]
        right = down[:, :, 2:] - down[:, :, :-2]
        return np.abs(cosine * right + sine * (across[:, 2:] - across[:, :-2]))

    return behaviour


def per_record(behaviour: Behaviour) -> Behaviour:
    """Return a hypothesis averaged over a record's positions, `(batch,)`."""

    def average(x: np.ndarray) -> np.ndarray:
        values = np.asarray(behaviour(x))
        return values.reshape(len(values), -1).mean(axis=1)

    return average


def classes(y: ArrayLike, names: Sequence[str]) -> dict[str, np.ndarray]:
    """Return one hypothesis per class: 1 for its records, 0 for the others.

    `y` are labels `(records,)`, integers from 0, or one-hot rows.

    Raises InvalidArgumentError if a record has no label, or a label no name of its own.
    """
    y = as_array(y)
    y = check_labels(y, len(y))
    if len(set(names)) < len(names):
        raise InvalidArgumentError(f"Class names must be unique. Received: {tuple(names)}")
    if y.max() >= len(names):
        raise InvalidArgumentError(
            f"There are {len(names)} names. Received labels {y.min()} … {y.max()}"
        )
    return {name: (y == label).astype(np.float64) for label, name in enumerate(names)}


class HypothesisSet:
    """The hypotheses of one inspection, checked block by block; `binary` ones must be 0 or 1."""

    def __init__(self, hypotheses: Mapping[str, Behaviour | np.ndarray], binary: bool) -> None:
        if not isinstance(hypotheses, Mapping) or not hypotheses:
            raise InvalidArgumentError(
                "hypotheses must map one or more names to functions or arrays. Received: "
                f"{type(hypotheses).__name__}"
            )
        self._binary = binary
        named = ((str(name), h) for name, h in hypotheses.items())
        self._hypotheses = {name: h if callable(h) else _numbers(name, h) for name, h in named}

    def check_length(self, records: int) -> None:
        """Reject arrays whose length is not the number of records."""
        for name, h in self._hypotheses.items():
            if not callable(h) and len(h) != records:
                raise InvalidArgumentError(
                    f"Hypothesis {name!r} has {len(h)} behaviours, but the data has {records} "
                    "records. It must have one for each."
                )

    def check_varies(self, blocks: Iterable[np.ndarray]) -> None:
        """Reject constant hypotheses, reading no more blocks than necessary."""
        constant = dict.fromkeys(self._hypotheses, np.nan)
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
        names = ", ".join(f"{name!r} (always {value:g})" for name, value in constant.items())
        raise InvalidArgumentError(
            f"These hypotheses are constant on the data, so their affinity is undefined: {names}."
        )

    def evaluate(
        self, x: np.ndarray, rows: np.ndarray, names: Iterable[str] | None = None
    ) -> dict[str, np.ndarray]:
        """Return the behaviours of records, name → `(records,)` or `(records, *positions)`."""
        behaviours = {}
        for name in self._hypotheses if names is None else names:
            h = self._hypotheses[name]
            with of_user(f"hypotheses[{name!r}]"):
                values = _numbers(name, h(x.copy())) if callable(h) else h[rows[rows < len(h)]]
            if len(values) != len(rows):
                raise InvalidArgumentError(
                    f"Hypothesis {name!r} gives {len(values)} behaviours for {len(rows)} records "
                    f"from number {rows[0]}: there must be one for each."
                )
            finite = np.isfinite(values).reshape(len(values), -1).all(axis=1)
            if not finite.all():
                raise NonFiniteActivationError(
                    f"Hypothesis {name!r} is NaN or infinite for record {rows[finite.argmin()]}."
                )
            if self._binary and not np.isin(values, (0, 1)).all():
                raise InvalidArgumentError(
                    f"Hypothesis {name!r} has values other than 0 and 1, which difference_of_means "
                    "and logistic_probe need: threshold it, or inspect it separately."
                )
            behaviours[name] = values
        return behaviours


def fit_positions(name: str, values: np.ndarray, positions: tuple[int, ...]) -> np.ndarray:
    """Return a hypothesis averaged over blocks, one per position: `(records, positions)`."""
    shape = values.shape[1:]
    fits = len(shape) == len(positions) and all(
        p and q % p == 0 for q, p in zip(shape, positions, strict=True)
    )
    if not fits:
        raise InvalidArgumentError(
            f"Hypothesis {name!r} has behaviours at positions of shape {shape}, but an inspected "
            f"operation has {positions}; each axis must be a multiple. Choose other units, or "
            "average the hypothesis: deepbase.per_record(function)."
        )
    split = [part for q, p in zip(shape, positions, strict=True) for part in (p, q // p)]
    blocks = values.reshape(len(values), *split)
    return blocks.mean(axis=tuple(range(2, blocks.ndim, 2))).reshape(len(values), -1)


def _numbers(name: str, values: ArrayLike) -> np.ndarray:
    """Return behaviours as an array of floats."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub" or array.ndim == 0:
        raise InvalidArgumentError(
            f"Hypothesis {name!r} must be a function, or an array of numbers, one for each "
            f"record. Received: {array.dtype} of shape {array.shape}"
        )
    return array.astype(np.float64) if array.dtype.kind != "f" else array
