"""Means of channels over all positions, and files whose ranges are none."""

import json

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf._files import read_archive, write_archive


def test_means_of_channels_are_those_over_all_positions():
    rng = np.random.default_rng(0)
    means = {
        "image": rng.normal(size=(4, 5, 3)),
        "rows": rng.normal(size=(6, 2)),
        "row": np.ones(3),
    }
    found = nns.Profile(means, 7, "some model").per_channel()
    assert found.positions == "pooled" and found.samples == 7
    image = np.array([means["image"][:, :, c].mean() for c in range(3)])
    np.testing.assert_allclose(found.means["image"], np.tile(image, (4, 5, 1)))
    rows = means["rows"].sum(axis=0) / 6
    np.testing.assert_allclose(found.means["rows"], np.tile(rows, (6, 1)))
    # A vector is one channel for each of its values.
    np.testing.assert_array_equal(found.means["row"], means["row"])


RANGES = {"ends swapped": [2.0, 1.0], "without an end": [0.0, float("inf")], "whole": [1.0, 1.0]}


@pytest.mark.parametrize("entry", ["input_range", "input_means"])
@pytest.mark.parametrize("name", RANGES)
def test_ranges_in_files_are_checked(name, entry, tmp_path):
    path = tmp_path / "profile.npz"
    nns.Profile({"a": np.zeros(2)}, 3, "some model", (0.0, 1.0)).save(path)
    with np.load(path) as file:
        header = str(file["header"])
    entries = json.loads(header) | {entry: RANGES[name]}
    kind = entries.pop("format")
    with read_archive(path, kind, "profile") as file:
        arrays = {"mean0": file.array("mean0", np.float64)}
    write_archive(path, kind, entries, arrays)
    if name == "whole":
        assert getattr(nns.Profile.load(path), entry) == (1.0, 1.0)
        return
    with pytest.raises(nns.errors.CorruptFileError, match="it has the range"):
        nns.Profile.load(path)
