"""Commands for compressed models: agreement, deviations, suite, layers, recipe."""

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nnslicer_tf._environment import import_keras_quietly
from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import InstrumentedModel
    from nnslicer_tf.debugging.comparison import LayerComparison

    _Preprocess = Callable[[np.ndarray], np.ndarray]

OriginalOption = Annotated[Path, Option("--original", help="The original, a .keras or .h5 file.")]
CompressedOption = Annotated[
    Path, Option("--compressed", help="Compressed model: .tflite, .keras or .h5.")
]
ScaleOption = Annotated[
    float | None,
    Option(
        "--scale",
        min=0,
        max=1e9,
        help="Divide pixels 0 … 255 by this for the models; 0: inputs are no images. By default "
        "as recorded, else 255, or 1 if the original scales its own input.",
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
    classes: inputs.ClassesOption = "",
) -> None:
    """Show how often two models agree on a test set, and their accuracies."""
    im, model, other = _load(original, compressed)
    x, y, scale, _ = _samples(data, im, scale, classes)
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
    minimise: Annotated[bool, Option("--minimise", help="Undo changes that are unneeded.")] = False,
    checkpoint: inputs.CheckpointOption = None,
    seed: inputs.SeedOption = 0,
) -> None:
    """Find inputs on which a compressed model answers differently from its original.

    The data are the seeds: images, rows of a table, signals or sentences.
    """
    inputs.writable(None if suite is None else suite / "test_deviations.py")
    im, model, other = _load(original, compressed)
    if suite is not None and (im.classes.is_number or im.classes.is_map):
        raise InvalidArgumentError("--suite needs a classifier: its tests compare labels.")
    seeds: Any
    seeds, y, scale, columns = _samples(data, im, scale, rounds=True)
    preprocess = _divided(scale)
    import pandas as pd

    from nnslicer_tf import dflare

    if columns and seeds.ndim == 2 and len(columns) == seeds.shape[1]:
        seeds = pd.DataFrame(seeds, columns=list(columns))
    domain = dflare.SignalDomain(seeds) if seeds.ndim == 4 and preprocess is None else None
    options: Any = {"task": im.classes.task, "tolerance": tolerance, "domain": domain}
    pair = dflare.ModelPair(model, other, preprocess, **options)
    search = dflare.DFlare(max_queries=max_queries, max_distance=max_distance)
    result = dflare.find_deviations(pair, seeds, y, search=search, rng=seed, checkpoint=checkpoint)
    if minimise:
        result = dflare.minimise(pair, result)
    result.scale = scale
    result.save(output)
    frame = result.to_frame()
    inputs.write(table, lambda file: frame.to_csv(file, index=False))
    if result.found.any():
        if picture is not None:
            inputs.draw(picture, result.figure())
        if suite is not None:
            print(f"Written to {dflare.export_suite(result, suite, preprocess)}")
    print(frame.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    print(f"{result!r}\nWritten to {output}")


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
    are_images = result.images.dtype == "uint8"
    _check_scale(scale, are_images)
    preprocess = _divided(recorded if scale is None else scale) if are_images else None
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
    budget: Annotated[float, Option(help="Largest share of weights to keep as floats.")] = 0.05,
    output: Annotated[
        Path | None, inputs.file_option("the layers, their tensors and the AI Edge recipe", ".json")
    ] = None,
    scale: ScaleOption = None,
) -> None:
    """Choose the layers that a quantiser should leave in floating point."""
    comparison = _compare(original, compressed, data, deviations, scale)
    from nnslicer_tf import debugging

    result = debugging.recipe(comparison, budget)
    if result.layers:
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
    models = [inputs.with_probabilities(im) for im in ims]
    return ims[0], models[0], str(compressed) if is_file else models[1]


def _samples(
    data: str, im: Any, scale: float | None, classes: str | None = None, rounds: bool = False
) -> tuple["np.ndarray", "np.ndarray | None", float | None, tuple[str, ...]]:
    """Return inputs, images as bytes, with labels, scale and columns, if there are any.

    Images whose values are not bytes / 255 stay floats; with `rounds`, "digits" are rounded.
    """
    import numpy as np

    samples = inputs.dataset(data, im, "none", labels="optional", classes=classes)
    x, y = np.asarray(samples.x), samples.y if np.size(samples.y) else None
    _check_scale(scale, x.ndim == 4)
    if x.ndim != 4 or scale == 0:
        return x, y, None, samples.columns
    low, high = float(x.min()), float(x.max())
    are_pixels = low >= 0 and high <= 255
    if scale is None and not (are_pixels and (high <= 1 or (x == np.rint(x)).all())):
        print(f"Inputs from {low:g} to {high:g} are used as they are, not as images (--scale).")
        return x, y, None, ()
    if not are_pixels:
        raise InvalidArgumentError(
            f"Images are mutated as bytes, 0 … 255, but those of '{data}' range from {low:g} to "
            f"{high:g}. Pass them before preprocessing: 0 … 255 or 0 … 1."
        )
    factor = 255 / 16 if samples.name == "digits" else 255 if high <= 1 else 1
    scale, pixels = _scale(im, scale), np.rint(x * factor)
    is_exact = np.allclose(pixels, x * np.float64(factor), rtol=0, atol=1e-4)  # of a float32
    if is_exact or (rounds and samples.name == "digits"):
        return pixels.astype(np.uint8), y, scale, ()
    print("The images' values lie between those of bytes: they are used as floats, unrounded.")
    return x if scale == factor else (x * (factor / scale)).astype(np.float32), y, None, ()


def _scale(im: "InstrumentedModel", scale: float | None) -> float:
    """Return what pixels are divided by: as given or recorded, else as the model suggests."""
    if scale is None:
        import numpy as np

        from nnslicer_tf.instrument import Affine

        before = itertools.takewhile(lambda o: not o.kernels, im.operations)
        factors = [o.params.read()[0] for o in before if isinstance(o.params, Affine)]
        scale = 1.0 if any(np.abs(factor).max() < 0.1 for factor in factors) else 255.0
        print(f"Pixels 0 … 255 are divided by {scale:g} (--scale).")
    return scale


def _check_scale(scale: float | None, are_images: bool) -> None:
    if scale and not are_images:
        raise inputs.no_effect("scale", "images as bytes")


def _divided(scale: float | None) -> "_Preprocess | None":
    return (lambda x: x.astype("float32") / float(scale)) if scale else None


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
        are_images = x.dtype == np.uint8
        _check_scale(scale, are_images)
        scale = _scale(im, result.scale if scale is None else scale) if are_images else None
    else:
        x, _, scale, _ = _samples(str(data), im, scale)
    preprocess = _divided(scale)
    x = x if preprocess is None else preprocess(x)
    im = im if model is im.model else InstrumentedModel(model)
    return debugging.compare_layers(im, other, np.asarray(x))
