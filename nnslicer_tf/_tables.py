"""Plain-text tables for terminals and reports."""

from collections.abc import Iterable, Sequence
from io import StringIO

__all__ = ["text_table"]


def text_table(titles: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Return a table with aligned columns: the first to the left, the others to the right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for position, title in enumerate(titles):
        table.add_column(title, justify="right" if position else "left", no_wrap=True)
    for row in rows:
        table.add_row(*map(str, row))
    text = StringIO()
    Console(file=text, width=160, color_system=None).print(table)
    return "\n".join(line.rstrip() for line in text.getvalue().strip("\n").splitlines())
