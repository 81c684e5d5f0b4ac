"""The page of what of the papers works: complete, current, and true to the catalogue."""

import dataclasses
import importlib
import re
from pathlib import Path

import pytest
import typer

from nnslicer_tf.cli.application import app
from nnslicer_tf.errors import InvalidArgumentError
from reproduction import papers
from reproduction.catalogue import load_catalogue

ROOT = Path(__file__).parents[2]
ROWS = [row for rows in papers.load_rows().values() for row in rows]
COMMANDS = typer.main.get_command(app).commands


def test_the_page_is_that_of_the_catalogue():
    assert papers.PAGE.read_text() == papers.papers_page(), "run apps/reproduce.py pages"


def test_every_experiment_is_on_the_page():
    page = papers.PAGE.read_text()
    for entry in load_catalogue().entries:
        assert not entry.command or f"`run {entry.id}`" in page, entry.id
    named = {name for row in ROWS for name in row.entries}
    ids = {entry.id for entry in load_catalogue().entries}
    assert {name for name in ids if re.fullmatch(r"\w+/(table|figure)\d+", name)} <= named


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.at}: {row.what}")
def test_what_a_row_names_exists(row):
    for name in row.entries:
        assert load_catalogue()[name]
    assert not row.page or (ROOT / row.page).is_file()
    for name in row.uses:
        if name.startswith("nnslicer "):
            assert name.removeprefix("nnslicer ") in COMMANDS
        elif "/" in name:
            assert (ROOT / name).is_file()
        else:  # a module and what is in it
            parts = name.split(".")
            depth = next(i for i in range(len(parts), 0, -1) if _is_module(".".join(parts[:i])))
            found = importlib.import_module(".".join(parts[:depth]))
            for part in parts[depth:]:
                found = getattr(found, part)
    assert row.missing or row.uses or row.entries
    if row.missing:  # one sentence
        assert (
            row.missing.endswith(".") and ". " not in row.missing and not row.missing[0].islower()
        )


def _is_module(name):
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def test_what_falls_short_cannot_claim_to_work(monkeypatch):
    row = next(row for row in ROWS if row.entries[:1] == ("dflare/table8",))
    assert papers.shortfall(row) == "3 of 6 pairs of models"
    liar = dataclasses.replace(row, missing="")
    monkeypatch.setattr(papers, "load_rows", lambda: {"dflare": [liar]})
    with pytest.raises(InvalidArgumentError, match="say what is missing; 3 of 6 pairs of models"):
        papers.papers_page()
