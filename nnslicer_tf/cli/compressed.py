"""Commands for compressed models: agreement, deviations, suite, layers, recipe."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nnslicer_tf._environment import import_keras_quietly
from nnslicer_tf._files import atomic_path
from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel
    from nnslicer_tf.debugging.comparison import LayerComparison

    _Preprocess = Callable[[np.ndarray], np.ndarray]

OriginalOption = Annotated[Path, Option("--original", help="The original, a .keras or .h5 file.")]
CompressedOption = Annotated[
    Path, Option("--compressed", help="The compressed model, .tflite, .keras or .h5.")
]
ScaleOption = Annotated[
    float | None,
    Option(
        "--scale",
        help="Divide pixels 0 … 255 by this for the models; by default as recorded, else 255, "
        "or 1 if the original scales its own input.",
    ),
]
DeviationsOption = Annotated[
    Path | None,
    Option("--deviations", help="Deviations from 'nnslicer deviations', instead of --data."),
]


def agreement(
    original: OriginalOption,
    compressed: CompressedOption,
    data: inputs.DataOption,
    output: inputs.TableOption = None,
    scale: ScaleOption = None,
    tolerance: inputs.ToleranceOption = None,
) -> None:
    """Show how often two models agree on a test set, and their accuracies."""
    im, model, other = _load(original, compressed)
    x, y, scale, _ = _samples(data, im, scale)
    from nnslicer_tf import dflare

    options: Any = {"task": im.classes.task, "tolerance": tolerance}
    result = dflare.agreement(dflare.ModelPair(model, other, _divided(scale), **options), x, y)
    frame = result.to_frame()
    inputs.write(output, lambda file: frame.to_csv(file, index=False))
    if result.differs.any():
        inputs.show(frame[frame["differs"]].drop(columns="differs"))
    print(repr(result))


def deviations(
    original: OriginalOption,
    compressed: CompressedOption,
    data: inputs.DataOption,
    output: Annotated[Path, inputs.file_option("the deviations", ".npz")] = Path("deviations.npz"),
    picture: Annotated[
        Path | None, inputs.file_option("a picture of the smallest ones", ".png", ".pdf")
    ] = None,
    table: inputs.TableOption = None,
    suite: Annotated[
        Path | None, Option(help="Folder for a test suite for future compressed models.")
    ] = None,
    scale: ScaleOption = None,
    tolerance: inputs.ToleranceOption = None,
    max_distance: Annotated[
        float | None, Option(help="Largest change of a value; for images on a scale of 0 … 255.")
    ] = None,
    max_queries: Annotated[int, Option(help="Most queries per seed.", min=1)] = 1000,
    minimise: Annotated[
        bool, Option("--minimise", help="Undo changes that a deviation does not need.")
    ] = False,
    checkpoint: inputs.CheckpointOption = None,
    seed: inputs.SeedOption = 0,
) -> None:
    """Find inputs on which a compressed model answers differently from its original.

    The data are the seeds: images, rows of a table, signals or sentences.
    """
    inputs.writable(None if suite is None else suite / "test_deviations.py")
    im, model, other = _load(original, compressed)
    seeds: Any
    seeds, y, scale, columns = _samples(data, im, scale)
    preprocess = _divided(scale)
    import pandas as pd

    from nnslicer_tf import dflare
    from nnslicer_tf.report import save_figure

    if columns and seeds.ndim == 2 and len(columns) == seeds.shape[1]:
        seeds = pd.DataFrame(seeds, columns=list(columns))
    pair = dflare.ModelPair(model, other, preprocess, task=im.classes.task, tolerance=tolerance)
    search = dflare.DFlare(max_queries=max_queries, max_distance=max_distance)
    result = dflare.find_deviations(pair, seeds, y, search=search, rng=seed, checkpoint=checkpoint)
    if minimise:
        result = dflare.minimise(pair, result)
    result.scale = scale
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
        written.append(dflare.export_suite(result, suite, preprocess))
    print(result.to_frame().to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    print(f"{result!r}\nWritten to {', '.join(map(str, written))}")


def suite(
    file: Annotated[Path, Argument(help="Deviations from 'nnslicer deviations', .npz.")],
    output: Annotated[Path, Option(help="Folder for the tests.")] = Path("suite"),
    scale: ScaleOption = None,
) -> None:
    """Write deviations as tests that a future compressed model has to pass."""
    inputs.writable(output / "test_deviations.py")
    import_keras_quietly()
    from nnslicer_tf import dflare

    result = dflare.DeviationSet.load(file)
    recorded = 255.0 if result.scale is None else result.scale
    preprocess = _divided(recorded if scale is None else scale) if result.images.ndim == 4 else None
    print(f"Written to {dflare.export_suite(result, output, preprocess)}")


def layers(
    original: OriginalOption,
    compressed: CompressedOption,
    data: inputs.OptionalDataOption = None,
    deviations: DeviationsOption = None,
    output: inputs.TableOption = None,
    picture: inputs.PictureOption = None,
    level: Annotated[str, Option(help="'layer' or 'channel'.")] = "layer",
    scale: ScaleOption = None,
) -> None:
    """Show which layers make a compressed model answer differently."""
    comparison = _compare(original, compressed, data, deviations, scale)
    inputs.show(comparison.to_frame(level), output)
    print(repr(comparison))
    if picture is not None:
        inputs.draw(picture, comparison.figure())


def recipe(
    original: OriginalOption,
    compressed: CompressedOption,
    data: inputs.OptionalDataOption = None,
    deviations: DeviationsOption = None,
    budget: Annotated[
        float, Option(help="Largest share of the weights to leave in floating point.")
    ] = 0.05,
    output: Annotated[
        Path | None, inputs.file_option("the layers, their tensors and the AI Edge recipe", ".json")
    ] = None,
    scale: ScaleOption = None,
) -> None:
    """Choose the layers that a quantiser should leave in floating point."""
    comparison = _compare(original, compressed, data, deviations, scale)
    from nnslicer_tf import debugging

    result = debugging.recipe(comparison, budget)
    inputs.show(result.to_frame())
    print(f"{result!r}\nTensors: {', '.join(result.tensors()) or 'none'}")
    content: dict[str, Any] = {"layers": result.layers, "tensors": result.tensors()}
    if compressed.suffix == ".tflite":
        content["ai_edge"] = result.ai_edge()
    text = json.dumps(content, indent=1)
    inputs.write(output, lambda file: file.write_text(text, encoding="utf-8"))


def _load(original: Path, compressed: Path) -> tuple["InstrumentedModel", Any, Any]:
    """Return the original, instrumented, and both models, with a softmax after logits."""
    is_file = compressed.suffix == ".tflite"
    ims = [inputs.instrumented(path) for path in (original, compressed)[: 1 if is_file else 2]]
    from nnslicer_tf.dflare import with_softmax

    models: list[Any] = [
        with_softmax(im.model) if im.classes.are_logits and not im.classes.is_number else im.model
        for im in ims
    ]
    return ims[0], models[0], str(compressed) if is_file else models[1]


def _samples(
    data: str, im: "InstrumentedModel", scale: float | None
) -> tuple["np.ndarray", "np.ndarray | None", float | None, tuple[str, ...]]:
    """Return inputs, images as bytes, with labels, scale and columns, if there are any."""
    import numpy as np

    samples = inputs.dataset(data, im, "none")
    x, y = np.asarray(samples.x), samples.y if len(samples.y) else None
    if x.ndim != 4:
        return x, y, None, samples.columns
    low, high = float(x.min()), float(x.max())
    if samples.name == "digits":
        x = x * (255 / 16)  # their values are 0 … 16
    elif low < 0 or high > 255:
        raise InvalidArgumentError(
            f"Images are mutated as bytes, 0 … 255, but those of '{data}' range from {low:g} to "
            f"{high:g}. Pass them before preprocessing: 0 … 255 or 0 … 1."
        )
    elif high <= 1:
        x = x * 255
    return np.rint(x).astype(np.uint8), y, _scale(im, scale), ()


def _scale(im: "InstrumentedModel", scale: float | None) -> float:
    """Return what pixels are divided by: as given or recorded, else as the model suggests."""
    if scale is None:
        takers = [o for name in im.input_operations for o in im.graph.consumers[name]]
        scale = 1.0 if any(o.kind == "scale" for o in takers) else 255.0
        print(f"Pixels 0 … 255 are divided by {scale:g} (--scale).")
    return scale


def _divided(scale: float | None) -> "_Preprocess | None":
    if scale is None:
        return None
    import numpy as np

    if not scale > 0:
        raise InvalidArgumentError(f"--scale must be above 0. Received: {scale:g}")
    return lambda x: x.astype(np.float32) / np.float32(scale)


def _compare(
    original: Path, compressed: Path, data: str | None, deviations: Path | None, scale: float | None
) -> "LayerComparison":
    """Compare two models layer by layer, on deviations or on the samples where they differ."""
    if (data is None) == (deviations is None):
        raise InvalidArgumentError("Pass either --data or --deviations.")
    im, model, other = _load(original, compressed)
    import numpy as np

    from nnslicer_tf import InstrumentedModel, debugging, dflare

    if deviations is not None:
        result = dflare.DeviationSet.load(deviations)
        if not result.found.any():
            raise InvalidArgumentError(f"'{deviations}' contains no deviations.")
        x = result.images
        scale = None if x.ndim != 4 else _scale(im, result.scale if scale is None else scale)
    else:
        x, _, scale, _ = _samples(str(data), im, scale)
    preprocess = _divided(scale)
    x = x if preprocess is None else preprocess(x)
    im = im if model is im.model else InstrumentedModel(model)
    return debugging.compare_layers(im, other, np.asarray(x))
