"""`Evidence`: lazily computed features of a batch of inputs, shared by a detector's scorers.

All scorers of a detector read the same object, so that what several of them need is computed
only once. Memory: logits, margins, channel statistics and spectra are kept, a few hundred
numbers per input. Slice vectors are larger, one float32 per sampled synapse and input: only the
latest are kept.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property

import numpy as np

from nnslicer_tf._names import check_name
from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.detection._kernels import local_criterion, operation_of
from nnslicer_tf.detection.residuals import residual_shares
from nnslicer_tf.detection.spectra import SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.errors import InputRangeWarning, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion, Slicer
from nnslicer_tf.slicing.criterion import PREDICTED

# Samples whose complete feature maps are held in memory at once.
_SAMPLES = 512
# Added to standard deviations before taking the logarithm, as a channel may be constant.
SMALLEST_SPREAD = 1e-3


class Evidence:
    """A batch of inputs and features of how a model responds, computed on first use.

    Args:
        im: The watched model.
        x: (N, *input_shape) the inputs.
        slicer: Makes the slices; None if no slices are needed.
        logits: (N, classes) the model's logits of `x`, if already known.

    Attributes:
        im: The watched model.
        x: The inputs.
        slicer: Makes the slices.

    Methods raise NonFiniteActivationError if the model produces NaN or infinite values.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        x: np.ndarray,
        slicer: Slicer | None = None,
        *,
        logits: np.ndarray | None = None,
    ) -> None:
        self.im, self.x, self.slicer = im, x, slicer
        self._logits = logits
        self._kept: dict[tuple[str, str], np.ndarray] = {}
        self._latest_slices: tuple[object, np.ndarray] | None = None
        self._latest_views: tuple[object, np.ndarray] | None = None

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: np.ndarray) -> "Evidence":
        """Return the evidence of some of the inputs, reusing the logits."""
        return Evidence(self.im, self.x[index], self.slicer, logits=self.logits[index])

    def views(self, view: str) -> Iterator["Evidence"]:
        """Yield the evidence of views of the inputs, with the inputs' own logits.

        Args:
            view: A kind of view, from `VIEWS`.
        """
        check_name("view", view, VIEWS)
        for images in VIEWS[view](self.x):
            yield Evidence(self.im, images, self.slicer, logits=self.logits)

    @property
    def logits(self) -> np.ndarray:
        """The model's logits, (N, classes) float32."""
        if self._logits is None:
            self._logits = self.im.logits(self.x)
        return self._logits

    @cached_property
    def predicted(self) -> np.ndarray:
        """The predicted classes p = M(ξ), (N,) int64."""
        return self.logits.argmax(axis=1)

    @cached_property
    def margins(self) -> np.ndarray:
        """Max over c ≠ p of logit c - logit p, (N,) float64: near 0 the model is unsure."""
        return runner_up_margin(self.logits, self.predicted)

    def view_margins(self, view: str) -> np.ndarray:
        """Return the margins of the inputs' predictions in other views of the inputs.

        Args:
            view: A kind of view, from `VIEWS`.

        Returns:
            (N,) float64, the mean over the views of that kind; above 0 means they are
            classified differently.
        """

        def compute() -> np.ndarray:
            logits = map(self.im.logits, VIEWS[view](self.x))
            return np.mean([runner_up_margin(z, self.predicted) for z in logits], axis=0)

        check_name("view", view, VIEWS)
        return self._once(("view", view), compute)

    def spectrum(self, name: str) -> np.ndarray:
        """Return the power spectrum of the images, (N, features) float64.

        Args:
            name: How frequencies are grouped, from `SPECTRA`.
        """
        check_name("spectrum", name, SPECTRA)
        return self._once(("spectrum", name), lambda: SPECTRA[name](self.x))

    @cached_property
    def residuals(self) -> np.ndarray:
        """The images' noise by its size, (N, features) float32; see `residual_shares`."""
        parts = [self.x[first : first + _SAMPLES] for first in range(0, len(self), _SAMPLES)]
        return np.concatenate([residual_shares(part) for part in parts])

    def channel_statistics(self, kernel: str) -> np.ndarray:
        """Return how strongly each channel of a weighted sum responds.

        Args:
            kernel: Name of the layer's kernel.

        Returns:
            (N, 4 · channels) float32: for all channels the mean, the logarithm of the
            standard deviation, the largest and the smallest value over the positions.
            They reflect the texture of an image.
        """
        return self._once(("channels", kernel), lambda: self._channel_statistics(kernel))

    def slices(
        self, kernels: Sequence[str], columns: np.ndarray, local: bool = False
    ) -> np.ndarray:
        """Return each input's CONTRIB of some synapses, (N, columns) float32.

        Args:
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of the synapses, among those of these kernels.
            local: False: slices for the predicted class. True: the kernels' local slices, each
                for all outputs of its layer, which do not depend on the prediction.

        Raises:
            InvalidArgumentError: if there is no slicer.
        """
        key = (tuple(kernels), local, columns.tobytes())
        if self._latest_slices is None or self._latest_slices[0] != key:
            self._latest_slices = None  # frees the memory before allocating more
            self._latest_slices = key, self._slices(kernels, columns, local)
        return self._latest_slices[1]

    def runner_up_slices(self, kernels: Sequence[str], columns: np.ndarray) -> np.ndarray:
        """Return each input's CONTRIB of some synapses to the second most likely class.

        Args:
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of the synapses, among those of these kernels.

        Returns:
            (N, columns) float32.

        Raises:
            InvalidArgumentError: if there is no slicer.
        """
        others = self.logits.copy()
        others[np.arange(len(self)), self.predicted] = -np.inf
        second = others.argmax(axis=1)
        vectors = np.empty((len(self), len(columns)), np.float32)
        for label in np.unique(second):
            rows = np.flatnonzero(second == label)
            one = Criterion([int(label)])
            vectors[rows] = self.rows(rows)._vectors(one, kernels, columns)
        return vectors

    def view_slices(self, kernels: Sequence[str], columns: np.ndarray, view: str) -> np.ndarray:
        """Return the mean of the local slices over the inputs' views of a kind.

        Args:
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of the synapses, among those of these kernels.
            view: A kind of view, from `VIEWS`.

        Returns:
            (N, columns) float32. Only the latest are kept.

        Raises:
            InvalidArgumentError: if there is no slicer.
        """
        key = (view, tuple(kernels), columns.tobytes())
        if self._latest_views is None or self._latest_views[0] != key:
            self._latest_views = None
            found = [one.slices(kernels, columns, local=True) for one in self.views(view)]
            self._latest_views = key, sum(found[1:], start=found[0]) / len(found)
        return self._latest_views[1]

    def _once(self, key: tuple[str, str], compute: Callable[[], np.ndarray]) -> np.ndarray:
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    def _channel_statistics(self, kernel: str) -> np.ndarray:
        name = operation_of(self.im, kernel)
        parts = []
        for captured in self.im.capture_batches(self.x, batch_size=_SAMPLES, of=[name]):
            values = np.asarray(captured[name], np.float32)
            values = values.reshape(len(values), -1, values.shape[-1])
            spread = np.log(values.std(axis=1) + SMALLEST_SPREAD)
            statistics = [values.mean(axis=1), spread, values.max(axis=1), values.min(axis=1)]
            parts.append(np.concatenate(statistics, axis=1))
        return np.concatenate(parts)

    def _slices(self, kernels: Sequence[str], columns: np.ndarray, local: bool) -> np.ndarray:
        if not local:
            return self._vectors(PREDICTED, kernels, columns)
        parts = [
            self._vectors(local_criterion(self.im, name), [name], own)
            for name, own in self._by_kernel(kernels, columns)
        ]
        return np.concatenate(parts, axis=1)

    def _by_kernel(
        self, kernels: Sequence[str], columns: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each kernel and the indices of its own synapses."""
        first = 0
        for name in kernels:
            end = first + self.im.kernels[name].size
            yield name, columns[(columns >= first) & (columns < end)] - first
            first = end

    def _vectors(
        self, outputs: str | Criterion, kernels: Sequence[str], columns: np.ndarray
    ) -> np.ndarray:
        """Return the slices for a criterion, as vectors (N, columns) float32."""
        if self.slicer is None:
            raise InvalidArgumentError("Slices were asked for, but there is no slicer. Give one.")
        own = list(self._by_kernel(kernels, columns))
        vectors = np.empty((len(self), len(columns)), np.float32)
        first = 0
        with warnings.catch_warnings():
            # A detector is expected to see inputs that differ from the profiled ones.
            warnings.filterwarnings("ignore", "The mean of the inputs", InputRangeWarning)
            for part in self.slicer.iterate(self.x, outputs, kernels):
                count = len(part.predicted)
                rows = [part.synapses[name].reshape(count, -1)[:, taken] for name, taken in own]
                vectors[first : first + count] = np.concatenate(rows, axis=1)
                first += count
        return vectors
