"""Tables: plain text for terminals, HTML for notebooks and reports."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from io import StringIO
from numbers import Number
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

_MOST_ROWS = 30
_WIDEST = 1_000  # characters; the terminal wraps long lines, nothing is cut off


def text_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table as text: the first column left-aligned, the others right-aligned."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, title in enumerate(titles):
        table.add_column(title, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    text = StringIO()
    # In Jupyter, a console would display the table instead of writing it.
    as_it_is = {"color_system": None, "force_jupyter": False, "markup": False, "emoji": False}
    Console(file=text, width=_WIDEST, **as_it_is).print(table)  # type: ignore[arg-type]
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())


def cell_text(value: object) -> str:
    """Return a cell's text: floats with four significant digits, NaN as an empty string."""
    if isinstance(value, float):
        return "" if value != value else f"{value:.4g}"
    return str(value)


def html_frame(frame: "pd.DataFrame", caption: str = "", most: int = _MOST_ROWS) -> str:
    """Return a data frame's first `most` rows as an HTML table: numbers right, all text escaped."""
    rows = frame.head(most).itertuples(index=False, name=None)
    head = "".join(f"<th>{escape(str(title))}</th>" for title in frame.columns)
    body = "".join(f"<tr>{''.join(map(_html_cell, row))}</tr>" for row in rows)
    above = f"<caption>{escape(caption)}</caption>" if caption else ""
    rest = len(frame) - most
    more = f"<p>… {rest:,} rows more</p>" if rest > 0 else ""
    return f"<table>{above}<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{more}"


def arrays_frame(arrays: "Mapping[str, np.ndarray]") -> "pd.DataFrame":
    """Return a table with one row per operation: its array's shape and summary statistics."""
    import pandas as pd

    rows = [
        {
            "operation": name,
            "shape": "×".join(map(str, values.shape)),
            "mean": float(values.mean()),
            "deviation": float(values.std()),
            "least": float(values.min()),
            "largest": float(values.max()),
            "share of zeros": float((values == 0).mean()),
        }
        for name, values in arrays.items()
    ]
    return pd.DataFrame(rows)


class ShownAsTable(ABC):
    """A result that notebooks show as its `to_frame` table, with its repr as the caption."""

    @abstractmethod
    def to_frame(self) -> "pd.DataFrame":
        """Return the result as a table."""

    def _repr_html_(self) -> str:
        return html_frame(self.to_frame(), repr(self))


def _html_cell(value: object) -> str:
    side = ' style="text-align:right"' if isinstance(value, Number) else ""
    return f"<td{side}>{escape(cell_text(value))}</td>"
