"""A folder with models and data, and the command line in this process."""

import sys

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import cli, datasets, zoo


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder with a model, another one, their profiles' data and one profile."""
    folder = tmp_path_factory.mktemp("files")
    zoo.load("digits_cnn").save(folder / "model.keras")
    keras.utils.set_random_seed(0)
    zoo.build("digits_cnn").save(folder / "other.keras")
    digits = datasets.load("digits", "test[:20]")
    np.savez(folder / "data.npz", x=digits.x)
    np.savez(folder / "labelled.npz", x=digits.x, y=digits.y)
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    nns.Profile.from_data(im, digits.x, progress=False).save(folder / "profile.npz")
    return folder


@pytest.fixture
def nnslicer(monkeypatch, capsys):
    """Run the command line in this process; return exit code, output and errors."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["nnslicer", *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            cli.main()
        output = capsys.readouterr()
        return stop.value.code or 0, output.out, output.err

    return run
