"""Commands for compressed models: agreement, deviations, suite, layers, recipe."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnslicer_tf._files import atomic_path
from nnslicer_tf.cli import inputs, tables
from nnslicer_tf.cli.inputs import DataOption, SeedOption
from nnslicer_tf.cli.tables import TableOption
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel
    from nnslicer_tf.debugging import LayerComparison

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


def agreement(
    original: OriginalOption,
    compressed: CompressedOption,
    data: DataOption,
    output: TableOption = None,
    scale: ScaleOption = None,
) -> None:
    """Show how often two models agree on a test set, and their accuracies."""
    if output is not None:
        inputs.writable(output, ".csv")
    models = _load(original, compressed)
    samples = _samples(data, models.im, scale)
    from nnslicer_tf import dflare

    pair = dflare.ModelPair(models.original, models.compressed, samples.preprocess)
    found = dflare.agreement(pair, samples.x, samples.y)
    frame = found.to_frame()
    if output is not None:
        with atomic_path(output) as temporary:
            frame.to_csv(temporary, index=False)
        print(f"Written to {output}")
    if found.differs.any():
        tables.show(frame[frame["differs"]].drop(columns="differs"))
    print(repr(found))


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
    for path, endings in ((picture, (".png", ".pdf")), (table, (".csv",))):
        if path is not None:
            inputs.writable(path, *endings)
    if suite is not None:
        inputs.writable(suite / "test_deviations.py")
    models = _load(original, compressed)
    samples = _samples(data, models.im, scale)
    from nnslicer_tf import dflare
    from nnslicer_tf.report import save_figure

    pair = dflare.ModelPair(models.original, models.compressed, samples.preprocess)
    search = dflare.DFlare(max_queries=max_queries, max_distance=max_distance)
    result = dflare.find_deviations(
        pair, samples.named(), samples.y, search=search, rng=seed, checkpoint=checkpoint
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

    found = dflare.DeviationSet.load(file)
    preprocess = _divided(scale) if found.images.ndim == 4 else None
    print(f"Written to {dflare.export_suite(found, output, preprocess)}")


def layers(
    original: OriginalOption,
    compressed: CompressedOption,
    data: Annotated[str | None, typer.Option("--data", help=inputs.DATA)] = None,
    deviations: DeviationsOption = None,
    output: TableOption = None,
    picture: Annotated[
        Path | None, typer.Option(help="File for a picture of the errors, .png or .pdf.")
    ] = None,
    level: Annotated[str, typer.Option(help="'layer' or 'channel'.")] = "layer",
    scale: ScaleOption = None,
) -> None:
    """Show which layers make a compressed model answer differently."""
    for path, endings in ((output, (".csv",)), (picture, (".png", ".pdf"))):
        if path is not None:
            inputs.writable(path, *endings)
    compared = _compared(original, compressed, data, deviations, scale)
    tables.show(compared.to_frame(level), output)
    print(repr(compared))
    if picture is not None:
        from nnslicer_tf.report import save_figure

        save_figure(compared.figure(), picture)
        print(f"Written to {picture}")


def recipe(
    original: OriginalOption,
    compressed: CompressedOption,
    data: Annotated[str | None, typer.Option("--data", help=inputs.DATA)] = None,
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
    if output is not None:
        inputs.writable(output, ".json")
    compared = _compared(original, compressed, data, deviations, scale)
    from nnslicer_tf import debugging

    found = debugging.recipe(compared, budget)
    tables.show(found.to_frame())
    print(f"{found!r}\nTensors: {', '.join(found.tensors()) or 'none'}")
    if output is not None:
        content: dict[str, Any] = {"layers": found.layers, "tensors": found.tensors()}
        if compressed.suffix == ".tflite":
            content["ai_edge"] = found.ai_edge()
        with atomic_path(output) as temporary:
            temporary.write_text(json.dumps(content, indent=1), encoding="utf-8")
        print(f"Written to {output}")


@dataclass(frozen=True)
class _Models:
    """The two models, as `ModelPair` takes them, and the original, instrumented."""

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

    def named(self) -> Any:
        """Return the inputs; a table with names as a data frame."""
        import pandas as pd

        named = self.columns and self.x.ndim == 2 and len(self.columns) == self.x.shape[1]
        return pd.DataFrame(self.x, columns=list(self.columns)) if named else self.x


def _load(original: Path, compressed: Path) -> _Models:
    """Load both models; those that end in logits get a softmax."""
    im = inputs.instrumented(original)
    if compressed.suffix == ".tflite":
        return _Models(im, _with_probabilities(im), str(compressed))
    return _Models(
        im, _with_probabilities(im), _with_probabilities(inputs.instrumented(compressed))
    )


def _with_probabilities(im: "InstrumentedModel") -> Any:
    from nnslicer_tf.dflare import with_softmax

    plain = not im.classes.final and im.classes.count > 1
    return with_softmax(im.model) if plain else im.model


def _samples(data: str, im: "InstrumentedModel", scale: float | None) -> _Samples:
    """Return the data as `find_deviations` takes them: images as bytes, other inputs as they are.

    Raises:
        InvalidArgumentError: if images have other values than 0 … 255 or 0 … 1.
    """
    import numpy as np

    found = inputs.dataset(data, im, "none")
    x, y = np.asarray(found.x), found.y if len(found.y) else None
    columns = tuple(getattr(found, "columns", ()) or ())
    if x.ndim != 4:
        return _Samples(x, y, None, columns)
    low, high = float(x.min()), float(x.max())
    if found.name == "digits":
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
    import numpy as np

    if not scale > 0:
        raise InvalidArgumentError(f"--scale must be above 0. Received: {scale:g}")
    return lambda x: x.astype(np.float32) / np.float32(scale)


def _compared(
    original: Path,
    compressed: Path,
    data: str | None,
    deviations: Path | None,
    scale: float | None,
) -> "LayerComparison":
    """Compare two models layer by layer, on deviations or on the samples where they differ."""
    if (data is None) == (deviations is None):
        raise InvalidArgumentError("Give either --data or --deviations.")
    models = _load(original, compressed)
    import numpy as np

    from nnslicer_tf import InstrumentedModel, debugging, dflare

    if deviations is not None:
        found = dflare.DeviationSet.load(deviations)
        if not found.found.any():
            raise InvalidArgumentError(f"'{deviations}' has no deviations: none was found.")
        x = found.images
        if x.ndim == 4:
            x = _divided(255.0 if scale is None else scale)(x)
    else:
        samples = _samples(str(data), models.im, scale)
        x = samples.x if samples.preprocess is None else samples.preprocess(samples.x)
    im = models.im if models.original is models.im.model else InstrumentedModel(models.original)
    return debugging.compare_layers(im, models.compressed, np.asarray(x))
