"""Result tables: what stands in the files."""

import os
import sys

import numpy as np
import pandas as pd

from reproduction.tables import command_line, markdown_table, provenance, write_table


def test_a_table_is_written_twice_with_its_head(tmp_path):
    table = pd.DataFrame({"name": ["a", "b"], "value": [0.123456, np.nan], "count": [3, 4]})
    write_table(tmp_path / "t", "A title", table, {"seed": 7})
    again = pd.read_csv(tmp_path / "t.csv", comment="#")
    np.testing.assert_allclose(again["value"], table["value"], rtol=1e-4)
    assert (tmp_path / "t.csv").read_text().startswith("# seed: 7\nname,value,count\n")
    expected = "# A title\n\n- seed: 7\n\n| name | value | count |\n| --- | --- | --- |\n"
    expected += "| a | 0.1235 | 3 |\n| b |  | 4 |\n"
    assert (tmp_path / "t.md").read_text() == expected
    write_table(tmp_path / "t", "A title", table, {"seed": 7}, "What it says.\n")
    assert (tmp_path / "t.md").read_text() == expected + "\nWhat it says.\n"


def test_numbers_have_four_digits():
    assert markdown_table(pd.DataFrame({"x": [1234.56]})).endswith("| 1235 |")


def test_provenance_names_command_versions_and_date():
    head = provenance(seed=3)
    assert head["seed"] == 3 and head["command"].startswith("python ")
    assert {"versions", "date", "machine"} <= set(head) and "keras" in head["versions"]


def test_provenance_where_the_system_tells_no_load(monkeypatch):
    monkeypatch.delattr(os, "getloadavg", raising=False)
    assert provenance()["machine"] == f"{os.cpu_count()} cores"


def test_commands_name_no_folders_of_the_machine(monkeypatch, tmp_path):
    (tmp_path / "models").mkdir()
    folder, file = tmp_path / "models", tmp_path / "models" / "resnet.h5"
    words = ["apps/some.py", "run", "--models", str(folder), "--file", str(file), "--by", "a b"]
    monkeypatch.setattr(sys, "argv", [*words, "../elsewhere/lenet.h5", "--images", "10"])
    assert provenance()["command"] == (
        "python apps/some.py run --models <folder> --file <folder>/resnet.h5 --by 'a b' "
        "<folder>/lenet.h5 --images 10"
    )


def test_a_command_names_the_backend_that_was_chosen_for_it(monkeypatch):
    monkeypatch.setattr(sys, "argv", ["apps/train.py", "vgg16"])
    monkeypatch.setenv("KERAS_BACKEND", "jax")
    assert command_line() == "KERAS_BACKEND=jax python apps/train.py vgg16"
    monkeypatch.setenv("KERAS_BACKEND", "tensorflow")
    assert command_line() == "python apps/train.py vgg16"
