"""What has to be downloaded: the page docs/downloads.md, and what errors say about missing files.

Nothing is downloaded here. Data sets are downloaded by TensorFlow Datasets, the rest by users.
"""

import tomllib
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from nnslicer_tf._checks import counted
from reproduction.settings import DATA

PAGE = DATA.parent / "docs" / "downloads.md"

_MOST_NAMED = 4  # files of a source that an error names


@dataclass(frozen=True)
class Source:
    """A data set or published models: see `downloads.toml`."""

    id: str
    title: str
    word: str
    address: str
    licence: str
    given: str
    files: tuple[tuple[str, int, str], ...]  # name, bytes, SHA-256
    extra: str = ""

    def how_to_get(self) -> str:
        """Return where the files are, how to check them, and how to pass their folder."""
        total = sum(size for _, size, _ in self.files)
        described = [f"{n} ({size:,} bytes, SHA-256 {digest})" for n, size, digest in self.files]
        if len(self.files) > _MOST_NAMED:
            described = [f"{len(self.files)} files, {total:,} bytes; their names and checksums are"]
            described[0] += f" in docs/{PAGE.name}"
        extra = f' Install its reader: pip install ".[{self.extra}]".' if self.extra else ""
        return (
            f"Source of {self.title}: {self.address} (licence: {self.licence}). Needed: "
            f"{'; '.join(described)}.{extra} Pass its folder with {self.given}."
        )


@cache
def _tables() -> dict[str, list[dict]]:
    path = Path(__file__).with_name("downloads.toml")
    return tomllib.loads(path.read_text(encoding="utf-8"))


@cache
def sources() -> dict[str, Source]:
    """Return the sources by id."""
    rows = (row | {"files": tuple(map(tuple, row["files"]))} for row in _tables()["sources"])
    return {row["id"]: Source(**row) for row in rows}


def how_to_get(message: str) -> str:
    """Return how to get the data set that an error's message names in quotes, or ""."""
    named = [one for one in sources().values() if f"'{one.id}'" in message]
    return named[0].how_to_get() if named else ""


def downloads_page() -> str:
    """Return the page: sources, their files, packages, and which experiments need them."""
    from reproduction.catalogue import load_catalogue

    needs = {entry.id: entry.needs for entry in load_catalogue().entries if entry.command}
    lines = [
        "# Downloads",
        "",
        "What the papers' experiments read that is not part of this repository. The demo and the",
        "data set `digits` need none of it. TensorFlow Datasets downloads data sets when they are",
        "first used. Download the rest by hand into a folder, and pass the folder to the",
        "experiment; if a file is missing, the experiment's error repeats what this page says.",
        "`python apps/reproduce.py pages` writes this page.",
        "",
        "| what | address | licence | size | extra | how to pass its folder |",
        "|---|---|---|---|---|---|",
    ]
    for one in sources().values():
        size = f"{sum(size for _, size, _ in one.files) / 1e6:,.1f} MB"
        extra = f'`pip install ".[{one.extra}]"`' if one.extra else ""
        lines.append(
            f"| {one.title} | {one.address} | {one.licence} | {size} | {extra} | {one.given} |"
        )
    lines += ["", "## Packages", "", "| what | how to install it |", "|---|---|"]
    lines += [f"| {row['title']} | `{row['install']}` |" for row in _tables()["packages"]]
    lines += ["", "## Weights to train first", ""]
    lines += ["Three weight files that this project trained are too large for the repository;"]
    lines += ["without them, rows and commands that need these networks fail and say so.", ""]
    lines += ["| what | file in `data/weights` | command |", "|---|---|---|"]
    lines += [
        f"| {row['title']} | `{row['file']}` | `{row['train']}` |" for row in _tables()["trained"]
    ]
    lines += ["", "## Which experiment needs what", "", "| needed | by |", "|---|---|"]
    words = {one.title: one.word for one in sources().values()}
    more = [*_tables()["packages"], *_tables()["trained"]]
    words |= {row["title"]: row["word"] for row in more}
    for title, word in words.items():
        users = [name for name, text in needs.items() if _names(text, word)]
        lines.append(f"| {title} | {', '.join(f'`{name}`' for name in users) or 'none'} |")
    lines += ["", "## Files", "", "| of | file | bytes | SHA-256 |", "|---|---|---|---|"]
    for one in sources().values():
        lines += [f"| {one.title} | `{n}` | {size:,} | `{sha}` |" for n, size, sha in one.files]
    total = counted(sum(len(one.files) for one in sources().values()), "file")
    lines += ["", f"{total}. Check a file with `sha256sum FILE`."]
    return "\n".join(lines) + "\n"


def _names(needs: str, word: str) -> bool:
    text = needs.replace("DIFFCHASER_MODELS", "published models")
    return word in text.replace("Fashion-MNIST", "" if word == "MNIST" else "Fashion-MNIST")
