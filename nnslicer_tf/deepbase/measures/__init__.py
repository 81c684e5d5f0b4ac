"""Measures of affinity between units and hypotheses.

To write your own, subclass `AdditiveMeasure` (a name and two methods, see `measures.base`) or,
if it is not a function of sums, `Measure`.
"""

from collections.abc import Iterable

from nnslicer_tf.deepbase.measures.base import Measure
from nnslicer_tf.deepbase.measures.logistic_probe import LogisticProbe
from nnslicer_tf.deepbase.measures.moments import Correlation, DifferenceOfMeans, LinearProbe
from nnslicer_tf.deepbase.measures.mutual_information import MutualInformation
from nnslicer_tf.errors import InvalidArgumentError

_ALL = (Correlation(), MutualInformation(), DifferenceOfMeans(), LinearProbe(), LogisticProbe())

MEASURES: dict[str, Measure] = {measure.name: measure for measure in _ALL}
"""The measures by name."""


def find_measures(measures: str | Measure | Iterable[str | Measure]) -> list[Measure]:
    """Return measures by name, one at least, no name twice; measures are passed through."""
    chosen = []
    for choice in [measures] if isinstance(measures, (str, Measure)) else measures:
        measure = MEASURES.get(choice, choice) if isinstance(choice, str) else choice
        if not isinstance(measure, Measure):
            raise InvalidArgumentError(
                f"A measure is one of {', '.join(MEASURES)}, or a Measure. Received: {measure!r}"
            )
        chosen.append(measure)
    names = [measure.name for measure in chosen]
    if not names or len(set(names)) < len(names):
        raise InvalidArgumentError(f"Pass measures with different names. Received: {names}")
    return chosen
