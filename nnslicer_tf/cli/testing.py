"""Commands that test a model: detect, cover, inspect, lines."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnslicer_tf._files import atomic_path
from nnslicer_tf.cli import inputs
from nnslicer_tf.cli.inputs import (
    ClassesOption,
    DataOption,
    ModelOption,
    NormaliseOption,
    ProfileOption,
    SeedOption,
)
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nnslicer_tf import InstrumentedModel, Slicer

_MOST = 40  # rows of a table that are printed
_MOST_SEEN = 10  # most inputs of each kind in a view

Table = Annotated[Path | None, typer.Option("--output", help="File for the table, .csv.")]


def detect(
    model: ModelOption,
    profile: ProfileOption,
    normal: Annotated[str, typer.Option(help="Normal inputs to learn from, as for --data.")],
    data: DataOption,
    output: Table = None,
    preset: Annotated[
        str,
        typer.Option(help="'margin', 'fused', 'stable', 'slices', 'lean', 'photos' or 'paper'."),
    ] = "fused",
    false_positive_rate: Annotated[
        float, typer.Option(help="Share of normal inputs that may be flagged.")
    ] = 0.05,
    explore: Annotated[
        Path | None,
        typer.Option(help="File for a view of slices of flagged and other inputs, .html."),
    ] = None,
    seed: SeedOption = 0,
    normalise: NormaliseOption = "unit",
) -> None:
    """Flag adversarial inputs, whose slices do not fit the prediction."""
    for path, ending in ((output, ".csv"), (explore, ".html")):
        if path is not None:
            inputs.writable(path, ending)
    slicer = inputs.slicer(model, profile, 0.0)
    known = inputs.dataset(normal, slicer.im, normalise, split="train")
    found = inputs.dataset(data, slicer.im, normalise)
    import pandas as pd

    from nnslicer_tf.detection import SliceDetector

    detector = SliceDetector(slicer, preset, false_positive_rate=false_positive_rate, rng=seed)
    detector.fit(known.x)
    flagged = detector.predict(found.x).astype(bool)
    scores = detector.decision_function(found.x)
    predicted = slicer.im.logits(found.x).argmax(axis=1)
    columns = {"predicted": predicted, "anomaly": scores, "adversarial": flagged}
    frame = pd.DataFrame(columns).rename_axis("sample").reset_index()
    _show(frame, output)
    print(f"{int(flagged.sum())} of {len(flagged)} flagged, threshold {detector.threshold_:.4g}")
    if explore is not None:
        x = {"flagged": found.x[flagged], "not flagged": found.x[~flagged]}
        _view({name: part[:_MOST_SEEN] for name, part in x.items() if len(part)}, slicer, explore)


def _view(x: "dict[str, np.ndarray]", slicer: "Slicer", path: Path) -> None:
    """Write an interactive view of slices of named inputs."""
    from nnslicer_tf.report.explorer import explore

    slices = {name: slicer.slice_each(part, outputs="predicted") for name, part in x.items()}
    explore(slices, slicer.im, x, profile=slicer.profile).save(path)
    print(f"Written to {path}")


def cover(
    model: ModelOption,
    data: DataOption,
    threshold: Annotated[
        float, typer.Option(help="Neurons above it, in their layer's scaled values, are covered.")
    ] = 0.25,
    output: Table = None,
    normalise: NormaliseOption = "unit",
) -> None:
    """Measure how much of the network the inputs exercise (neuron coverage)."""
    if output is not None:
        inputs.writable(output, ".csv")
    im = inputs.instrumented(model)
    found = inputs.dataset(data, im, normalise)
    from nnslicer_tf.deepxplore import NeuronCoverage

    coverage = NeuronCoverage(im, threshold=threshold)
    coverage.update(found.x)
    _show(coverage.to_frame(), output)
    print(f"{coverage.total():.1%} of the neurons are covered by {len(found.x)} inputs")


def inspect(
    model: ModelOption,
    data: DataOption,
    units: Annotated[
        str, typer.Option(help="Names of the operations, with * for any: 'relu*'.")
    ] = "*relu*",
    measure: Annotated[str, typer.Option(help="Measure of affinity.")] = "correlation",
    output: Table = None,
    classes: ClassesOption = "",
    normalise: NormaliseOption = "unit",
) -> None:
    """Show which units respond to which class (DeepBase); the data needs labels."""
    if output is not None:
        inputs.writable(output, ".csv")
    im = inputs.instrumented(model)
    found = inputs.dataset(data, im, normalise, labels=True, split="train")
    from nnslicer_tf import deepbase

    shown = inputs.names(classes, found.class_names) or tuple(map(str, range(found.classes)))
    hypotheses = deepbase.classes(found.y, list(shown))
    frame = deepbase.inspect(im, found.x, hypotheses, [measure], units=units)
    order = frame["score"].abs().sort_values(ascending=False).index
    _show(frame.loc[order], output)


def lines(
    model: ModelOption,
    start: Annotated[
        str,
        typer.Option(
            "--from",
            help="Start of the line: values such as '0,0.5', or the index of a sample.",
        ),
    ],
    end: Annotated[str, typer.Option("--to", help="End of the line, in the same form.")],
    data: Annotated[
        str | None, typer.Option(help="Data with the samples, if indices are given.")
    ] = None,
    output: Table = None,
    picture: Annotated[
        Path | None, typer.Option(help="File for a picture of the outputs, .png or .pdf.")
    ] = None,
    least: Annotated[
        bool, typer.Option("--least", help="The prediction is the smallest output (ACAS Xu).")
    ] = False,
    normalise: NormaliseOption = "unit",
) -> None:
    """Show exactly what the model predicts on the line between two inputs."""
    for path, endings in ((output, (".csv",)), (picture, (".png", ".pdf"))):
        if path is not None:
            inputs.writable(path, *endings)
    im = inputs.instrumented(model)
    samples = None if data is None else inputs.dataset(data, im, normalise).x
    q, r = (
        _point(text, im, samples, option) for text, option in ((start, "--from"), (end, "--to"))
    )
    from nnslicer_tf import exactline
    from nnslicer_tf.report import save_figure

    line = exactline.exact_line(im, q, r)
    regions = line.classify(lowest=least)
    _show(regions.to_frame(), output)
    print(f"{line!r}, {len(regions)} regions")
    if picture is not None:
        from matplotlib import pyplot

        figure, axes = pyplot.subplots(layout="constrained")
        line.plot(axes)
        save_figure(figure, picture)
        print(f"Written to {picture}")


def _point(
    text: str, im: "InstrumentedModel", samples: "np.ndarray | None", option: str
) -> "np.ndarray":
    """Return a point in the input space, given its values or the index of a sample."""
    import numpy as np

    try:
        values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        raise InvalidArgumentError(
            f"{option} takes values such as '0,0.5,1', or the index of a sample. Received: {text!r}"
        ) from None
    if len(values) == 1 and samples is not None:
        return samples[inputs.in_range(int(values[0]), len(samples), option)]
    if len(values) != int(np.prod(im.input_shape)):
        raise InvalidArgumentError(
            f"{option} has {len(values)} values; a sample of the model has "
            f"{int(np.prod(im.input_shape))}. For a sample's index, give --data."
        )
    return values.reshape(im.input_shape)


def _show(frame: "pd.DataFrame", output: Path | None) -> None:
    """Print a table's first rows, and write all of them to a file."""
    shown = frame.head(_MOST)
    print(shown.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    if len(frame) > len(shown):
        print(f"… {len(frame) - len(shown):,} rows more")
    if output is not None:
        with atomic_path(output) as temporary:
            frame.to_csv(temporary, index=False)
        print(f"Written to {output}")
