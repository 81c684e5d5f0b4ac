"""The same seven samples, and their classes, in every form in which data are taken."""

import numpy as np

from nnslicer_tf import datasets

X = np.random.default_rng(0).integers(0, 256, (7, 3, 2, 1)).astype(np.float32)
Y = np.array([0, 2, 1, 1, 0, 2, 2])


class Tensor:
    """The interface of a tensor of PyTorch, one with a gradient."""

    def __init__(self, values):
        self._values = values
        self.shape = values.shape

    def __array__(self, *args, **kwargs):
        raise RuntimeError("Can't call numpy() on Tensor that requires grad.")

    def detach(self):
        return self

    def cpu(self):
        return self

    def numpy(self):
        return self._values


class MapStyle:
    """A data set of PyTorch: items by index, without an iterator; indices never run out."""

    def __len__(self):
        return len(X)

    def __getitem__(self, index):
        return Tensor(X[index % len(X)]), int(Y[index % len(X)])


def py_dataset():
    import keras

    class Batches(keras.utils.PyDataset):
        @property
        def num_batches(self):
            return 3

        def __getitem__(self, index):
            rows = slice(3 * index, 3 * index + 3)
            return X[rows], Y[rows]

    return Batches()


def tf_dataset():
    import tensorflow as tf

    return tf.data.Dataset.from_tensor_slices((X, Y)).batch(3)


BATCHES = [(X[:4], Y[:4]), (X[4:], Y[4:])]
SAMPLES = {
    "array": lambda: X,
    "integers": lambda: X.astype(np.uint8),
    "nested list": lambda: X.tolist(),
    "list of arrays": lambda: list(X),
    "tensor": lambda: Tensor(X),
    "batches": lambda: [X[:5], X[5:]],
    "generator": lambda: (x for x in X),
    "dictionary": lambda: {"image": X},
}
LABELLED = {
    "pair": lambda: (X, Y),
    "one-hot": lambda: (X, np.eye(3)[Y]),
    "a column": lambda: (X, Y[:, None]),
    "Dataset": lambda: datasets.Dataset(X, Y, "mine", "", "none", 3),
    "pairs of batches": lambda: BATCHES,
    "a loader's lists": lambda: ([Tensor(x), Tensor(y)] for x, y in BATCHES),
    "pairs of samples": lambda: list(zip(X, Y, strict=True)),
    "dictionaries": lambda: [{"pixel_values": x, "labels": y} for x, y in BATCHES],
    "map style": MapStyle,
    "PyDataset": py_dataset,
    "tf.data": tf_dataset,
}
