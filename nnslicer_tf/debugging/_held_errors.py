"""A model with the errors of its compressed copy added where they arise.

On an input x, the compressed model's value at place l is q_l. Computed in floating point from the
compressed model's own values before it, the place would have the value f_l(q). The difference
e_l = q_l − f_l(q) is the error made there. The original network with e_l added at each place l
has, by construction, the compressed model's values on x; without them it has its own. Each place,
or channel, can be switched separately.
"""

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.debugging.places import Counterpart
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product

_PARTS = 8  # steps on the path from the original to the compressed model, for the integral

Arrays = dict[str, np.ndarray]


class HeldErrors:
    """The errors of a compressed model, which can be added selectively.

    Args:
        im: The original.
        counterpart: The compressed model.
    """

    def __init__(self, im: InstrumentedModel, counterpart: Counterpart) -> None:
        self.im = im
        self.counterpart = counterpart
        self.names = tuple(place.operation for place in counterpart.places)
        self._output = im.output_operations[0]
        self._run = compiled_function(self._outputs)
        self._attribute = compiled_function(self._attributed)

    def made(self, x: np.ndarray) -> tuple[Arrays, Arrays, Arrays]:
        """Return the compressed model's values, those in floating point, and the errors made.

        Args:
            x: One batch of samples.

        Returns:
            Three mappings of operation → `(batch, …)`: q, f(q), and q − f(q).
        """
        values = self.counterpart.values(x)
        computed: dict[str, Any] = {}

        def change(name: str, value: Any) -> Any:
            if name not in values:
                return value
            computed[name] = ops.convert_to_numpy(value)
            return ops.convert_to_tensor(values[name])

        self.im.graph.run(ops.convert_to_tensor(x), self.names, change)
        return values, computed, {name: values[name] - computed[name] for name in self.names}

    def outputs(
        self, x: np.ndarray, made: Arrays, switched: Sequence[Collection[str]]
    ) -> Iterator[np.ndarray]:
        """Yield the outputs with places switched to floating point.

        Args:
            x: One batch of samples.
            made: The errors made.
            switched: For each result, the operations at which no error is added.
        """
        x, errors = ops.convert_to_tensor(x), self._tensors(made)
        for off in switched:
            keep = np.array([name not in off for name in self.names], np.float32)
            yield ops.convert_to_numpy(self._run(x, errors, ops.convert_to_tensor(keep)))

    def attributions(self, x: np.ndarray, made: Arrays, labels: np.ndarray) -> Arrays:
        """Return how much each error contributes to the fall of the margin.

        The margin is the score of the original's label minus that of the compressed model's. Its
        fall from the original to the compressed model is divided among the elements of all errors
        by the integral of gradient × error, while all errors grow from zero to their full size: the
        attributions of a sample add up to the fall.

        Args:
            x: One batch of samples.
            made: The errors made.
            labels: The original's and the compressed model's label, `(batch, 2)`.

        Returns:
            Operation → `(batch, …)`, positive for errors that favour the compressed model's label.
        """
        # Scores are linear in the logits, also those of one sigmoid: −z and z.
        units = self.im[self.im.logit_operation].size
        by_class = self.im.classes.scores(np.eye(units, dtype=np.float32)).T
        direction = ops.convert_to_tensor(by_class[labels[:, 0]] - by_class[labels[:, 1]])
        x, errors = ops.convert_to_tensor(x), self._tensors(made)
        sums = {name: np.zeros_like(made[name]) for name in self.names}
        for share in (np.arange(_PARTS, dtype=np.float32) + 0.5) / _PARTS:
            slopes = self._attribute(x, errors, direction, ops.convert_to_tensor(share))
            for name, slope in zip(self.names, slopes, strict=True):
                sums[name] -= ops.convert_to_numpy(slope) * made[name] / _PARTS
        return sums

    def _tensors(self, made: Arrays) -> list[Any]:
        return [ops.convert_to_tensor(made[name]) for name in self.names]

    def _values(self, x: Any, errors: Sequence[Any], wanted: str) -> Any:
        added = dict(zip(self.names, errors, strict=True))

        def change(name: str, value: Any) -> Any:
            return value + added[name] if name in added else value

        return self.im.graph.run(x, [wanted], change)[wanted]

    def _outputs(self, x: Any, errors: Sequence[Any], keep: Any) -> Any:
        kept = [error * keep[i] for i, error in enumerate(errors)]
        return self._values(x, kept, self._output)

    def _attributed(self, x: Any, errors: Sequence[Any], direction: Any, share: Any) -> Any:
        def logits(*parts: Any) -> Any:
            return self._values(x, parts, self.im.logit_operation)

        return vector_jacobian_product(logits, [error * share for error in errors], direction)
