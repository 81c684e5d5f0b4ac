"""Data sets: public ones by name, and users' files and folders.

    train = load("cifar10", "train", normalise="standard")
    mine = load_data("photos/", shape=(32, 32, 3))  # folders of images, .npz, .npy, .csv

Both return a `Dataset` with samples and labels. `texts` has sentences and vocabularies.
"""

from nnslicer_tf._faces import explain_all
from nnslicer_tf.datasets.files import load_data
from nnslicer_tf.datasets.named import Dataset, Normalisation, load, names, normalisation

__all__ = ["Dataset", "Normalisation", "load", "load_data", "names", "normalisation"]
explain_all(globals())
