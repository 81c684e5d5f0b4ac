"""The headline results, read from the result tables beside what the papers report.

`catalogue.toml` describes them under `[[headlines]]`, each with the rows of which tables it takes,
and how they are shown; a figure that falls short of the paper's or the goal is shown unchanged.
The keys of a description:

- `for`: tables of text; the description is read once with each, `<name>` standing for its text
- `tables`: names of result tables (below `data/results`), or of a paper's (`paper/…`); those that
  exist are concatenated
- `defaults`: values of columns that a table lacks
- `rows`: an expression that rows must meet, as of `DataFrame.query`
- `once`: a column; only the first row with each of its values counts
- `beside`: descriptions of further rows; the columns of each, with its `prefix`, are added to the
  rows that agree with it in the columns `on` (a dictionary: our column = theirs)
- `columns`: further columns, as expressions of `DataFrame.eval`
- `each`: a text of every row, in the column `each`
- `by`, `summary`: columns to group by, and column = [source, function], for each group or for
  all rows
- `labels`: column = {value = its text}, with `*` for all other values; of a column that does not
  exist, `from` names the column whose values count
- `order`: columns to sort by, by the order of their labels, else of their first appearance
- `entry`, `what`, `case`, `here`, `paper`: the headline's parts, as format strings of the columns
- `unknown`: the text for `paper` if one of its columns is missing in a row
- `reached`: an expression for whether our figure is as good as the paper's or the goal
- `comparable`: an expression for whether the two can be compared
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from reproduction.result import paper_frame
from reproduction.tables import ResultTable

Tables = Mapping[str, ResultTable]
"""Path below `data/results` without ending → table."""


@dataclass(frozen=True)
class Headline:
    """One figure, ours and the published one, of a `case` if there are several."""

    what: str
    case: str
    here: str
    published: str
    reached: bool | None  # is ours as good as the paper's or the goal? None if incomparable
    entry: str  # id in the catalogue


def headlines(tables: Tables, descriptions: Sequence[Mapping[str, Any]]) -> list[Headline]:
    """Return the headlines of all available tables, in the order of their descriptions."""
    rows: list[Headline] = []
    for description in descriptions:
        for texts in description.get("for", [{}]):
            try:
                rows += _headlines_of(tables, _filled(description, texts))
            except (KeyError, NameError):
                continue  # a trial's table lacks a column
    return rows


def headline_table(rows: Sequence[Headline]) -> pd.DataFrame:
    """Return the headlines as a table."""
    words = {True: "yes", False: "no", None: ""}
    cells = [(row.what, row.case, row.here, row.published, words[row.reached]) for row in rows]
    return pd.DataFrame(cells, columns=["result", "of", "here", "paper", "as good"])


def _filled(value: Any, texts: Mapping[str, str]) -> Any:
    """Replace every `<name>` in the texts of a description."""
    if isinstance(value, str):
        return re.sub(r"<(\w+)>", lambda match: texts.get(match[1], match[0]), value)
    if isinstance(value, dict):
        return {_filled(k, texts): _filled(v, texts) for k, v in value.items()}
    return [_filled(one, texts) for one in value] if isinstance(value, list) else value


def _headlines_of(tables: Tables, this: Mapping[str, Any]) -> Iterator[Headline]:
    frame = _select(tables, this)
    if frame is None or frame.empty:
        return
    labels = this.get("labels", {})
    for column in reversed(this.get("order", [])):
        ranks = {name: i for i, name in enumerate(labels.get(column, frame[column].unique()))}
        frame = frame.sort_values(column, key=lambda values, r=ranks: values.map(r), kind="stable")
    for column in ("reached", "comparable"):
        frame[f"is {column}"] = frame.eval(this.get(column, "True"), engine="python")
    for row in frame.to_dict("records"):
        texts = dict(row)
        for column, of in labels.items():
            text = of.get(str(row[of.get("from", column)]), of.get("*", ""))
            texts[column] = text.format_map(row)
        paper = this.get("paper", "")
        names = set(re.findall(r"{([^:}]+)", paper)) - set(labels)
        if any(pd.isna(row.get(name, float("nan"))) for name in names):
            paper = this["unknown"]
        parts = [this[part].format_map(texts) for part in ("what", "case", "here")]
        reached = bool(row["is reached"]) if "reached" in this and row["is comparable"] else None
        yield Headline(*parts, paper.format_map(texts), reached, this["entry"])


def _select(tables: Tables, this: Mapping[str, Any]) -> pd.DataFrame | None:
    """Return the rows that a description takes, with all its columns; None without a table."""
    frames = [
        paper_frame(name.removeprefix("paper/"))
        if name.startswith("paper/")
        else tables[name].frame
        for name in this["tables"]
        if name.startswith("paper/") or name in tables
    ]
    if not frames:
        return None
    frame = pd.concat(frames, ignore_index=True)
    for column, value in this.get("defaults", {}).items():
        if column not in frame:
            frame[column] = value
    if "rows" in this:
        frame = frame.query(this["rows"], engine="python")
    if "once" in this:
        frame = frame.drop_duplicates(this["once"])
    for other in this.get("beside", []):
        right = _select(tables, other)
        if right is None:
            return None
        on = {ours: other["prefix"] + theirs for ours, theirs in other.get("on", {}).items()}
        right = right.add_prefix(other["prefix"])
        pairs = {"left_on": list(on), "right_on": list(on.values())} if on else {"how": "cross"}
        frame = frame.merge(right, **pairs)
    for column, expression in this.get("columns", {}).items():
        frame[column] = frame.eval(expression, engine="python")
    if "each" in this:
        frame["each"] = [this["each"].format_map(row) for row in frame.to_dict("records")]
    if "summary" in this and len(frame):
        functions = {"join": ", ".join}
        named = {k: (c, functions.get(f, f)) for k, (c, f) in this["summary"].items()}
        groups = frame.groupby(this.get("by", lambda row: 0), sort=False)
        frame = groups.agg(**named).reset_index(drop="by" not in this)
    return frame
