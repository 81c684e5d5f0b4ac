"""`Activations`: captured values by operation."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._tables import ShownAsTable, arrays_frame
from nnslicer_tf.errors import NonFiniteActivationError

if TYPE_CHECKING:
    import pandas as pd


class Activations(ShownAsTable, dict[str, np.ndarray]):
    """Captured values: operation name → array `(samples, *operation shape)` float32."""

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per operation: shape and summary statistics."""
        return arrays_frame(self)

    def __repr__(self) -> str:
        shapes = ", ".join(f"{name}: {value.shape}" for name, value in self.items())
        return f"Activations({shapes})"


def check_finite(values: Mapping[str, np.ndarray], first: int) -> None:
    """Raise NonFiniteActivationError if values are not finite; `first` is the batch's start."""
    for name, value in values.items():
        if not np.isfinite(value).all():
            bad = ~np.isfinite(value).reshape(len(value), -1).all(axis=1)
            raise NonFiniteActivationError(
                f"Operation '{name}' gives NaN or infinite values for sample "
                f"{first + int(np.argmax(bad))}. Check the weights and the preprocessing."
            )
