"""Commands that test a model: detect, cover, inspect, causes, lines, planes."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nnslicer_tf._checks import check_name, counted
from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel

MAX_VIEWED = 10  # Inputs of each kind in a view

_OF_RANGES = {
    "k-multisection": ("KMultisectionCoverage", "sections of the neurons' ranges"),
    "boundary": ("BoundaryCoverage", "corners of the neurons' ranges"),
}
CRITERIA = ("neuron", "top-k", *_OF_RANGES)


def detect(
    model: inputs.ModelOption,
    profile: inputs.ProfileOption,
    normal: Annotated[str, Option(help="Normal inputs to learn from, as for --data.")],
    data: inputs.DataOption,
    output: inputs.TableOption = None,
    preset: Annotated[
        str, Option(help="'margin', 'fused', 'stable', 'slices', 'lean', 'photos' or 'paper'.")
    ] = "fused",
    false_positive_rate: Annotated[float, Option(help="Allowed share of false alarms.")] = 0.05,
    explore: Annotated[
        Path | None, inputs.file_option("a view of slices of flagged and other inputs", ".html")
    ] = None,
    seed: inputs.SeedOption = 0,
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Flag adversarial inputs, whose slices do not fit the prediction."""
    slicer = inputs.slicer(model, profile, 0.0)
    known = inputs.dataset(normal, slicer.im, normalise, split="train")
    x = inputs.dataset(data, slicer.im, normalise).x
    import pandas as pd

    from nnslicer_tf.detection import SliceDetector

    detector = SliceDetector(slicer, preset, false_positive_rate=false_positive_rate, rng=seed)
    detector.fit(known.x)
    flagged = detector.predict(x).astype(bool)
    scores = detector.decision_function(x)
    predicted = slicer.im.classes.from_logits(slicer.im.logits(x))
    columns = {"predicted": predicted, "anomaly": scores, "adversarial": flagged}
    inputs.show(pd.DataFrame(columns).rename_axis("sample").reset_index(), output)
    print(f"{int(flagged.sum())} of {len(flagged)} flagged, threshold {detector.threshold_:.4g}")
    if explore is not None:
        from nnslicer_tf import explore as explore_slices

        parts = {"flagged": x[flagged], "not flagged": x[~flagged]}
        viewed = {name: part[:MAX_VIEWED] for name, part in parts.items() if len(part)}
        slices = {n: slicer.slice_each(part, outputs="predicted") for n, part in viewed.items()}
        explore_slices(slices, slicer.im, viewed, profile=slicer.profile).save(explore)
        print(f"Written to {explore}")


def cover(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    criterion: Annotated[
        str, Option(help=f"One of {', '.join(CRITERIA)}; the last two need --train.")
    ] = "neuron",
    threshold: Annotated[
        float, Option(help="With --criterion neuron: those with a scaled value above it count.")
    ] = 0.25,
    train: Annotated[
        str | None, Option(help=f"With --criterion {' or '.join(_OF_RANGES)}: training data.")
    ] = None,
    output: inputs.TableOption = None,
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Measure how much of the network the inputs exercise."""
    check_name("criterion", criterion, CRITERIA)
    if train is None and criterion in _OF_RANGES:
        raise InvalidArgumentError(f"--criterion {criterion} needs --train, for neurons' ranges.")
    im = inputs.instrumented(model)
    from nnslicer_tf import deepxplore

    coverage: deepxplore.Coverage
    kind, what = _OF_RANGES.get(criterion, ("", "neurons"))
    known: Any = inputs.dataset(str(train), im, normalise, split="train").x if kind else None
    x = inputs.dataset(data, im, normalise).x
    if kind:
        coverage = getattr(deepxplore, kind)(deepxplore.NeuronRanges.from_data(im, known))
    elif criterion == "top-k":
        coverage = deepxplore.TopKCoverage(im)
    else:
        coverage = deepxplore.NeuronCoverage(im, threshold=threshold)
    coverage.update(x)
    inputs.show(coverage.to_frame(), output)
    print(f"{coverage.total():.1%} of the {what} are covered by {counted(len(x), 'input')}")


def inspect(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    units: Annotated[
        str | None,
        Option(help="Names of operations, with * for any: 'relu*'. By default all activations."),
    ] = None,
    measure: Annotated[str, Option(help="Measure of affinity.")] = "correlation",
    output: inputs.TableOption = None,
    classes: inputs.ClassesOption = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Show which units respond to which class (DeepBase); the data needs labels."""
    im = inputs.instrumented(model)
    if im.classes.is_number:
        raise InvalidArgumentError(
            "`nnslicer inspect` says which units respond to which class, and the answers of "
            f"'{im.model.name}' are numbers. In Python, deepbase.inspect takes other hypotheses."
        )
    samples = inputs.dataset(data, im, normalise, labels=True, split="train", classes=classes)
    from nnslicer_tf import deepbase

    names = inputs.names(classes, samples.class_names) or tuple(map(str, range(samples.classes)))
    hypotheses = deepbase.classes(samples.y, list(names))
    activations = [o.name for o in im.operations if o.kind in ("rectify", "elementwise")]
    chosen = units or activations or [o.name for o in im.operations if o.kernels]
    frame = deepbase.inspect(im, samples.x, hypotheses, [measure], units=chosen)
    inputs.show(frame.loc[frame["score"].abs().sort_values(ascending=False).index], output)


def causes(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    method: Annotated[str, Option(help="'gradient', or 'adjustment'.")] = "gradient",
    level: Annotated[str, Option(help="'channel', 'neuron', 'synapse' or 'layer'.")] = "channel",
    most: Annotated[int, Option(help="Most samples of either kind.", min=1)] = 200,
    output: inputs.TableOption = None,
    seed: inputs.SeedOption = 0,
    classes: inputs.ClassesOption = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Show which neurons or synapses are to blame for wrong answers; the data needs labels."""
    im = inputs.instrumented(model)
    samples = inputs.dataset(data, im, normalise, labels=True, classes=classes)
    from nnslicer_tf import debugging

    runs = debugging.Runs.split(im, samples.x, samples.y).sampled(most, seed)
    failing, passing = ((part.x, part.right) for part in (runs.failing, runs.passing))
    suspicion = debugging.suspicious(im, failing, passing, method)
    inputs.show(suspicion.to_frame(level), output)
    print(f"{suspicion!r}, from {len(failing[0])} wrong and {len(passing[0])} right answers")


def lines(
    model: inputs.ModelOption,
    start: Annotated[
        str,
        Option("--from", help="Start of the line: values such as '0,0.5', or a sample's index."),
    ],
    end: Annotated[str, Option("--to", help="End of the line, in the same form.")],
    data: inputs.PointDataOption = None,
    output: inputs.TableOption = None,
    picture: inputs.PictureOption = None,
    least: inputs.LeastOption = False,
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Show exactly what the model predicts on the line between two inputs."""
    im = inputs.instrumented(model)
    first, last = _points({"--from": [start], "--to": [end]}, im, data, normalise)
    from nnslicer_tf import exactline

    line = exactline.exact_line(im, first, last)
    regions = line.classify(lowest=least)
    inputs.show(regions.to_frame(), output)
    print(f"{line!r}, {counted(len(regions), 'region')}")
    inputs.draw(picture, line.plot)


def planes(
    model: inputs.ModelOption,
    corner: Annotated[
        list[str],
        Option(
            help="A corner of the polygon, three times or more, in order around it: values such as "
            "'0,0.5', or the index of a sample."
        ),
    ],
    data: inputs.PointDataOption = None,
    output: inputs.TableOption = None,
    picture: inputs.PictureOption = None,
    least: inputs.LeastOption = False,
    max_regions: Annotated[int, Option(help="Stop if there are more regions.", min=1)] = 1_000_000,
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Show exactly what the model predicts in a polygon between inputs."""
    im = inputs.instrumented(model)
    polygon = _points({"--corner": corner}, im, data, normalise)
    import numpy as np

    from nnslicer_tf import exactline

    plane = exactline.exact_plane(im, np.stack(polygon), max_regions=max_regions, progress=True)
    classes = plane.classify(lowest=least)
    inputs.show(classes.to_frame(), output)
    print(f"{plane!r}, {classes!r}")
    inputs.draw(picture, classes.plot)


def _points(
    texts: dict[str, list[str]], im: "InstrumentedModel", data: str | None, normalise: str
) -> "list[np.ndarray]":
    """Return points in the input space, given their values or indices of samples by option."""
    import numpy as np

    samples = None if data is None else inputs.dataset(data, im, normalise).x
    points = []
    for option, text in ((option, text) for option, several in texts.items() for text in several):
        is_index = samples is not None and "," not in text
        try:
            values = [int(text) if is_index else float(part) for part in text.split(",")]
            if not all(-np.inf < value < np.inf for value in values):
                raise ValueError("not finite")
        except ValueError:
            raise InvalidArgumentError(
                f"{option} takes finite values such as '0,0.5,1', or, with --data, the index of a "
                f"sample, such as '3'. Received: {text!r}"
            ) from None
        if samples is not None and is_index:
            points.append(samples[inputs.in_range(int(values[0]), len(samples), option)])
            continue
        size = int(np.prod(im.input_shape))
        if len(values) != size:
            raise InvalidArgumentError(
                f"{option} has {counted(len(values), 'value')}; a sample of the model has {size}. "
                "To use the index of a sample, pass --data."
            )
        points.append(np.reshape(values, im.input_shape))
    if data is not None and all("," in text for several in texts.values() for text in several):
        raise inputs.no_effect("data", f"the index of a sample in {' or '.join(texts)}")
    return points
