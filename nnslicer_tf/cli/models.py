"""Commands for smaller models: prune, semantic."""

from pathlib import Path
from typing import Annotated

from typer import Option

from nnslicer_tf.cli import inputs


def prune(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    classes: Annotated[str, Option(help="The classes that are needed, such as '3,5'.")],
    test: inputs.TestOption = None,
    output: Annotated[
        Path, Option(help="File for the model: .keras, .tflite, .onnx; or a folder (SavedModel).")
    ] = Path("small.keras"),
    ratio: Annotated[float, Option(help="Share of the parameters to remove.")] = 0.75,
    by: Annotated[
        str, Option(help="Ranking of units: 'contributions', 'weight', 'channel', 'random' …")
    ] = "contributions",
    other: Annotated[bool, Option("--other", help="Add an output for all other classes.")] = False,
    epochs: Annotated[int, Option(help="Epochs of imitating the original.", min=0)] = 0,
    seed: inputs.SeedOption = 0,
    names: Annotated[
        str, Option(help="Names of all classes, in order, if the labels are names.")
    ] = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Make a smaller model for the classes that are needed; show its costs and accuracy.

    The data needs labels; a data set that is named without a split means its training split.
    """
    inputs.writable(output, ".keras", ".tflite", ".onnx", "")
    wanted = inputs.numbers(classes, "--classes")
    im = inputs.instrumented(model)
    order: dict[str, str] = {"classes": names, "option": "--names"}
    train = inputs.dataset(data, im, normalise, labels=True, split="train", **order)
    tested = None if test is None else inputs.dataset(test, im, normalise, labels=True, **order)
    from nnslicer_tf.pruning import shrink

    small = shrink(
        im,
        train,
        classes=wanted,
        ratio=ratio,
        by=by,
        other=other,
        epochs=epochs,
        test=tested,
        rng=seed,
    )
    small.save(output)
    where = "the test data" if test else "the training data, for want of --test"
    inputs.show(small.to_frame())
    print(f"Accuracy on {where}.\nWritten to {output}")


def semantic(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    test: inputs.TestOption = None,
    output: Annotated[
        Path | None, inputs.file_option("the model of the critical neurons", ".keras")
    ] = None,
    metric: Annotated[str, Option(help="'taylor', 'avg', 'var', 'ens', 'deeplift' …")] = "taylor",
    threshold: Annotated[float, Option(help="Θ in (0, 1]: larger keeps more neurons.")] = 0.95,
    step: Annotated[int, Option(help="Neurons by which prefixes grow.", min=1)] = 1,
    classes: inputs.ClassesOption = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Find each layer's critical neurons (semantic slicing), and keep only them.

    The data needs labels; a data set that is named without a split means its training split.
    """
    im = inputs.instrumented(model)
    train = inputs.dataset(data, im, normalise, labels=True, split="train", classes=classes)
    tested = train
    if test is not None:
        tested = inputs.dataset(test, im, normalise, labels=True, classes=classes)
    from nnslicer_tf import semantic

    slicer = semantic.SemanticSlicer(im, train.x, train.y, metric)
    critical = slicer.semantic_slice(threshold, step)
    inputs.show(critical.to_frame())
    small = semantic.restructure(im, critical)
    right = [
        float((one.classes.from_outputs(one.predict(tested.x)) == tested.y).mean())
        for one in (im, im.like(small))
    ]
    where = "the test data" if test else "the training data, for want of --test"
    print(f"Accuracy on {where}: {right[0]:.2%}, with the critical neurons alone {right[1]:.2%}")
    inputs.write(output, small.save)
