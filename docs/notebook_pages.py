"""MkDocs hook: the notebooks as pages, with the outputs that are committed.

Nothing is run. Pictures become files beside the pages, tables stay HTML.
"""

from pathlib import Path

import nbformat
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from nbconvert import MarkdownExporter

NOTEBOOKS = Path(__file__).parents[1] / "notebooks"


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add a page for each notebook, its pictures, and a list of all."""
    entries = []
    for path in sorted(NOTEBOOKS.glob("[0-9]*.ipynb")):
        notebook = nbformat.read(path, as_version=4)
        text, resources = MarkdownExporter().from_notebook_node(
            notebook, {"output_files_dir": f"{path.stem}_files", "unique_key": path.stem}
        )
        files.append(_generated(config, f"notebooks/{path.stem}.md", text))
        for name, content in resources["outputs"].items():
            files.append(_generated(config, f"notebooks/{name}", content))
        entries.append(_entry(path.stem, notebook.cells[0].source))
    listing = "\n".join(["# Notebooks", "", *entries, ""])
    files.append(_generated(config, "notebooks/index.md", listing))
    return files


def _generated(config: MkDocsConfig, name: str, content: str | bytes) -> File:
    return File.generated(config, name, content=content)


def _entry(stem: str, first_cell: str) -> str:
    title = first_cell.splitlines()[0].lstrip("# ")
    return f"- [{title}]({stem}.md)"
