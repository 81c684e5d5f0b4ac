"""The headline results of DFlare."""

from collections.abc import Iterator

import numpy as np

from reproduction.headlines.headline import Headline, Part, Tables

_SEARCHES = {"Algorithm 1": "the paper's search", "DFlare": "ours, with halving and patience"}
"""Method of a search → its name in headlines, the paper's own first."""


def _agreement(tables: Tables) -> Iterator[Headline]:
    """Return on how many of a data set's own inputs the published 8-bit models deviate."""
    frame = tables["dflare/agreement"].frame
    names = {"lenet1": "LeNet-1", "resnet20": "ResNet-20"}
    for _, row in frame[frame["pair"].isin(names)].iterrows():
        what = f"8-bit {names[row['pair']]}: inputs of its data set that it answers differently"
        case = {"train": "training images", "test": "test images"}[row["split"]]
        here = f"{row['deviations']} of {row['inputs']:,}"
        theirs = f"{row['paper_deviations']:.0f} of {row['paper_inputs']:,.0f}"
        yield Headline(what, case, here, theirs, None, "dflare/table1")


def _deviations(tables: Tables) -> Iterator[Headline]:
    """Return success and queries of DFlare on the published pairs."""
    frame = tables["dflare/search"].frame.set_index(["paper_pair", "method"])
    for pair in dict.fromkeys(frame.index.get_level_values("paper_pair").dropna()):
        for method, search in _SEARCHES.items():
            row, case = frame.loc[(pair, method)], f"{pair}: {search}"
            success, published = row["success_rate"], row["paper_success"]
            shown, good = (f"{success:.1%}", f"{published:.0%}"), bool(success >= published)
            what = "DFlare: share of successful searches"
            yield Headline(what, case, *shown, good, "dflare/table4")
            queries, published = row["mean_queries"], row["paper_queries"]
            shown, good = (f"{queries:.1f}", f"{published:.1f}"), bool(queries <= published)
            yield Headline("DFlare: mean queries per search", case, *shown, good, "dflare/table4")


def _repair(name: str) -> Part:
    """Return the part that says what repair mends of the deviations found, from a table."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[name].frame.dropna(subset="paper_improvement_ratio")
        frame = frame.set_index(["pair", "method"])
        for pair in dict.fromkeys(frame.index.get_level_values("pair")):
            for method, search in _SEARCHES.items():
                row = frame.loc[(pair, method)]
                here, published = row["improvement_ratio"], row["paper_improvement_ratio"]
                what = "DRepair: deviations repaired, less those induced"
                shown, good = (f"{here:.0%}", f"{published:.0%}"), bool(here >= published)
                yield Headline(what, f"{pair}: found by {search}", *shown, good, "dflare/table7")

    return rows


def _effort_after_repair(name: str) -> Part:
    """Return the part that says whether repaired models are harder to search, from a table."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[name].frame.set_index(["pair", "method"])
        if "paper_queries" not in frame:  # none of the pairs is the paper's
            frame["paper_queries"] = np.nan
        for pair in dict.fromkeys(frame.index.get_level_values("pair")):
            for method, search in _SEARCHES.items():
                before = frame.loc[(pair, f"{method}, without repair")]
                after = frame.loc[(pair, f"{method}, with repair")]
                what = "DRepair makes searches harder: mean queries before → after repair"
                here, published = (
                    f"{before[column]:.1f} → {after[column]:.1f}"
                    for column in ("mean_queries", "paper_queries")
                )
                if np.isnan(before["paper_queries"]):
                    published = "harder"  # the paper says so of all; it measured other pairs
                good = bool(after["mean_queries"] > before["mean_queries"])
                yield Headline(what, f"{pair}: {search}", here, published, good, "dflare/table8")

    return rows


PARTS: tuple[Part, ...] = (
    _agreement,
    _deviations,
    _repair("dflare/repair"),
    _repair("dflare/repair_more"),
    _repair("dflare/repair_further"),
    _repair("dflare/repair_quantised"),
    _repair("dflare/repair_vgg16"),
    _repair("dflare/repair_vgg16_integer"),
    _effort_after_repair("dflare/repair_search"),
    _effort_after_repair("dflare/repair_more_search"),
    _effort_after_repair("dflare/repair_further_search"),
    _effort_after_repair("dflare/repair_quantised_search"),
    _effort_after_repair("dflare/repair_vgg16_search"),
    _effort_after_repair("dflare/repair_vgg16_integer_search"),
)
"""All parts, in their order."""
