"""What is known of inputs, as vectors: slices of a bounded number of synapses, statistics."""

from collections.abc import Sequence

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion, Slicer

__all__ = ["SliceVectors", "channel_statistics", "convolutions", "draw_columns", "spread"]

# Samples that are sliced together: their sparse rows and dense vectors are held at once.
_SAMPLES = 512
# Added to standard deviations before their logarithm is taken: a channel may be constant.
_SMALLEST_SPREAD = 1e-3


class SliceVectors:
    """Each sample's CONTRIB of some synapses.

    Args:
        slicer: makes the slices.
        kernels: names of the kernels whose synapses are taken.
        columns: indices of the synapses that are taken, among those of these kernels.
        local: False: slices for the predicted class. True: the local slice of the one
            kernel, for all outputs of its layer, which does not depend on the prediction.
    """

    def __init__(
        self, slicer: Slicer, kernels: Sequence[str], columns: np.ndarray, local: bool = False
    ) -> None:
        self._slicer = slicer
        self._kernels = list(kernels)
        self.columns = columns
        self._outputs = _local_criterion(slicer.im, self._kernels[0]) if local else "predicted"

    def __call__(self, x: np.ndarray) -> np.ndarray:
        """Return (N, columns) float32."""
        vectors = np.empty((len(x), len(self.columns)), np.float32)
        for first in range(0, len(x), _SAMPLES):
            rows = slice(first, first + _SAMPLES)
            slices = self._slicer.slice_each(
                x[rows], self._outputs, kernels=self._kernels, operations=()
            )
            vectors[rows] = slices.matrix[:, self.columns].toarray()
        return vectors


def channel_statistics(im: InstrumentedModel, kernel: str, x: np.ndarray) -> np.ndarray:
    """Return how strongly each channel of a weighted sum answers, `(N, 4 · channels)` float32.

    Of each channel the mean, the logarithm of the standard deviation, the largest and the
    smallest value over its positions: what the texture of an image does to a layer.

    Args:
        im: The model.
        kernel: Name of the layer's kernel.
        x: The inputs.
    """
    name = _operation(im, kernel)
    parts = []
    for captured in im.capture_batches(x, batch_size=_SAMPLES, of=[name]):
        values = np.asarray(captured[name], np.float32)
        values = values.reshape(len(values), -1, values.shape[-1])
        spread = np.log(values.std(axis=1) + _SMALLEST_SPREAD)
        parts.append(
            np.concatenate(
                [values.mean(axis=1), spread, values.max(axis=1), values.min(axis=1)], axis=1
            )
        )
    return np.concatenate(parts)


def convolutions(im: InstrumentedModel) -> list[str]:
    """Return the kernels of convolutions; of a model without any, all but the last."""
    kernels = im.kernels
    found = [name for name, kernel in kernels.items() if len(kernel.shape) > 2]
    found = found or list(kernels)[:-1]
    if not found:
        raise InvalidArgumentError(
            f"'{im.model.name}' has no kernel before the last layer, whose slice tells "
            "nothing but the prediction."
        )
    return found


def draw_columns(
    im: InstrumentedModel, kernels: Sequence[str], most: int, rng: np.random.Generator
) -> np.ndarray:
    """Return sorted indices of at most `most` synapses of each kernel, drawn evenly."""
    parts, first = [], 0
    for name in sorted(kernels, key=list(im.kernels).index):
        size = im.kernels[name].size
        drawn = np.arange(size)
        if size > most:
            drawn = np.sort(rng.choice(size, most, replace=False))
        parts.append(first + drawn)
        first += size
    return np.concatenate(parts)


def spread(items: Sequence[str], count: int) -> list[str]:
    """Return at most `count` items, evenly spread, the first and the last among them."""
    chosen = np.linspace(0, len(items) - 1, min(count, len(items))).round().astype(int)
    return [items[i] for i in chosen]


def _local_criterion(im: InstrumentedModel, kernel: str) -> Criterion:
    name = _operation(im, kernel)
    return Criterion({name: "all"}, until=name)


def _operation(im: InstrumentedModel, kernel: str) -> str:
    """Return the first operation that uses a kernel."""
    return next(o.name for o in im.operations if getattr(o.params, "name", None) == kernel)
