"""Progress bars: from two seconds on, with the time while nothing advances."""

import re
import subprocess
import sys
import time

import keras
from tqdm import notebook

import nnslicer_tf as nns
from nnslicer_tf import _environment
from nnslicer_tf._litert import to_litert
from nnslicer_tf.instrument.backend import compiled_function


def test_a_bar_appears_late_and_tells_the_time_until_it_is_closed(monkeypatch, capsys):
    with _environment.progress_bar("Quick", 3) as bar:
        bar.update()
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0.2)
    with _environment.progress_bar("Compiling", 3):
        time.sleep(3.1)
    shown = capsys.readouterr().err
    assert "Compiling" in shown
    assert len(set(re.findall(r"\[00:0\d<", shown))) > 1  # it goes on, once a second
    assert shown.endswith("\r")  # the line is wiped
    time.sleep(1.1)
    assert capsys.readouterr().err == ""


def test_no_bar_without_progress(monkeypatch, capsys):
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0)
    with _environment.progress_bar("Silent", 3, progress=False) as bar:
        bar.update()
    assert capsys.readouterr().err == ""


def test_what_is_done_is_counted_at_once(monkeypatch, capsys):
    """Quick items before a slow one: the bar says how many are done while that one runs."""
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0.2)
    for item in _environment.track([0.0, 0.0, 2.2, 0.0], "Items"):
        time.sleep(item)
    assert "2/4" in capsys.readouterr().err


def test_a_bar_while_a_model_is_wrapped(monkeypatch, capsys):
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="small")
    nns.InstrumentedModel(model, progress=False)
    assert capsys.readouterr().err == ""
    nns.InstrumentedModel(model)
    assert "Wrapping small" in capsys.readouterr().err


def test_it_says_what_it_waits_for(monkeypatch, capsys):
    """A bar that can only be at 0 or 1 has neither a count nor an estimate, which would be one."""
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0.1)
    with _environment.waiting("Deciding"):
        for _ in _environment.staged(range(1), "round", 5):
            time.sleep(1.1)
    shown = capsys.readouterr().err
    assert re.search(r"Deciding: 00:0\d, round 1 of at most 5", shown) and "?" not in shown
    with _environment.progress_bar("Slices", 3), _environment.stage("compiling"):
        time.sleep(1.1)
    assert re.search(r"0/3 .*, compiling", capsys.readouterr().err)
    assert not _environment._stages


def test_the_first_call_of_a_compiled_function_is_a_stage():
    seen = []
    run = compiled_function(lambda x: seen.append(list(_environment._stages)) or 2 * x, after=1)
    results = [float(run(keras.ops.ones(()))) for _ in range(3)]
    assert results == [2, 2, 2]
    if keras.backend.backend() == "tensorflow":
        assert seen == [[], ["compiling"]]  # the plain call, and the tracing


def test_in_notebooks(monkeypatch):
    """There a bar is a widget, which is displayed late, too, and vanishes."""
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0.1)
    monkeypatch.setattr("tqdm.auto.tqdm", notebook.tqdm)
    displayed = []
    monkeypatch.setattr(notebook, "display", displayed.append)
    with _environment.progress_bar("Quick", 3) as bar:
        bar.update()
    assert displayed == []
    with _environment.waiting("Deciding"), _environment.stage("compiling"):
        time.sleep(1.3)
        (container,) = displayed
        left, _, right = (part.value for part in container.children)
    text = (left + right).replace("\u2007", " ")
    assert re.fullmatch(r"Deciding: 00:0\d, compiling", text)
    assert container.comm is None  # closed, not left as an unfinished bar in red


def test_a_compressed_model_is_loaded_without_messages(tmp_path):
    """LiteRT says, from C++, which delegate it makes: once in a process."""
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    (tmp_path / "model.tflite").write_bytes(to_litert(model))
    load = "import pathlib, sys; content = pathlib.Path(sys.argv[1]).read_bytes(); "
    plain = "from ai_edge_litert.interpreter import Interpreter as I; I(model_content=content)"
    ours = "from nnslicer_tf._litert import LiteRTModel; LiteRTModel"
    said = []
    for code in (f"{plain}.allocate_tensors()", f"{ours}(content)"):
        command = [sys.executable, "-c", load + code, str(tmp_path / "model.tflite")]
        said.append(subprocess.run(command, capture_output=True, text=True, check=True).stderr)
    assert "XNNPACK" in said[0] and "XNNPACK" not in said[1]
