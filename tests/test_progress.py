"""Progress bars: from two seconds on, with the time while nothing advances."""

import re
import time

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
