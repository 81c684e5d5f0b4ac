"""Results of experiments, written and read back."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from matplotlib.image import imread

from reproduction import result
from reproduction.catalogue import load_catalogue
from reproduction.result import (
    ExperimentFigure,
    ExperimentResult,
    ExperimentTable,
    paper_frame,
    paper_text,
)
from reproduction.tables import read_table


def test_results_are_written(tmp_path):
    frame = pd.DataFrame({"x": [1 / 3, 2.0]})
    made = ExperimentResult(
        [
            ExperimentTable("rate0.1", frame, "A title", {"seed": 7}, "Below."),
            ExperimentTable("rows", frame),
        ],
        [ExperimentFigure("drawn", Figure(figsize=(1, 1)), dpi=20)],
        {"log": {"losses": [0.5]}},
    )
    files = made.write(tmp_path / "new")
    names = ["rate0.1.csv", "rate0.1.md", "rows.csv", "drawn.png", "log.json"]
    assert [path.name for path in files] == names and all(path.exists() for path in files)
    table = read_table(files[0])
    assert table.head["seed"] == "7" and "versions" in table.head
    assert files[1].read_text().startswith("# A title\n") and "Below." in files[1].read_text()
    assert pd.read_csv(files[2])["x"].tolist() == [1 / 3, 2.0]
    assert json.loads(files[4].read_text()) == {"losses": [0.5]}
    assert str(made.tables[0]).startswith("A title\n\n| x |")
    assert made.table("rows") is frame
    with pytest.raises(KeyError):
        made.table("other")


@pytest.mark.parametrize(("device", "named"), [("CPU", None), ("NVIDIA H200", "NVIDIA H200")])
def test_tables_name_the_gpu(tmp_path, monkeypatch, device, named):
    monkeypatch.setattr(result, "device_name", lambda: device)
    ExperimentTable("t", pd.DataFrame({"x": [1]}), "Title").write(tmp_path)
    assert read_table(tmp_path / "t.csv").head.get("device") == named


def test_tables_of_papers():
    assert paper_frame("nnslicer/table4").shape[0] > 17
    assert paper_text("exactline/table3", "exactline/table4").count(":\n\n| ") == 2


def test_figures_are_drawn_again_from_their_arrays(tmp_path):
    """A figure drawn again from the arrays beside it has the same pixels."""
    from reproduction.exactline.planes import plot_baselines
    from reproduction.redraw import redraw

    rng = np.random.default_rng(0)
    drawn = {key: rng.normal(size=(8, 8, 1)) for key in ("exact", "black", "one")}
    drawn["image"] = rng.uniform(size=(8, 8, 1))
    folder = tmp_path / "exactline"
    files = ExperimentFigure("baselines", plot_baselines(drawn), drawn=drawn).write(folder)
    assert [path.name for path in files] == ["baselines.png", "baselines.npz"]
    before = imread(files[0])
    files[0].unlink()
    assert redraw(tmp_path, progress=False) == [files[0]]
    assert np.array_equal(imread(files[0]), before) and before.std() > 0


def test_every_kept_picture_can_be_drawn_again():
    results = Path(__file__).parents[2] / "data" / "results"  # arrays are not installed
    kept = {path for pattern in load_catalogue().redraw for path in results.glob(pattern)}
    folders = {path.parent for path in kept}
    stems = {path.with_suffix("") for path in kept if path.suffix == ".npz"}
    assert all(stem.with_suffix(".png").exists() for stem in stems)
    pictures = {path for path in results.rglob("*.png") if path.parent not in folders}
    assert pictures <= {results / "demo" / "slices.png"}  # made anew by `draw_demo`, in seconds


def test_a_challenge_is_drawn_again_from_its_tables(tmp_path):
    """Curves are the shares of images within each change; methods without credit are dashed."""
    from reproduction.nnslicer.challenge import plot

    images = pd.DataFrame(
        {
            "norm": "linf",
            "image": [0, 1, 2, 0, 1, 2],
            "method": ["fused"] * 3 + ["stable"] * 3,
            "model alone": [0.1, 0.2, 0.3, 0.1, 0.15, 0.3],
            "model and detector": [0.1, 0.4, np.inf, 0.2, 0.3, 0.6],
        }
    )
    axis = plot(images, ["fused"]).axes[0]
    lines = {line.get_label(): line for line in axis.lines}
    assert set(lines) == {"model alone", "fused", "stable (not credible)"}
    assert lines["stable (not credible)"].get_linestyle() == "--"
    places, shares = lines["fused"].get_data()
    expected = [np.mean(np.array([0.1, 0.4, np.inf]) <= place) for place in places]
    assert np.array_equal(shares, expected) and max(shares) == pytest.approx(2 / 3)
    assert "2.00 times" in axis.get_title() and "fused" in axis.get_title()
