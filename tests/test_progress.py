"""Progress bars: from two seconds on, with the time while nothing advances."""

import re
import time

import keras

import nnslicer_tf as nns
from nnslicer_tf import _environment


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
