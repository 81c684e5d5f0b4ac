"""Predictions of models pruned with means, without building a model for each."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import compiled_function
from nnslicer_tf.pruning.masks import check_masks
from nnslicer_tf.slicing import Profile

Statistics = dict[str, tuple[Any, Any]]


class MeanPredictor:
    """Computes the outputs of models that `prune` with means would give, for many masks in turn.

    A weighted sum computes W·(x − x̄) + ȳ with the masked W, as the paper's program does.

    Args:
        im: The model; it is not changed.
        profile: The model's profile, with the means x̄ and ȳ.
        plain: Names of kernels that are pruned without means.

    Raises:
        ProfileMismatchError: if the profile belongs to a different model.
    """

    def __init__(self, im: InstrumentedModel, profile: Profile, plain: Iterable[str] = ()) -> None:
        profile.check_model(im)
        self._im = im
        self._kernels = im.kernels
        self._plain = frozenset(plain)
        order = im.graph.ancestors([im.logit_operation])
        self._order = [o for o in order if o.name != im.input_operation]
        self._means = {name: mean[None].astype(np.float32) for name, mean in profile.means.items()}
        self._run = compiled_function(self._forward)
        self._measure = compiled_function(self._statistics)

    def logits(
        self,
        keep: Mapping[str, np.ndarray],
        x: np.ndarray,
        renormalise_on: np.ndarray | None = None,
        batch_size: int = 200,
    ) -> np.ndarray:
        """Return the logits of the pruned model; see `MaskedPredictor.logits`.

        Raises:
            InvalidArgumentError: if the masks do not fit the model.
            InputShapeError: if the samples do not fit the model.
        """
        masks = {
            name: keras.ops.convert_to_tensor(mask, "float32")
            for name, mask in check_masks(self._im, keep).items()
        }
        x = self._im.check(x)
        statistics: Statistics = {}
        if renormalise_on is not None:
            samples = keras.ops.convert_to_tensor(renormalise_on, "float32")
            statistics = self._measure(samples, masks)
        starts = range(0, len(x), batch_size)
        parts = [
            self._run(keras.ops.convert_to_tensor(x[i : i + batch_size]), masks, statistics)
            for i in starts
        ]
        return np.concatenate([keras.ops.convert_to_numpy(part) for part in parts])

    def _forward(self, x: Any, masks: dict[str, Any], statistics: Statistics) -> Any:
        def given(name: str, value: Any) -> tuple[Any, Any]:
            layer = self._im[name].keras_layer
            return statistics.get(name, (layer.moving_mean, layer.moving_variance))

        return self._values(x, masks, given)[self._im.logit_operation]

    def _statistics(self, x: Any, masks: dict[str, Any]) -> Statistics:
        """Return the mean and variance of each batch normalisation's input, by name."""
        found: Statistics = {}

        def measure(name: str, value: Any) -> tuple[Any, Any]:
            rank = len(value.shape)
            axis = self._im[name].keras_layer.axis % rank
            axes = [a for a in range(rank) if a != axis]
            found[name] = keras.ops.moments(value, axes)
            return found[name]

        self._values(x, masks, measure)
        return found

    def _values(
        self, x: Any, masks: dict[str, Any], statistics: Callable[[str, Any], tuple[Any, Any]]
    ) -> dict[str, Any]:
        """Return the values of all operations.

        `statistics` returns the mean and variance of a batch normalisation by name and input.
        """
        values = {self._im.input_operation: x}
        for operation in self._order:
            inputs = [values[name] for name in operation.inputs]
            layer = operation.keras_layer
            if operation.kind == "weighted_sum":
                value = self._sum(operation, inputs[0], masks)
            elif isinstance(layer, keras.layers.BatchNormalization):
                value = keras.ops.batch_normalization(
                    inputs[0],
                    *statistics(operation.name, inputs[0]),
                    axis=layer.axis,
                    offset=layer.beta,
                    scale=layer.gamma,
                    epsilon=layer.epsilon,
                )
            else:
                value = operation.compute(*inputs)
            values[operation.name] = value
        return values

    def _sum(self, operation: Operation, x: Any, masks: dict[str, Any]) -> Any:
        kernel = self._kernels[operation.params.name]
        if kernel.name not in masks:
            return operation.compute(x)
        weights = keras.ops.cast(kernel.variable(), "float32") * masks[kernel.name]
        if kernel.name not in self._plain:
            mean = self._means[operation.inputs[0]]
            return kernel.apply(x - mean, weights) + self._means[operation.name]
        bias, value = kernel.bias(), kernel.apply(x, weights)
        return value if bias is None else value + bias
