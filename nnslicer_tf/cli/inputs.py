"""Inputs and outputs of the commands: models, data, lists of numbers, tables, common options."""

import re
import warnings
from collections.abc import Callable
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from typer import Option

from nnslicer_tf._environment import import_keras_quietly
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import InvalidArgumentError

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from keras import Model
    from matplotlib.figure import Figure

    from nnslicer_tf import InstrumentedModel, Slicer
    from nnslicer_tf.datasets import Dataset

MAX_ROWS = 40  # Rows of a table that are printed
TASK: ContextVar[str | None] = ContextVar("task", default=None)
"""What the outputs are: the option `--task` of the command that is running."""
GIVEN: ContextVar[frozenset[str]] = ContextVar("given", default=frozenset())
"""Names of the parameters that the command line sets, of the command that is running."""

WRITTEN = "File for"  # begins the help of an option that names a file to write
_CONDITION = re.compile(r"(With|Without) --([a-z-]+)(?: ([^:]+))?: ")
_DATA_OPTIONS = ("data", "test", "train", "normal", "usual", "background", "reference")
_DATA = (
    "A folder of images, or of one folder of images for each class; an .npz, .npy or .csv file; or "
    "a data set with a TFDS split, such as 'cifar10:test[:100]'."
)


def check_effects(options: dict[str, Any], helps: dict[str, str]) -> None:
    """Refuse options without effect, by their help: "With --criterion neuron: …", "Without …"."""
    for name, text in helps.items():  # in the order of `--help`
        if name in GIVEN.get() and (found := _CONDITION.match(text)):
            word, other, values = found.groups()
            value = options[other.replace("-", "_")]
            is_there = value in values.split(" or ") if values else value not in (None, False, 0)
            if is_there != (word == "With"):
                of = f"--{other} {values or ''}".strip()
                raise no_effect(name, of, "with" if is_there else "without")
    specs = [options[name] for name in _DATA_OPTIONS if isinstance(options.get(name), str)]
    are_arrays = all(spec.endswith((".npz", ".npy", ".csv")) for spec in specs)
    if "normalise" in GIVEN.get() and options["normalise"] != "none" and are_arrays:
        raise no_effect("normalise", "images or a data set by name, as other data stay as they are")


def no_effect(name: str, of: str, word: str = "without") -> InvalidArgumentError:
    """Return the error of an option that has no effect without something, or "with" it."""
    option = f"--{name.replace('_', '-')}"
    return InvalidArgumentError(f"{option} has no effect {word} {of}. Omit {option}.")


def file_option(what: str, *endings: str) -> Any:
    """Return the option of a file that a command writes, which is checked before long work."""

    def check(path: Path | None) -> Path | None:
        writable(path, *endings)
        return path

    known = " or ".join(filter(None, (", ".join(endings[:-1]), endings[-1])))
    return Option(help=f"{WRITTEN} {what}, {known}.", callback=check)


ModelOption = Annotated[Path, Option("--model", help="Keras model, .keras or .h5; ACAS Xu: .nnet.")]
DataOption = Annotated[str, Option("--data", help=_DATA)]
OptionalDataOption = Annotated[str | None, Option("--data", help=_DATA)]
TestOption = Annotated[
    str | None, Option("--test", help="Labelled data for accuracy; else --data.")
]
ProfileOption = Annotated[Path, Option(help="Profile, from 'nnslicer profile'.")]
NormaliseOption = Annotated[
    str,
    Option(
        "--normalise",
        help="For images: 'unit' (to [0, 1]) or 'none'; for data sets by name also 'standard' "
        "(mean 0, standard deviation 1 per channel). Other files are used as they are.",
    ),
]
ThetaOption = Annotated[float, Option(help="Threshold θ ≥ 0; larger: smaller slices.")]
ClassesOption = Annotated[str, Option("--classes", help="Names of the classes in order: cat,dog.")]
CheckpointOption = Annotated[
    Path | None, Option(help="Folder for finished parts, from which an interrupted run resumes.")
]
ToleranceOption = Annotated[
    float | None,
    Option(
        help="How far answers may be apart and agree: root mean square of numbers, which need it; "
        "share of a map's positions."
    ),
]
SeedOption = Annotated[int, Option(help="Seed of everything random.")]
TableOption = Annotated[Path | None, file_option("the table", ".csv")]
PictureOption = Annotated[Path | None, file_option("a picture", ".png", ".pdf")]
LeastOption = Annotated[bool, Option("--least", help="The least output is the answer (ACAS Xu).")]
PointDataOption = Annotated[str | None, Option("--data", help="Data to which indices refer.")]


def writable(path: Path | None, *endings: str) -> None:
    """Raise InvalidArgumentError unless a file can be written and has one of the endings."""
    if path is None:
        return
    if endings and path.suffix not in endings and not path.is_dir():
        raise InvalidArgumentError(
            f"The file must end in {' or '.join(filter(None, endings))}. Received: '{path}'"
        )
    # Folders are made when something is written, not for a run that fails.
    existing = next(parent for parent in path.absolute().parents if parent.exists())
    check_writable(path if path.is_dir() or not existing.is_dir() else existing / path.name)


def instrumented(path: Path) -> "InstrumentedModel":
    """Load and instrument a Keras model, or an ACAS Xu network, while a terminal says so."""
    with Console(stderr=True).status(f"Loading TensorFlow and {path.name}"):
        import_keras_quietly()
        import nnslicer_tf.pruning
        import nnslicer_tf.zoo.models  # noqa: F401 - both imports register classes with Keras
        from nnslicer_tf import InstrumentedModel
        from nnslicer_tf.instrument.loading import load_model

        if path.suffix == ".nnet":
            from nnslicer_tf.exactline import acas

            model = acas.to_keras(acas.load_nnet(path))
        else:
            model = load_model(path)
    return InstrumentedModel(model, task=TASK.get())


def with_probabilities(im: "InstrumentedModel") -> "Model":
    """Return a model that ends in probabilities, unless it predicts numbers."""
    from nnslicer_tf.dflare import with_softmax

    logits = im.classes.are_logits and not im.classes.is_number
    return with_softmax(im.model) if logits else im.model


def slicer(model: Path, profile: Path, theta: float, **options: Any) -> "Slicer":
    """Return a slicer, given the files of a model and a profile."""
    from nnslicer_tf import Profile

    means = Profile.load(profile)
    im = instrumented(model)
    from nnslicer_tf import Slicer  # imports Keras, which was already imported quietly

    return Slicer(im, means, theta, **options)


def dataset(
    spec: str,
    im: "InstrumentedModel",
    normalise: str = "unit",
    *,
    labels: bool | str = False,
    split: str = "test",
    classes: str | None = None,
    option: str = "--classes",
) -> "Dataset":
    """Load the data that an option specifies, in the shape of a model's samples.

    `spec`, `normalise`, `labels` and `split` are as for `datasets.load_data`. `classes` is what the
    command line's `option` says: names of the classes, "" to take them from the data; None if
    neither labels nor names matter.
    """
    from nnslicer_tf.datasets.files import load_data, order_note
    from nnslicer_tf.instrument.data import aligned, check_class_order

    if labels is True and im.classes.is_number:
        labels = "any"
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Class numbers follow")  # said below, after the check
        data = load_data(
            spec,
            normalise=normalise,
            labels=labels,
            shape=im.input_shape,
            split=split,
            classes=names(classes or ""),
        )
    data = aligned(data, im.columns)
    names_matter = classes is not None and data.alphabetical
    if names_matter and not check_class_order(im, data, option):
        warnings.warn(order_note(data.class_names, option), stacklevel=2)
    im.columns = im.columns or data.columns  # those of the next file are put in this order
    return data


def words(spec: str, x: "np.ndarray") -> list[list[str]]:
    """Return the words of the samples of a named set of sentences; otherwise an empty list."""
    from nnslicer_tf.datasets import texts

    name = spec.partition(":")[0]
    if name not in texts.NAMES:
        return []
    vocabulary = texts.vocabulary(name)
    return [vocabulary.decode(row) for row in x.astype(int)]


def numbers(text: str, option: str) -> list[int]:
    """Return the comma-separated integers in an option; raise InvalidArgumentError for others."""
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(
            f"{option} takes indices such as '3' or '0,4'. Received: {text!r}"
        ) from None


def target(text: str, classes: tuple[str, ...] = ()) -> Any:
    """Return the target in an option: a class, "name", "[3,4,0]" or "name[2:5,3,0]".

    A name is first looked up in those of the classes, then it is an operation's.
    """
    if text.strip() in classes:
        return classes.index(text.strip())
    name, bracket, rest = text.partition("[")
    try:
        if not bracket:
            return int(text) if text.lstrip("-").isdigit() else {text: "all"}
        if not rest.endswith("]"):
            raise ValueError("a bracket is open")
        index = tuple(
            slice(*(int(p) if p.strip() else None for p in part.split(":")))
            if ":" in part
            else int(part)
            for part in rest.removesuffix("]").split(",")
        )
    except ValueError:
        raise InvalidArgumentError(
            "--target must be a class such as '7', the name of an output, or neurons such as "
            f"'map[3,4,0]'. Received: {text!r}"
        ) from None
    return {name: index} if name else index


def names(text: str, known: tuple[str, ...] = ()) -> tuple[str, ...]:
    """Return the names in an option, or those of the data if it is empty."""
    return tuple(name.strip() for name in text.split(",")) if text else known


def in_range(index: int, count: int, option: str) -> int:
    """Return an index, or raise InvalidArgumentError if there is no such sample."""
    if not 0 <= index < count:
        raise InvalidArgumentError(f"{option}: the samples are 0 … {count - 1}. Received: {index}")
    return index


def show(frame: "pd.DataFrame", output: Path | None = None) -> None:
    """Print a table's first rows; with `output`, write all of them to a CSV file."""
    first = frame.head(MAX_ROWS)
    print(first.to_string(index=False, float_format="{:.4g}".format, na_rep=""))
    if len(frame) > len(first):
        print(f"… {len(frame) - len(first):,} rows more")
    write(output, lambda file: frame.to_csv(file, index=False))


def write(path: Path | None, save: Callable[[Path], object]) -> None:
    """Save a file, if one is given, completely or not at all."""
    if path is not None:
        with atomic_path(path) as temporary:
            save(temporary)
        print(f"Written to {path}")


def draw(picture: Path | None, plot: "Callable[[Any], object] | Figure") -> None:
    """Write a figure, or what a function draws into new axes, to a file, if one is given."""
    if picture is None:
        return
    from matplotlib.figure import Figure

    from nnslicer_tf.report import save_figure

    if not isinstance(plot, Figure):
        figure = Figure(layout="constrained")
        plot(figure.subplots())
        plot = figure
    save_figure(plot, picture)
    print(f"Written to {picture}")
