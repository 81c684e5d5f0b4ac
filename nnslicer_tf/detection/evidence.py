"""`Evidence`: lazily computed features of a batch of inputs, shared by a detector's scorers.

All scorers of a detector read the same object, so that what several of them need is computed
only once. The inputs are an array, or a tensor of the backend: then the features are tensors with
gradients, for attackers who know the detector; their slices are those at θ = 0, with a surrogate
gradient for their signs (see `slicing.SmoothSlices`).

Memory: logits, margins, channel statistics and spectra are kept, a few hundred numbers per input.
Slice vectors are larger, one float32 per sampled synapse and input: only the latest are kept,
except of tensors.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import LazyModule
from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.detection.residuals import residual_shares
from nnslicer_tf.detection.spectra import SMOOTH_SPECTRA, SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.errors import InputRangeWarning, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion, Slicer, SmoothSlices
from nnslicer_tf.slicing.criterion import PREDICTED

ops: Any = LazyModule("keras.ops")

# Samples whose complete feature maps are held in memory at once.
_SAMPLES = 512
# Added to standard deviations before taking the logarithm, as a channel may be constant.
MIN_SPREAD = 1e-3
# Added under the square root of tensors, whose slope at 0 is infinite.
MIN_VARIANCE = 1e-12


class Evidence:
    """A batch of inputs and features of how a model responds, computed on first use.

    The shapes are those of arrays; features of a tensor are tensors of the same shape, float32.

    Args:
        im: The watched model.
        x: (N, *input_shape) the inputs, an array or a tensor of the backend.
        slicer: Makes the slices; None if no slices are needed.
        logits: (N, classes) the scores of the classes for `x`, if already known.
        steepness: For tensors: the steepness of the smoothed sign function, a number or a scalar
            tensor.

    Attributes:
        im: The watched model.
        x: The inputs.
        slicer: Makes the slices.

    Methods raise NonFiniteActivationError if the model gives NaN or infinite values for an array.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        x: Any,
        slicer: Slicer | None = None,
        *,
        logits: Any = None,
        steepness: Any = 1.0,
    ) -> None:
        self.im, self.x, self.slicer = im, x, slicer
        self._steepness = steepness
        self._smooth = not isinstance(x, np.ndarray)
        self._kept: dict[tuple, Any] = {} if logits is None else {("logits",): logits}
        self._latest: dict[str, tuple[tuple, np.ndarray]] = {}

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: np.ndarray) -> "Evidence":
        """Return the evidence of some of the inputs of an array, reusing the logits."""
        return Evidence(self.im, self.x[index], self.slicer, logits=self.logits[index])

    def views(self, view: str) -> Iterator["Evidence"]:
        """Yield the evidence of views of the inputs, with the inputs' own logits.

        Args:
            view: A kind of view, from `VIEWS`.
        """
        check_name("view", view, VIEWS)
        options = {"logits": self.logits, "steepness": self._steepness}
        for images in VIEWS[view](self.x):
            yield Evidence(self.im, images, self.slicer, **options)

    @property
    def logits(self) -> Any:
        """The scores of the classes, (N, classes) float32: the logits; -z and z for one sigmoid."""
        return self._once(("logits",), lambda: self._scores(self.x))

    @property
    def predicted(self) -> Any:
        """The predicted classes p = M(ξ), (N,) int64."""
        argmax = ops.argmax if self._smooth else np.argmax
        return self._once(("predicted",), lambda: argmax(self.logits, axis=1))

    @property
    def margins(self) -> Any:
        """Max over c ≠ p of logit c - logit p, (N,) float64: near 0 the model is unsure."""
        return self._once(("margins",), lambda: margin(self.logits, self.predicted))

    def view_margins(self, view: str) -> Any:
        """Return the margins of the inputs' predictions in other views of the inputs.

        Args:
            view: A kind of view, from `VIEWS`.

        Returns:
            (N,) float64, the mean over the views of that kind; above 0 means they are
            classified differently.
        """
        check_name("view", view, VIEWS)
        return self._once(
            ("view", view),
            lambda: _mean([margin(self._scores(v), self.predicted) for v in VIEWS[view](self.x)]),
        )

    def spectrum(self, name: str) -> Any:
        """Return the power spectrum of the images, (N, features) float64.

        Args:
            name: How frequencies are grouped, from `SPECTRA`.
        """
        check_name("spectrum", name, SPECTRA)
        spectra = SMOOTH_SPECTRA if self._smooth else SPECTRA
        return self._once(("spectrum", name), lambda: spectra[name](self.x))

    @property
    def residuals(self) -> Any:
        """The images' noise by its size, (N, features) float32; see `residual_shares`."""

        def compute() -> Any:
            if self._smooth:
                return residual_shares(self.x)
            starts = range(0, len(self), _SAMPLES)
            return np.concatenate([residual_shares(self.x[i : i + _SAMPLES]) for i in starts])

        return self._once(("residuals",), compute)

    def channel_statistics(self, kernel: str) -> Any:
        """Return how strongly each channel of a weighted sum responds.

        Args:
            kernel: Name of the layer's kernel.

        Returns:
            (N, 4 · channels) float32: for all channels the mean, the logarithm of the
            standard deviation, the largest and the smallest value over the positions.
            They reflect the texture of an image.
        """

        def compute() -> Any:
            name = operation_of(self.im, kernel)
            if self._smooth:
                values = self.im.compute(self.x, [name])[name]
                positions, channels = int(np.prod(values.shape[1:-1])), values.shape[-1]
                values = ops.reshape(values, (-1, positions, channels))
                deviation = ops.sqrt(ops.var(values, axis=1) + MIN_VARIANCE)
                mean, spread = ops.mean(values, axis=1), ops.log(deviation + MIN_SPREAD)
                largest, smallest = ops.max(values, axis=1), ops.min(values, axis=1)
                return ops.concatenate([mean, spread, largest, smallest], axis=1)
            parts = []
            for captured in self.im.capture_batches(self.x, batch_size=_SAMPLES, of=[name]):
                values = np.asarray(captured[name], np.float32)
                values = values.reshape(len(values), -1, values.shape[-1])
                spread = np.log(values.std(axis=1) + MIN_SPREAD)
                statistics = [values.mean(axis=1), spread, values.max(axis=1), values.min(axis=1)]
                parts.append(np.concatenate(statistics, axis=1))
            return np.concatenate(parts)

        return self._once(("channels", kernel), compute)

    def slices(self, kernels: Sequence[str], columns: np.ndarray, local: bool = False) -> Any:
        """Return each input's CONTRIB of some synapses, (N, columns) float32.

        Args:
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of the synapses, among those of these kernels.
            local: False: slices for the predicted class. True: the kernels' local slices, each
                for all outputs of its layer, which do not depend on the prediction.

        Raises:
            InvalidArgumentError: if there is no slicer.
        """
        if self._smooth:
            # Computed whole, so that other columns need no second walk.
            key = ("slices", tuple(kernels), local)
            rows = self._once(key, lambda: self._smooth_slices(kernels, local))
            return ops.take(rows, columns, axis=1)

        def compute() -> np.ndarray:
            if not local:
                return self.contributions(PREDICTED, kernels, columns)
            parts = [
                self.contributions(local_criterion(self.im, name), [name], own)
                for name, own in self._by_kernel(kernels, columns)
            ]
            return np.concatenate(parts, axis=1)

        return self._last("slices", (tuple(kernels), local, columns.tobytes()), compute)

    def view_slices(self, kernels: Sequence[str], columns: np.ndarray, view: str) -> Any:
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
        return self._last(
            "views",
            (view, tuple(kernels), columns.tobytes()),
            lambda: _mean([one.slices(kernels, columns, local=True) for one in self.views(view)]),
        )

    def contributions(
        self, outputs: str | Criterion, kernels: Sequence[str], columns: np.ndarray
    ) -> np.ndarray:
        """Return the slices of an array for a criterion, as vectors (N, columns) float32.

        Args:
            outputs: The criterion, as for `Slicer.iterate`.
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of the synapses, among those of these kernels.

        Raises:
            InvalidArgumentError: if there is no slicer.
        """
        own = list(self._by_kernel(kernels, columns))
        vectors = np.empty((len(self), len(columns)), np.float32)
        first = 0
        with warnings.catch_warnings():
            # A detector is expected to see inputs that differ from the profiled ones.
            warnings.filterwarnings("ignore", "The mean of the inputs", InputRangeWarning)
            for part in self._slicer.iterate(self.x, outputs, kernels):
                count = len(part.predicted)
                rows = [part.synapses[name].reshape(count, -1)[:, taken] for name, taken in own]
                vectors[first : first + count] = np.concatenate(rows, axis=1)
                first += count
        # Class 0 has the score -z, to which amounts are opposite; counts are equal for both.
        by_amount = self._slicer.contribution == "amount"
        if by_amount and outputs == PREDICTED and self.im.classes.is_binary:
            vectors *= np.where(self.predicted == 1, 1, -1)[:, None]
        return vectors

    @property
    def _slicer(self) -> Slicer:
        if self.slicer is None:
            raise InvalidArgumentError("Slices were asked for, but there is no slicer. Give one.")
        return self.slicer

    def _scores(self, x: Any) -> Any:
        """Return the scores of the classes for inputs."""
        if not self._smooth:
            return self.im.classes.scores(self.im.logits(x))
        name = self.im.logit_operation
        logits = self.im.compute(x, [name])[name]
        return ops.concatenate([-logits, logits], axis=1) if self.im.classes.is_binary else logits

    def _smooth_slices(self, kernels: Sequence[str], local: bool) -> Any:
        """Return the slices of a tensor, with all columns."""
        parts: list[tuple[Any, Sequence[str]]] = [(PREDICTED, kernels)]
        if local:
            parts = [(local_criterion(self.im, name), [name]) for name in kernels]
        rows = []
        for outputs, names in parts:
            slices = SmoothSlices(self._slicer, outputs, names, self._steepness)(self.x)
            rows += [ops.reshape(slices[name], (-1, self.im.kernels[name].size)) for name in names]
        return ops.concatenate(rows, axis=1)

    def _by_kernel(
        self, kernels: Sequence[str], columns: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each kernel and the indices of its own synapses."""
        first = 0
        for name in kernels:
            end = first + self.im.kernels[name].size
            yield name, columns[(columns >= first) & (columns < end)] - first
            first = end

    def _once(self, key: tuple, compute: Callable[[], Any]) -> Any:
        """Return a feature, which is kept."""
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]

    def _last(self, what: str, key: tuple, compute: Callable[[], Any]) -> Any:
        """Return a large feature, of which only the latest is kept; of tensors, all are."""
        if self._smooth:
            return self._once((what, *key), compute)
        if what not in self._latest or self._latest[what][0] != key:
            self._latest.pop(what, None)  # frees the memory before allocating more
            self._latest[what] = key, compute()
        return self._latest[what][1]


def margin(scores: Any, labels: Any) -> Any:
    """Return `runner_up_margin` of arrays, (N,) float64, or tensors, (N,) float32."""
    if isinstance(scores, np.ndarray):
        return runner_up_margin(scores, labels)
    own = ops.one_hot(labels, scores.shape[-1])
    others = ops.where(own > 0, -np.float32(np.inf), scores)
    return ops.max(others, axis=1) - ops.sum(own * scores, axis=1)


def convolutions(im: InstrumentedModel) -> list[str]:
    """Return the kernels of convolutions; if there are none, all kernels but the last."""
    kernels = im.kernels
    names = [name for name, kernel in kernels.items() if len(kernel.shape) > 2]
    names = names or list(kernels)[:-1]
    if not names:
        raise InvalidArgumentError(
            f"'{im.model.name}' has no kernel before the last layer, whose slice tells "
            "nothing but the prediction."
        )
    return names


def operation_of(im: InstrumentedModel, kernel: str) -> str:
    """Return the first operation that uses a kernel."""
    return next(o.name for o in im.operations if getattr(o.params, "name", None) == kernel)


def local_criterion(im: InstrumentedModel, kernel: str) -> Criterion:
    """Return the criterion of a kernel's local slice: all outputs of its layer."""
    name = operation_of(im, kernel)
    return Criterion({name: "all"}, until=name)


def _mean(parts: list[Any]) -> Any:
    return sum(parts[1:], start=parts[0]) / len(parts)
