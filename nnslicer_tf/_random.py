"""The `rng` argument that all random functions take: an int or a NumPy Generator."""

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError


def as_generator(rng: int | np.random.Generator) -> np.random.Generator:
    """Return `rng` as a NumPy Generator; a Generator is passed through.

    Raises:
        InvalidArgumentError: if `rng` is neither a non-negative int nor a Generator.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, (int, np.integer)) and not isinstance(rng, bool) and rng >= 0:
        return np.random.default_rng(int(rng))
    raise InvalidArgumentError(
        f"rng must be a non-negative int or a numpy.random.Generator. Received: {rng!r}"
    )
