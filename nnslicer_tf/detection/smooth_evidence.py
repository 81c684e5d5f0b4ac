"""`SmoothEvidence`: the evidence of a batch as differentiable tensors.

It has the methods of `Evidence`, so that features can be read from either. Slices are those at
θ = 0, with a surrogate gradient for their signs (see `slicing.SmoothSlices`).
"""

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from nnslicer_tf._lazy import LazyModule
from nnslicer_tf.detection._kernels import local_criterion, operation_of
from nnslicer_tf.detection.evidence import SMALLEST_SPREAD
from nnslicer_tf.detection.residuals import residual_shares
from nnslicer_tf.detection.scorers import smooth_margin
from nnslicer_tf.detection.spectra import SMOOTH_SPECTRA
from nnslicer_tf.detection.views import VIEWS
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Slicer, SmoothSlices
from nnslicer_tf.slicing.criterion import PREDICTED

ops: Any = LazyModule("keras.ops")

# Lower bound under the square root, whose slope at 0 is infinite.
_SMALLEST_VARIANCE = 1e-12


class SmoothEvidence:
    """A batch of inputs and features of how a model responds, as tensors computed on first use.

    Args:
        im: The watched model.
        x: Tensor (N, *input_shape) float32.
        slicer: Makes the slices; None if no slices are needed.
        steepness: Steepness of the smoothed sign function, a number or a scalar tensor.
        logits: Tensor (N, classes), if already known.

    Attributes:
        im: The watched model.
        x: The inputs.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        x: Any,
        slicer: Slicer | None = None,
        *,
        steepness: Any = 1.0,
        logits: Any = None,
    ) -> None:
        self.im, self.x, self._slicer, self._steepness = im, x, slicer, steepness
        self._logits = logits
        self._kept: dict[tuple, Any] = {}

    def views(self, view: str) -> Iterator["SmoothEvidence"]:
        """Yield the evidence of views of the inputs; see `Evidence.views`."""
        kept = {"steepness": self._steepness, "logits": self.logits}
        for images in VIEWS[view](self.x):
            yield SmoothEvidence(self.im, images, self._slicer, **kept)

    @property
    def logits(self) -> Any:
        """The model's logits, (N, classes) float32."""
        if self._logits is None:
            self._logits = self._values(self.im.logit_operation)
        return self._logits

    @cached_property
    def predicted(self) -> Any:
        """The predicted classes, (N,) integers."""
        return ops.argmax(self.logits, axis=1)

    @cached_property
    def margins(self) -> Any:
        """Max over c ≠ p of logit c - logit p, (N,)."""
        return smooth_margin(self.logits, self.predicted)

    def view_margins(self, view: str) -> Any:
        """Return the margins of the predictions in views, (N,); see `Evidence.view_margins`."""

        def compute() -> Any:
            margins = [
                smooth_margin(SmoothEvidence(self.im, images).logits, self.predicted)
                for images in VIEWS[view](self.x)
            ]
            return sum(margins[1:], start=margins[0]) / len(margins)

        return self._once(("view", view), compute)

    def spectrum(self, name: str) -> Any:
        """Return the power spectrum of the images, (N, features); see `Evidence.spectrum`."""
        return self._once(("spectrum", name), lambda: SMOOTH_SPECTRA[name](self.x))

    @cached_property
    def residuals(self) -> Any:
        """The images' noise by its size, (N, features); see `residual_shares`."""
        return residual_shares(self.x)

    def channel_statistics(self, kernel: str) -> Any:
        """Return the texture of a layer; see `Evidence.channel_statistics`."""
        values = self._values(operation_of(self.im, kernel))
        channels = values.shape[-1]
        values = ops.reshape(values, (-1, int(np.prod(values.shape[1:-1])), channels))
        deviation = ops.sqrt(ops.var(values, axis=1) + _SMALLEST_VARIANCE)
        spread = ops.log(deviation + SMALLEST_SPREAD)
        largest, smallest = ops.max(values, axis=1), ops.min(values, axis=1)
        return ops.concatenate([ops.mean(values, axis=1), spread, largest, smallest], axis=1)

    def slices(self, kernels: Sequence[str], columns: np.ndarray, local: bool = False) -> Any:
        """Return each input's CONTRIB of some synapses, (N, columns); see `Evidence.slices`."""
        rows = self._once(("slices", tuple(kernels), local), lambda: self._slices(kernels, local))
        return ops.take(rows, columns, axis=1)

    def view_slices(self, kernels: Sequence[str], columns: np.ndarray, view: str) -> Any:
        """Return the mean local slices of views, (N, columns); see `Evidence.view_slices`."""

        def compute() -> Any:
            found = [one.slices(kernels, columns, local=True) for one in self.views(view)]
            return sum(found[1:], start=found[0]) / len(found)

        return self._once(("view slices", view, tuple(kernels), columns.tobytes()), compute)

    def _slices(self, kernels: Sequence[str], local: bool) -> Any:
        if self._slicer is None:
            raise InvalidArgumentError("Slices were asked for, but there is no slicer. Give one.")
        parts = (
            [(local_criterion(self.im, name), [name]) for name in kernels]
            if local
            else [(PREDICTED, kernels)]
        )
        rows = []
        for outputs, names in parts:
            found = SmoothSlices(self._slicer, outputs, names, self._steepness)(self.x)
            rows += [ops.reshape(found[name], (-1, self.im.kernels[name].size)) for name in names]
        return ops.concatenate(rows, axis=1)

    def _values(self, operation: str) -> Any:
        return self.im.compute(self.x, [operation])[operation]

    def _once(self, key: tuple, compute: Callable[[], Any]) -> Any:
        if key not in self._kept:
            self._kept[key] = compute()
        return self._kept[key]
