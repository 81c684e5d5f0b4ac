"""Run the notebooks and write their outputs into them.

    python notebooks/execute.py                        # all
    python notebooks/execute.py notebooks/03*.ipynb

Each runs in a kernel and an empty folder of its own. What changes from run to run without
meaning anything (times, metadata) is left out, so that a diff shows changed results alone. Where an
interactive view would be, there is a picture of it, if Chromium and its driver are installed.
"""

import base64
import os
import re
import shutil
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent
TIMEOUT = 600
_ENVIRONMENT = {
    **{"TF_CPP_MIN_LOG_LEVEL": "3", "PYDEVD_DISABLE_FILE_VALIDATION": "1"},
    # Also with a package that is installed elsewhere, outputs are those of a checkout.
    "PYTHONPATH": os.pathsep.join(
        filter(None, [os.environ.get("PYTHONPATH"), str(FOLDER.parent / "apps")])
    ),
}
# What TensorFlow and LiteRT tell of the machine, whatever the level of their logs.
_LOG_LINE = re.compile(
    r"WARNING: All log messages before absl|[IW]\d{4} |fully_quantize: |INFO: Created TensorFlow"
)
_WIDGET = "application/vnd.jupyter.widget"
_METADATA = {
    "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
    "language_info": {"name": "python"},
}


def execute(notebook: NotebookNode) -> NotebookNode:
    """Run all cells, from the first to the last; the outputs are put into the notebook.

    Raises:
        nbclient.exceptions.CellExecutionError: if a cell fails.
    """
    with tempfile.TemporaryDirectory() as folder:
        client = NotebookClient(
            notebook,
            timeout=TIMEOUT,
            kernel_name="python3",
            coalesce_streams=True,
            record_timing=False,
            resources={"metadata": {"path": folder}},
        )
        client.execute(env=os.environ | _ENVIRONMENT)
    if shutil.which("chromedriver"):
        _draw_views(notebook)
    return _clean(notebook)


def _draw_views(notebook: NotebookNode) -> None:
    """Put a picture into each output that has an interactive view."""
    states = notebook.metadata.get("widgets", {}).get(f"{_WIDGET}-state+json", {}).get("state", {})
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            shown = output.get("data", {}).get(f"{_WIDGET}-view+json")
            buffers = states[shown["model_id"]].get("buffers", []) if shown else []
            for buffer in buffers:
                if buffer["path"] == ["data"]:
                    output.data["image/png"] = _picture(base64.b64decode(buffer["data"]))


def _picture(document: bytes) -> str:
    """Return a picture of the explorer's page of a document, encoded."""
    sys.path.append(str(FOLDER.parent / "apps"))
    from nnslicer_tf.report.explorer.explorer import Explorer
    from reproduction.browser import chromium, picture

    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        page = Path(folder) / "view.html"
        Explorer("", document).save(page)
        return base64.b64encode(picture(driver, page, (1100, 760))).decode()


def _clean(notebook: NotebookNode) -> NotebookNode:
    """Drop what says where and when a notebook was run."""
    notebook.metadata = nbformat.from_dict(_METADATA)
    for cell in notebook.cells:
        cell.metadata = nbformat.from_dict({})
        if cell.cell_type == "code":
            for output in cell.outputs:  # a widget is empty without its kernel
                output.get("data", {}).pop(f"{_WIDGET}-view+json", None)
            kept = (output for output in cell.outputs if not _is_log(output))
            cell.outputs = [output for output in kept if not _is_bar(output)]
    return notebook


def _is_log(output: NotebookNode) -> bool:
    """Whether an output has nothing but log lines of TensorFlow."""
    if output.get("name") != "stderr":
        return False
    return all(_LOG_LINE.match(line) for line in output.text.splitlines() if line)


def _is_bar(output: NotebookNode) -> bool:
    """Whether an output is a progress bar, which appears where a machine needs two seconds."""
    return output.output_type == "display_data" and set(output.data) == {"text/plain"}


def main(paths: list[Path]) -> None:
    """Execute notebooks in place."""
    for path in paths:
        print(path.name, flush=True)
        notebook = execute(nbformat.read(path, as_version=4))
        nbformat.write(notebook, path)


if __name__ == "__main__":
    if "--help" in sys.argv:
        sys.exit(__doc__)
    main([Path(name) for name in sys.argv[1:]] or sorted(FOLDER.glob("*.ipynb")))
