"""Splits in the syntax of TensorFlow Datasets (TFDS), and the data sets that TFDS reads."""

import os
import re
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._environment import require
from nnslicer_tf.errors import DatasetUnavailableError, InvalidArgumentError, MissingPackageError

if TYPE_CHECKING:
    import tensorflow as tf

HOSTS = {
    "mnist": "storage.googleapis.com",
    "fashion_mnist": "fashion-mnist.s3-website.eu-central-1.amazonaws.com",
    "cifar10": "www.cs.toronto.edu",
    "glue/sst2": "dl.fbaipublicfiles.com",
}
"""Data set → the host that TFDS downloads it from."""

_PART = re.compile(r"(?P<name>\w+)(\[(?P<start>-?\d+%?)?:(?P<stop>-?\d+%?)?\])?")


def split_indices(split: str, splits: Mapping[str, np.ndarray]) -> np.ndarray:
    """Return the indices of a split in TFDS syntax, given those of each whole split."""
    indices = []
    for part in split.split("+"):
        match = _PART.fullmatch(part.strip())
        if match is None or match["name"] not in splits:
            raise InvalidArgumentError(
                f"Unknown split '{part}': write for example 'test', 'train[:100]' or "
                f"'train[80%:]'. There are {', '.join(splits)}."
            )
        whole = splits[match["name"]]
        start, stop = (
            round(int(text[:-1]) / 100 * len(whole)) if text.endswith("%") else int(text)
            for text in (match["start"] or "0", match["stop"] or str(len(whole)))
        )
        indices.append(whole[start:stop])
    return np.concatenate(indices)


def tfds_split(name: str, split: str, supervised: bool = True) -> "tf.data.Dataset":
    """Return the rows of a split, in the order of the files: pairs if `supervised`, else dicts."""
    try:
        tfds = require(
            "tensorflow_datasets",
            "Public data sets but 'digits' are read by",
            "Files and folders need nothing: an .npz with x and y, a folder of images.",
        )
    except MissingPackageError as error:
        raise DatasetUnavailableError(str(error)) from error
    folder = Path(os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets").expanduser()
    versions = sorted((folder / name).glob("*/dataset_info.json"))
    if versions:
        builder = tfds.builder_from_directory(versions[-1].parent)
    else:
        try:
            # TFDS would retry for minutes; this detects an unreachable host at once.
            socket.create_connection((HOSTS[name], 443), timeout=5).close()
            builder = tfds.builder(name, data_dir=folder)
            builder.download_and_prepare()
        except Exception as error:  # TFDS raises many kinds: network, checksum, disk
            raise DatasetUnavailableError(
                f"The data set '{name}' is not prepared in '{folder}' and cannot be downloaded "
                f"from {HOSTS[name]}: {error}. Set TFDS_DATA_DIR to the folder that contains "
                f"{name}/VERSION/, or run `tfds build {name}` with a network connection, "
                "or give a folder of images, or an .npz file with arrays x and y."
            ) from error
    try:
        return builder.as_dataset(split=split, as_supervised=supervised, shuffle_files=False)
    except (ValueError, AssertionError) as error:
        raise InvalidArgumentError(
            f"Unknown split '{split}' of '{name}': write for example 'test', 'train[:100]' "
            f"or 'train[80%:]'. There are {', '.join(builder.info.splits)}. ({error})"
        ) from error
