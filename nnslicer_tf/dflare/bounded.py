"""A domain whose mutants stay near one seed, for small changes."""

import numpy as np

from nnslicer_tf.dflare.domain import Answers, Domain, Mutation


class BoundedDomain(Domain):
    """The inputs of a domain whose values differ from a seed's by a limited amount.

    Mutants are clipped, so that every operator can be used; the inputs between two of them are
    also within the limit. To replay a trace of a bounded search, pass this domain to `replay`.

    Args:
        domain: The unbounded domain.
        seed: The seed.
        max_distance: Largest change of a value (L∞); fractions only matter if values are not
            integers.
    """

    def __init__(self, domain: Domain, seed: np.ndarray, max_distance: float) -> None:
        super().__init__(list(domain.operators.values()))
        self._domain = domain
        if seed.dtype.kind in "iu":
            max_distance = np.floor(max_distance)
        self._low = seed.astype(np.float64) - max_distance
        self._high = seed.astype(np.float64) + max_distance

    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` if `seeds` is not a batch of valid inputs."""
        self._domain.check_seeds(seeds)

    def mutate(
        self, x: np.ndarray, operator: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, Mutation]:
        """Return a mutant of `x` within the limit, and the mutation for the trace."""
        mutant, mutation = self._domain.mutate(x, operator, rng)
        return self._clipped(mutant), mutation

    def blend(self, x: np.ndarray, mutant: np.ndarray, share: float) -> np.ndarray:
        """Return the input between `x` and `mutant`, which may exceed the limit."""
        return self._domain.blend(x, self._clipped(mutant), share)

    def judge(self, original: np.ndarray, compressed: np.ndarray) -> Answers:
        """Compare outputs as the unbounded domain does."""
        return self._domain.judge(original, compressed)

    def check_outputs(self, outputs: np.ndarray, resolution: float, whose: str) -> None:
        """Check outputs as the unbounded domain does."""
        self._domain.check_outputs(outputs, resolution, whose)

    def _clipped(self, x: np.ndarray) -> np.ndarray:
        return np.clip(x, self._low, self._high).astype(x.dtype)
