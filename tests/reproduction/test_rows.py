"""Rows of tables that are kept on disk."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest

import nnslicer_tf as nns
from reproduction.rows import RowStore
from reproduction.settings import Settings


def test_rows_are_kept(tmp_path):
    path = tmp_path / "rows.csv"
    rows = RowStore(path, ["method", "ratio"])
    assert {"method": "weight", "ratio": 0.5} not in rows
    rows.add([{"method": "weight", "ratio": 0.5, "accuracy": 0.25}])
    rows.add([{"method": "weight", "ratio": 0.1, "accuracy": 1 / 3}])
    again = RowStore(path, ["method", "ratio"])
    assert {"method": "weight", "ratio": 0.5} in again
    assert {"method": "weight", "ratio": 0.6} not in again
    asked = [{"method": "weight", "ratio": ratio} for ratio in (0.1, 0.5)]
    assert list(again.to_frame(asked)["accuracy"]) == [1 / 3, 0.25]
    assert list(again.to_frame(asked[1:])["accuracy"]) == [0.25]
    again.add([{"method": "random", "ratio": 0.1, "accuracy": 0.0}])
    assert len(RowStore(path, ["method", "ratio"])) == 3
    path.write_text("")
    with pytest.raises(nns.errors.CorruptFileError, match="does not hold the rows"):
        RowStore(path, ["method", "ratio"])


@dataclass(frozen=True)
class ImageSettings(Settings):
    work: Path
    images: int = 5
    seed: int = 0


def test_rows_of_other_settings_or_weights_are_not_taken_for_these(tmp_path):
    made_from = {"weights": "a1", "attacks": ["FGSM"], "strengths": (1.0, 2.0)}

    def store(name="rows", images=5, seed=0, **changed):
        s = ImageSettings(tmp_path, images, seed)
        return RowStore.of(s, name, ["method"], "images", **made_from | changed)

    store().add([{"method": "weight", "x": 1}])
    again = store(**dict(reversed(made_from.items())))
    assert {"method": "weight"} in again  # whatever the order in which they are named
    assert {"method": "weight"} in store(seed=1)  # on which they do not depend
    for changed in ({"weights": "b2"}, {"images": 6}, {"attacks": ["FGSM", "PGD"]}):
        assert {"method": "weight"} not in store(**changed)
    assert {"method": "weight"} not in store("others")


def test_groups_of_rows_are_made_once(tmp_path):
    store = RowStore(tmp_path / "rows.csv", ["seed"])
    first = store.complete({"seed": 3}, lambda: [{"x": 0.1}, {"x": 1 / 3}])
    assert first["x"].tolist() == [0.1, 1 / 3]
    again = RowStore(tmp_path / "rows.csv", ["seed"])
    kept = again.complete({"seed": 3}, lambda: pytest.fail("the rows are there"))
    pd.testing.assert_frame_equal(kept, first)  # with the type of the key
    names = [{"seed": seed} for seed in (4, 3)]
    filled = again.fill(names, lambda seed: [{"x": seed / 7}], "Seeds")
    assert filled.to_dict("list") == {"seed": [4, 3, 3], "x": [4 / 7, 0.1, 1 / 3]}
    again.add([{"seed": 3, "x": 5.0}])
    assert RowStore(tmp_path / "rows.csv", ["seed"]).to_frame([{"seed": 3}])["x"].tolist() == [5.0]


def test_a_failure_loses_no_row_that_was_found(tmp_path):
    def rows():
        yield {"seed": 1, "x": 2.0}
        raise RuntimeError("lost power")

    store = RowStore(tmp_path / "rows.csv", ["seed"])
    with pytest.raises(RuntimeError, match="lost power"):
        store.extend(rows())
    assert {"seed": 1} in RowStore(tmp_path / "rows.csv", ["seed"])

    def group():
        yield {"x": 1.0}
        raise RuntimeError("lost power")

    with pytest.raises(RuntimeError, match="lost power"):
        store.complete({"seed": 2}, group)
    # An unfinished group would pass for a finished one.
    assert {"seed": 2} not in RowStore(tmp_path / "rows.csv", ["seed"])


def test_nothing_is_written_without_rows(tmp_path):
    RowStore(tmp_path / "rows.csv", ["seed"]).extend([])
    assert not list(tmp_path.iterdir())


def test_rows_that_others_add_stay(tmp_path):
    def add(seed):
        store = stores[seed % 4]
        store.add([{"seed": seed, "x": seed / 3}])

    stores = [RowStore(tmp_path / "rows.csv", ["seed"]) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
        list(pool.map(add, range(4, 8)))
    rows = RowStore(tmp_path / "rows.csv", ["seed"]).to_frame([{"seed": i} for i in range(8)])
    assert rows["x"].tolist() == [i / 3 for i in range(8)]
