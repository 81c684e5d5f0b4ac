"""Commands that test a model: detect, cover, inspect, causes, lines, planes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nnslicer_tf.cli import inputs, tables
from nnslicer_tf.cli.inputs import (
    ClassesOption,
    DataOption,
    ModelOption,
    NormaliseOption,
    ProfileOption,
    SeedOption,
)
from nnslicer_tf.cli.tables import TableOption
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel

_MAX_VIEWED = 10  # inputs of each kind in a view


def detect(
    model: ModelOption,
    profile: ProfileOption,
    normal: Annotated[str, typer.Option(help="Normal inputs to learn from, as for --data.")],
    data: DataOption,
    output: TableOption = None,
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
    predicted = slicer.im.classes.from_logits(slicer.im.logits(found.x))
    columns = {"predicted": predicted, "anomaly": scores, "adversarial": flagged}
    frame = pd.DataFrame(columns).rename_axis("sample").reset_index()
    tables.show(frame, output)
    print(f"{int(flagged.sum())} of {len(flagged)} flagged, threshold {detector.threshold_:.4g}")
    if explore is not None:
        from nnslicer_tf.report.explorer import explore as explore_slices

        parts = {"flagged": found.x[flagged], "not flagged": found.x[~flagged]}
        x = {name: part[:_MAX_VIEWED] for name, part in parts.items() if len(part)}
        slices = {name: slicer.slice_each(part, outputs="predicted") for name, part in x.items()}
        explore_slices(slices, slicer.im, x, profile=slicer.profile).save(explore)
        print(f"Written to {explore}")


def cover(
    model: ModelOption,
    data: DataOption,
    threshold: Annotated[
        float, typer.Option(help="Neurons above it, in their layer's scaled values, are covered.")
    ] = 0.25,
    output: TableOption = None,
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
    tables.show(coverage.to_frame(), output)
    print(f"{coverage.total():.1%} of the neurons are covered by {len(found.x)} inputs")


def inspect(
    model: ModelOption,
    data: DataOption,
    units: Annotated[
        str | None,
        typer.Option(
            help="Names of the operations, with * for any: 'relu*'. By default all activations."
        ),
    ] = None,
    measure: Annotated[str, typer.Option(help="Measure of affinity.")] = "correlation",
    output: TableOption = None,
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
    activations = [o.name for o in im.operations if o.kind in ("rectify", "elementwise")]
    chosen = units or activations or [o.name for o in im.operations if o.kernels]
    frame = deepbase.inspect(im, found.x, hypotheses, [measure], units=chosen)
    order = frame["score"].abs().sort_values(ascending=False).index
    tables.show(frame.loc[order], output)


def causes(
    model: ModelOption,
    data: DataOption,
    method: Annotated[
        str, typer.Option(help="'gradient_contrast', 'patching', 'tarantula', 'contrast' …")
    ] = "gradient_contrast",
    level: Annotated[
        str, typer.Option(help="'channel', 'neuron', 'synapse' or 'layer'.")
    ] = "channel",
    most: Annotated[int, typer.Option(help="Most samples of either kind.", min=1)] = 200,
    output: TableOption = None,
    seed: SeedOption = 0,
    normalise: NormaliseOption = "unit",
) -> None:
    """Show which neurons or synapses are to blame for wrong answers; the data needs labels."""
    if output is not None:
        inputs.writable(output, ".csv")
    im = inputs.instrumented(model)
    found = inputs.dataset(data, im, normalise, labels=True)
    from nnslicer_tf import debugging

    runs = debugging.Runs.split(im, found.x, found.y).sampled(most, seed)
    failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
    suspicion = debugging.suspicious(im, failing, passing, method, rng=seed)
    tables.show(suspicion.to_frame(level), output)
    print(f"{suspicion!r}, from {len(failing[0])} wrong and {len(passing[0])} right answers")


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
    output: TableOption = None,
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
    first, last = (
        _point(text, im, samples, option) for text, option in ((start, "--from"), (end, "--to"))
    )
    from nnslicer_tf import exactline
    from nnslicer_tf.report import save_figure

    line = exactline.exact_line(im, first, last)
    regions = line.classify(lowest=least)
    tables.show(regions.to_frame(), output)
    print(f"{line!r}, {len(regions)} regions")
    if picture is not None:
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        line.plot(figure.subplots())
        save_figure(figure, picture)
        print(f"Written to {picture}")


def planes(
    model: ModelOption,
    corner: Annotated[
        list[str],
        typer.Option(
            help="A corner of the polygon, three times or more, in order around it: values such as "
            "'0,0.5', or the index of a sample."
        ),
    ],
    data: Annotated[
        str | None, typer.Option(help="Data with the samples, if indices are given.")
    ] = None,
    output: TableOption = None,
    picture: Annotated[
        Path | None, typer.Option(help="File for a picture of the classes, .png or .pdf.")
    ] = None,
    least: Annotated[
        bool, typer.Option("--least", help="The prediction is the smallest output (ACAS Xu).")
    ] = False,
    max_regions: Annotated[
        int, typer.Option(help="Stop if there are more regions.", min=1)
    ] = 1_000_000,
    normalise: NormaliseOption = "unit",
) -> None:
    """Show exactly what the model predicts in a polygon between inputs."""
    for path, endings in ((output, (".csv",)), (picture, (".png", ".pdf"))):
        if path is not None:
            inputs.writable(path, *endings)
    im = inputs.instrumented(model)
    samples = None if data is None else inputs.dataset(data, im, normalise).x
    import numpy as np

    from nnslicer_tf import exactline
    from nnslicer_tf.report import save_figure

    polygon = np.stack([_point(text, im, samples, "--corner") for text in corner])
    plane = exactline.exact_plane(im, polygon, max_regions=max_regions, progress=True)
    classes = plane.classify(lowest=least)
    tables.show(classes.to_frame(), output)
    print(f"{plane!r}, {classes!r}")
    if picture is not None:
        from matplotlib.figure import Figure

        figure = Figure(layout="constrained")
        classes.plot(figure.subplots())
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
