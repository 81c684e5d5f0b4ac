"""The headline results, read from the result tables beside what the papers report.

Every row is a function of the tables; a figure that falls short of the paper's or the goal is
shown unchanged.
"""

import pandas as pd

from reproduction.headlines import deepxplore, dflare, exactline, neusemslice, nnslicer
from reproduction.headlines.headline import Headline, Tables

__all__ = ["Headline", "Tables", "headline_table", "headlines"]


def headlines(tables: Tables) -> list[Headline]:
    """Return the headlines of all available tables.

    Args:
        tables: Path below `data/results` without ending → table.
    """
    rows: list[Headline] = []
    for part in _PARTS:
        try:
            rows += part(tables)
        except (KeyError, IndexError):
            continue  # the table does not exist, or has no such row
    return rows


def headline_table(rows: list[Headline]) -> pd.DataFrame:
    """Return the headlines as a table."""
    said = {True: "yes", False: "no", None: ""}
    return pd.DataFrame(
        {
            "result": [row.what for row in rows],
            "of": [row.case for row in rows],
            "here": [row.here for row in rows],
            "paper": [row.published for row in rows],
            "as good": [said[row.reached] for row in rows],
        }
    )


_PARTS = (
    *nnslicer.PARTS,
    *dflare.PARTS,
    *exactline.PARTS,
    *neusemslice.PARTS,
    *deepxplore.PARTS,
)
