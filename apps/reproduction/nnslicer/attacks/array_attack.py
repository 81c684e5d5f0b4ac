"""`ArrayAttack`: the base class of attacks of this package, for Foolbox, in NumPy."""

from abc import abstractmethod
from typing import Any

import eagerpy as ep
import numpy as np
from foolbox.attacks.base import MinimizationAttack, get_criterion, raise_if_kwargs
from foolbox.criteria import Misclassification
from foolbox.models import Model

from nnslicer_tf.errors import InvalidArgumentError

_BATCH = 512


class Query:
    """The attacker's access to the model, whose inputs have values from `low` to `high`."""

    def __init__(self, model: Model, like: ep.Tensor):
        self._model = model
        self._like = like
        self.low, self.high = model.bounds

    def logits(self, x: np.ndarray) -> np.ndarray:
        """Return the logits (N, classes) of any number of images."""
        starts = range(0, len(x), _BATCH)
        return np.concatenate(
            [self._model(self._tensor(x[i : i + _BATCH])).numpy() for i in starts]
        )

    def predict(self, x: np.ndarray) -> np.ndarray:
        """Return the predicted classes (N,)."""
        return self.logits(x).argmax(axis=1)

    def gradient(self, x: np.ndarray, weights: np.ndarray) -> np.ndarray:
        """Return the gradient of each image's Σ weights · logits; weights are (N, classes)."""
        factors = self._tensor(weights)

        def weighted(inputs: ep.Tensor) -> ep.Tensor:
            return (self._model(inputs) * factors).sum()

        return ep.value_and_grad(weighted, self._tensor(x))[1].numpy()

    def _tensor(self, array: np.ndarray) -> ep.Tensor:
        return ep.from_numpy(self._like, np.ascontiguousarray(array, np.float32))


class ArrayAttack(MinimizationAttack):
    """An untargeted attack on images, written in NumPy; a subclass implements `perturb`."""

    @abstractmethod
    def perturb(self, query: Query, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the attacked images.

        `x` is `(N, height, width, channels) float32`, within [query.low, query.high]; the model
        should no longer predict the classes `labels`, (N,).
        """

    def run(
        self,
        model: Model,
        inputs: Any,
        criterion: Any,
        *,
        early_stop: float | None = None,
        **kwargs: Any,
    ) -> Any:
        """Run the attack; called by Foolbox."""
        raise_if_kwargs(kwargs)
        criterion = get_criterion(criterion)
        if not isinstance(criterion, Misclassification):
            raise InvalidArgumentError(
                f"{type(self).__name__} is untargeted: it takes labels. Received: {criterion!r}"
            )
        x, restore_type = ep.astensor_(inputs)
        if x.ndim != 4:
            raise InvalidArgumentError(
                f"{type(self).__name__} attacks images (N, height, width, channels). "
                f"Received: shape {x.shape}"
            )
        attacked = self.perturb(Query(model, x), x.numpy().copy(), criterion.labels.numpy())
        return restore_type(ep.from_numpy(x, attacked.astype(np.float32)))
