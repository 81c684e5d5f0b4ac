"""A headline result: a figure, the paper's beside it."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from reproduction.result_tables import ResultTable

Tables = Mapping[str, ResultTable]
"""Path below `data/results` without ending → table."""


@dataclass(frozen=True)
class Headline:
    """One figure.

    Attributes:
        what: The quantity measured.
        case: The method, model or budget, if there are several.
        here: Our figure.
        published: The paper's.
        reached: Whether ours is at least as good as the paper's or the goal; None if the two
            cannot be compared.
        entry: Id in the catalogue.
    """

    what: str
    case: str
    here: str
    published: str
    reached: bool | None
    entry: str


Part = Callable[[Tables], Iterator[Headline]]
"""A function that reads some headlines from the tables; it fails if they are not there."""
