"""The catalogue of tables, and what runs and reports them."""

import importlib.util
import re
import runpy
import shlex
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest
import typer
from matplotlib import pyplot

from nnslicer_tf import InstrumentedModel, zoo
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import save_figure
from reproduction import again, report
from reproduction.catalogue import load_catalogue
from reproduction.settings import DATA
from reproduction.tables import experiment_of, read_table

ROOT = Path(__file__).parents[2]
CATALOGUE = load_catalogue()
IDS = [entry.id for entry in CATALOGUE.entries]


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def kept(folder, name, command, *rows, head=""):
    """A result table on file."""
    text = f"# command: {command}\n# date: 2026-01-02\n{head}" + "\n".join(rows) + "\n"
    return write(folder / name, text)


def status(folder, name):
    return report.status(CATALOGUE[name], folder)


# The catalogue ----------------------------------------------------------------------------


def test_every_entry_is_one_of_a_paper():
    assert len(set(IDS)) == len(IDS)
    assert {entry.part for entry in CATALOGUE.entries} == set(set(CATALOGUE.papers))
    for entry in CATALOGUE.entries:
        assert bool(entry.command) != bool(entry.without), entry.id
        assert not entry.command or (entry.minutes > 0 and entry.needs), entry.id


@pytest.mark.parametrize(
    ("paper", "tables", "figures"),
    [("nnslicer", 4, 5), ("neusemslice", 8, 6), ("dflare", 10, 8), ("exactline", 4, 5)],
)
def test_all_tables_and_figures_of_the_papers_are_there(paper, tables, figures):
    names = [f"table{i + 1}" for i in range(tables)] + [f"figure{i + 1}" for i in range(figures)]
    assert {f"{paper}/{name}" for name in names} <= set(IDS)


def test_the_papers_files_are_those_of_the_catalogue():
    folder = DATA / "paper"
    named = {name for entry in CATALOGUE.entries for name in entry.paper}
    assert named == {path.relative_to(folder).as_posix() for path in folder.rglob("*.csv")}
    for name in named:
        first, *rest = (folder / name).read_text().splitlines()
        assert re.search(r"# .{5,}(20\d\d|https://)", first), name
        assert len({len(pd.read_csv(folder / name, comment="#").columns)}) == 1 and len(rest) > 1


def parse(arguments):
    """Parse the arguments of a script as its app does."""
    script = ROOT / arguments[0]
    spec = importlib.util.spec_from_file_location(script.stem, script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    command, arguments = typer.main.get_command(module.app), arguments[1:]
    if hasattr(command, "commands"):
        if not arguments or arguments[0] not in command.commands:  # the first by default
            arguments = [next(iter(command.commands)), *arguments]
        command, arguments = command.commands[arguments[0]], arguments[1:]
    if {"--networks", "--models"} & {option for p in command.params for option in p.opts}:
        given = [o for p in command.params if p.required for o in p.opts if o not in arguments]
        arguments = [*arguments, *(word for option in given for word in (option, "x"))]
    return command.make_context(script.stem, arguments)


@pytest.mark.parametrize("entry", [e for e in CATALOGUE.entries if e.command], ids=lambda e: e.id)
def test_commands_have_these_options(entry, tmp_path):
    """Those of trials, and those that made the tables which are kept: they can be run again."""
    commands = [again.trial_of(entry, tmp_path), shlex.split(entry.command)]
    made = again.commands_of(entry, DATA / "results")
    commands += [again.arguments_of(command, tmp_path) for command in made]
    for script, *arguments in commands:
        if script.startswith("apps/"):
            assert parse([script, *arguments])
            continue
        text = (ROOT / script).read_text()
        for option in (a.removeprefix("--") for a in arguments if a.startswith("--")):
            word = option.partition("=")[0].replace("-", "_")
            named = f"--{word.replace('_', '-')}"
            assert named in text or re.search(rf"\b{word}: ", text), option


def test_an_experiment_is_what_its_options_say():
    first = "KERAS_BACKEND=jax python apps/a.py one --b 2 --a=3 --work runs/x --flag"
    second = "python apps/a.py one --a 3 --flag --b 2 --c 4 --results elsewhere"
    assert experiment_of(first) != experiment_of(second)
    assert experiment_of(first) == experiment_of(second, {"c": 4})
    assert experiment_of(first) != experiment_of(second.replace("--b 2", "--b 5"), {"c": 4})


def test_the_commands_are_those_of_the_tables(tmp_path):
    entry = CATALOGUE["nnslicer/figure3"]
    kept(tmp_path, "pruning/figure3.csv", "python apps/p.py --samples 50", "method,ratio", "a,1")
    kept(tmp_path, "pruning/figure3-b.csv", "python apps/p.py <folder>/m.h5", "method,ratio", "a,1")
    made = again.commands_of(entry, tmp_path)
    assert list(made) == ["python apps/p.py <folder>/m.h5", "python apps/p.py --samples 50"]
    with pytest.raises(InvalidArgumentError, match="reads <folder>/m"):
        again.arguments_of(next(iter(made)), None)
    assert again.arguments_of(next(iter(made)), Path("there")) == ["apps/p.py", "there/m.h5"]
    written = "python apps/p.py one --work <folder> --samples 50"
    assert again.arguments_of(written, None) == ["apps/p.py", "one", "--samples", "50"]
    assert again.commands_of(entry, tmp_path / "none") == {f"python {entry.command}": []}


def test_tables_are_compared_but_for_times(tmp_path):
    first = kept(tmp_path / "a", "t.csv", "python a.py", "name,value,seconds", "x,1,2")
    kept(tmp_path / "b", "t.csv", "python a.py", "name,value,seconds", "x,1,3")
    assert again.compared(first, tmp_path / "b") == "t.csv is equal"
    kept(tmp_path / "b", "t.csv", "python a.py", "name,value,seconds", "x,1.5,3")
    assert again.compared(first, tmp_path / "b") == "t.csv differs: value by up to 0.5"
    kept(tmp_path / "b", "t.csv", "python a.py", "name,value", "x,1.5")
    assert again.compared(first, tmp_path / "b") == "t.csv has other rows or columns"
    assert again.compared(first, tmp_path / "c") == "t.csv was not written"


# Status -----------------------------------------------------------------------------------


def test_status_says_how_much_was_measured(tmp_path):
    assert status(tmp_path, "nnslicer/figure3") == "not measured"
    rows = ("method,ratio,targets", *(f"NNSlicer,{ratio / 20},0.9" for ratio in range(13)))
    sizes = "5,000 training images of each class, 50,000 of the profile, 10,000 test images"
    few = f"# sets: 8 sets of 4 target classes\n# samples: {sizes}\n"
    kept(tmp_path, "pruning/figure3.csv", "python apps/p.py --quick", *rows, head=few)
    assert status(tmp_path, "nnslicer/figure3") == "quick only (2026-01-02)"
    kept(tmp_path, "pruning/figure3.csv", "python apps/p.py", *rows, head=few)
    said = "reduced (2026-01-02): 104 of 2,730 sets at a prune ratio"
    assert status(tmp_path, "nnslicer/figure3") == said
    two = ("method,ratio,targets", "NNSlicer,0.1,0.9", "NNSlicer,0.99,0.9")  # one is shared
    many = few.replace("8", "210")
    kept(tmp_path, "pruning/figure3-all.csv", "python apps/p.py", *two, head=many)
    said = f"reduced (2026-01-02): {12 * 8 + 2 * 210} of 2,730 sets at a prune ratio"
    assert status(tmp_path, "nnslicer/figure3") == said
    (tmp_path / "pruning/figure3-all.csv").unlink()
    kept(tmp_path, "pruning/figure3.csv", "python apps/p.py", *rows, head=few.replace("8", "210"))
    said = "measured (2026-01-02) at the paper's size: 2,730 sets at a prune ratio, 5,000 images"
    assert status(tmp_path, "nnslicer/figure3").startswith(said)
    fewer = few.replace("8", "210").replace("50,000", "5,000")
    kept(tmp_path, "pruning/figure3.csv", "python apps/p.py", *rows, head=fewer)
    said = "reduced (2026-01-02): 5,000 of 50,000 profiled images"
    assert status(tmp_path, "nnslicer/figure3") == said
    assert status(tmp_path, "nnslicer/figure1") == "an illustration"


def test_status_counts_rows_files_and_seeds(tmp_path):
    attacks = [f"m,A{i},1" for i in range(17)] + ["m,Average,1"]
    head = "# attacked images: test[0:200]\n# normal inputs: 3000 of train\n"
    rows = ("method,attack,f1", *attacks)
    kept(tmp_path, "detection/resnet10-cifar10.csv", "python apps/d.py", *rows, head=head)
    said = "200 of 500 attacked images, 3,000 of 10,000 normal inputs"
    assert status(tmp_path, "nnslicer/table4") == f"reduced (2026-01-02): {said}"
    for number, setting in enumerate(("mlp-mnist", "alexnet-cifar10"), start=1):
        head = "# seeds: 0 … 4\n# sizes: 50000 training images, 10000 test images\n"
        kept(tmp_path, f"semantic/table7-{setting}.csv", "python a.py", "x", "1", head=head)
        kept(tmp_path, f"semantic/table7-{setting}-runs.csv", "python a.py", "x", "1")
        kept(tmp_path, f"semantic/table7-{setting}-tests.csv", "python a.py", "x", "1")
        said = f"reduced (2026-01-02): {number} of 6 models and data sets"
        assert status(tmp_path, "neusemslice/table7") == said
    for name in ("table7-mlp-mnist-interval64", "table7-mlp-mnist-interval64-tests"):
        kept(tmp_path, f"semantic/{name}.csv", "python a.py", "x", "1", head=head)
    assert status(tmp_path, "neusemslice/table7") == said  # the same model, sliced in another way
    # Of several models, that with the fewest counts.
    less = head.replace("0 … 4", "0 … 1").replace("10000", "1000")
    kept(tmp_path, "semantic/table7-vgg16-cifar10.csv", "python a.py", "x", "1", head=less)
    assert status(tmp_path, "neusemslice/table7") == (
        "reduced (2026-01-02): 3 of 6 models and data sets, 2 of 5 models trained, "
        "1,000 of 10,000 test images"
    )


def test_status_asks_for_the_papers_model(tmp_path):
    head = "# seeds: 0 … 4\n# sizes: 10000 test images; scores on 50000 images\n"
    kept(tmp_path, "semantic/table1-mlp-mnist.csv", "python a.py", "x", "1", head=head)
    said = "reduced (2026-01-02): 0 of 1 model of the paper (VGG-16 on CIFAR-10), 0 of 5 models"
    assert status(tmp_path, "neusemslice/table1").startswith(said)
    kept(tmp_path, "semantic/table1-vgg16-cifar10.csv", "python a.py", "x", "1", head=head)
    said = "measured (2026-01-02) at the paper's size: 1 model of the paper (VGG-16 on CIFAR-10)"
    assert status(tmp_path, "neusemslice/table1").startswith(said)


def test_random_seeds_are_counted_in_every_form(tmp_path):
    head = "# seed images: 500, random seeds: 0 ... 4, at most 20000 queries\n"
    kept(tmp_path, "dflare/repair_search.csv", "python a.py", "paper_pair", "x", head=head)
    said = "reduced (2026-01-02): 1 of 6 pairs of models"
    assert status(tmp_path, "dflare/table8") == said
    head = "# seed images: 200\n# random seeds: 0 ... 0\n"
    kept(tmp_path, "dflare/repair_more_search.csv", "python a.py", "paper_pair", "y", head=head)
    said = "2 of 6 pairs of models, 1 of 5 random seeds, 200 of 500 seed images"
    assert status(tmp_path, "dflare/table8") == f"reduced (2026-01-02): {said}"


def test_figures_alone_are_measured_too(tmp_path):
    assert status(tmp_path, "exactline/figure4") == "not measured"
    write(tmp_path / "exactline" / "linearity_ticks.png", "")
    assert status(tmp_path, "exactline/figure4") == "measured"


def test_a_spoilt_file_is_left_out(tmp_path, capsys):
    write(tmp_path / "pruning" / "figure3.csv", "")
    assert status(tmp_path, "nnslicer/figure3") == "not measured"
    assert "holds no result table" in capsys.readouterr().err


# Running ----------------------------------------------------------------------------------


@pytest.mark.parametrize("entry", [e for e in CATALOGUE.entries if e.command], ids=lambda e: e.id)
def test_a_trial_writes_into_its_own_folder(entry, tmp_path):
    command = again.trial_of(entry, tmp_path)
    assert "data/results" not in " ".join(command)
    assert command[0] == entry.command.split()[0]
    if entry.id != "models/zoo":  # its trials go to runs/
        assert any(part.startswith(str(tmp_path / entry.id)) for part in command)


def test_run_hands_on_the_command_and_its_exit_status(monkeypatch, tmp_path):
    from typer.testing import CliRunner

    seen = []

    def fake(command, **options):
        seen.append(command)
        return subprocess.CompletedProcess(command, 3)

    monkeypatch.setattr(again.subprocess, "run", fake)
    arguments = ["run", "exactline/figure2", "--quick", "--trials", str(tmp_path), "--"]
    done = CliRunner().invoke(
        runpy.run_path(str(ROOT / "apps" / "reproduce.py"))["app"],
        [*arguments, "--networks", "there"],
    )
    assert done.exit_code == 3
    folder = tmp_path / "exactline" / "figure2"
    script = DATA.parent / "apps/analyse_lines.py"
    expected = [str(script), "acas", "--quick", "--results", str(folder)]
    assert seen == [[sys.executable, *expected, "--networks", "there"]]


@pytest.mark.parametrize(
    ("name", "message"),
    [("nnslicer/table9", "There is no 'nnslicer/table9'"), ("nnslicer/figure1", "an illustration")],
)
def test_what_cannot_be_run_is_refused(name, message, tmp_path):
    with pytest.raises(InvalidArgumentError, match=message):
        again.commands_of(CATALOGUE[name], tmp_path)


# The report -------------------------------------------------------------------------------


@pytest.fixture
def results(tmp_path):
    folder = tmp_path / "results"
    rows = ("method,ratio,targets", "NNSlicer (targeted),0.55,0.36")
    rows += ('"NNSlicer (targeted), ours",0.55,0.899',)
    kept(folder, "pruning/figure3.csv", "python apps/p.py", *rows, head="# sets: 8 sets\n")
    figure = pyplot.figure(figsize=(1, 1))
    save_figure(figure, folder / "pruning" / "figure3.png", dpi=20)
    save_figure(pyplot.figure(figsize=(1, 1)), folder / "other" / "more.png", dpi=20)
    kept(folder, "other/new.csv", "python apps/p.py", "a,b", "1,unforeseen")
    return folder


def test_the_report_has_everything(results, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "fingerprints", lambda: pd.DataFrame({"weights": ["w.h5"]}))
    readme = write(tmp_path / "README.md", "Top\n<!-- headline -->\nold\n<!-- /headline -->\nEnd\n")
    trials = tmp_path / "trials"
    kept(trials, "nnslicer/table3/slicing.csv", "python apps/b.py --quick", "model,ms", "lenet,0.5")
    output = results / "report"
    report.write_report(results, trials, output, readme)
    html, markdown = ((output / f"report.{kind}").read_text() for kind in ("html", "md"))
    for text in (html, markdown):
        for name in IDS:
            assert f"{name}: {CATALOGUE[name].title}" in text.replace("&#x27;", "'").replace(
                "&amp;", "&"
            )
        for said in (
            "python apps/p.py",
            "8 of 2,730 sets at a prune ratio",
            "NNSlicer (targeted), ours",
            "w.h5",
        ):
            assert said in text
        assert "high only below" in text  # the paper's table
        assert "Other results" in text and "unforeseen" in text
        assert "Fresh trials" in text and "nnslicer/table3/slicing (a trial)" in text
    assert html.count("data:image/webp;base64") == 3 and "<script" not in html
    # The first page: what was reproduced, what was not, and pictures; then sections that fold.
    first = html[html.index("At a glance</h2>") : html.index("How to read what follows</h2>")]
    assert "Of 2 headline figures that can be compared, 1 are at least as good" in first
    chosen, every = first.split("All headlines</h2>")
    assert (
        "36.0%" in chosen
        and "89.9%" not in chosen
        and {"36.0%", "89.9%"} <= set(re.findall(r"\d\d\.\d%", every))
    )
    assert first.count("<img") == 1 and "<details" not in chosen
    assert html.count('<details class="section">') == len(CATALOGUE.papers)
    assert "](../pruning/figure3.png)" in markdown and "](../other/more.png)" in markdown
    text = readme.read_text()
    assert text.startswith("Top\n<!-- headline -->\n| paper |") and text.endswith("-->\nEnd\n")
    assert "old" not in text and "[report.md](results/report/report.md#all-headlines)" in text
    assert "36.0% | about 80 % | no |" in text


def test_long_tables_are_linked(results, tmp_path, monkeypatch):
    monkeypatch.setattr(report, "fingerprints", lambda: pd.DataFrame({"weights": ["w.h5"]}))
    rows = ["a", *(f"row {i}" for i in range(101))]
    kept(results, "other/long.csv", "python apps/long.py", *rows)
    kept(results, "other/short.csv", "python apps/short.py", *rows[:-1])
    readme = write(tmp_path / "README.md", "<!-- headline -->\n<!-- /headline -->\n")
    report.write_report(results, tmp_path / "trials", results / "report", readme)
    markdown = (results / "report" / "report.md").read_text()
    assert "[Here: other/long, 101 rows](../other/long.csv)" in markdown
    assert "python apps/long.py" in markdown  # how it was made is said all the same
    assert markdown.count("row 99") == 1 and "row 100" not in markdown


def test_short_forms_are_of_the_tables_values(tmp_path):
    rows = ("attack,method,f1", "A,x,0.1", "A,y,0.2", "B,x,/", "B,y,0.4")
    table = read_table(kept(tmp_path, "t.csv", "python a.py", *rows))
    (short,) = report.short_form(table, ("attack", "method", "f1"), "Here")
    assert short.frame.columns.tolist() == ["attack", "x", "y"]
    assert short.frame.iloc[0].tolist() == ["A", 0.1, 0.2]
    assert short.frame["y"].tolist() == [0.2, 0.4] and short.frame["x"].isna().tolist() == [
        False,
        True,
    ]
    assert report.short_form(table, ("attack", "method", "auroc"), "") == []
    assert report.short_form(table, (), "") == []


def test_the_readme_needs_its_marks(results, tmp_path):
    readme = write(tmp_path / "README.md", "<!-- /headline --> <!-- headline -->")
    with pytest.raises(InvalidArgumentError, match="once, in order"):
        report.write_report(results, tmp_path, tmp_path / "o", readme)
    assert not list(tmp_path.glob("o/*"))


def test_models_have_fingerprints(monkeypatch, tmp_path):
    weights = zoo.weights_path("digits_cnn", "digits")
    write(tmp_path / "weights" / "inner" / "a-b.weights.h5", "x")
    monkeypatch.setattr(report, "DATA", tmp_path)
    table = report.fingerprints().set_index("weights")
    expected = InstrumentedModel(zoo.load("digits_cnn")).fingerprint[:16]
    assert table.loc[weights.name, "fingerprint"] == expected
    x = "2d711642b726b044"  # of "x", by sha256sum
    assert table.loc["inner/a-b.weights.h5"].tolist() == [x, ""]


def test_short_forms_have_rows_columns_and_a_value():
    for entry in load_catalogue().entries:
        assert len(entry.view) in (0, 3), entry.id
