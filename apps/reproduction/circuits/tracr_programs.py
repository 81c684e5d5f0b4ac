"""RASP programs (Weiss et al., ICML 2021) for Tracr to compile, each with its answer in Python.

Every program reads a sequence of tokens after a BOS. The functions take Tracr's module `rasp`, as
it is an optional package: `pip install tracr-pypi`.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

LETTERS = ("a", "b", "c")
DIGITS = (1, 2, 3, 4, 5, 6)


@dataclass(frozen=True)
class Program:
    """A program.

    Attributes:
        build: Maps the module `rasp` to the RASP expression.
        answer: Maps the tokens (without BOS) to the values at all positions; None where the
            program leaves the value open.
        vocabulary: The tokens.
        distinct: Whether the tokens of a sequence have to differ.
    """

    build: Callable[[Any], Any]
    answer: Callable[[Sequence[Any]], list[Any]]
    vocabulary: tuple[Any, ...] = LETTERS
    distinct: bool = False


def _length(r: Any) -> Any:
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.TRUE))


def _histogram(r: Any) -> Any:
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.EQ))


def _smaller(r: Any) -> Any:
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.LT))


def _at_distance(r: Any, distance: int) -> Any:
    """Select the position that is so far before each position."""
    return r.Select(r.indices, r.indices, lambda key, query: key == query - distance)


def _shifted(r: Any, distance: int) -> Any:
    return r.Aggregate(_at_distance(r, distance), r.tokens, default=None)


def _reversed(r: Any) -> Any:
    mirrored = r.SequenceMap(lambda n, i: n - 1 - i, _length(r), r.indices)
    return r.Aggregate(r.Select(r.indices, mirrored, r.Comparison.EQ), r.tokens)


def _first(r: Any) -> Any:
    start = r.Select(r.indices, r.indices, lambda key, query: key == 0)
    return r.Aggregate(start, r.tokens)


def _last(r: Any) -> Any:
    end = r.Map(lambda n: n - 1, _length(r))
    return r.Aggregate(r.Select(r.indices, end, r.Comparison.EQ), r.tokens)


def _share_of_a(r: Any) -> Any:
    marks = r.numerical(r.Map(lambda t: float(t == "a"), r.tokens))
    everywhere = r.Select(r.tokens, r.tokens, r.Comparison.TRUE)
    return r.numerical(r.Aggregate(everywhere, marks, default=0))


def _seen_before(r: Any) -> Any:
    placed = r.SequenceMap(lambda t, i: (t, i), r.tokens, r.indices)
    return r.SelectorWidth(r.Select(placed, placed, lambda k, q: k[0] == q[0] and k[1] < q[1]))


def _of_histogram(function: Callable[[int], Any]) -> Program:
    return Program(
        lambda r: r.Map(function, _histogram(r)), lambda t: [function(list(t).count(x)) for x in t]
    )


def _of_pairs(function: Callable[[Any, Any], Any], vocabulary: tuple[Any, ...]) -> Program:
    """Return a program that maps the token before and the token at each position."""
    return Program(
        lambda r: r.SequenceMap(function, _shifted(r, 1), r.tokens),
        lambda t: [None, *(function(a, b) for a, b in pairwise(t))],
        vocabulary,
    )


def _shift(t: Sequence[Any], distance: int) -> list[Any]:
    return [t[i - distance] if i >= distance else None for i in range(len(t))]


PROGRAMS: dict[str, Program] = {
    "identity": Program(lambda r: r.Map(lambda t: t, r.tokens), list),
    "vowel": Program(
        lambda r: r.Map(lambda t: t == "a", r.tokens), lambda t: [x == "a" for x in t]
    ),
    "reverse": Program(_reversed, lambda t: list(t)[::-1]),
    "histogram": Program(_histogram, lambda t: [list(t).count(x) for x in t]),
    "unique": _of_histogram(lambda n: n == 1),
    "odd count": _of_histogram(lambda n: n % 2),
    "previous": Program(lambda r: _shifted(r, 1), lambda t: _shift(t, 1)),
    "two before": Program(lambda r: _shifted(r, 2), lambda t: _shift(t, 2)),
    "repeated": _of_pairs(lambda a, b: a == b, LETTERS),
    "pair": _of_pairs(lambda a, b: f"{a}{b}", LETTERS),
    "rising": _of_pairs(lambda a, b: a < b, DIGITS),
    "difference": _of_pairs(lambda a, b: b - a, DIGITS),
    "rank": Program(_smaller, lambda t: [sum(y < x for y in t) for x in t], DIGITS, True),
    "sort": Program(
        lambda r: r.Aggregate(r.Select(_smaller(r), r.indices, r.Comparison.EQ), r.tokens),
        sorted,
        DIGITS,
        True,
    ),
    "is smallest": Program(
        lambda r: r.Map(lambda n: n == 0, _smaller(r)), lambda t: [x == min(t) for x in t], DIGITS
    ),
    "share of a": Program(_share_of_a, lambda t: [list(t).count("a") / len(t)] * len(t)),
    "last": Program(_last, lambda t: [t[-1]] * len(t)),
    "first": Program(_first, lambda t: [t[0]] * len(t)),
    "first is here": Program(
        lambda r: r.SequenceMap(lambda a, b: a == b, _first(r), r.tokens),
        lambda t: [x == t[0] for x in t],
    ),
    "mirrored": Program(
        lambda r: r.SequenceMap(lambda a, b: a == b, _reversed(r), r.tokens),
        lambda t: [a == b for a, b in zip(t, t[::-1], strict=True)],
    ),
    "seen before": Program(_seen_before, lambda t: [list(t[:i]).count(x) for i, x in enumerate(t)]),
    "new": Program(
        lambda r: r.Map(lambda n: n == 0, _seen_before(r)),
        lambda t: [x not in t[:i] for i, x in enumerate(t)],
    ),
    "smaller or equal": Program(
        lambda r: r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.LEQ)),
        lambda t: [sum(y <= x for y in t) for x in t],
        DIGITS,
    ),
    "rank of the previous": Program(
        lambda r: r.Aggregate(_at_distance(r, 1), _smaller(r), default=None),
        lambda t: _shift([sum(y < x for y in t) for x in t], 1),
        DIGITS,
        True,
    ),
}
