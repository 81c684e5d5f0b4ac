"""The paper's table of attacks, as committed."""

import csv

import numpy as np
import pytest

from reproduction.nnslicer import attacks
from reproduction.settings import DATA


def test_the_table_has_the_papers_attacks_in_its_order():
    path = DATA / "paper" / "nnslicer" / "table4.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["method"] == "NNSlicer"]
    assert [row["attack"] for row in rows[:-1]] == list(attacks.ATTACKS)
    for row in rows[:-1]:
        assert row["family"].lower() == f"{attacks.ATTACKS[row['attack']].family}-based"


def test_the_papers_averages_follow_from_its_rows():
    path = DATA / "paper" / "nnslicer" / "table4.csv"
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    rows = [row for row in csv.DictReader(lines) if row["method"] == "NNSlicer"]
    for column in ("precision", "recall", "f1"):
        mean = np.mean([float(row[column]) for row in rows[:-1]])
        assert mean == pytest.approx(float(rows[-1][column]), abs=0.006)
