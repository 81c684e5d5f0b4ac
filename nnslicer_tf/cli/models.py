"""Commands for smaller models: prune, semantic."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from nnslicer_tf._checks import check_name
from nnslicer_tf.cli import inputs

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd

    from nnslicer_tf.dflare.agreements import Agreement

_QUANTISED = ("int8", "int16", "dynamic")
_REPRESENTATIVE = 300  # samples that calibrate the ranges of activations


def prune(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    classes: Annotated[str, Option(help="Classes to keep, such as '3,5'; by default all.")] = "",
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
    quantise: Annotated[
        str | None,
        Option(
            help=f"Quantise it, too ({', '.join(_QUANTISED)}), into a .tflite file beside the "
            ".keras one, and compare both with the original; --data gives the ranges."
        ),
    ] = None,
    seed: inputs.SeedOption = 0,
    names: Annotated[str, Option(help="Names of all classes, in order, if labels are names.")] = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Make a smaller model, perhaps for some classes only; show its costs and accuracy.

    The data needs labels; a data set that is named without a split means its training split.
    """
    inputs.writable(output, ".keras", ".tflite", *((".onnx", "") if quantise is None else ()))
    written = [output]
    if quantise is not None:
        check_name("--quantise", quantise, _QUANTISED)
        written = [output.with_suffix(ending) for ending in (".keras", ".tflite")]
        inputs.writable(written[1])
    wanted = inputs.numbers(classes, "--classes") if classes else None
    im = inputs.instrumented(model)
    named: dict[str, str] = {"classes": names, "option": "--names"}
    train = inputs.dataset(data, im, normalise, labels=True, split="train", **named)
    tested = train if test is None else inputs.dataset(test, im, normalise, labels=True, **named)
    import numpy as np

    from nnslicer_tf import dflare
    from nnslicer_tf._litert import to_litert
    from nnslicer_tf.pruning import shrink

    if quantise is not None:  # before the long work: can it be converted and compared at all?
        whole = inputs.with_probabilities(im)
        trial = dflare.compress(whole, quantise, train.x[:1])
        dflare.ModelPair(whole, trial, task=im.classes.task).ask(train.x[:1])
    options: Any = {"ratio": ratio, "by": by, "other": other, "epochs": epochs, "rng": seed}
    small = shrink(im, train, classes=wanted, test=tested, **options)
    small.save(written[0])
    frame = small.to_frame()
    if quantise is not None:
        models = [small.whole, small.model]
        if not other:
            models = [inputs.with_probabilities(im.like(one)) for one in models]
        order = np.random.default_rng(seed).permutation(len(train.x))  # folders are sorted by class
        file = dflare.compress(models[1], quantise, train.x[order[:_REPRESENTATIVE]])
        inputs.write(written[1], lambda path: path.write_bytes(file))
        places = {label: i for i, label in enumerate(small.classes or range(im.classes.count))}
        y = np.array([places.get(int(label), len(places)) for label in tested.y])
        rows, task = y < len(places) + other, None if other else im.classes.task
        pairs = [dflare.ModelPair(models[0], one, task=task) for one in (models[1], file)]
        found = [dflare.agreement(pair, tested.x[rows], y[rows]) for pair in pairs]
        frame = _report([*map(to_litert, models), file], found, train.x[0], quantise)
        print(repr(found[1]))
    inputs.show(frame)
    where = "the test data" if test else "the training data, for want of --test"
    print(f"Accuracy on {where}.\nWritten to {written[0]}")


def _report(
    files: list[bytes], found: "list[Agreement]", sample: "np.ndarray", quantised: str
) -> "pd.DataFrame":
    """Compare LiteRT files: the original's, the smaller model's, and its quantised one."""
    import numpy as np
    import pandas as pd

    from nnslicer_tf.pruning.costs import litert_latencies

    latencies = [litert_latencies(file, sample) for file in files]
    rows = {"LiteRT file, kB": [len(file) / 1000 for file in files]}
    for name, share in (("median", 50), ("25 %", 25), ("75 %", 75)):
        rows[f"LiteRT, ms, {name}"] = [np.percentile(one, share) for one in latencies]
    for name in found[0].quality:
        rows[name] = [*found[0].quality[name], found[1].quality[name][1]]
    rows["agreement"] = [1.0, *(1 - one.differs.mean() for one in found)]
    columns = ["original", "smaller", f"smaller, {quantised}"]
    return pd.DataFrame(rows, columns).T.rename_axis("what").reset_index()


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

    critical = semantic.SemanticSlicer(im, train.x, train.y, metric).semantic_slice(threshold, step)
    inputs.show(critical.to_frame())
    small = semantic.restructure(im, critical)
    right = [
        float((one.classes.from_outputs(one.predict(tested.x)) == tested.y).mean())
        for one in (im, im.like(small))
    ]
    where = "the test data" if test else "the training data, for want of --test"
    print(f"Accuracy on {where}: {right[0]:.2%}, with the critical neurons alone {right[1]:.2%}")
    inputs.write(output, small.save)
