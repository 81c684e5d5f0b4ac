"""The documentation: its code runs, its API pages have everything that is public."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import nnslicer_tf as nns

DOCS = Path(__file__).parents[1] / "docs"
BLOCK = re.compile(r"^```python(?: title=\"(?P<file>\S+)\")?\n(?P<code>.*?)^```", re.M | re.S)


@pytest.mark.parametrize("page", ["add-an-operation", "extend"])
def test_the_code_of_a_page_runs(page, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(nns.semantic.METRICS, "active", None)  # taken out again afterwards
    blocks = list(BLOCK.finditer((DOCS / f"{page}.md").read_text()))
    assert len(blocks) > 3
    names = {"__name__": page}
    for block in blocks:
        if block["file"]:
            (tmp_path / block["file"]).write_text(block["code"])
        else:
            exec(compile(block["code"], f"{page}.md", "exec"), names)


def test_the_api_pages_have_everything_public():
    shown = {
        module
        for page in (DOCS / "api").glob("*.md")
        for module in re.findall(r"^::: (\S+)$", page.read_text(), re.M)
    }
    for module in shown:
        importlib.import_module(module)
    packages = [
        getattr(nns, info.name)
        for info in pkgutil.iter_modules(nns.__path__)
        if info.name in dir(nns)
    ]
    assert len(packages) > 10
    for package in packages:
        for name in getattr(package, "__all__", ()):
            home = getattr(getattr(package, name), "__module__", None)
            if home and home.startswith("nnslicer_tf"):
                assert home in shown, f"{package.__name__}.{name} is not in the API pages: {home}"
