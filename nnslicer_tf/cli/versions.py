"""The command that compares two versions of a model, and can stop a build: diff."""

from math import ceil
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from nnslicer_tf._checks import check_name, names_in_order
from nnslicer_tf._environment import import_keras_quietly
from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf.versions import FlipCauses, VersionComparison


def diff(
    old: Annotated[Path, Argument(help="The old version, a .keras or .h5 file.")],
    new: Annotated[Path, Argument(help="The new version; or a .tflite file made of the old one.")],
    data: inputs.DataOption,
    max_negative_flips: Annotated[
        str | None,
        Option(help="Exit with 1 if more answers may have become worse: '1%' or '0.01'."),
    ] = None,
    flips: Annotated[int, Option(help="Flipped samples whose causes are searched.", min=0)] = 3,
    level: Annotated[str, Option(help="With --flips: 'weight', 'channel' or 'layer'.")] = "weight",
    page: Annotated[Path | None, inputs.file_option("a page", ".html")] = None,
    junit: Annotated[Path | None, inputs.file_option("a test report (JUnit)", ".xml")] = None,
    output: inputs.TableOption = None,
    tolerance: inputs.ToleranceOption = None,
    of_output: Annotated[str | None, Option(help="Name of one of several outputs.")] = None,
    normalise: inputs.NormaliseOption = "unit",
    classes: inputs.ClassesOption = "",
    seed: Annotated[int, Option(help="With --flips: seed of everything random.")] = 0,
) -> None:
    """Show which answers changed between two versions, and by which weights; the data need labels.

    With --max-negative-flips, the upper bound (95 %) of the share of answers that became wrong (of
    maps and numbers: worse by more than --tolerance) decides: no small sample passes by luck.
    """
    import_keras_quietly()
    from nnslicer_tf import versions
    from nnslicer_tf.versions.between import LEVELS

    check_name("level", level, LEVELS)
    limit = None if max_negative_flips is None else _share(max_negative_flips)
    before = inputs.instrumented(old)
    after = str(new) if new.suffix == ".tflite" else inputs.instrumented(new)
    kind = before.classes_of(of_output)
    names_in_order("--classes", inputs.names(classes), kind.count)
    labels = True if kind.has_one_class else "any"
    of_causes = inputs.GIVEN.get() & {"flips", "level", "seed"}
    if flips and of_causes and labels is not True:
        raise inputs.no_effect(min(of_causes), "one class for each sample: others have no causes")
    samples = inputs.dataset(data, before, normalise, labels=labels, classes=classes)
    result = versions.compare(
        before, after, samples.x, samples.y, tolerance=tolerance, output=of_output
    )
    print(result.summary())
    inputs.show(result.to_frame(), output)
    worse = result.negative
    causes, names = None, inputs.names(classes, samples.class_names)
    models = [im.model for im in (before, after) if not isinstance(im, str)]
    shapes = [[v.shape for v in model.weights] for model in models]
    if flips and len(worse) and shapes[0] != shapes[-1]:
        print("The versions have different architectures: no weights explain the flips.")
    elif flips and len(worse) and labels is True:
        x = samples.x[worse[:flips]]
        causes = versions.explain_flips(before, after, x, level=level, output=of_output, rng=seed)
        causes.samples = worse[:flips]
        print("\n\n".join(causes.summary(i, names) for i in range(len(causes))))
    bound = result.upper_bound(len(worse))
    passes = limit is None or bound <= limit
    digits = 2 if limit is None or abs(limit - round(limit, 4)) < 1e-12 else 10
    safe = ceil(bound * 10 ** (digits + 2)) / 10 ** (digits + 2)  # a bound is not rounded down
    verdict = f"Negative flips: {len(worse)} of {len(samples.x)}, at most {safe:.{digits}%}"
    verdict += "" if limit is None else f"; the limit is {limit:.{digits}%}"
    if page is not None:
        _write_page(page, f"{old.name} → {new.name}", verdict, result, causes, samples.x, names)
    if junit is not None:  # one test case, as services for continuous integration read it
        from xml.etree.ElementTree import Element, ElementTree, SubElement

        suite = Element("testsuite", name="nnslicer diff", tests="1", failures=str(int(not passes)))
        case = SubElement(suite, "testcase", name="negative flips", classname="nnslicer")
        if not passes:
            SubElement(case, "failure", message=verdict)
        tree = ElementTree(suite)
        inputs.write(junit, lambda file: tree.write(file, encoding="utf-8", xml_declaration=True))
    print(f"{verdict}: {'passed' if passes else 'failed'}." if limit is not None else f"{verdict}.")
    if not passes:
        raise typer.Exit(1)


def _share(text: str) -> float:
    number = text.strip()
    try:
        share = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise InvalidArgumentError(
            f"--max-negative-flips is a share such as '1%' or '0.01'. Received: {text!r}"
        )
    return share


def _write_page(
    path: Path,
    title: str,
    verdict: str,
    result: "VersionComparison",
    causes: "FlipCauses | None",
    x: "np.ndarray",
    names: tuple[str, ...],
) -> None:
    """Write the tables, and each explained flip with its picture, as a page."""
    from matplotlib.figure import Figure

    from nnslicer_tf.report import pages
    from nnslicer_tf.report.figures import figure_bytes, show_image

    report = pages.Page(title, [pages.Text(verdict + "."), pages.Text(result.summary())])
    report.add(pages.Heading("Answers"), pages.Table(result.to_frame(), "By class"))
    report.add(pages.Heading("Layers"), pages.Table(result.layers, "Changes and what they do"))
    for flip in range(0 if causes is None else len(causes)):
        assert causes is not None
        sample = int(causes.samples[flip])
        report.add(pages.Heading(f"Sample {sample}"), pages.Text(causes.summary(flip, names)))
        if x[sample].ndim == 3:
            figure = Figure(figsize=(2, 2), layout="constrained")
            show_image(figure.subplots(), x[sample])
            report.add(pages.Picture(figure_bytes(figure, "png"), f"Sample {sample}"))
        report.add(pages.Table(causes.changes(flip), "The changes that made it"))
    html = report.html(path.parent)
    inputs.write(path, lambda file: file.write_text(html, encoding="utf-8"))
