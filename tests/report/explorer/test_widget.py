"""The widget, in an executed notebook: it is shown, and it holds the data."""

import base64
import re
import sys

import nbformat
import numpy as np
import pytest
from nbclient import NotebookClient

import nnslicer_tf as nns
from support.documents import unpack

CELL = """
import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
im = nns.InstrumentedModel(zoo.load("digits_cnn"))
x = datasets.load("digits", "test").x[:8]
profile = nns.Profile.from_data(im, x, progress=False)
slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
nns.explore(slicer.slice_each(x), im, x, profile=profile, progress=False)
"""


def test_a_notebook_shows_the_widget(digits, tmp_path):
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(CELL)])
    client = NotebookClient(notebook, timeout=300, kernel_name="python3")
    client.execute(cwd=str(tmp_path))
    (output,) = [o for o in notebook.cells[0].outputs if o.output_type == "execute_result"]
    shown = output.data["application/vnd.jupyter.widget-view+json"]
    assert re.fullmatch(r"Explorer\('Slices of digits_cnn', 0\.\d+ MB of data\)", plain(output))
    stored = notebook.metadata.widgets["application/vnd.jupyter.widget-state+json"]["state"]
    state = stored[shown["model_id"]]
    assert state["model_name"] == "AnyModel" and "explore(" in state["state"]["_esm"]
    (buffer,) = [b for b in state["buffers"] if b["path"] == ["data"]]
    header, arrays = unpack(base64.b64decode(buffer["data"]))
    one = digits[2][0]
    for o, reference in header["exhibits"][0]["parts"][0]["neurons"].items():
        name = header["operations"][int(o)]["name"]
        assert np.array_equal(arrays[reference], one.neurons[name])


def plain(output):
    return output.data["text/plain"]


def test_without_anywidget_the_error_says_what_to_do(digits, monkeypatch):
    monkeypatch.setitem(sys.modules, "anywidget", None)
    view = nns.explore(digits[2][0], digits[0], progress=False)
    with pytest.raises(ImportError, match=r"pip install anywidget.*view\.save"):
        _ = view.widget


def test_the_widget_is_made_when_it_is_asked_for(digits):
    im, _, slices, _ = digits
    view = nns.explore(slices, im, progress=False)
    assert view.widget is view.widget and bytes(view.widget.data) == view.data
    assert view.widget.selection == {}
    assert "MB of data" in repr(view)
