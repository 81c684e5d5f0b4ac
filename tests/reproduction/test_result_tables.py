"""Result tables read back, whatever wrote them."""

import json

import pandas as pd
import pytest

from nnslicer_tf.errors import CorruptFileError
from reproduction.tables import provenance, read_table, write_table


def test_what_was_written_is_read(tmp_path):
    table = pd.DataFrame({"a": [1, 2], "b": [0.5, 0.25], "say": ["x # y", "|z|"]})
    write_table(tmp_path / "t", "Title", table, provenance(seed=3, rate=0.05))
    again = read_table(tmp_path / "t.csv")
    pd.testing.assert_frame_equal(again.frame, table)
    assert (again.head["seed"], again.head["rate"]) == ("3", "0.05")
    assert again.date == provenance()["date"] and not again.quick
    assert repr(again).endswith(f"2 rows, {again.date})")
    assert "<caption>ResultTable(" in again._repr_html_()


@pytest.mark.parametrize(
    ("head", "command", "date"),
    [
        (
            "# Command: `python benchmarks/b.py --acas x.nnet`; 7 runs.\n# 2026-11-21, load 4",
            *("python benchmarks/b.py --acas x.nnet", "2026-11-21"),
        ),
        (
            "# python benchmarks/b.py one two; seeds: 5 together; 2 cores; 2025-01-02",
            *("python benchmarks/b.py one two", "2025-01-02"),
        ),
        (
            "# command: python apps/a.py --quick --name 'a b'\n# date: 2026-11-21",
            *("python apps/a.py --quick --name 'a b'", "2026-11-21"),
        ),
        ("# nothing of the kind", "", ""),
    ],
)
def test_command_and_date_are_found(tmp_path, head, command, date):
    path = tmp_path / "t.csv"
    path.write_text(f"{head}\nx,y\n1,2\n")
    table = read_table(path)
    assert (table.head.get("command", ""), table.date, table.quick) == (
        command,
        date,
        "--quick" in command,
    )
    assert table.frame.to_dict("records") == [{"x": 1, "y": 2}]


def test_a_table_without_a_head_may_have_columns_that_say_it(tmp_path):
    path = tmp_path / "t.csv"
    path.write_text("model,date,command\na,2026-01-01,python apps/a.py\n")
    table = read_table(path)
    assert (table.head["command"], table.date) == ("python apps/a.py", "2026-01-01")


def test_figures_by_model(tmp_path):
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"models": {"a": {"ms": 1.5}, "b": {"ms": 2}}, "other": {}}))
    (tmp_path / "t.md").write_text(
        "# Speed\n\n`python benchmarks/b.py --x`, 2026-11-21, 2 cores.\n"
    )
    table = read_table(path)
    assert table.frame.to_dict("list") == {"model": ["a", "b"], "ms": [1.5, 2]}
    assert (table.head.get("command", ""), table.date) == (
        "python benchmarks/b.py --x",
        "2026-11-21",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("t.csv", ""),
        ("t.csv", "# only: a head\n"),
        ("t.json", "{"),
        ("t.json", "[]"),
        ("t.json", "{}"),
    ],
)
def test_what_holds_no_table_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(CorruptFileError, match="holds no result table"):
        read_table(tmp_path / name)
    with pytest.raises(FileNotFoundError):
        read_table(tmp_path / "none.csv")
