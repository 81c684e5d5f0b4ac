"""Tables of results: printed, and written as CSV files."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnslicer_tf._files import atomic_path

if TYPE_CHECKING:
    import pandas as pd

_MAX_ROWS = 40

TableOption = Annotated[Path | None, typer.Option("--output", help="File for the table, .csv.")]


def show(frame: "pd.DataFrame", output: Path | None = None) -> None:
    """Print a table's first rows, and write all of them to a file."""
    shown = frame.head(_MAX_ROWS)
    print(shown.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    if len(frame) > len(shown):
        print(f"… {len(frame) - len(shown):,} rows more")
    if output is not None:
        with atomic_path(output) as temporary:
            frame.to_csv(temporary, index=False)
        print(f"Written to {output}")
