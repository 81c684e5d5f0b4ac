"""The report: all results beside the papers' figures, on one page, and the headlines."""

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path

import pandas as pd

from nnslicer_tf._checks import counted
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.pages import Block
from reproduction.again import commands_of
from reproduction.catalogue import Entry, load_catalogue
from reproduction.headlines import Headline, headline_table, headlines
from reproduction.pages import Code, Fold, Heading, Link, Page, Picture, Table, Text
from reproduction.settings import DATA
from reproduction.tables import (
    ResultTable,
    found_tables,
    markdown_table,
    matching_files,
    provenance,
    read_table,
)

_MOST_ROWS = 100  # longer tables are only linked, below a summary or a picture
_PICTURES = {
    "demo/slices.png": "Slices of one image and of a class: what speaks for and against",
    "detection/resnet10-cifar10-f1.png": "F1 of every detector on every attack, ResNet10",
    "pruning/figure3.png": "Targeted pruning: accuracy on four target classes",
    "semantic/figure5-mlp-mnist.png": "Semantic slicing: accuracy over compression, by metric",
    "exactline/acas.png": "Exact lines through ACAS Xu, and what samples show of them",
}
"""Pictures for the first page, below the folder of results → their captions."""

BEGIN, END = "<!-- headline -->", "<!-- /headline -->"


def status_lines(folder: Path) -> list[str]:
    """Return the lines of a table: minutes on two cores, status, title and needs of each entry."""
    lines = [f"{'id':<24}{'minutes':>8}  status"]
    for entry in load_catalogue().entries:
        lines.append(f"{entry.id:<24}{entry.minutes or '':>8}  {status(entry, folder)}")
        needs = f"; needs {entry.needs}" if entry.needs else ""
        lines.append(f"{'':<34}{entry.title}{needs}")
    return lines


def write_report(folder: Path, trials: Path, output: Path, readme: Path) -> list[str]:
    """Write report.html, report.md, and the headlines between their markers in `readme`."""
    pages = {ending: output / f"report.{ending}" for ending in ("html", "md")}
    for path in pages.values():
        check_writable(path)
    rows = headlines(tables_by_name(folder))
    html, markdown = (Path(os.path.relpath(p, readme.parent)).as_posix() for p in pages.values())
    text = readme.read_text()
    if text.count(BEGIN) != 1 or text.count(END) != 1 or text.index(BEGIN) > text.index(END):
        raise InvalidArgumentError(f"'{readme}' needs the marks {BEGIN} and {END}, once, in order.")
    before, after = text.partition(BEGIN)[0], text.partition(END)[2]
    text = (
        f"{before}{BEGIN}\n{markdown_table(chosen_table(rows))}\n\n"
        f"All {len(rows)} headline figures, then every table with its command, seed and plots: "
        f"[report.md]({markdown}#all-headlines), or [report.html]({html}) as one file. Written by "
        f"`python apps/reproduce.py report`.\n{END}{after}"
    )
    page = build_page(folder, trials, rows)
    written = {pages["html"]: page.html(output), pages["md"]: page.markdown(output), readme: text}
    for path, content in written.items():
        with atomic_path(path) as temporary:
            temporary.write_text(content)
    sizes = [f"{path}: {path.stat().st_size / 1e6:.2f} MB" for path in pages.values()]
    return [*sizes, f"{readme}: {len(chosen_table(rows))} of {len(rows)} headlines"]


def tables_by_name(folder: Path) -> dict[str, ResultTable]:
    """Return all tables of the catalogue: path below the folder without suffix → table."""
    patterns = [pattern for entry in load_catalogue().entries for pattern in entry.tables]
    return {_name(table.path, folder): table for table in found_tables(folder, patterns)}


def status(entry: Entry, folder: Path) -> str:
    """Describe in words how much was measured, and when."""
    if not entry.command:
        return entry.without
    tables = found_tables(folder, entry.tables)
    whole = [table for table in tables if not table.quick]
    date = max((table.date for table in whole or tables), default="")
    if tables and not whole:
        return f"quick only ({date})"
    if not tables and not (not entry.tables and matching_files(folder, entry.figures)):
        return "not measured"
    counts = [(extent.measured(whole), extent) for extent in entry.extents]
    short = [f"{n:,} of {extent.of:,} {extent.unit}" for n, extent in counts if n < extent.of]
    said = f" ({date})" if date else ""
    if short:
        return f"reduced{said}: {', '.join(short)}"
    sizes = [f"{extent.of:,} {extent.unit}" for extent in entry.extents]
    return f"measured{said}" + f" at the paper's size: {', '.join(sizes)}" * bool(sizes)


def build_page(folder: Path, trials: Path, rows: Sequence[Headline]) -> Page:
    """Return the page with all results."""
    page = Page("Tables and figures of the papers, measured")
    head = provenance()
    # A summary of what was reproduced and what was not, with pictures.
    chosen, every = chosen_table(rows), headline_table(rows)
    good, short = ((every["as good"] == word).sum() for word in ("yes", "no"))
    blocks: list[Block] = [
        Heading("At a glance"),
        Text(
            f"Of {good + short} headline figures that can be compared, {good} are at least as good "
            f"as the paper's, or as the goal, and {short} fall short. The models, data and "
            "machines are not those of the papers."
        ),
    ]
    if len(chosen):
        blocks.append(Table(chosen, "The most important ones", longest=len(chosen)))
    for name, caption in _PICTURES.items():
        if (folder / name).exists():
            blocks.append(Picture(folder / name, caption))
    blocks += [Heading("All headlines"), Table(every, "All headlines", 0)] if rows else []
    page.add(
        *blocks,
        Heading("How to read what follows"),
        Text(
            "All measurements of this project, beside the figures that the papers report. Tables "
            'titled "Here" are ours; below each, the command that made it, its seed, sizes, '
            'versions and date can be unfolded. Tables titled "The paper" are as published. '
            "Click on a section to unfold it."
        ),
        Code("python apps/reproduce.py report"),
        Text(f"Written {head['date']}, {head['versions']}."),
    )
    drawn: set[Path] = set()
    for part, title in load_catalogue().papers.items():
        entries = [entry for entry in load_catalogue().entries if entry.part == part]
        bare = [entry for entry in entries if not entry.command and not entry.paper]
        section = Page(title)
        for entry in entries:
            if entry not in bare:
                _add_entry(section, entry, folder, drawn)
        section.add(*(Text(f"{e.id}: {e.title}; {e.without}.") for e in bare))
        if part == "models":
            section.add(Table(fingerprints(), "Files of weights that come with the project"))
        page.add(Heading(title), Fold(f"{len(entries)} tables and figures", section.blocks))
    # Add the tables and pictures that no entry of the catalogue names.
    patterns = {p for entry in load_catalogue().entries for p in (*entry.tables, *entry.more)}
    named = set(matching_files(folder, tuple(patterns)))
    others = [t for t in found_tables(folder, ("*/*.csv",)) if t.path not in named]
    pictures = [path for path in matching_files(folder, ("*/*.png",)) if path not in drawn]
    _add_section(page, [Heading("Other results")], others, pictures, folder)
    # Add the results of `run --quick`.
    head = [Heading("Fresh trials"), Text("Small runs that only show that a command works.")]
    tables = found_tables(trials, ("*/*/*.csv", "*/*/*.json"))
    _add_section(page, head, tables, matching_files(trials, ("*/*/*.png",)), trials)
    return page


def chosen_table(rows: Sequence[Headline]) -> pd.DataFrame:
    """Return the headlines that the catalogue chooses, a row for all cases of a quantity."""
    table = []
    for one in load_catalogue().chosen:
        of_what = {row.case: row for row in rows if row.what == one["what"]}
        found = [of_what[case] for case in one["cases"] if case in of_what]
        if not found:
            continue
        judged = {row.reached for row in found} - {None}
        words = {0: "–", 1: "yes" if True in judged else "no", 2: "in part"}
        paper = load_catalogue().papers[found[0].entry.partition("/")[0]].split(" (")[0]
        row = {"paper": paper, "result": one["text"], "here": "; ".join(r.here for r in found)}
        row["paper's figure"] = "; ".join(dict.fromkeys(r.published for r in found))
        row["reproduced"] = words[len(judged)]
        table.append(row | {"why, or what else": one.get("why", "")})
    return pd.DataFrame(table)


def _add_section(
    page: Page, head: list[Block], tables: list[ResultTable], pictures: list[Path], folder: Path
) -> None:
    """Add tables and pictures below a heading, or nothing if there are none."""
    if tables or pictures:
        page.add(*head)
    for table in tables:
        _add_table(page, table, folder)
    page.add(*(Picture(path, _name(path, folder)) for path in pictures))


def _name(path: Path, folder: Path) -> str:
    return path.relative_to(folder).with_suffix("").as_posix()


def _add_entry(page: Page, entry: Entry, folder: Path, drawn: set[Path]) -> None:
    """Add a table or figure: its command, our results, the paper's, pictures, links to files."""
    tables = found_tables(folder, entry.tables)
    page.add(Heading(f"{entry.id}: {entry.title}", 3), Text(f"Status: {status(entry, folder)}."))
    if entry.command:
        needs = f"Needs {entry.needs}. About {entry.minutes} minutes on two cores."
        page.add(Text(needs), Code("\n".join(commands_of(entry, folder))))
    for path in matching_files(folder, entry.figures):
        if path not in drawn:
            page.add(Picture(path, _name(path, folder)))
            drawn.add(path)
    for table in tables:
        page.add(*short_form(table, entry.view, "Here"))
        _add_table(page, table, folder)
    for name in entry.paper:
        published = read_table(DATA / "paper" / name)
        citation = published.path.read_text().splitlines()[0].lstrip("# ")
        page.add(*short_form(published, entry.view, "The paper"))
        page.add(Table(published.frame, f"The paper: {citation}"))
    for path in matching_files(folder, entry.more):
        page.add(Link(path.relative_to(folder).as_posix(), path))


def _add_table(page: Page, table: ResultTable, folder: Path) -> None:
    """Add a result table, or a link to a long one, and its provenance."""
    name = _name(table.path, folder)
    trial = " (a trial)" if table.quick else ""
    head = pd.DataFrame(table.head.items(), columns=["", "value"])
    if len(table.frame) > _MOST_ROWS:
        page.add(Link(f"Here: {name}{trial}, {counted(len(table.frame), 'row')}", table.path))
    else:
        page.add(Table(table.frame, f"Here: {name}{trial}"))
    page.add(Table(head, f"How {name} was made", 0))


def short_form(table: ResultTable, view: tuple[str, ...], whose: str) -> list[Table]:
    """Return a table's summary, a value by two of its columns, if it has them."""
    if not view or not set(view) <= set(table.frame.columns):
        return []
    rows, columns, value = view
    frame = table.frame.assign(**{value: pd.to_numeric(table.frame[value], errors="coerce")})
    short = frame.pivot_table(value, rows, columns, sort=False).reset_index()
    return [Table(short, f"{whose}, {value}: {table.path.stem}")]


def fingerprints() -> pd.DataFrame:
    """Return the SHA-256 of every file of weights, and of the models of the zoo."""
    from nnslicer_tf.instrument.fingerprint import model_fingerprint
    from reproduction.zoo.models import zoo

    rows = []
    installed, weights = Path(zoo.__file__).parent / "weights", DATA / "weights"
    paths = [*installed.glob("*.weights.h5"), *weights.rglob("*.weights.h5")]
    for path in sorted(paths, key=lambda path: path.name):
        model, _, dataset = path.name.removesuffix(".weights.h5").partition("-")
        folder = installed if installed in path.parents else weights
        known = path.parent == folder and model in zoo.MODELS
        row = {"weights": path.relative_to(folder).as_posix()}
        row["SHA-256 of the file"] = hashlib.sha256(path.read_bytes()).hexdigest()[:16]
        fingerprint = model_fingerprint(zoo.load(model, dataset))[:16] if known else ""
        rows.append(row | {"fingerprint": fingerprint})
    return pd.DataFrame(rows)
