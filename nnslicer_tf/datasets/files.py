"""Users' data: folders of images, `.npz`, `.npy` and `.csv` files, read into memory as a whole.

For larger folders of images, pass the `tf.data.Dataset` of
`keras.utils.image_dataset_from_directory`, which every analysis accepts.
"""

import os
import warnings
import zipfile
import zlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_labels, check_name, counted, names_in_order
from nnslicer_tf._files import as_path
from nnslicer_tf.datasets.named import NORMALISATIONS, Dataset, load
from nnslicer_tf.datasets.tables import NO_LABELS, label_column, read_table, split_frame
from nnslicer_tf.errors import CorruptFileError, InputShapeError, InvalidArgumentError

_IMAGES = (".png", ".jpg", ".jpeg", ".bmp", ".gif")
_UNREADABLE = (OSError, ValueError, EOFError)


def load_data(
    spec: str | os.PathLike,
    *,
    normalise: str = "unit",
    labels: bool | str = True,
    shape: Sequence[int] | None = None,
    split: str = "test",
    classes: Sequence[str] = (),
) -> Dataset:
    """Load data that is specified by one string, as on a command line.

    Args:
        spec: One of

            - `"name:split"`, a public data set, such as `"cifar10:test[:100]"`;
            - a single image, a folder of images, or one with a subfolder per class, as for
              `keras.utils.image_dataset_from_directory`: classes are numbered in the order of
              their names, images may lie deeper, and names that begin with a dot are ignored. Grey
              images may have 16 bits;
            - an `.npz` file with arrays x and y, or an `.npy` file with x;
            - a `.csv` file with a row per sample, and labels in a column label(s), class or target,
              or otherwise y: integers, names, or truth values (False is class 0, True class 1).
        normalise: For public sets, see `load`. Images are divided by 255 if `"unit"`, and keep
            their values 0 … 255 if `"none"`. Values in other files are used unchanged.
        labels: Whether there must be labels, classes. If not, those in `.npz` files are not read;
            "any" are right answers of any kind, such as maps of classes or numbers, and
            "optional" are these if the file has them.
        shape: Shape of one sample. Images are resized to its height and width, and converted to
            grey or colour by its channels; rows of a `.csv` file are reshaped to it.
        split: Split of a public set to use if `spec` does not name one.
        classes: Names of the model's classes, in its order. Without them, names in a file or of
            folders are numbered alphabetically; for files a warning says so.

    Raises InvalidArgumentError if there is no such data, a class without images, or an unknown
    label; CorruptFileError if a file cannot be read, or its contents are inconsistent;
    InputShapeError if images differ in size and `shape` is None, or rows do not fit the shape;
    DatasetUnavailableError as in `load`.
    """
    check_name("normalisation", normalise, NORMALISATIONS)
    path = as_path(spec)
    is_image = path.is_dir() or path.suffix.lower() in _IMAGES
    is_file = is_image or path.suffix in (".npz", ".npy", ".csv")
    if not is_file and (path.suffix or os.sep in str(spec)):
        problem = "is not of a kind that can be read" if path.exists() else "does not exist"
        raise InvalidArgumentError(
            f"'{spec}' {problem}. Data must be a folder of images, an image, an .npz, .npy or .csv "
            "file, or a data set such as 'cifar10:test[:100]'."
        )
    if is_file and not path.exists():
        raise InvalidArgumentError(f"There is no file '{path}'.")
    if is_image:
        data = _load_images(path, normalise, shape)
    elif path.suffix == ".csv":
        data = _load_csv(path, shape, numbers=labels in ("any", "optional"))
    elif is_file:
        data = _load_arrays(path, labels)
    else:
        name, _, named_split = str(spec).partition(":")
        data = load(name, named_split or split, normalise=normalise)
    is_required = labels and labels != "optional"
    if is_required and not len(data.y):
        raise InvalidArgumentError(
            f"'{spec}' has no labels, which this analysis needs. Pass a folder with one subfolder "
            "for each class, an .npz file with x and y, or a .csv file with a column 'label'."
        )
    if not classes:
        if is_required and data.alphabetical and not is_image:
            warnings.warn(order_note(data.class_names), stacklevel=2)
        return data

    # Give the classes these names and this order.
    names = names_in_order("classes", classes)
    if data.class_names == ("False", "True"):  # in whatever letters the file has them
        spelled = {name.lower(): name for name in names}
        data = replace(data, class_names=tuple(spelled.get(n.lower(), n) for n in data.class_names))
    texts = [str(label) for label in data.y] if data.y.ndim == 1 and not data.class_names else []
    if texts and set(texts) <= set(names):  # numbers that are names
        y = np.array([names.index(text) for text in texts], np.int64)
        return replace(data, y=y, classes=len(names), class_names=names)
    if not data.alphabetical and not (data.class_names and set(data.class_names) <= set(names)):
        if len(data.y) and data.y.max() >= len(names):
            raise InvalidArgumentError(
                f"'{data.name}' has the label {data.y.max()}, but classes has only "
                f"{counted(len(names), 'name')}. Name all classes, in the model's order."
            )
        return replace(data, class_names=names)
    unknown = [name for name in data.class_names if name not in names]
    if unknown:
        raise InvalidArgumentError(
            f"'{data.name}' has the label {unknown[0]!r}, which is not one of the classes "
            f"{', '.join(names)}. Name all classes, in the model's order."
        )
    y = np.array([names.index(name) for name in data.class_names], np.int64)[data.y]
    return replace(data, y=y, classes=len(names), class_names=names, alphabetical=False)


def order_note(names: Sequence[str], option: str = "") -> str:
    """Say that classes are numbered alphabetically, and with which option to change it."""
    numbers = ", ".join(f"{i} = {name}" for i, name in enumerate(names[:10]))
    return (
        f"Class numbers follow the alphabetical order of the labels: {numbers}"
        f"{' …' if len(names) > 10 else ''}; use {order_remedy(names, option)} if the model counts "
        "otherwise."
    )


def order_remedy(names: Sequence[str], option: str = "") -> str:
    """Return the argument, or option of the command line, that names the classes in order."""
    if len(names) != 2:
        return f"{option} A,B,…" if option else "classes=[…], the names in the model's order,"
    other = names[::-1]
    return f"{option} {','.join(other)}" if option else f"classes={list(other)}"


def _load_arrays(path: Path, labels: bool | str) -> Dataset:
    """Load an `.npz` file with x `(N, …)` and y `(N,)` integers or one-hot, or an `.npy` file."""
    try:
        with path.open("rb") as stored:
            content = np.load(stored, allow_pickle=False)
            is_array = path.suffix == ".npy"
            arrays = {"x": content} if is_array else {key: content[key] for key in content.files}
    except (*_UNREADABLE, AttributeError, MemoryError, zlib.error, zipfile.BadZipFile) as error:
        raise CorruptFileError(f"'{path}' is not a readable {path.suffix} file: {error}") from error
    labels = "y" in arrays and "any" if labels == "optional" else labels
    needs_y = labels and path.suffix == ".npz"
    if missing := ({"x", "y"} if needs_y else {"x"}) - arrays.keys():
        raise CorruptFileError(
            f"'{path}' has no array {' and '.join(sorted(missing))}; it contains {sorted(arrays)}. "
            "Write it with np.savez(path, x=inputs, y=labels)."
        )
    x: Any = arrays["x"]
    if not isinstance(x, np.ndarray) or x.ndim < 2 or not np.issubdtype(x.dtype, np.number):
        received = f"{x.dtype} {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise CorruptFileError(f"'{path}': x must be numbers of shape (N, …). Received: {received}")
    if not needs_y or labels == "any":  # which the model checks
        return Dataset(x, arrays["y"] if needs_y else NO_LABELS, str(path), "", "none", 0)
    try:
        y = check_labels(arrays["y"], len(x))
    except InvalidArgumentError as error:
        raise CorruptFileError(f"'{path}': {error}") from error
    return Dataset(x, y, str(path), "", "none", int(y.max()) + 1)


def _load_csv(path: Path, shape: Sequence[int] | None, numbers: bool) -> Dataset:
    frame, what = read_table(path), f"'{path}'"
    x, y, names = split_frame(frame, what, numbers)
    columns = tuple(name for name in frame if name != label_column(frame, what))
    if shape is not None:
        if x.shape[1] != int(np.prod(shape)):
            hint = "" if len(columns) < frame.shape[1] else " Name the column of labels 'label'."
            raise InputShapeError(
                f"'{path}' has {counted(x.shape[1], 'column')} of values, "
                f"{', '.join(columns)[:200]}; the model takes {int(np.prod(shape))}.{hint}"
            )
        x = x.reshape(len(x), *shape)
    classes = int(y.max()) + 1 if len(y) and y.dtype.kind == "i" else 0
    alphabetical = bool(names) and names != ("False", "True")
    return Dataset(x, y, str(path), "", "none", classes, names, columns, alphabetical)


def _load_images(path: Path, normalise: str, shape: Sequence[int] | None) -> Dataset:
    if normalise not in ("unit", "none"):
        raise InvalidArgumentError(
            "normalise must be 'unit' (divide by 255) or 'none' for a folder of images. Received: "
            f"{normalise!r}. For other scalings: InstrumentedModel(model, preprocess=…)."
        )
    if shape is not None and (len(shape) != 3 or shape[2] not in (1, 3)):
        raise InputShapeError(
            f"'{path}' has images, but the model takes samples of shape {tuple(shape)}, not images."
        )

    # List the images of each class, in Keras's order.
    folders = []
    if path.is_dir():
        folders = sorted(f for f in path.iterdir() if f.is_dir() and not f.name.startswith("."))
    parts = []
    for top in folders or [path]:
        if not top.is_dir():
            parts.append([top])
            continue
        part = []
        for folder, _, names in sorted(os.walk(top)):
            if not any(name.startswith(".") for name in Path(folder).relative_to(top).parts):
                part += [Path(folder, name) for name in sorted(names) if not name.startswith(".")]
        parts.append([file for file in part if file.suffix.lower() in _IMAGES])
    files = [file for part in parts for file in part]
    if not files:
        raise InvalidArgumentError(f"There are no images ({', '.join(_IMAGES)}) in '{path}'.")
    empty = [folder.name for folder, part in zip(folders, parts, strict=False) if not part]
    if empty:
        raise InvalidArgumentError(
            f"There are no images ({', '.join(_IMAGES)}) in the folder '{empty[0]}' of '{path}', "
            "where every folder must be a class. Remove or move it."
        )

    images = [_image(file, shape) for file in files]
    sizes = {image.shape for image in images}
    if len(sizes) > 1:
        raise InputShapeError(f"The images in '{path}' differ in size: {sorted(sizes)[:3]} …")
    x = np.stack(images)
    if normalise == "unit":
        x /= np.float32(255)
    y = np.repeat(np.arange(len(folders)), [len(part) for part in parts][: len(folders)])
    y, classes = y.astype(np.int64), tuple(folder.name for folder in folders)
    return Dataset(x, y, str(path), "", normalise, len(classes), classes, (), bool(classes))


def _image(path: Path, shape: Sequence[int] | None) -> np.ndarray:
    from PIL import Image, UnidentifiedImageError

    try:
        with Image.open(path) as opened:
            # Pillow's modes for 16-bit grey images, which have most bits ("I" in older versions).
            deep = opened.mode in ("I", "I;16", "I;16L", "I;16B", "I;16N")
            grey = (deep or opened.mode in ("L", "1")) if shape is None else shape[2] == 1
            if deep:  # Pillow would clip all values above 255
                image = Image.fromarray(np.asarray(opened, np.float32) * (255 / 65535))
            else:
                image = opened.convert("L" if grey else "RGB")
    except (*_UNREADABLE, UnidentifiedImageError, Image.DecompressionBombError) as error:
        raise CorruptFileError(f"'{path}' is not a readable image: {error}") from error
    if shape is not None and image.size != (shape[1], shape[0]):
        image = image.resize((shape[1], shape[0]), Image.Resampling.BILINEAR)
    values = np.atleast_3d(np.asarray(image, np.float32))
    return np.repeat(values, 3, axis=2) if deep and not grey else values
