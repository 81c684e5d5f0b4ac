"""Commands for compressed models: agreement, deviations, suite, layers, recipe."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnslicer_tf._files import atomic_path
from nnslicer_tf.cli import inputs
from nnslicer_tf.cli.inputs import (
    DataOption,
    OptionalDataOption,
    PictureOption,
    SeedOption,
    TableOption,
)
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel
    from nnslicer_tf.debugging.comparison import LayerComparison

OriginalOption = Annotated[
    Path, typer.Option("--original", help="The original, a .keras or .h5 file.")
]
CompressedOption = Annotated[
    Path, typer.Option("--compressed", help="The compressed model, .tflite, .keras or .h5.")
]
ScaleOption = Annotated[
    float | None,
    typer.Option(
        "--scale",
        help="The models expect pixels 0 … 255 divided by this; by default 255, or 1 if the "
        "original scales its input by itself.",
    ),
]
DeviationsOption = Annotated[
    Path | None,
    typer.Option("--deviations", help="Deviations from 'nnslicer deviations', instead of --data."),
]


@dataclass(frozen=True)
class _Models:
    """Two models, as `ModelPair` takes them, and the original, instrumented."""

    im: "InstrumentedModel"
    original: Any
    compressed: Any


@dataclass(frozen=True)
class _Samples:
    """Inputs before preprocessing, their labels and preprocessing, as far as known."""

    x: "np.ndarray"
    y: "np.ndarray | None"
    preprocess: "Callable[[np.ndarray], np.ndarray] | None"
    columns: tuple[str, ...]


def agreement(
    original: OriginalOption,
    compressed: CompressedOption,
    data: DataOption,
    output: TableOption = None,
    scale: ScaleOption = None,
) -> None:
    """Show how often two models agree on a test set, and their accuracies."""
    inputs.writable(output, ".csv")
    models = _load(original, compressed)
    samples = _samples(data, models.im, scale)
    from nnslicer_tf import dflare

    pair = dflare.ModelPair(models.original, models.compressed, samples.preprocess)
    result = dflare.agreement(pair, samples.x, samples.y)
    frame = result.to_frame()
    if output is not None:
        with atomic_path(output) as temporary:
            frame.to_csv(temporary, index=False)
        print(f"Written to {output}")
    if result.differs.any():
        inputs.show(frame[frame["differs"]].drop(columns="differs"))
    print(repr(result))


def deviations(
    original: OriginalOption,
    compressed: CompressedOption,
    data: DataOption,
    output: Annotated[Path, typer.Option(help="File for the deviations, .npz.")] = Path(
        "deviations.npz"
    ),
    picture: Annotated[
        Path | None, typer.Option(help="File for a picture of the smallest ones, .png or .pdf.")
    ] = None,
    table: Annotated[Path | None, typer.Option(help="File for the table, .csv.")] = None,
    suite: Annotated[
        Path | None, typer.Option(help="Folder for a test suite for future compressed models.")
    ] = None,
    scale: ScaleOption = None,
    max_distance: Annotated[
        float | None,
        typer.Option(help="Largest change of a value; for images on a scale of 0 … 255."),
    ] = None,
    max_queries: Annotated[int, typer.Option(help="Most queries per seed.", min=1)] = 1000,
    minimise: Annotated[
        bool, typer.Option("--minimise", help="Undo changes that a deviation does not need.")
    ] = False,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for finished searches, from which an interrupted run resumes."),
    ] = None,
    seed: SeedOption = 0,
) -> None:
    """Find inputs on which a compressed model answers differently from its original.

    The data are the seeds: images, rows of a table, signals or sentences.
    """
    inputs.writable(output, ".npz")
    inputs.writable(picture, ".png", ".pdf")
    inputs.writable(table, ".csv")
    inputs.writable(None if suite is None else suite / "test_deviations.py")
    models = _load(original, compressed)
    samples = _samples(data, models.im, scale)
    import pandas as pd

    from nnslicer_tf import dflare
    from nnslicer_tf.report import save_figure

    seeds: Any = samples.x
    if samples.columns and seeds.ndim == 2 and len(samples.columns) == seeds.shape[1]:
        seeds = pd.DataFrame(seeds, columns=list(samples.columns))
    pair = dflare.ModelPair(models.original, models.compressed, samples.preprocess)
    search = dflare.DFlare(max_queries=max_queries, max_distance=max_distance)
    result = dflare.find_deviations(
        pair, seeds, samples.y, search=search, rng=seed, checkpoint=checkpoint
    )
    if minimise:
        result = dflare.minimise(pair, result)
    result.save(output)
    written = [output]
    if table is not None:
        with atomic_path(table) as temporary:
            result.to_frame().to_csv(temporary, index=False)
        written.append(table)
    if picture is not None and result.found.any():
        save_figure(result.figure(), picture)
        written.append(picture)
    if suite is not None and result.found.any():
        written.append(dflare.export_suite(result, suite, samples.preprocess))
    print(result.to_frame().to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    print(f"{result!r}\nWritten to {', '.join(map(str, written))}")


def suite(
    file: Annotated[Path, typer.Argument(help="Deviations from 'nnslicer deviations', .npz.")],
    output: Annotated[Path, typer.Option(help="Folder for the tests.")] = Path("suite"),
    scale: Annotated[
        float, typer.Option(help="The models expect pixels 0 … 255 divided by this.")
    ] = 255.0,
) -> None:
    """Write deviations as tests that a future compressed model has to pass."""
    inputs.writable(output / "test_deviations.py")
    from nnslicer_tf import dflare

    result = dflare.DeviationSet.load(file)
    preprocess = _divided(scale) if result.images.ndim == 4 else None
    print(f"Written to {dflare.export_suite(result, output, preprocess)}")


def layers(
    original: OriginalOption,
    compressed: CompressedOption,
    data: OptionalDataOption = None,
    deviations: DeviationsOption = None,
    output: TableOption = None,
    picture: PictureOption = None,
    level: Annotated[str, typer.Option(help="'layer' or 'channel'.")] = "layer",
    scale: ScaleOption = None,
) -> None:
    """Show which layers make a compressed model answer differently."""
    inputs.writable(output, ".csv")
    inputs.writable(picture, ".png", ".pdf")
    comparison = _compare(original, compressed, data, deviations, scale)
    inputs.show(comparison.to_frame(level), output)
    print(repr(comparison))
    if picture is not None:
        inputs.draw(picture, comparison.figure())


def recipe(
    original: OriginalOption,
    compressed: CompressedOption,
    data: OptionalDataOption = None,
    deviations: DeviationsOption = None,
    budget: Annotated[
        float, typer.Option(help="Largest share of the weights to leave in floating point.")
    ] = 0.05,
    output: Annotated[
        Path | None,
        typer.Option(help="File for the layers, their tensors and the AI Edge recipe, .json."),
    ] = None,
    scale: ScaleOption = None,
) -> None:
    """Choose the layers that a quantiser should leave in floating point."""
    inputs.writable(output, ".json")
    comparison = _compare(original, compressed, data, deviations, scale)
    from nnslicer_tf import debugging

    result = debugging.recipe(comparison, budget)
    inputs.show(result.to_frame())
    print(f"{result!r}\nTensors: {', '.join(result.tensors()) or 'none'}")
    if output is not None:
        content: dict[str, Any] = {"layers": result.layers, "tensors": result.tensors()}
        if compressed.suffix == ".tflite":
            content["ai_edge"] = result.ai_edge()
        with atomic_path(output) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(f"Written to {output}")


def _load(original: Path, compressed: Path) -> _Models:
    """Load both models; those that end in logits get a softmax."""
    is_file = compressed.suffix == ".tflite"
    ims = [inputs.instrumented(path) for path in (original, compressed)[: 1 if is_file else 2]]
    from nnslicer_tf.dflare import with_softmax

    models: list[Any] = [
        with_softmax(im.model) if im.classes.are_logits and not im.classes.is_number else im.model
        for im in ims
    ]
    return _Models(ims[0], models[0], str(compressed) if is_file else models[1])


def _samples(data: str, im: "InstrumentedModel", scale: float | None) -> _Samples:
    """Return images as bytes for `find_deviations`, and other inputs as they are.

    Raises InvalidArgumentError if images have other values than 0 … 255 or 0 … 1.
    """
    import numpy as np

    samples = inputs.dataset(data, im, "none")
    x, y = np.asarray(samples.x), samples.y if len(samples.y) else None
    if x.ndim != 4:
        return _Samples(x, y, None, samples.columns)
    low, high = float(x.min()), float(x.max())
    if samples.name == "digits":
        x = x * (255 / 16)  # their values are 0 … 16
    elif low < 0 or high > 255:
        raise InvalidArgumentError(
            f"The images are changed as bytes 0 … 255; those of '{data}' have values from {low:g} "
            f"to {high:g}. Give them as they were before preprocessing: 0 … 255 or 0 … 1."
        )
    elif high <= 1:
        x = x * 255
    if scale is None:
        scales_itself = any(
            operation.kind == "scale" and set(operation.inputs) & set(im.input_operations)
            for operation in im.operations
        )
        scale = 1.0 if scales_itself else 255.0
        print(f"Pixels 0 … 255 are divided by {scale:g} (--scale).")
    return _Samples(np.rint(x).astype(np.uint8), y, _divided(scale), ())


def _divided(scale: float) -> "Callable[[np.ndarray], np.ndarray]":
    """Return the preprocessing that divides pixels."""
    import numpy as np

    if not scale > 0:
        raise InvalidArgumentError(f"--scale must be above 0. Received: {scale:g}")
    return lambda x: x.astype(np.float32) / np.float32(scale)


def _compare(
    original: Path, compressed: Path, data: str | None, deviations: Path | None, scale: float | None
) -> "LayerComparison":
    """Compare two models layer by layer, on deviations or on the samples where they differ."""
    if (data is None) == (deviations is None):
        raise InvalidArgumentError("Give either --data or --deviations.")
    models = _load(original, compressed)
    import numpy as np

    from nnslicer_tf import InstrumentedModel, debugging, dflare

    if deviations is not None:
        result = dflare.DeviationSet.load(deviations)
        if not result.found.any():
            raise InvalidArgumentError(f"'{deviations}' has no deviations: none was found.")
        x = result.images
        if x.ndim == 4:
            x = _divided(255.0 if scale is None else scale)(x)
    else:
        samples = _samples(str(data), models.im, scale)
        x = samples.x if samples.preprocess is None else samples.preprocess(samples.x)
    im = models.im if models.original is models.im.model else InstrumentedModel(models.original)
    return debugging.compare_layers(im, models.compressed, np.asarray(x))
