"""`Evidence`: lazily computed features of a batch of inputs, shared by a detector's scorers.

Slice vectors take one float32 per sampled synapse and input; they are not kept.
"""

import warnings
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.detection import images
from nnslicer_tf.errors import InputRangeWarning, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.slicing import Criterion, Slicer
from nnslicer_tf.slicing.criterion import PREDICTED

_SAMPLES = 512  # whose complete feature maps are held in memory at once
MIN_SPREAD = 1e-3  # added to standard deviations before the logarithm: a channel may be constant


class Evidence:
    """A batch of inputs and features of the model's response to them, computed on first use.

    Methods raise NonFiniteActivationError if the model gives NaN or infinite values.

    Args:
        im: The instrumented model.
        x: (N, *input_shape) the inputs.
        slicer: Makes the slices; None if no slices are needed.
        logits: (N, classes) the scores of the classes for `x`, if already known.
    """

    def __init__(
        self, im: ModelLike, x: Any, slicer: Slicer | None = None, *, logits: Any = None
    ) -> None:
        self.im, self.x, self.slicer = instrumented(im), x, slicer
        self._view_margins: dict[str, Any] = {}
        if logits is not None:
            self.logits = logits

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: np.ndarray) -> "Evidence":
        """Return the evidence of some of the inputs, reusing the logits."""
        return Evidence(self.im, self.x[index], self.slicer, logits=self.logits[index])

    def views(self, view: str) -> Iterator["Evidence"]:
        """Yield the evidence of the inputs' views of a kind, with the original inputs' logits."""
        check_name("view", view, images.VIEWS)
        for x in images.views(self.x, view):
            yield Evidence(self.im, x, self.slicer, logits=self.logits)

    @cached_property
    def logits(self) -> Any:
        """The scores of the classes, (N, classes) float32: the logits; -z and z for one sigmoid."""
        return self.scores(self.x)

    @cached_property
    def predicted(self) -> Any:
        """The predicted classes p = M(ξ), (N,) int64."""
        return images.array_module(self.logits).argmax(self.logits, axis=1)

    @cached_property
    def margins(self) -> Any:
        """Max over c ≠ p of logit_c - logit_p, (N,) float64: near 0 the model is unsure."""
        return images.margin(self.logits, self.predicted)

    def view_margins(self, view: str) -> Any:
        """Return mean margins of "mirror", "shift" or "zoom" views, (N,); above 0 they differ."""
        if view not in self._view_margins:
            margins = [images.margin(one.scores(one.x), self.predicted) for one in self.views(view)]
            self._view_margins[view] = sum(margins) / len(margins)
        return self._view_margins[view]

    def spectrum(self, grouping: str) -> Any:
        """Return the images' power spectra, (N, features) float64, by "rings" or "blocks"."""
        check_name("spectrum", grouping, images.SPECTRA)
        return images.spectrum(self.x, grouping)

    @cached_property
    def residuals(self) -> Any:
        """The images' noise by magnitude, (N, features) float32; see `images.residual_shares`."""
        starts = range(0, len(self), _SAMPLES)
        return np.concatenate([images.residual_shares(self.x[i : i + _SAMPLES]) for i in starts])

    def channel_statistics(self, kernel: str) -> Any:
        """Return statistics of the channels of a kernel's weighted sum, (N, 4 · channels) float32.

        They are the mean, the logarithm of the standard deviation, the maximum and the minimum over
        positions, each for all channels, and reflect the texture of an image.
        """
        name = operation_of(self.im, kernel)
        parts = []
        for batch in self.im.capture_batches(self.x, batch_size=_SAMPLES, of=[name]):
            values = np.asarray(batch[name], np.float32)
            values = values.reshape(len(values), -1, values.shape[-1])
            spread = np.log(np.sqrt(np.var(values, axis=1)) + MIN_SPREAD)
            statistics = [values.mean(axis=1), spread, values.max(axis=1), values.min(axis=1)]
            parts.append(np.concatenate(statistics, axis=1))
        return np.concatenate(parts)

    def slices(
        self,
        kernels: Sequence[str],
        columns: np.ndarray,
        local: bool = False,
        view: str | None = None,
    ) -> Any:
        """Return each input's CONTRIB of some synapses, (N, columns) float32.

        Args:
            kernels: Names of the kernels whose synapses are used.
            columns: Indices of synapses, counted across these kernels.
            local: False: slices for the predicted class. True: each kernel's local slice, for all
                outputs of its layer, which does not depend on the prediction.
            view: A kind of view: the mean of the local slices over the inputs' views.

        Raises InvalidArgumentError if there is no slicer.
        """
        if view is not None:
            slices = [one.slices(kernels, columns, local=True) for one in self.views(view)]
            return sum(slices) / len(slices)
        if not local:
            return self.contributions(PREDICTED, kernels, columns)
        parts = []
        for name, own in self._by_kernel(kernels, columns):
            operation = operation_of(self.im, name)
            criterion = Criterion({operation: "all"}, until=operation)
            parts.append(self.contributions(criterion, [name], own))
        return np.concatenate(parts, axis=1)

    def contributions(
        self, outputs: str | Criterion, kernels: Sequence[str], columns: np.ndarray
    ) -> np.ndarray:
        """Return slices for a criterion, (N, columns) float32; as `Slicer.iterate` and `slices`."""
        slicer, own = self.slicer, list(self._by_kernel(kernels, columns))
        if slicer is None:
            raise InvalidArgumentError("Slices need a slicer: Evidence(im, x, slicer).")
        vectors = np.empty((len(self), len(columns)), np.float32)
        first = 0
        with warnings.catch_warnings():
            # A detector is expected to see inputs that differ from the profiled ones.
            warnings.filterwarnings("ignore", "The mean of the inputs", InputRangeWarning)
            for part in slicer.iterate(self.x, outputs, kernels):
                count = len(part.predicted)
                rows = [part.synapses[name].reshape(count, -1)[:, taken] for name, taken in own]
                vectors[first : first + count] = np.concatenate(rows, axis=1)
                first += count
        # Class 0 has the score -z, to which amounts are opposite; counts are equal for both.
        if slicer.contribution == "amount" and outputs == PREDICTED and self.im.classes.is_binary:
            vectors *= np.where(self.predicted == 1, 1, -1)[:, None]
        return vectors

    def scores(self, x: Any) -> Any:
        """Return the logits of the classes for other inputs, (N, classes); −z, z for one value."""
        classes = self.im.classes  # saved thresholds are margins of −z and z, not of their halves
        return classes.scores(self.im.logits(x)) * (2 if classes.is_binary else 1)

    def _by_kernel(
        self, kernels: Sequence[str], columns: np.ndarray
    ) -> Iterator[tuple[str, np.ndarray]]:
        """Yield each kernel's name and its columns, as indices within that kernel."""
        first = 0
        for name in kernels:
            end = first + self.im.kernels[name].size
            yield name, columns[(columns >= first) & (columns < end)] - first
            first = end


def convolutions(im: InstrumentedModel) -> list[str]:
    """Return the kernels of convolutions; if there are none, all kernels but the last."""
    kernels = im.kernels
    wide = [name for name, kernel in kernels.items() if len(kernel.shape) > 2]
    names = wide or list(kernels)[:-1]
    if not names:
        raise InvalidArgumentError(
            f"'{im.model.name}' has no kernel before the last layer, whose slice is the prediction."
        )
    return names


def with_local_slices(im: InstrumentedModel, kernels: Iterable[str]) -> list[str]:
    """Return those of the kernels that have local slices: not the kernels of recurrent layers."""
    return [kernel for kernel in kernels if operation_of(im, kernel)]


def operation_of(im: InstrumentedModel, kernel: str) -> str:
    """Return the first operation that computes a sum with a kernel; "" for a recurrent layer's."""
    return next((o.name for o in im.operations if getattr(o.params, "name", None) == kernel), "")
