"""Commands for slices: demo, profile, explain, slice, show, explore."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from nnslicer_tf._environment import import_keras_quietly
from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError

if TYPE_CHECKING:
    from nnslicer_tf.slicing import DecisiveSlices, Profile, Slice, SliceSet

_PICTURES = (".png", ".pdf", ".svg")


def demo(
    output: Annotated[Path, Option(help="Folder for the results.")] = Path("nnslicer-demo"),
) -> None:
    """Explain and slice a small network on scikit-learn's digits; nothing is downloaded."""
    inputs.writable(output / "why.html")
    import_keras_quietly()
    import numpy as np

    from nnslicer_tf import InstrumentedModel, Profile, Slicer, datasets, explore, zoo
    from nnslicer_tf.report import plot_slices

    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    im = InstrumentedModel(zoo.load("digits_cnn"))
    means = Profile.from_data(im, train)
    means.save(output / "profile.npz")
    slicer = Slicer(im, means, theta=0.3, workers=0)

    # Why is an image a 7, and not an 8?
    image, of_class = test.x[13], train.x[train.y == 7]
    why = slicer.explain(image, instead_of=8)
    why.save(output / "why.html")
    explore(why, im).save(output / "explore.html")

    # What does the class need? The network with only the synapses of its slice.
    class_slice = slicer.slice(of_class, outputs=[7])
    class_slice.save(output / "class.npz")
    slices = {"one image of a 7": why.slice, "all images of a 7": class_slice}
    images = dict(zip(slices, (image, of_class.mean(axis=0)), strict=True))
    figure = plot_slices(slices, ["relu1", "relu2"], images)
    one, every = (
        np.mean(np.concatenate([part.neurons[n].ravel() for n in ("relu1", "relu2")]) != 0)
        for part in slices.values()
    )
    title = f"{one:.0%} of the neurons decide one image, {every:.0%} all images of the class"
    figure.suptitle(title)
    inputs.draw(output / "slices.png", figure)
    whole, alone = (
        (model.predict(test.x, verbose=0).argmax(axis=1) == test.y)[test.y == 7].mean()
        for model in (im.model, class_slice.apply(im.model, "zero"))
    )
    print(
        f"""\
{why.summary()}

With {(class_slice.to_vector() != 0).mean():.1%} of the synapses, those in the slice of all 7s, \
{alone:.1%} of the 7s are right (whole model {whole:.1%}).
Written to {output}: profile.npz, why.html, explore.html, class.npz, slices.png"""
    )


def profile(
    model: inputs.ModelOption,
    data: inputs.DataOption,
    output: Annotated[Path, inputs.file_option("the profile", ".npz")] = Path("profile.npz"),
    normalise: inputs.NormaliseOption = "unit",
    batch_size: Annotated[int, Option(help="Samples in a forward pass.")] = 256,
) -> None:
    """Average every neuron's activation over a data set (usually the training set).

    A data set that is named without a split, such as 'mnist', means its training split.
    """
    im = inputs.instrumented(model)
    from nnslicer_tf import Profile

    samples = inputs.dataset(data, im, normalise, split="train")
    result = Profile.from_data(im, samples, batch_size=batch_size)
    result.save(output)
    split = f" ({samples.name}:{samples.split})" if samples.split else ""
    print(f"{result!r}{split}\nWritten to {output}")


def explain(
    model: inputs.ModelOption,
    profile: inputs.ProfileOption,
    data: inputs.DataOption,
    output: Annotated[Path, inputs.file_option("the explanation", ".html", *_PICTURES)] = Path(
        "explanation.html"
    ),
    index: Annotated[int, Option(help="Index of the sample in the data, from 0.")] = 0,
    target: Annotated[
        str | None,
        Option(
            help="Class to explain, by index or name, by default the predicted one; or a pixel or "
            "region of a map, '[3,4,0]' or '[2:5,2:5,0]'; or an output or operation by name, "
            "'price', 'map[3,4,0]'."
        ),
    ] = None,
    instead_of: Annotated[str | None, Option(help="Why the target, and not this class?")] = None,
    background: Annotated[
        str | None,
        Option(
            help="Data, as for --data, whose values stand for absent features, or 'mean'; by "
            "default the profile's rows."
        ),
    ] = None,
    words: Annotated[str, Option(help="Words, one per token, separated by spaces.")] = "",
    usual: Annotated[
        str | None,
        Option(help="Labelled data, as for --data, to compare the slice with those of its class."),
    ] = None,
    compare: Annotated[bool, Option("--compare", help="Compare with all other methods.")] = False,
    theta: inputs.ThetaOption = 0.3,
    classes: inputs.ClassesOption = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Explain why the model gave one sample its answer, with a picture and numbers."""
    slicer = inputs.slicer(model, profile, theta, workers=0)
    samples = inputs.dataset(data, slicer.im, normalise, classes=classes)
    sample = samples.x[inputs.in_range(index, len(samples), "--index")]
    class_names = inputs.names(classes, samples.class_names)
    chosen, other = (
        None if one is None else inputs.target(one, class_names) for one in (target, instead_of)
    )
    rows: Any = background
    if background not in (None, "mean"):
        rows = inputs.dataset(background, slicer.im, normalise, split="train").x
    of_class = None
    if usual is not None:
        labelled = inputs.dataset(
            usual, slicer.im, normalise, labels=True, split="train", classes=classes
        )
        label = chosen
        if label is None and not slicer.im.classes.is_number:
            label = int(slicer.im.classes.from_outputs(slicer.im.predict(sample[None]))[0])
        of_class = labelled.x[labelled.y == label] if isinstance(label, int) else labelled.x
        if not len(of_class):
            raise InvalidArgumentError(f"--usual: no sample of '{usual}' has the label {label}.")
    result = slicer.explain(
        sample,
        chosen,
        instead_of=other,
        classes=class_names,
        columns=samples.columns,
        words=words.split() or next(iter(inputs.words(data, sample[None])), []),
        usual=of_class,
        compare=compare or ("integrated gradients, 50 samples",),
        background=rows,
    )
    result.save(output)
    print(f"{result.summary()}\nWritten to {output}")


def slice_(
    model: inputs.ModelOption,
    profile: inputs.ProfileOption,
    data: inputs.DataOption,
    output: Annotated[Path, inputs.file_option("the slice", ".npz")] = Path("slice.npz"),
    outputs: Annotated[
        str,
        Option(
            help="Without --decisive: outputs of interest, 'predicted' (each sample's own class) "
            "or indices, such as '3' or '0,4'."
        ),
    ] = "predicted",
    theta: Annotated[float, Option(help="Without --decisive: threshold θ ≥ 0.")] = 0.3,
    granularity: Annotated[
        str, Option(help="Without --decisive: 'activation' (exact) or 'channel' (much faster).")
    ] = "activation",
    relative_to: Annotated[
        str,
        Option(help="Without --decisive: exclusion by a neuron's 'output', or 'sum' of changes."),
    ] = "output",
    rectify: Annotated[
        str, Option(help="Without --decisive: contributions at ReLUs by 'sign', or 'pass' them.")
    ] = "sign",
    each: Annotated[bool, Option("--each", help="Without --decisive: a slice per sample.")] = False,
    decisive: Annotated[
        bool,
        Option(
            "--decisive",
            help="The smallest slice found that keeps each sample's answer, with its certificate.",
        ),
    ] = False,
    level: Annotated[
        str, Option(help="With --decisive: 'synapse', 'neuron', 'channel', 'head' or 'input'.")
    ] = "synapse",
    reference: Annotated[
        str,
        Option(
            help="With --decisive: what the rest contributes: its 'mean', 'zero', or what it does "
            "for other 'samples', those of the profile, or for data as for --data. By default "
            "'mean', with --at-least 'samples'."
        ),
    ] = "",
    at_least: Annotated[
        float | None,
        Option(
            help="With --decisive: share of other samples whose values in the rest keep the "
            "answer, with 95 % confidence."
        ),
    ] = None,
    min_probability: Annotated[
        float | None, Option(help="With --decisive: least probability of the answer.")
    ] = None,
    max_divergence: Annotated[
        float | None, Option(help="With --decisive: largest divergence of the output, in nats.")
    ] = None,
    needed: Annotated[
        bool, Option("--needed", help="With --decisive: without the slice, another answer.")
    ] = False,
    minimal: Annotated[
        bool, Option("--minimal", help="With --decisive: no single unit can be left out.")
    ] = False,
    max_share: Annotated[
        float, Option(help="With --decisive: share of the units up to which a slice is 'found'.")
    ] = 0.2,
    workers: Annotated[
        int | None, Option(help="Ray processes; 0 for none. Default: one per core for long work.")
    ] = None,
    checkpoint: inputs.CheckpointOption = None,
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Slice samples: find the neurons and synapses that decide the outputs of interest."""
    chosen = outputs if outputs == "predicted" else inputs.numbers(outputs, "--outputs")
    slicer = inputs.slicer(
        model,
        profile,
        theta,
        workers=workers,
        granularity=granularity,
        relative_to=relative_to,
        rectify=rectify,
    )
    x = inputs.dataset(data, slicer.im, normalise).x
    if decisive:
        source: Any = reference or ("mean" if at_least is None else "samples")
        if source not in ("mean", "zero", "samples"):
            from nnslicer_tf.instrument import Samples

            source = Samples(inputs.dataset(source, slicer.im, normalise, split="train").x)
        result: Any = slicer.decisive(
            x,
            level=level,
            reference=source,
            max_share=max_share,
            min_probability=min_probability,
            max_divergence=max_divergence,
            at_least=at_least,
            needed=needed,
            minimal=minimal,
            folder=checkpoint,
        )
    elif each:
        result = slicer.slice_each(x, chosen, folder=checkpoint)
    else:
        result = slicer.slice(x, chosen, checkpoint=checkpoint)
    result.save(output)  # before it is printed, as a closed pipe ends the command
    if decisive:
        if len(x) > 1:
            print(result.to_frame().to_string(index=False))
        withheld = [i for i in range(len(x)) if not result.certificate["found"][i]]
        for index in [0] if len(x) == 1 else withheld[: inputs.MAX_ROWS]:
            print(f"Sample {index}: {result.summary(index)}")
    print(f"{result!r}\nWritten to {output}")


def show(
    file: Annotated[Path, Argument(help="A profile, slice, set of slices or decisive slices.")],
    plot: Annotated[Path | None, inputs.file_option("a picture of a slice", *_PICTURES)] = None,
    sample: Annotated[int | None, Option(help="Which slice of several to show, from 0.")] = None,
) -> None:
    """Print a table of a profile, a slice or every sample of a set; draw a slice."""
    result = _load_result(file, "drawn" if plot else "")
    from nnslicer_tf import Slice, SliceSet
    from nnslicer_tf.report import plot_slices
    from nnslicer_tf.slicing import DecisiveSlices

    if sample is not None:
        if not isinstance(result, (SliceSet, DecisiveSlices)):
            raise inputs.no_effect("sample", "a set of slices")
        inputs.in_range(sample, len(result), "--sample")
    if isinstance(result, SliceSet):
        print(repr(result))
        if sample is None:
            print(result.to_frame().to_string(index=False, float_format="{:.3f}".format))
        result = result.sum() if sample is None else result[sample]
    elif isinstance(result, DecisiveSlices):
        table = result.to_frame().to_string(index=False)
        print(table if sample is None else f"Sample {sample}: {result.summary(sample)}")
    print(result.summary() if isinstance(result, Slice) else repr(result))
    if plot is not None and isinstance(result, Slice):
        reached = [name for name, values in result.neurons.items() if (values != 0).any()]
        inputs.draw(plot, plot_slices({plot.stem: result}, reached))


def explore(
    files: Annotated[list[Path], Argument(help="Slices, sets of slices or decisive slices.")],
    model: Annotated[
        list[Path],
        Option(help="Keras model; for two models, such as two versions, once for each file."),
    ],
    data: Annotated[str | None, Option(help="The sliced samples, as for 'nnslicer slice'.")] = None,
    profile: Annotated[
        list[Path] | None, Option(help="The profile of the slices; as many as there are models.")
    ] = None,
    output: Annotated[Path, inputs.file_option("the page", ".html")] = Path("slices.html"),
    classes: inputs.ClassesOption = "",
    normalise: inputs.NormaliseOption = "unit",
) -> None:
    """Write an interactive view of slices as one HTML file, which needs no server."""
    if len(set(files)) < len(files):
        raise InvalidArgumentError("A file is named twice: name each result once.")
    if max(len(model), len(profile or ())) > len(files):
        raise InvalidArgumentError("Pass one --model and --profile for all files, or for each.")
    stems = [path.stem for path in files]
    slices = {
        path.stem if stems.count(path.stem) == 1 else str(path): _load_result(path, "explored")
        for path in files
    }
    models = [inputs.instrumented(path) for path in model]
    from nnslicer_tf import Profile
    from nnslicer_tf import explore as explore_slices

    def of_slices(each: list[Any]) -> Any:  # by name if there are several
        return dict(zip(slices, each, strict=False)) if len(each) > 1 else next(iter(each), None)

    samples = None if data is None else inputs.dataset(data, models[0], normalise, classes=classes)
    view = explore_slices(
        slices,
        of_slices(models),
        samples,
        profile=of_slices([Profile.load(path) for path in profile or ()]),
        classes=inputs.names(classes, () if samples is None else samples.class_names),
        words=() if data is None or samples is None else inputs.words(data, samples.x),
    )
    view.save(output)
    print(f"{view!r}\nWritten to {output}")


def _load_result(path: Path, of_slices: str = "") -> "Slice | SliceSet | DecisiveSlices | Profile":
    """Load a profile, a slice or a set; only slices can be `of_slices`, such as "drawn"."""
    from nnslicer_tf.slicing import DecisiveSlices, Profile, Slice, SliceSet

    for kind in (Slice, SliceSet, DecisiveSlices, Profile):
        try:
            result = kind.load(path)
        except CorruptFileError as error:
            last = error
            continue
        if of_slices and isinstance(result, Profile):
            raise InvalidArgumentError(f"'{path}' is a profile; only slices can be {of_slices}.")
        if of_slices == "drawn" and isinstance(result, DecisiveSlices):
            raise InvalidArgumentError(f"'{path}' holds decisive slices: use 'nnslicer explore'.")
        return result
    raise CorruptFileError(f"'{path}' is not a slice, slice set or profile. {last}")
