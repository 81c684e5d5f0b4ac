"""Data sets: public ones by name, and users' files and folders.

    train = load("cifar10", "train", normalise="standard")
    mine = load_data("photos/", shape=(32, 32, 3))  # folders of images, .npz, .npy, .csv

Both return a `Dataset` with samples and labels.
"""

from nnslicer_tf.datasets.files import load_data, load_npz
from nnslicer_tf.datasets.named import (
    NORMALISATIONS,
    Dataset,
    Normalisation,
    load,
    load_spec,
    names,
    normalisation,
    split_indices,
    stream,
    tfds_rows,
)

__all__ = [
    "NORMALISATIONS",
    "Dataset",
    "Normalisation",
    "load",
    "load_data",
    "load_npz",
    "load_spec",
    "names",
    "normalisation",
    "split_indices",
    "stream",
    "tfds_rows",
]
