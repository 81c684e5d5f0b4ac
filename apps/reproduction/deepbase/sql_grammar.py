"""SQL queries from a small grammar, with the parse of every character.

    query     := select columns from table [where condition] [order by column] [limit number]
    condition := predicate [(and | or) predicate]
    predicate := column operator value | column in ( query ) | ( condition )

Queries follow one another, ended by `;`, and are cut into records of equal length.
"""

from dataclasses import dataclass, field

import numpy as np

ALPHABET = " ;(),=<>'*0123456789abcdefghijklmnopqrstuvwxyz"
_COLUMNS = ("id", "name", "age", "city", "price", "total", "date", "owner")
_TABLES = ("users", "orders", "items", "shops", "events")
_DEEPEST = 3

HYPOTHESES = (
    "inside where",
    "nesting depth",
    "inside keyword",
    "position in keyword",
    "inside name",
    "inside number",
    "characters since ;",
)
"""Names of the parse's features of every character."""


@dataclass
class _Writer:
    """Collects text, with a row of the parse for each character."""

    rng: np.random.Generator
    text: list[str] = field(default_factory=list)
    parse: list[tuple[float, ...]] = field(default_factory=list)
    depth: int = 0
    wheres: int = 0
    since: int = 0

    def write(self, text: str, kind: str = "") -> None:
        """Write a piece of text; `kind` is "keyword", "name", "number" or none of them."""
        for place, character in enumerate(text):
            keyword = kind == "keyword"
            row = (self.wheres > 0, self.depth, keyword, (place + 1) * keyword)
            self.parse.append((*row, kind == "name", kind == "number", self.since))
            self.text.append(character)
            self.since = 0 if character == ";" else self.since + 1

    def keyword(self, text: str) -> None:
        self.write(text, "keyword")
        self.write(" ")

    def one_of(self, names: tuple[str, ...]) -> str:
        return names[self.rng.integers(len(names))]

    def query(self) -> None:
        self.keyword("select")
        if self.rng.random() < 0.2:
            self.write("*")
        else:
            for place in range(self.rng.integers(1, 4)):
                self.write(", " if place else "")
                self.write(self.one_of(_COLUMNS), "name")
        self.write(" ")
        self.keyword("from")
        self.write(self.one_of(_TABLES), "name")
        if self.rng.random() < 0.7:
            self.write(" ")
            self.wheres += 1
            self.keyword("where")
            self.condition()
            self.wheres -= 1
        if self.rng.random() < 0.25:
            self.write(" ")
            self.keyword("order")
            self.keyword("by")
            self.write(self.one_of(_COLUMNS), "name")
        if self.rng.random() < 0.2:
            self.write(" ")
            self.keyword("limit")
            self.write(str(self.rng.integers(1, 100)), "number")

    def condition(self) -> None:
        self.predicate()
        if self.rng.random() < 0.5:
            self.write(" ")
            self.keyword(self.one_of(("and", "or")))
            self.predicate()

    def predicate(self) -> None:
        chosen = self.rng.random()
        if chosen < 0.2 and self.depth < _DEEPEST:
            self.nested(self.condition)
            return
        self.write(self.one_of(_COLUMNS), "name")
        self.write(" ")
        if chosen < 0.4 and self.depth < _DEEPEST:
            self.keyword("in")
            self.nested(self.query)
            return
        self.write(f"{self.one_of(('=', '<', '>'))} ")
        self.write(str(self.rng.integers(0, 1000)), "number")

    def nested(self, part) -> None:
        self.depth += 1
        self.write("(")
        part()
        self.write(")")
        self.depth -= 1


@dataclass(frozen=True, eq=False)
class Records:
    """Windows of queries: characters as indices in `ALPHABET`, and the next one at each position.

    Both are `(records, length)` int32; the parse maps a hypothesis to its values, float64.
    """

    tokens: np.ndarray
    following: np.ndarray
    parse: dict[str, np.ndarray]

    def text(self, record: int) -> str:
        """Return a record as text."""
        return "".join(ALPHABET[token] for token in self.tokens[record])


def generate(records: int, length: int, rng: int) -> Records:
    """Return windows of random queries, one after another without overlap."""
    writer = _Writer(np.random.default_rng(rng))
    while len(writer.text) <= records * length:
        writer.query()
        writer.write("; ")
    codes = {character: place for place, character in enumerate(ALPHABET)}
    text = np.array([codes[c] for c in writer.text[: records * length + 1]], np.int32)
    parse = np.array(writer.parse[: records * length], np.float64).reshape(records, length, -1)
    return Records(
        text[:-1].reshape(records, length),
        text[1:].reshape(records, length),
        {name: parse[..., k] for k, name in enumerate(HYPOTHESES)},
    )
