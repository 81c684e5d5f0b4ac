"""The models between two versions: the old weights plus some of the changes."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from keras import ops

from nnslicer_tf._checks import check_name, check_number
from nnslicer_tf._numerics import softmax
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation, InstrumentedModel
from nnslicer_tf.instrument.ablation import Rows
from nnslicer_tf.instrument.data import one_order
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.layout import WEIGHT
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.instrument.outputs import check_classifier
from nnslicer_tf.instrument.references import Weights

LEVELS = ("weight", "channel", "layer")
_CHECKED = 32  # samples on which the new model with the old weights must equal the old one
PATH = (0.0, 0.25, 0.5, 0.75, 1.0)
"""Where effects are estimated on the straight way from the old weights to the new ones."""


class Between:
    """All models between two versions, by a mask of units: 1 for the new weights, 0 for the old.

    Attributes:
        old, new: The versions, of classifiers unless `of_classes` is False.
        unit_of: For each weight, the index of its unit, or −1 if it did not change, `(weights,)`.
        units: Number of units with a change.
        sizes: Norm of each unit's change, `(units,)`.
    """

    def __init__(
        self, old: ModelLike, new: ModelLike, level: str = "weight", of_classes: bool = True
    ) -> None:
        check_name("level", level, LEVELS)
        self._ablation = Ablation(new, reference := Weights(old), level=WEIGHT)
        self.old, self.new = reference.im, self._ablation.im
        if of_classes:
            check_classifier(self.new, exclusive=True, one_output=True)
        self.level, self._of_classes = level, of_classes
        self._after = self._ablation.network.variables
        self._before = self._ablation.network.references(reference)
        changes = [
            np.ravel(ops.convert_to_numpy(self._after[name]) - self._before[name])
            for name in self._ablation.shapes
        ]
        difference = np.concatenate(changes).astype(np.float64)
        if not difference.any():
            raise InvalidArgumentError("The versions have the same weights: nothing changed.")

        # The units: single weights, or those of a channel or layer, without the unchanged ones.
        owners, named = self._owners()
        changed = difference != 0
        firsts, index, numbers = np.unique(owners[changed], return_index=True, return_inverse=True)
        self.unit_of = np.full(len(owners), -1)
        self.unit_of[changed] = numbers
        self.units = len(firsts)
        self._named = [named[owner] for owner in firsts] if named else []
        self._first = np.flatnonzero(changed)[index]
        self.sizes = np.sqrt(np.bincount(numbers, difference[changed] ** 2))

    def __reduce__(self) -> tuple:
        return Between, (self.old, self.new, self.level, self._of_classes)

    def _owners(self) -> tuple[np.ndarray, list[tuple[str, tuple[int, ...]]]]:
        """Return a number for each weight, the same for weights of one unit, and units' names.

        Single weights have none.
        """
        shapes = self._ablation.shapes
        if self.level == "weight":
            return np.arange(sum(int(np.prod(shape)) for shape in shapes.values())), []
        kernels = {id(kernel.variable()): kernel for kernel in self.new.kernels.values()}
        matrices = {}  # of kernels, `(…, inputs, outputs)`, whose values are the outputs' numbers
        for name, shape in shapes.items():
            if kernel := kernels.get(id(self._after[name])):
                matrix = kernel.from_kernel(np.zeros(shape))
                matrices[name] = kernel.to_kernel(np.zeros_like(matrix) + range(matrix.shape[-1]))
        numbers: dict[Any, int] = {}
        parts = []
        for name, shape in shapes.items():
            layer, _, variable = name.rpartition("/")
            channels = np.zeros(shape, int)
            if self.level == "channel" and shape:
                # A bias of heads and features has a value for each output of its kernel.
                of_layer = [v for n, v in matrices.items() if n.rpartition("/")[0] == layer]
                is_bias = any(v.max() + 1 == np.prod(shape) for v in of_layer)
                numbered = np.arange(np.prod(shape)).reshape(shape)
                channels = numbered if is_bias else np.broadcast_to(np.arange(shape[-1]), shape)
                channels = matrices.get(name, channels)
                if variable == "depthwise_kernel" and len(of_layer) > 1:
                    layer = name  # its outputs are not the layer's
            keys = [(layer, (int(c),) if self.level == "channel" else ()) for c in channels.ravel()]
            parts.append(np.array([numbers.setdefault(key, len(numbers)) for key in keys], int))
        return np.concatenate(parts), list(numbers)

    def where(self, unit: int) -> tuple[str, tuple[int, ...]]:
        """Return the name of a unit's variable or layer, and its index there."""
        check_number("unit", unit, f"[0, {self.units - 1}]")
        if self._named:
            return self._named[unit]
        weight = int(self._first[unit])
        shapes = self._ablation.shapes
        ends = np.cumsum([int(np.prod(shape)) for shape in shapes.values()])
        at = int(np.searchsorted(ends, weight, side="right"))
        name, shape = list(shapes.items())[at]
        inside = weight - (int(ends[at - 1]) if at else 0)
        return name, tuple(int(i) for i in np.unravel_index(inside, shape)) if shape else ()

    def mask(self, active: np.ndarray | float) -> np.ndarray:
        """Return the mask over weights of one over units `(units,)`, or of a number for all."""
        each = np.append(np.broadcast_to(active, (self.units,)), 0.0).astype(np.float32)
        return each[self.unit_of]

    def active(self, units: Sequence[int] | np.ndarray) -> np.ndarray:
        """Return the mask in which only these units are active, `(units,)` float32."""
        active = np.zeros(self.units, np.float32)
        active[units] = 1
        return active

    def table(self, units: np.ndarray, **columns: np.ndarray) -> pd.DataFrame:
        """Return a table of units: name of the variable or layer, index there, and columns."""
        places = pd.DataFrame([self.where(unit) for unit in units], columns=["name", "index"])
        return places.assign(**columns)

    def check(self, x: np.ndarray) -> None:
        """Raise InvalidArgumentError unless the new model with the old weights is the old one."""
        few = x[:_CHECKED]
        inputs = arrays_of(few)  # which the versions may name differently
        expected = self.old.logits(few if len(inputs) == 1 else list(inputs))
        own = self.logits(0.0, few)
        if not np.allclose(own, expected, rtol=1e-3, atol=1e-3 * np.abs(expected).max()):
            raise InvalidArgumentError(
                "The versions differ in more than their weights, or some are not finite: with the "
                f"old version's weights, model '{self.new.model.name}' gives other logits than the "
                "old version. Compare their answers with `versions.compare`."
            )

    def rows(self, x: Any) -> Rows:
        """Return samples `(samples, *input_shape)`, ready to be run under many masks."""
        return self._ablation.rows(x)

    def logits(self, active: np.ndarray | float, x: Any) -> np.ndarray:
        """Return the logits `(samples, …)` of the old weights plus the changes of some units."""
        return self._ablation.outputs(self.mask(active), x)

    def answers(self, active: np.ndarray | float, x: Any) -> np.ndarray:
        """Return the classes `(samples, …)`, or numbers, as of `logits`."""
        logits = self.logits(active, x)
        if self.new.classes.is_number:
            return self.new.classes.answers(self.new.outputs_from(logits))
        return self.new.classes.from_logits(logits)

    def effects(self, active: np.ndarray | float, rows: Rows, weights: np.ndarray) -> np.ndarray:
        """Return the derivative of a weighted sum of logits by each unit's mask, `(units,)`.

        `weights` are `(logits,)`, or `(samples, logits)`.
        """
        _, slopes = self._ablation.slopes(self.mask(active), rows, weights.astype(np.float32), 0.0)
        changed = self.unit_of >= 0
        return np.bincount(self.unit_of[changed], slopes[changed], self.units)

    def contrast(self, label: int, other: int) -> np.ndarray:
        """Return the weights `(logits,)` of a class's score less another's."""
        return self.new.classes.contrast(np.array([label]), np.array([other])).ravel()

    def lead(self, logits: np.ndarray, label: int) -> np.ndarray:
        """Return the weights `(logits,)` of a class's score less the others', by their softmax."""
        scores = self.new.classes.scores(logits)[0].astype(np.float64)
        scores[label] = -np.inf
        shares = -softmax(scores[None])
        shares[0, label] = 1
        return self.new.classes.of_scores(shares).ravel()

    def model(self, active: np.ndarray) -> Any:
        """Return a Keras model with the old weights plus the changes of some units."""
        return self._ablation.model(self.mask(active))


def versions_of(
    old: ModelLike, new: Any, x: Any, output: str | None = None
) -> tuple[InstrumentedModel, InstrumentedModel]:
    """Return two versions; a LiteRT file becomes the old model with the file's weights.

    `x` are samples by which the file's tensors are recognised. Of several outputs the one named is
    kept: the new version's of this name or, if the versions' names differ, at this place.
    """
    from nnslicer_tf.debugging.counterparts import counterpart_of
    from nnslicer_tf.instrument.model import instrumented

    whole = instrumented(old, x)
    first = whole.of_output(output)
    if isinstance(new, (str, bytes)) or hasattr(new, "__fspath__"):
        return first, instrumented(counterpart_of(first, new, np.asarray(x)[:64]).twin())
    second = instrumented(new, x)
    second = second.with_columns(one_order(second.columns, whole.columns))
    if output is not None and not {*whole.output_names} <= {*second.output_names}:
        by_place = dict(zip(whole.output_operations, second.output_names, strict=False))
        output = by_place.get(whole.output_operation_of(output), output)
    return first, second.of_output(output).with_columns(second.columns)
