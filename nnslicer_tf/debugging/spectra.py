"""Spectrum-based fault localisation: formulas on how often a component takes part in failures.

A component that took part in `failed` of the failing runs and in `passed` of the passing ones is
more suspicious the more failures, and the fewer successes, it took part in.
"""

from collections.abc import Callable

import numpy as np

Formula = Callable[[np.ndarray, np.ndarray, int, int], np.ndarray]
"""`formula(failed, passed, all_failed, all_passed)`: counts, arrays of one shape → scores."""

_EXPONENT = 3  # the exponent of D*, as in DeepFault (Eniser et al., FASE 2019, section 4)


def tarantula(
    failed: np.ndarray, passed: np.ndarray, all_failed: int, all_passed: int
) -> np.ndarray:
    """Return the share of failures over the sum of both shares (Jones and Harrold, ASE 2005)."""
    in_failed, in_passed = failed / all_failed, passed / all_passed
    return _ratio(in_failed, in_failed + in_passed)


def ochiai(failed: np.ndarray, passed: np.ndarray, all_failed: int, all_passed: int) -> np.ndarray:
    """Return the cosine between taking part and failing (Abreu et al., TAIC PART 2007)."""
    return _ratio(failed, np.sqrt(all_failed * (failed + passed)))


def dstar(failed: np.ndarray, passed: np.ndarray, all_failed: int, all_passed: int) -> np.ndarray:
    """Return D* with * = 3 (Wong et al., IEEE Transactions on Reliability 2014)."""
    return _ratio(failed.astype(np.float64) ** _EXPONENT, passed + (all_failed - failed))


FORMULAS: dict[str, Formula] = {"tarantula": tarantula, "ochiai": ochiai, "dstar": dstar}


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Return above / below; 0 for 0 / 0, and a value above all others for other n / 0."""
    quotient = np.divide(above, below, out=np.zeros(np.shape(above)), where=below > 0)
    largest = quotient.max(initial=0.0)
    return np.where((below == 0) & (above > 0), largest + above, quotient)
