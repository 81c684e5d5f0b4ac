"""Results of experiments, written and read back."""

import json

import pandas as pd
import pytest
from matplotlib.figure import Figure

from nnslicer_tf.experiments.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    paper_frame,
    paper_text,
)
from nnslicer_tf.report import read_table


def test_results_are_written(tmp_path):
    frame = pd.DataFrame({"x": [1 / 3, 2.0]})
    result = ExperimentResult(
        [
            ExperimentTable("rate0.1", frame, "A title", {"seed": 7}, "Below."),
            ExperimentTable("rows", frame),
        ],
        [ExperimentFigure("drawn", Figure(figsize=(1, 1)), dpi=20)],
        {"log": {"losses": [0.5]}},
    )
    files = result.write(tmp_path / "new")
    names = ["rate0.1.csv", "rate0.1.md", "rows.csv", "drawn.png", "log.json"]
    assert [path.name for path in files] == names and all(path.exists() for path in files)
    table = read_table(files[0])
    assert table.head["seed"] == "7" and "versions" in table.head
    assert files[1].read_text().startswith("# A title\n") and "Below." in files[1].read_text()
    assert pd.read_csv(files[2])["x"].tolist() == [1 / 3, 2.0]
    assert json.loads(files[4].read_text()) == {"losses": [0.5]}
    assert str(result.tables[0]).startswith("A title\n\n| x |")
    assert result.table("rows") is frame
    with pytest.raises(KeyError):
        result.table("other")


def test_tables_of_papers():
    assert paper_frame("nnslicer/table4").shape[0] > 17
    assert paper_text("exactline/table3", "exactline/table4").count(":\n\n| ") == 2
