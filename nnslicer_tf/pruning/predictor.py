"""Predictions under many masks, without building a model for each."""

from collections.abc import Mapping

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.masks import MaskPlan
from nnslicer_tf.pruning.normalisation import with_batch_statistics


class MaskedPredictor:
    """One copy of a model, to which many masks are applied in turn.

    Cost of a prediction: assigning the weights, and forward passes.

    Args:
        im: The model; it is not changed.
    """

    def __init__(self, im: InstrumentedModel) -> None:
        self._plan = MaskPlan(im)
        self._measured, self._twins = with_batch_statistics(im)
        self._copy = im.like(self._measured)

    def logits(
        self,
        keep: Mapping[str, np.ndarray],
        x: np.ndarray,
        renormalise_on: np.ndarray | None = None,
        batch_size: int = 200,
    ) -> np.ndarray:
        """Return the logits of the model that `apply_masks` would give.

        Args:
            keep: Kernel name → bool array of the kernel's shape, as from `keep_masks`.
            x: Samples `(samples, *input_shape)`.
            renormalise_on: Samples on which batch normalisations are first measured again
                (see `renormalise`).
            batch_size: Samples in one forward pass.

        Returns:
            `(samples, classes)` float32.

        Raises:
            InvalidArgumentError: if the masks do not fit the model.
        """
        values = self._plan.values(keep)
        for variable, twin in self._twins:
            # A copy: JAX's compiled calls delete the arrays that they are given.
            twin.assign(keras.ops.copy(values.get(id(variable), variable)))
        if renormalise_on is not None:
            x_measured = keras.ops.convert_to_tensor(renormalise_on, "float32")
            self._measured(x_measured, training=True)
        return self._copy.logits(x, batch_size)
