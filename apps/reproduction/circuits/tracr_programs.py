"""RASP programs (Weiss et al., ICML 2021) for Tracr to compile, each with its answer in Python.

Every program reads a sequence of tokens after a BOS. The functions build the programs when called,
because Tracr is an optional package: `pip install tracr-pypi`.
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
        build: Returns the RASP expression.
        answer: Maps the tokens (without BOS) to the values at all positions; None where the
            program leaves the value open.
        vocabulary: The tokens.
        distinct: Whether the tokens of a sequence have to differ.
    """

    build: Callable[[], Any]
    answer: Callable[[Sequence[Any]], list[Any]]
    vocabulary: tuple[Any, ...] = LETTERS
    distinct: bool = False


def _rasp() -> Any:
    from tracr.rasp import rasp

    return rasp


def _everywhere() -> Any:
    r = _rasp()
    return r.Select(r.tokens, r.tokens, r.Comparison.TRUE)


def _length() -> Any:
    return _rasp().SelectorWidth(_everywhere())


def _same_token() -> Any:
    r = _rasp()
    return r.Select(r.tokens, r.tokens, r.Comparison.EQ)


def _histogram() -> Any:
    return _rasp().SelectorWidth(_same_token())


def _at_distance(distance: int) -> Any:
    """Select the position that is so far before each position."""
    r = _rasp()
    return r.Select(r.indices, r.indices, lambda key, query: key == query - distance)


def _shifted(distance: int) -> Any:
    r = _rasp()
    return r.Aggregate(_at_distance(distance), r.tokens, default=None)


def _reversed() -> Any:
    r = _rasp()
    mirrored = r.SequenceMap(lambda n, i: n - 1 - i, _length(), r.indices)
    return r.Aggregate(r.Select(r.indices, mirrored, r.Comparison.EQ), r.tokens)


def _smaller() -> Any:
    r = _rasp()
    return r.SelectorWidth(r.Select(r.tokens, r.tokens, r.Comparison.LT))


def _sorted() -> Any:
    r = _rasp()
    return r.Aggregate(r.Select(_smaller(), r.indices, r.Comparison.EQ), r.tokens)


def _share_of(token: str) -> Any:
    r = _rasp()
    marks = r.numerical(r.Map(lambda t: float(t == token), r.tokens))
    return r.numerical(r.Aggregate(_everywhere(), marks, default=0))


def _last() -> Any:
    r = _rasp()
    end = r.Map(lambda n: n - 1, _length())
    return r.Aggregate(r.Select(r.indices, end, r.Comparison.EQ), r.tokens)


def _first() -> Any:
    r = _rasp()
    start = r.Select(r.indices, r.indices, lambda key, query: key == 0)
    return r.Aggregate(start, r.tokens)


def _mirrored_equal() -> Any:
    r = _rasp()
    return r.SequenceMap(lambda a, b: a == b, _reversed(), r.tokens)


def _before_and_now(function: Callable[[Any, Any], Any]) -> Any:
    r = _rasp()
    return r.SequenceMap(function, _shifted(1), r.tokens)


def _seen_before() -> Any:
    r = _rasp()
    placed = r.SequenceMap(lambda t, i: (t, i), r.tokens, r.indices)
    return r.SelectorWidth(r.Select(placed, placed, lambda k, q: k[0] == q[0] and k[1] < q[1]))


def _mapped(function: Callable[[Any], Any], expression: Any) -> Any:
    return _rasp().Map(function, expression)


def _shift(t: Sequence[Any], distance: int) -> list[Any]:
    return [t[i - distance] if i >= distance else None for i in range(len(t))]


PROGRAMS: dict[str, Program] = {
    "identity": Program(lambda: _mapped(lambda t: t, _rasp().tokens), list),
    "vowel": Program(
        lambda: _mapped(lambda t: t == "a", _rasp().tokens), lambda t: [x == "a" for x in t]
    ),
    "reverse": Program(_reversed, lambda t: list(t)[::-1]),
    "histogram": Program(_histogram, lambda t: [list(t).count(x) for x in t]),
    "unique": Program(
        lambda: _mapped(lambda n: n == 1, _histogram()),
        lambda t: [list(t).count(x) == 1 for x in t],
    ),
    "odd count": Program(
        lambda: _mapped(lambda n: n % 2, _histogram()), lambda t: [list(t).count(x) % 2 for x in t]
    ),
    "previous": Program(lambda: _shifted(1), lambda t: _shift(t, 1)),
    "two before": Program(lambda: _shifted(2), lambda t: _shift(t, 2)),
    "repeated": Program(
        lambda: _before_and_now(lambda a, b: a == b),
        lambda t: [None, *(a == b for a, b in pairwise(t))],
    ),
    "pair": Program(
        lambda: _before_and_now(lambda a, b: f"{a}{b}"),
        lambda t: [None, *(f"{a}{b}" for a, b in pairwise(t))],
    ),
    "rising": Program(
        lambda: _before_and_now(lambda a, b: a < b),
        lambda t: [None, *(a < b for a, b in pairwise(t))],
        DIGITS,
    ),
    "difference": Program(
        lambda: _before_and_now(lambda a, b: b - a),
        lambda t: [None, *(b - a for a, b in pairwise(t))],
        DIGITS,
    ),
    "rank": Program(_smaller, lambda t: [sum(y < x for y in t) for x in t], DIGITS, True),
    "sort": Program(_sorted, sorted, DIGITS, True),
    "is smallest": Program(
        lambda: _mapped(lambda n: n == 0, _smaller()), lambda t: [x == min(t) for x in t], DIGITS
    ),
    "share of a": Program(lambda: _share_of("a"), lambda t: [list(t).count("a") / len(t)] * len(t)),
    "last": Program(_last, lambda t: [t[-1]] * len(t)),
    "first": Program(_first, lambda t: [t[0]] * len(t)),
    "first is here": Program(
        lambda: _rasp().SequenceMap(lambda a, b: a == b, _first(), _rasp().tokens),
        lambda t: [x == t[0] for x in t],
    ),
    "mirrored": Program(
        _mirrored_equal, lambda t: [a == b for a, b in zip(t, t[::-1], strict=True)]
    ),
    "seen before": Program(_seen_before, lambda t: [list(t[:i]).count(x) for i, x in enumerate(t)]),
    "new": Program(
        lambda: _mapped(lambda n: n == 0, _seen_before()),
        lambda t: [x not in t[:i] for i, x in enumerate(t)],
    ),
    "smaller or equal": Program(
        lambda: _rasp().SelectorWidth(
            _rasp().Select(_rasp().tokens, _rasp().tokens, _rasp().Comparison.LEQ)
        ),
        lambda t: [sum(y <= x for y in t) for x in t],
        DIGITS,
    ),
    "rank of the previous": Program(
        lambda: _rasp().Aggregate(_at_distance(1), _smaller(), default=None),
        lambda t: _shift([sum(y < x for y in t) for x in t], 1),
        DIGITS,
        True,
    ),
}
