"""Commands for smaller models: prune, deviations."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnslicer_tf._files import atomic_path
from nnslicer_tf.cli import inputs
from nnslicer_tf.cli.inputs import DataOption, ModelOption, NormaliseOption, SeedOption
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import keras

    from nnslicer_tf import InstrumentedModel


def prune(
    model: ModelOption,
    data: DataOption,
    classes: Annotated[str, typer.Option(help="The classes that are needed, such as '3,5'.")],
    test: Annotated[
        str | None, typer.Option(help="Labelled data for the accuracy; by default --data.")
    ] = None,
    output: Annotated[
        Path,
        typer.Option(help="File for the model: .keras, .tflite, .onnx; or a folder (SavedModel)."),
    ] = Path("small.keras"),
    ratio: Annotated[float, typer.Option(help="Share of the parameters to remove.")] = 0.75,
    quota: Annotated[
        str, typer.Option(help="The same share of every 'layer', 'balanced' or 'global'.")
    ] = "layer",
    by: Annotated[
        str,
        typer.Option(help="Ranking of units: 'contributions', 'weight', 'channel', 'random' …"),
    ] = "contributions",
    other: Annotated[
        bool, typer.Option("--other", help="Add an output for all other classes.")
    ] = False,
    epochs: Annotated[int, typer.Option(help="Epochs of imitating the original.", min=0)] = 0,
    seed: SeedOption = 0,
    normalise: NormaliseOption = "unit",
) -> None:
    """Make a smaller model for the classes that are needed; show its costs and accuracy.

    The data needs labels; a data set that is named without a split means its training split.
    """
    inputs.writable(output, ".keras", ".tflite", ".onnx", "")
    wanted = inputs.numbers(classes, "--classes")
    im = inputs.instrumented(model)
    train = inputs.dataset(data, im, normalise, labels=True, split="train")
    tested = None if test is None else inputs.dataset(test, im, normalise, labels=True)
    from nnslicer_tf.pruning import shrink

    found = shrink(
        im,
        train,
        classes=wanted,
        ratio=ratio,
        by=by,
        quota=quota,
        other=other,
        epochs=epochs,
        test=tested,
        rng=seed,
    )
    found.save(output)
    where = "the test data" if test else "the training data, for want of --test"
    print(found.table.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    print(f"Accuracy on {where}.\nWritten to {output}")


def deviations(
    original: Annotated[Path, typer.Option(help="The original, a Keras model.")],
    compressed: Annotated[Path, typer.Option(help="The compressed model, .tflite or Keras.")],
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
    scale: Annotated[
        float, typer.Option(help="The models expect pixels 0 … 255 divided by this.")
    ] = 255.0,
    max_distance: Annotated[
        float | None, typer.Option(help="Largest change of a pixel, on a scale of 0 … 255.")
    ] = None,
    max_queries: Annotated[int, typer.Option(help="Most queries per seed.", min=1)] = 1000,
    minimise: Annotated[
        bool, typer.Option("--minimise", help="Undo changes that a deviation does not need.")
    ] = False,
    seed: SeedOption = 0,
) -> None:
    """Find images on which a compressed model answers differently from its original."""
    inputs.writable(output, ".npz")
    for path, endings in ((picture, (".png", ".pdf")), (table, (".csv",))):
        if path is not None:
            inputs.writable(path, *endings)
    if suite is not None:
        inputs.writable(suite / "test_deviations.py")
    im = inputs.instrumented(original)
    import numpy as np

    from nnslicer_tf import dflare
    from nnslicer_tf.report import save_figure

    model = _with_probabilities(im)
    other: Any = str(compressed)
    if compressed.suffix != ".tflite":
        other = _with_probabilities(inputs.instrumented(compressed))
    found = inputs.dataset(data, im, "none")
    images = np.asarray(found.x)
    if images.max() <= 1:
        raise InvalidArgumentError(
            f"The seeds are images of values 0 … 255; those of '{data}' reach {images.max():g}. "
            "Multiply them by 255, or name the images' folder."
        )
    # The digits' values are 0 … 16.
    images = np.rint(images * (255 / 16 if found.name == "digits" else 1)).astype(np.uint8)

    def preprocess(x: np.ndarray) -> np.ndarray:
        return x.astype(np.float32) / np.float32(scale)

    result = dflare.find_deviations(
        model,
        other,
        images,
        preprocess,
        rng=seed,
        labels=found.y if len(found.y) else None,
        max_queries=max_queries,
        max_distance=max_distance,
    )
    if minimise:
        result = dflare.minimise(result, model, other, preprocess)
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


def _with_probabilities(im: "InstrumentedModel") -> "keras.Model":
    """Return a model that outputs probabilities, adding a softmax if it ends in logits."""
    from nnslicer_tf.dflare import with_softmax

    return with_softmax(im.model) if im.logit_operation in im.output_operations else im.model
