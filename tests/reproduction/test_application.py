"""Command lines of experiments."""

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pandas as pd
import pytest
from typer import Argument, Option
from typer.testing import CliRunner

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.application import add_experiment, application, main
from reproduction.result import ExperimentResult, ExperimentTable
from reproduction.settings import Settings

APPS = sorted((Path(__file__).parents[2] / "apps").glob("*.py"))


@dataclass(frozen=True)
class CountSettings(Settings):
    """Count."""

    kept = "counting"
    names: Annotated[list[str], Argument()]
    upto: Annotated[int, Option(min=1, help="The last number.")] = 3
    step: int = 1

    def quick(self):
        return CountSettings(self.names, 1, self.step)


def count(settings):
    if "bad" in settings.names:
        raise InvalidArgumentError("'bad' cannot be counted.")
    frame = pd.DataFrame({"n": range(0, settings.upto, settings.step)})
    return ExperimentResult([ExperimentTable("counted", frame, settings.names[0])])


def finished(folder):
    (folder / "finished").touch()


@pytest.fixture
def app(monkeypatch):
    monkeypatch.setitem(sys.modules, "counting", sys.modules[__name__])
    app = application("Count things.")
    add_experiment(app, "count", CountSettings, "counting:count", finish="counting:finished")
    return app


def test_options_are_the_fields_of_the_settings(app, tmp_path):
    folder = tmp_path / "results"
    done = CliRunner().invoke(app, ["a", "b", "--upto", "2", "--results", str(folder)])
    assert done.exit_code == 0, done.output
    assert pd.read_csv(folder / "counted.csv", comment="#")["n"].tolist() == [0, 1]
    assert (folder / "finished").exists() and "counted.csv" in done.output
    assert CliRunner().invoke(app, ["a", "--upto", "0"]).exit_code == 2
    assert CliRunner().invoke(app, ["a", "--step", "2"]).exit_code == 2  # no option


def test_the_first_command_runs_if_none_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "counting", sys.modules[__name__])
    app = application("Count things.", first_by_default=True)
    for name in ("count", "again"):
        add_experiment(app, name, CountSettings, "counting:count")
    for arguments in (["a"], ["count", "a"], ["again", "a"]):
        folder = tmp_path / arguments[0]
        done = CliRunner().invoke(app, [*arguments, "--results", str(folder)])
        assert done.exit_code == 0 and (folder / "counted.csv").exists(), done.output
    assert "again" in CliRunner().invoke(app, ["--help"]).output


def test_trials_go_elsewhere(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(app, ["a", "--quick"]).exit_code == 0
    table = tmp_path / "runs" / "counting" / "quick" / "counted.csv"
    assert pd.read_csv(table, comment="#")["n"].tolist() == [0]
    assert CountSettings(["a"]).results_folder.parts[-2:] == ("results", "counting")


def test_other_settings_do_not_replace_what_is_kept(app, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(CountSettings, "results_folder", tmp_path / "kept")

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["apps/count.py", *arguments])
        return CliRunner().invoke(app, arguments)

    assert run("a", "--upto", "2").exit_code == 0
    kept, other = (tmp_path / f / "counted.csv" for f in ("kept", "runs/counting/other-settings"))
    before = kept.read_text()
    done = run("a")  # up to 3
    assert "made with other settings: `python apps/count.py a --upto 2`" in done.output
    assert kept.read_text() == before and len(pd.read_csv(other, comment="#")) == 3
    other.unlink()
    assert run("a", "--upto=2").exit_code == 0 and not other.exists()


def test_bad_input_ends_with_one_line(app, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["apps/count.py", "bad", "--results", str(tmp_path)])
    with pytest.raises(SystemExit) as stop:
        main(app)
    assert stop.value.code == 2
    assert capsys.readouterr().err == "count: 'bad' cannot be counted.\n"


@pytest.mark.parametrize("path", APPS, ids=lambda path: path.stem)
def test_help_is_there_without_tensorflow(path):
    code = (
        "import os, runpy, sys; sys.argv = [sys.argv[1], '--help']\n"
        "sys.path.insert(0, os.path.dirname(sys.argv[0]))\n"
        "try: runpy.run_path(sys.argv[0], run_name='__main__')\n"
        "except SystemExit as stop: assert stop.code == 0, stop.code\n"
        "print(sorted({'tensorflow', 'keras', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert "--help" in done.stdout and done.stdout.splitlines()[-1] == "[]"
    assert len(path.read_text().splitlines()) <= 110
