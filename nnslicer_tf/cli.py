"""The command line: `nnslicer demo | profile | slice | show | explore`.

Bad input ends with one line on standard error and exit code 2, before long work starts.
"""

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, NNSlicerError

if TYPE_CHECKING:
    import numpy as np

    from nnslicer_tf import Profile, Slice, SliceSet

app = typer.Typer(
    help="Slice neural networks: find the neurons and synapses that decide an output.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ModelOption = Annotated[
    Path, typer.Option("--model", help="Keras model, a .keras or .h5 file.", show_default=False)
]
DataOption = Annotated[
    str,
    typer.Option(
        "--data",
        help="Data set with a TFDS split, such as 'cifar10:test[:100]' or 'digits:train', or an "
        ".npz file with an array x.",
        show_default=False,
    ),
]
NormaliseOption = Annotated[
    str,
    typer.Option(
        "--normalise",
        help="For a named data set: 'unit' (to [0, 1]), 'standard' (mean 0, standard deviation 1 "
        "per channel) or 'none'. Files are used as they are.",
    ),
]
BatchOption = Annotated[int, typer.Option("--batch-size", help="Samples in a forward pass.")]


@app.command()
def demo(
    output: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("nnslicer-demo"),
) -> None:
    """Slice a small network on scikit-learn's digits; nothing is downloaded."""
    folder = _writable(output / "slices.png").parent
    _compile_ahead()
    _import_quietly()
    from nnslicer_tf.demo import run_demo

    result = run_demo(folder)
    label = result.label
    print(f"The slice of all training images of a {label}, for output {label}:")
    print(result.class_slice.summary())
    print(
        f"""\
Synapses outside a slice set to zero, on the test images:
  slice of the {label}s   {_kept(result.class_slice)} of the synapses   \
{result.sliced[0]:.1%} of the {label}s right (whole model {result.whole[0]:.1%})
  slice of all      {_kept(result.all_slice)} of the synapses   \
{result.all_accuracy:.1%} of all images right ({result.whole[1]:.1%})
  slice of 1 image  {_kept(result.image_slice)} of the synapses   \
the image, a {label}, is taken for a {result.image_label}

Written to {folder}: profile.npz, image.npz, class.npz, slices.png"""
    )


def _kept(one: "Slice") -> str:
    vector = one.to_vector()
    return f"{(vector != 0).mean():6.1%}"


@app.command()
def profile(
    model: ModelOption,
    data: DataOption,
    output: Annotated[Path, typer.Option(help="File for the profile, .npz.")] = Path("profile.npz"),
    normalise: NormaliseOption = "unit",
    batch_size: BatchOption = 256,
) -> None:
    """Average every neuron's activation over a data set (the training set, usually)."""
    _writable(output)
    _import_quietly()
    from nnslicer_tf import InstrumentedModel, Profile

    im = InstrumentedModel(_model(model))
    x = _data(data, normalise)
    result = Profile.from_data(im, x, batch_size=batch_size)
    result.save(output)
    print(f"{result!r}\nWritten to {output}")


@app.command("slice")
def slice_(
    model: ModelOption,
    profile: Annotated[
        Path, typer.Option(help="Profile, from 'nnslicer profile'.", show_default=False)
    ],
    data: DataOption,
    output: Annotated[Path, typer.Option(help="File for the slice, .npz.")] = Path("slice.npz"),
    outputs: Annotated[
        str,
        typer.Option(
            help="Outputs of interest: 'predicted' (each sample's own class) or indices, "
            "such as '3' or '0,4'."
        ),
    ] = "predicted",
    theta: Annotated[
        float, typer.Option(help="Threshold θ ≥ 0; larger values give smaller slices.")
    ] = 0.3,
    granularity: Annotated[
        str, typer.Option(help="'activation' (exact) or 'channel' (coarse, far faster).")
    ] = "activation",
    relative_to: Annotated[
        str,
        typer.Option(help="Exclusion relative to a neuron's 'output', or to the 'sum' of changes."),
    ] = "output",
    rectify: Annotated[
        str,
        typer.Option(help="Contributions at ReLUs and the like: by 'sign', or 'pass' unchanged."),
    ] = "sign",
    each: Annotated[bool, typer.Option("--each", help="Keep one slice for each sample.")] = False,
    workers: Annotated[
        int | None,
        typer.Option(help="Ray processes; 0 for none. Default: one per core if the work is long."),
    ] = None,
    checkpoint: Annotated[
        Path | None,
        typer.Option(help="Folder for partial results, from which an interrupted run resumes."),
    ] = None,
    normalise: NormaliseOption = "unit",
) -> None:
    """Slice samples: find the neurons and synapses that decide the outputs of interest."""
    _writable(output)
    chosen = _outputs(outputs)
    _compile_ahead()
    _import_quietly()
    from nnslicer_tf import InstrumentedModel, Profile, Slicer

    im = InstrumentedModel(_model(model))
    slicer = Slicer(
        *(im, Profile.load(profile), theta, granularity, workers),
        relative_to=relative_to,
        rectify=rectify,
    )
    x = _data(data, normalise)
    if each:
        result: Any = slicer.slice_each(x, chosen, folder=checkpoint)
    else:
        result = slicer.slice(x, chosen, checkpoint=checkpoint)
    result.save(output)
    print(f"{result!r}\nWritten to {output}")


@app.command()
def show(
    file: Annotated[Path, typer.Argument(help="A profile, slice or set of slices, .npz.")],
    plot: Annotated[
        Path | None, typer.Option(help="File for a picture of a slice, .png or .pdf.")
    ] = None,
) -> None:
    """Print a table of a profile or slice; draw a slice."""
    if plot is not None:
        _writable(plot)
    result = _load_result(file)
    from nnslicer_tf import Slice, SliceSet

    if isinstance(result, SliceSet):
        print(repr(result))
        result = result.sum()
    if isinstance(result, Slice):
        print(result.summary())
    else:
        print(repr(result))
    if plot is not None:
        if not isinstance(result, Slice):
            raise InvalidArgumentError(f"'{file}' is a profile; only slices can be drawn.")
        _plot(result, plot)
        print(f"Written to {plot}")


@app.command()
def explore(
    files: Annotated[list[Path], typer.Argument(help="Slices or sets of slices, .npz.")],
    model: ModelOption,
    data: Annotated[
        str | None,
        typer.Option(help="The samples that were sliced, as for 'nnslicer slice'."),
    ] = None,
    profile: Annotated[
        Path | None,
        typer.Option(help="The profile of the slices, for local values and means."),
    ] = None,
    output: Annotated[Path, typer.Option(help="File for the page, .html.")] = Path("slices.html"),
    classes: Annotated[
        str, typer.Option(help="Names of the classes, in order, separated by commas.")
    ] = "",
    normalise: NormaliseOption = "unit",
) -> None:
    """Write an interactive view of slices as one HTML file, which opens without a server."""
    _writable(output)
    stems = [path.stem for path in files]
    slices = {
        path.stem if stems.count(path.stem) == 1 else str(path): _load_slices(path)
        for path in files
    }
    _import_quietly()
    from nnslicer_tf import InstrumentedModel, Profile
    from nnslicer_tf import explore as explore_slices

    view = explore_slices(
        slices,
        InstrumentedModel(_model(model)),
        None if data is None else _data(data, normalise),
        profile=None if profile is None else Profile.load(profile),
        classes=[name.strip() for name in classes.split(",")] if classes else (),
    )
    view.save(output)
    print(f"{view!r}\nWritten to {output}")


def main() -> None:
    """Run the command line."""
    try:
        app()
    except (NNSlicerError, FileNotFoundError) as error:
        print(f"nnslicer: {error}", file=sys.stderr)
        sys.exit(2)


def _import_quietly() -> None:
    """Import Keras without the start-up messages of its backend, which would bury the output.

    The messages come from C++ before its log level takes effect, so standard error itself is
    redirected to a file, which is shown if the import fails.
    """
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    standard_error = os.dup(2)
    with tempfile.TemporaryFile() as hidden:
        os.dup2(hidden.fileno(), 2)
        try:
            import keras

            if keras.backend.backend() == "tensorflow":
                import tensorflow as tf

                tf.config.list_physical_devices()  # looks for a GPU, and prints messages
        except BaseException:
            hidden.seek(0)
            os.write(standard_error, hidden.read())
            raise
        finally:
            os.dup2(standard_error, 2)
            os.close(standard_error)


def _compile_ahead() -> None:
    from nnslicer_tf._kernels.ahead import compile_ahead

    compile_ahead()


def _writable(path: Path) -> Path:
    from nnslicer_tf._files import check_writable

    return check_writable(path)


def _model(path: Path) -> Any:
    import nnslicer_tf.pruning  # noqa: F401 - registers the masks of pruned models with Keras
    from nnslicer_tf.instrument.loading import load_model

    return load_model(path)


def _data(spec: str, normalise: str) -> "np.ndarray":
    from nnslicer_tf import datasets

    return datasets.load_data(spec, normalise=normalise, labels=False).x


def _outputs(text: str) -> str | list[int]:
    if text == "predicted":
        return text
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise InvalidArgumentError(
            f"--outputs is 'predicted' or indices such as '3' or '0,4'. Received: {text!r}"
        ) from None


def _load_result(path: Path) -> "Slice | SliceSet | Profile":
    from nnslicer_tf import Profile, Slice, SliceSet

    for kind in (Slice, SliceSet, Profile):
        try:
            return kind.load(path)
        except CorruptFileError as error:
            last = error
    raise CorruptFileError(
        f"'{path}' is neither a slice, nor a set of slices, nor a profile. {last}"
    )


def _load_slices(path: Path) -> "Slice | SliceSet":
    from nnslicer_tf import Profile

    result = _load_result(path)
    if isinstance(result, Profile):
        raise InvalidArgumentError(f"'{path}' is a profile; only slices can be explored.")
    return result


def _plot(result: "Slice", path: Path) -> None:
    from nnslicer_tf.report import plot_slices

    reached = [name for name, values in result.neurons.items() if (values != 0).any()]
    plot_slices({path.stem: result}, reached).savefig(path, dpi=110)


if __name__ == "__main__":
    main()
