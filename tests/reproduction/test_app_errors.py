"""Bad input to every command of every app: one line, exit code 2, nothing written."""

import re
import runpy
import socket
import sys
from pathlib import Path

import pytest

from reproduction import downloads
from reproduction.application import main

APPS = {
    path.stem: path
    for path in sorted((Path(__file__).parents[2] / "apps").glob("*.py"))
    if path.stem != "reproduce"
}


def commands(name):
    """The commands of an app, as its arguments begin: nothing for the only one."""
    found = [one.name for one in runpy.run_path(str(APPS[name]))["app"].registered_commands]
    return [(command,) if len(found) > 1 else () for command in found]


CALLS = [(name, command) for name in APPS for command in commands(name)]
IDS = ["-".join((name, *command)) for name, command in CALLS]

NEEDED = {
    ("challenge_detector",): (*("--model", "nowhere", "--detector", "nowhere"), "--data", "digits"),
    ("train",): ("lenet5",),
    ("maintain_model", "case-study"): ("lenet5", "mnist"),
    ("explore_differences", "explore"): ("--models", "nowhere"),
    ("analyse_lines", "acas"): ("--networks", "nowhere"),
    ("analyse_lines", "properties"): ("--networks", "nowhere"),
    ("analyse_lines", "train"): ("mnist", "normal"),
    ("analyse_planes", "acas"): ("--networks", "nowhere"),
}
"""Arguments that a command needs."""

WITHOUT_DATA = {
    *(("find_circuits", command) for command in ("recurrent", "transformers", "tracr")),
    *(("inspect_units", command) for command in ("sql", "sql-train")),
    *(("analyse_planes", command) for command in ("compressed", "baselines")),
    *(("detect_adversarial", command) for command in ("challenge", "evidence", "choose")),
    ("explain_tables",),
    ("find_causes", "units"),
}
"""Commands whose trials make their own data, or take scikit-learn's digits."""
WITH_DATA = [(name, command) for name, command in CALLS if (name, *command) not in WITHOUT_DATA]


@pytest.fixture
def call(monkeypatch, capsys, tmp_path):
    """Calls a command; returns its exit code and the lines that it wrote to standard error."""
    monkeypatch.chdir(tmp_path)

    def run(name, command, *arguments):
        monkeypatch.setattr(sys, "argv", [str(APPS[name]), *command, *map(str, arguments)])
        with pytest.raises(SystemExit) as stop:
            main(runpy.run_path(str(APPS[name]))["app"])
        return stop.value.code, capsys.readouterr().err.splitlines()

    return run


@pytest.mark.parametrize(("name", "command"), CALLS, ids=IDS)
def test_unknown_options_and_bad_values(call, name, command):
    for bad in (("--no-such-option",), ("--results",), ("--seed", "three")):
        code, lines = call(name, command, *bad)
        assert code == 2 and len(lines) == 1, lines
        assert re.match(rf"{name}\b.*: .*{bad[0]}.* See '{name}.* --help'\.$", lines[0]), lines


@pytest.mark.parametrize(("name", "command"), CALLS, ids=IDS)
def test_results_that_cannot_be_written(call, name, command, tmp_path):
    (tmp_path / "file").touch()
    given = NEEDED.get((name, *command), ())
    code, lines = call(name, command, *given, "--quick", "--results", tmp_path / "file" / "r")
    assert code == 2 and len(lines) == 1, lines
    assert lines[0].startswith(f"{name}: Cannot write to ")


@pytest.mark.parametrize(
    ("name", "command"), WITH_DATA, ids=["-".join((name, *command)) for name, command in WITH_DATA]
)
def test_data_or_models_that_are_nowhere(call, name, command, tmp_path, monkeypatch):
    def refuse(*arguments, **options):
        raise OSError("no route to host")

    monkeypatch.setattr(socket, "create_connection", refuse)
    (tmp_path / "empty").mkdir()
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path / "empty"))
    for variable in ("GLUE_DIR", "DIFFCHASER_MODELS"):
        monkeypatch.delenv(variable, raising=False)
    given = NEEDED.get((name, *command), ())
    code, lines = call(name, command, *given, "--quick", "--results", tmp_path / "results")
    assert code == 2, lines
    own = [line for line in lines if line.startswith(f"{name}: ")]
    assert len(own) == 1 == len(lines), lines
    assert "no route to host" in own[0] or "nowhere" in own[0] or "lenet1" in own[0], own
    # Where to get it, as on the page of downloads; the model of a detector is the user's.
    assert name == "challenge_detector" or any(
        source.how_to_get() in own[0] for source in downloads.sources().values()
    ), own
    assert not list((tmp_path / "results").glob("*"))
