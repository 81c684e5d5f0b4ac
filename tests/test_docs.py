"""The documentation: its code runs, its links lead somewhere, the API pages have what is public."""

import importlib
import os
import pkgutil
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.cli.application import app

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(
    r"^```(?P<language>python|console)(?: title=\"(?P<file>\S+)\")?\n(?P<code>.*?)^```", re.M | re.S
)
LINK = re.compile(r"\]\(([^)#\s]*)(?:#([^)]*))?\)|`((?:apps|benchmarks)/\w+\.py)")
PAGES = [*sorted(ROOT.glob("*.md")), *sorted(DOCS.rglob("*.md"))]
WITH_CODE = [page for page in PAGES if BLOCK.search(page.read_text())]
ANALYSES = sorted((DOCS / "analyses").glob("*.md"))

# What the code of a page must have found, by names that it sets.
FOUND = {
    "troubleshooting": lambda n: n["keras"].ops.zeros(1).shape == (1,) and os.write(2, b"") == 0,
    "slices-in-ten-minutes": lambda names: (
        names["same"]
        and abs(names["pixels"] / names["features"] - 1) < 1e-5
        and names["decisive"].certificate["probability with slice alone"][0] >= 0.9
        and names["pieces"].certificate["found"].all()
        and Path("why.html").exists()
    ),
    "models-from-elsewhere": lambda names: names["same"],
    "README": lambda names: len(names["common"].synapses) > 0,
    "slicing": lambda names: names["recognised"] > 0.9,
    "what-is-a-slice": lambda names: (
        names["by_program"].to_vector().any() and names["by_program"] != names["one"]
    ),
    "detection": lambda names: names["flagged"].mean() > 0.5 and names["result"].credible,
    "pruning": lambda names: names["small"].count_params() < names["model"].count_params(),
    "protection": lambda names: list(names["report"]["budget"]) == [100, 500],
    "semantic-slicing": lambda names: 0 < names["critical"].count < names["critical"].total,
    "exact-lines": lambda names: (
        names["line"].classify().label_at(1.0) == 9
        and names["plane"].classify().label_at(names["places"])[0] == 4
    ),
    "deviations": lambda names: names["found"].success_rate == 1,
    "coverage": lambda names: 0.5 < names["coverage"].total() < 1 and len(names["found"]) > 0,
    "inspection": lambda names: set(names["frame"]["group"]) == {"relu1", "relu2"},
    "compressed": lambda names: names["recipe"].layers == ("conv1", "logits"),
    "versions": lambda names: (
        (names["flips"].certificate["enough"] & names["flips"].certificate["needed"]).all()
        and names["accuracy"](names["repair"].model, names["test"].x)
        > names["accuracy"](names["new"], names["test"].x) + 0.1
    ),
    "causes": lambda names: not (names["always"] - names["somewhere"]).to_vector().any(),
    "patching": lambda names: (
        names["best"]["head"] == 3
        and names["best"]["effect"] > 0.5
        and abs(names["where"].table["effect"].max() - 1) < 1e-3
        and -0.1 < names["through"] < names["direct"] < 1
    ),
    "transformers": lambda names: names["share"] > 0.9,
    "detectors-in-service": lambda names: names["low"] <= 0.05 <= names["high"],
    "recurrent-networks": lambda names: len(names["each"]) == 32,
    "own-layers": lambda names: names["im"]["sizes"].kind == "absolute_sum",
    "extend": lambda names: names["found"].success_rate == 1,
    "explore": lambda names: len(names["view"].data) > 10_000 and len(names["parts"].data) > 1_000,
    "outputs": lambda names: names["number"].is_number and names["classes"].is_binary,
    "datasets": lambda names: len(names["train"]) > 1000,
    "analyses": lambda names: names["profile"].input_range == (0, 16),
    "explain-and-shrink": lambda names: (
        names["why"].predicted == 7 and names["accuracy"] > 0.9 and Path("why.html").exists()
    ),
    "a-table": lambda names: (
        names["accuracy"] > 0.9
        and list(names["why"].background.to_frame()["value"])[:2] == ["missing", "7"]
        and abs(
            names["why"].background.values.sum()
            + names["slicer"].im.logits(names["customer"])[0, 0]
            - names["slicer"].im.logits(names["why"].background.rows).mean()
        )
        < 1e-4
        and 20 < names["needed"] < 60
        and (np.diff(names["answers"]) >= 0).all()
        and names["reasons"]["feature"].isin(["income", "debts"]).all()
        and np.allclose(
            names["network"](names["x"].to_numpy()), names["model"](names["x"].to_numpy())
        )
        and Path("why.html").exists()
        and Path("row.html").exists()
    ),
    "backgrounds": lambda names: (
        names["why"].background.names == ("age", "income", "city")
        and len(names["alone"].background.names) == 6
        and names["own"].background.names == ("age", "income", "place")
        and len(names["compared"].background.by_row) == 100
    ),
    "a-text": lambda names: (
        names["contributions"]["great"] * names["contributions"]["boring"] < 0
        and not names["why"].contributions[7:].any()
        and names["why"].whole[1] > 0.95
        and names["why"].decisive.certificate["needed"][0]
        and names["against"].target.label == 1 - names["mixed"].predicted
        and Path("explore.html").exists()
    ),
    "a-transformer": lambda names: (
        names["accuracy"] > 0.95
        and names["why"].words[np.argmax(names["why"].contributions["token_ids"])] == "not"
        and names["heads"].table["effect"].max() > 0.5
        and names["im"].classes.count == 2
        and names["missed"].words[4] == "never"
        and names["missed"].predicted == 1
        and names["right"] > 0.9
        and names["again"].table["effect"].max() > 0.5
        and names["accuracy_of"](names["best_heads"]) > 0.95
    ),
    "test-a-quantised-model": lambda names: (
        names["found"].found.sum() > 20
        and names["step"] > 5
        and names["table"]["deviations"]["int8"] == 0
        and names["table"]["deviations"]["int16"] > 0.5
        and names["table"]["test set"].min() > 0.95
        and 5 < len(names["right"]) < len(names["outcomes"])
        and Path("small-suite/test_deviations.py").exists()
    ),
    "change-a-method": lambda names: names["table"].shape == (4, 2),
    "acas-xu": lambda names: (
        len(names["regions"]) == len(names["line"].classify(lowest=True))
        and Path("why.html").exists()
    ),
    "index": lambda names: names["small"].accuracy[1] > 0.9,
    "benchmarks": lambda names: names["whole"].info["samples"] == len(names["x"]),
}


def name_of(page):
    return page.relative_to(ROOT).with_suffix("").as_posix()


@pytest.fixture
def clean(tmp_path, monkeypatch):
    """An empty folder to run in; what pages register is taken out again."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(nns.semantic.METRICS, "active", None)
    return tmp_path


TESTING = re.compile(r"(\w+)=(\S+) python -m pytest (.*?)( \|\| true)?")


def run_commands(text, monkeypatch):
    """Run the commands of a block; those of `nnslicer` and pytest in this process."""
    for line in text.splitlines():
        assert line.startswith("$ "), f"not a command: {line}"
        command = line[2:]
        name, *arguments = shlex.split(command)
        if name == "nnslicer":
            app(arguments, standalone_mode=False)
        elif tests := TESTING.fullmatch(command):
            variable, value, arguments, may_fail = tests.groups()
            monkeypatch.setenv(variable, value)
            # Without this project's settings, and with modules of one name side by side.
            own = ["-c", os.devnull, "--rootdir=.", "--import-mode=importlib"]
            own += ["-p", "no:cacheprovider", "-p", "no:xdist"]
            failed = pytest.main([*own, *shlex.split(arguments)])
            assert failed == (1 if may_fail else 0)
        else:
            path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
            subprocess.run(command, shell=True, check=True, env={**os.environ, "PATH": path})


@pytest.mark.whole
@pytest.mark.parametrize("page", WITH_CODE, ids=name_of)
def test_the_code_of_a_page_runs(page, clean, request, monkeypatch):
    names = {"__name__": page.stem}
    if page.stem == "a-transformer":
        pytest.importorskip("keras_hub", reason="the extra 'kerashub' has it")
    if page.stem == "acas-xu":
        networks = request.getfixturevalue("shared") / "acasxu"
        for file in re.findall(r"ACASXU\w+\.nnet", page.read_text())[:1]:
            shutil.copy(networks / file, clean)
    for block in BLOCK.finditer(page.read_text()):
        if block["language"] == "console":
            run_commands(block["code"], monkeypatch)
        elif block["file"]:
            (clean / block["file"]).write_text(block["code"])
        else:
            exec(compile(block["code"], str(page), "exec"), names)
    assert FOUND[page.stem](names)


def test_every_analysis_has_code_a_picture_and_its_limits():
    assert len(ANALYSES) == 12
    overview = (DOCS / "analyses.md").read_text()
    for page in ANALYSES:
        text = page.read_text()
        assert page in WITH_CODE and "![" in text, page
        parts = ["## Choices", "## Cost", "## Limits", "../../notebooks/", "../api/", "`apps/"]
        if page.stem == "versions":  # it is a tutorial itself
            parts.remove("../../notebooks/")
        for part in parts:
            assert part in text, (page, part)
        # How to cite it is said as in CITATION.cff.
        cited = " ".join((ROOT / "CITATION.cff").read_text().split())
        (entries,) = re.findall(r"```bibtex\n(.*?)```", text, re.S)
        titles = re.findall(r"^  title +=? *= \{(.*?)\},$", entries, re.M)
        assert titles and len(titles) == entries.count("@"), page
        for title in titles:
            assert title in cited or title.startswith("nnslicer\\_tf"), (page, title)
        assert f"(analyses/{page.name})" in overview


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_the_links_of_a_page_lead_somewhere(page):
    for target, anchor, script in LINK.findall(page.read_text()):
        if target.startswith(("http:", "https:")):
            continue
        path = ROOT / script if script else (page.parent / target if target else page)
        assert path.exists(), f"{name_of(page)} links to {target or script}"
        if anchor:
            headings = re.findall(r"^#+ (.*)$", path.read_text(), re.M)
            slugs = [re.sub(r"[^\w\- ]", "", h).strip().lower().replace(" ", "-") for h in headings]
            assert anchor in slugs, f"{name_of(page)} links to {target}#{anchor}"


def test_the_readme_is_short():
    assert len((ROOT / "README.md").read_bytes()) < 6000


def test_the_readmes_figures_are_headlines():
    """Every number in the README's table of results stands in the generated headlines."""
    readme = (ROOT / "README.md").read_text()
    table = readme[readme.index("## Measured") : readme.index("## Documentation")]
    rows = [line for line in table.splitlines() if line.startswith("|")][2:]
    assert len(rows) == 5
    headlines = (DOCS / "results.md").read_text()
    headlines = headlines[headlines.index("<!-- headline -->") : headlines.index("<!-- /headline")]
    for row in rows:
        for figure in re.findall(r"\d[\d,.]*", "|".join(row.split("|")[2:4])):
            assert re.search(rf"(?<![\d.]){re.escape(figure.rstrip('.,'))}", headlines), figure


def test_the_picture_of_the_architecture_has_every_package():
    texts = {e.text for e in ElementTree.parse(DOCS / "architecture.svg").iter() if e.text}
    words = set(re.findall(r"\w+", " ".join(texts)))
    packages = {info.name for info in pkgutil.iter_modules(nns.__path__) if info.ispkg}
    assert {name for name in packages if not name.startswith("_")} <= words


def test_the_api_pages_have_everything_public():
    pages = {page: page.read_text() for page in (DOCS / "api").glob("*.md")}
    shown = {name for text in pages.values() for name in re.findall(r"^::: (\S+)$", text, re.M)}
    whole = {
        name
        for text in pages.values()
        for name in re.findall(r"^::: (\S+)\n(?:    .*\n)*      show_submodules: true", text, re.M)
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
                public = not any(part.startswith("_") for part in home.split("."))
                # A page shows what a package imports itself, not what it resolves on first use.
                owner = ".".join(home.split(".")[:2]) if public else package.__name__
                inside = owner in whole and (public or name in vars(package))
                assert home in shown or inside, f"{package.__name__}.{name} is not shown: {home}"


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        (None, "see the README (`data/results/README.md`) and [notes](notes.md)"),
        ("https://a.example/b/", "see [the README]({}) and [notes](notes.md)"),
    ],
)
def test_sources_are_linked_where_the_repository_has_an_address(address, expected):
    pytest.importorskip("mkdocs", reason="the extra 'docs' has it")
    from types import SimpleNamespace

    sys.path.insert(0, str(DOCS))
    try:
        hook = importlib.import_module("repository_links")
    finally:
        sys.path.remove(str(DOCS))
    page = SimpleNamespace(file=SimpleNamespace(src_uri="analyses/pruning.md"))
    text = "see [the README](../../data/results/README.md) and [notes](notes.md)"
    found = hook.on_page_markdown(text, page, SimpleNamespace(repo_url=address), None)
    assert found == expected.format("https://a.example/b/blob/main/data/results/README.md")
