"""The headline results of DeepXplore."""

from collections.abc import Iterator

from reproduction.headlines.headline import Headline, Part, Tables


def _differences(tables: Tables) -> Iterator[Headline]:
    frame = tables["deepxplore/differences"].frame.set_index("search")
    shares = frame.loc[["light", "occlusion", "blackout"], "found, share"]
    for constraint, share in shares.items():
        what = "DeepXplore: share of seeds changed into differences"
        yield Headline(what, str(constraint), f"{share:.0%}", "", None, "deepxplore/differences")


PARTS: tuple[Part, ...] = (_differences,)
"""All parts, in their order."""
