"""What would the model answer if some of its parts had been otherwise? `Ablation`.

A mask says which units keep their own value (1); the others (0) contribute that of a reference:

    ablation = Ablation(model, Mean(profile), level="channel")
    ablation.outputs({"conv2": mask}, x)     # the logits
    ablation.effects({}, x, target=3)        # what each unit does for class 3: the derivative
    ablation.model({"conv2": mask})          # a Keras model

An inactive synapse of weight w contributes w · (reference of its input), in recurrent layers at
every step. Cost: a forward pass for each donor; `effects` costs about three. One compiled function
serves all masks, samples and references.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from nnslicer_tf._checks import check_count, check_memory, check_name, counted, names_of
from nnslicer_tf._numerics import parted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.ablated_network import Network, Rows, has_tied_kernels, maskable
from nnslicer_tf.instrument.data import DataLike, one_order
from nnslicer_tf.instrument.fingerprint import weights_checksum
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.instrument.layout import LEVELS, WEIGHT
from nnslicer_tf.instrument.model import ModelLike, instrumented
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.references import Reference, Weights, Zero, as_reference
from nnslicer_tf.instrument.target import Target, TargetLike, resolve_target

# The score of a class is its logit less this share of the other classes' mean logit, weighted by a
# softmax of logits in units of their spread. The log-odds (1, weights by the softmax of the logits)
# see only the nearest rival, and lose answers that the logit alone keeps; it can give any class.
RIVALS = 0.75
# A mask, its slopes, their order and copies in float64
BYTES_OF_A_UNIT = 48

Mask: TypeAlias = np.ndarray | Mapping[str, np.ndarray]
"""Which units keep their own value.

An array over all units, `(units,)` or `(samples, units)`, or name → array of the unit's shape in
`Ablation.shapes`, optionally with a leading axis of samples; names that are left out are active.
Bools, or numbers: from 0 to 1 they interpolate, beyond they extrapolate."""

Base: TypeAlias = tuple[dict[str, Any], dict[str, Any], int]
"""A reference's values by operation, what they contribute to sums, and the number of donors."""


class Ablation:
    """A model with a mask on each of its units: 1 keeps a unit, 0 replaces it by a reference.

    | level | units |
    |---|---|
    | "synapse" | synapses of weighted sums and recurrent layers, by kernel |
    | "neuron" | every value of a weighted sum or recurrent layer, but not the target's |
    | "channel" | the same, a channel (filter, feature, recurrent unit) as a whole |
    | "head" | the heads of attentions, in place of their projections; channels elsewhere |
    | "input" | positions of the inputs, with all their channels; for tokens, of the embedding |
    | "weight" | every entry of every variable (for `Zero` and `Weights` only) |

    Args:
        model: The model; it is not changed.
        reference: What inactive units contribute: a `Reference`, a profile (its means), or "zero".
        level: What the units are.
        target: What is kept or lost: the score of `effects`, and the operation whose values
            `outputs` returns, as attributions take them; by default, the first output's logits.
        of: Names of the kernels (level "synapse"), variables ("weight") or operations (others) that
            have units, in place of all. Synapses of embeddings, and operations that are neither
            weighted sums nor recurrent, such as the sums of residual paths, only if they are named.
        groups: Name → lists of row-major indices of units that are masked together, such as the
            columns of one category, or the pixels of a patch; other units stay alone.

    Attributes:
        im: The instrumented model; a copy if `model` has LoRA weights.
        shapes: Name of a kernel, variable or operation → shape of its units, in topological order.
        units: Number of units.

    Raises UnsupportedLayerError if there is nothing to mask, or a layer computes its kernel;
    ProfileMismatchError if the profile belongs to a different model; InvalidArgumentError for other
    bad arguments.
    """

    def __init__(
        self,
        model: ModelLike,
        reference: Any,
        level: str = "synapse",
        *,
        target: TargetLike | None = None,
        of: str | Iterable[str] | None = None,
        groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
    ) -> None:
        check_name("level", level, (*LEVELS, WEIGHT))
        self.reference = as_reference(reference)
        self.level = level
        if level == WEIGHT and not isinstance(self.reference, (Zero, Weights)):
            raise InvalidArgumentError(
                "Level 'weight' supports the references Zero() and Weights(model). Received: "
                f"{type(self.reference).__name__}; use level='synapse'."
            )
        self.im = instrumented(model)
        self.im = self.im.with_columns(one_order(self.im.columns, self.reference.columns))
        self.im = self.im.named_by(self.reference.x)
        if level in ("synapse", WEIGHT):
            weights = self.im.functional.count_params()
            check_memory(
                BYTES_OF_A_UNIT * weights,
                f"Ablation of {weights:,} weights",
                "Ablate level='head', 'channel' or 'neuron' instead.",
            )
            self.im = maskable(self.im)
        by_weight = level == WEIGHT or (level == "synapse" and isinstance(self.reference, Weights))
        if level == "synapse" and isinstance(self.reference, Zero) and has_tied_kernels(self.im):
            # A weight that is zero is zero wherever it is read.
            by_weight = True
            read = (o for o in self.im.operations if not isinstance(o.params, Lookup))
            of = sorted({k.name for o in read for k in o.kernels}) if of is None else of
        self.reference.check(self.im)
        self.target = None if target is None else resolve_target(self.im, target)
        wanted = self.im.logit_operation if self.target is None else self.target.operation
        names = None if of is None else names_of("of", of)
        parts = {name: tuple(map(tuple, lists)) for name, lists in (groups or {}).items()}
        key = "ablation", level, by_weight, wanted, names, tuple(parts.items())
        self.network = self.im.prepared(
            key, lambda: Network(self.im, level, by_weight, (wanted,), names, parts)
        )
        options: dict[str, Any] = {"target": self.target, "of": names, "groups": parts}
        self._again = partial(Ablation, self.im, self.reference, level, **options)
        # The values of a reference that is the same for all samples, the reference itself (another
        # may get the id of one that is gone), and a checksum of the weights.
        self._kept: tuple[Any, Any, Any] = None, None, None
        self.shapes = self.network.shapes
        self.units = self.network.units

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle the arguments: compiled functions cannot be."""
        return self._again, ()

    def rows(self, x: DataLike, reference: Reference | None = None) -> Rows:
        """Return samples that `outputs` and `effects` can run under many masks without new checks.

        `reference` replaces this ablation's: another of the same kind, such as new donors.
        """
        reference = reference or self.reference
        self.im = self.im.named_by(reference.x)
        checked = self.im.check(x)
        return self._rows(checked, *self._base(reference, checked))

    def unchecked(
        self, x: Sequence[np.ndarray], base: Base | None = None, paired: bool = False
    ) -> Rows:
        """Return `rows` of inputs `(samples, …)` that need no check.

        With a `base`, inactive units contribute that; if `paired`, each sample has the donor of the
        same index, in place of every one.
        """
        batch = self.as_batch(x)
        own, constants, donors = self._base(self.reference, batch) if base is None else base
        return self._rows(batch, own, constants, 1 if paired else donors)

    def base(self, reference: Reference) -> Base:
        """Return what another reference, such as new donors, contributes for all samples."""
        return self._base(reference, None)

    def as_batch(self, x: Sequence[np.ndarray]) -> np.ndarray | Inputs:
        """Return inputs, in the order of the model's, as one array or `Inputs`."""
        return x[0] if len(x) == 1 else Inputs(dict(zip(self.im.input_operations, x, strict=True)))

    def outputs(self, mask: Mask, x: "DataLike | Rows", *, batch_size: int = 256) -> np.ndarray:
        """Return the values of the target's operation, by default the logits.

        Args:
            mask: Which units are active.
            x: Samples `(samples, *input_shape)`, in any form of `DataLike`.
            batch_size: Rows (samples times donors) in one pass.

        Returns `(samples, *operation shape)` or `(samples, donors, *operation shape)`, float32.
        Raises InvalidArgumentError if the mask does not fit the units; InputShapeError,
        InputRangeError or NonFiniteActivationError for bad samples.
        """
        batches = self._batches(mask, x, batch_size)
        parts = [self.network.outputs(flat, rows) for rows, flat in batches]
        return np.concatenate([ops.convert_to_numpy(part) for part in parts])

    def effects(
        self,
        mask: Mask,
        x: "DataLike | Rows",
        target: TargetLike | None = None,
        *,
        batch_size: int = 256,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the score, and its derivative with respect to the mask.

        The score of a class before a softmax is its logit less ¾ of its rivals' mean logit,
        weighted by how near they are, by weights that the derivative takes as constants; of
        anything else, the mean of its neurons' values.

        Args:
            mask: Which units are active.
            x: Samples, as for `outputs`.
            target: What is scored, of the ablation's target operation; that target by default.
            batch_size: Rows in one pass.

        Returns the scores, `(samples,)` float64, and the effects, float32: `(units,)` summed over
        samples, or `(samples, units)` for a mask of each sample. Both are means over donors.
        """
        chosen = self.target if target is None else resolve_target(self.im, target)
        if chosen is None or chosen.operation != self.network.wanted[0]:
            raise InvalidArgumentError(
                "effects needs a target of the operation that the ablation was made for, "
                f"'{self.network.wanted[0]}'. Received: {target!r}"
            )
        weights, rivals = self.weights_of(chosen)
        scores, effects = [], []
        for rows, flat in self._batches(mask, x, batch_size):
            flat_values, slopes = self.slopes(flat, rows, weights, rivals)
            score = flat_values.astype(np.float64) @ weights.astype(np.float64)
            if rivals:
                score -= rivals * (flat_values * nearness(flat_values, weights)).sum(axis=1)
            scores.append(score.reshape(rows.samples, rows.donors).mean(axis=1))
            effects.append(slopes)
        joined = np.concatenate(effects) if effects[0].ndim > 1 else sum(effects)
        return np.concatenate(scores), np.asarray(joined)

    def slopes(
        self, mask: np.ndarray, rows: Rows, weights: np.ndarray, rivals: float
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the values `(rows, values)`, and the derivative of a score by the mask.

        `weights` are those of the values in the score, `rivals` the share of a class's rivals.
        """
        values, slopes = self.network.effects(mask, rows, weights, rivals)
        flat = ops.convert_to_numpy(values).reshape(rows.samples * rows.donors, -1)
        slopes = ops.convert_to_numpy(slopes)
        return flat, slopes / rows.donors if rows.donors > 1 else slopes

    def weights_of(self, target: Target) -> tuple[np.ndarray, float]:
        """Return each value's weight in a target's score, and the share of a class's rivals."""
        im = self.im
        outputs = (o for o in im.output_operations if im.logit_operation_of(o) == target.operation)
        by_softmax = target.label is not None and im.classes_of(next(outputs, None)).by_softmax
        weights = target.weights(self.im[target.operation].size)
        return weights, RIVALS if by_softmax and not target.against else 0.0

    def model(self, mask: Mask, into: keras.Model | None = None) -> keras.Model:
        """Return a Keras model that computes the masked model's outputs.

        Where weights and constants can express the mask, it consists of ordinary Keras layers;
        otherwise it is an `AblatedModel`, whose file needs this package to load.

        Args:
            mask: Which units are active, the same for all samples.
            into: A model from an earlier call (for `Zero` or `Weights` and synapses or weights),
                whose weights are replaced, in place of a new one.

        Raises InvalidArgumentError if the mask does not fit the units, or names some that do not
        reach the target, or if the reference has several donors.
        """
        from nnslicer_tf.instrument.ablated_models import ablated_model

        masks, given = self.masks(mask), mask if isinstance(mask, Mapping) else {}
        unreached = [n for n in given if n not in masks and not np.all(np.asarray(given[n]) == 1)]
        if unreached:
            raise InvalidArgumentError(
                f"Units of '{unreached[0]}' do not reach this ablation's target, "
                f"'{self.network.wanted[0]}'. Pass one that they reach: Ablation(..., target=...)."
            )
        return ablated_model(self, masks, into)

    def masks(self, mask: Mask) -> dict[str, np.ndarray]:
        """Return a mask by name, each of its shape in `shapes`, float32."""
        return parted(self._flat(mask, 0), self.shapes)

    def _flat(self, mask: Mask, samples: int) -> np.ndarray:
        """Return a mask as an array over all units, `(units,)` or `(samples, units)` float32."""
        for part in mask.values() if isinstance(mask, Mapping) else [mask]:
            part = np.asarray(part)
            if part.dtype.kind == "f" and part.size and not np.isfinite(part.min() + part.max()):
                raise InvalidArgumentError(
                    "Masks must be finite numbers: 1 keeps a unit. Received: NaN or infinity"
                )
        if not isinstance(mask, Mapping):
            flat, shapes = np.asarray(mask), ((self.units,), (samples, self.units))
            if flat.dtype.kind not in "bif" or flat.shape not in shapes:
                raise InvalidArgumentError(
                    f"A mask over all units has shape ({self.units},), or one such row for each "
                    f"sample. Received: {flat.dtype} {flat.shape}"
                )
            return flat.astype(np.float32, copy=False)
        arrays = {name: np.asarray(part) for name, part in mask.items()}
        for name in list(arrays):
            self.network.check(name)
            shape = self.shapes.get(name, (array := arrays[name]).shape)
            if array.dtype.kind not in "bif" or array.shape not in (shape, (samples, *shape)):
                raise InvalidArgumentError(
                    f"A mask for '{name}' must be real numbers of shape {shape}, or one for each "
                    f"of {counted(samples, 'sample')}. Received: {array.dtype} {array.shape}"
                )
            if name not in self.shapes:
                if not (array == 1).all():
                    self.network.check_unit(name)
                del arrays[name]
        each = any(array.ndim > len(self.shapes[name]) for name, array in arrays.items())
        lead = (samples,) if each else ()
        parts = []
        for name, shape in self.shapes.items():
            array = np.asarray(arrays.get(name, 1.0), np.float32)
            parts.append(np.broadcast_to(array, (*lead, *shape)).reshape(*lead, -1))
        return np.concatenate(parts, axis=-1)

    def _batches(self, mask: Mask, x: "DataLike | Rows", batch_size: int) -> Iterable[tuple]:
        """Yield rows and their mask over all units, of at most `batch_size` rows if possible."""
        check_count("batch_size", batch_size)
        if isinstance(x, Rows):
            yield x, self._flat(mask, x.samples)
            return
        checked = self.im.check(x)
        base, constants, donors = self._base(self.reference, checked)
        flat = self._flat(mask, len(checked))
        size = max(1, batch_size // donors)
        for start in range(0, len(checked), size):
            here = slice(start, start + size)
            of_rows = base
            if self.reference.paired and not self.network.by_weight:
                of_rows = {name: value[here] for name, value in base.items()}
            rows = self._rows(checked[here], of_rows, constants, donors)
            yield rows, flat[here] if flat.ndim > 1 else flat

    def _base(self, reference: Reference, x: Any) -> Base:
        """Return a reference's values, what they contribute to sums, and the number of donors."""
        network = self.network
        if network.by_weight:
            other = network.references(reference) if isinstance(reference, Weights) else {}
            return other, {}, 1
        checksum = weights_checksum(self.im.model)
        if self._kept[1:] != (reference, checksum):
            reference.check(self.im)  # its means may belong to older weights
            values = reference.values(self.im, x, network.bases)
            base = {name: ops.convert_to_tensor(value, "float32") for name, value in values.items()}
            donors = 1 if reference.paired else len(next(iter(values.values())))
            found = base, network.sums_of(base), donors
            if reference.paired:
                return found
            self._kept = found, reference, checksum
        return self._kept[0]

    def _rows(self, x: Any, base: dict, constants: dict, donors: int) -> Rows:
        samples = len(x)
        if donors > 1:  # each sample with every donor
            x = x[np.repeat(np.arange(samples), donors)]
            if samples > 1:
                base, constants = (
                    {name: ops.concatenate([value] * samples) for name, value in part.items()}
                    for part in (base, constants)
                )
        inputs = [ops.convert_to_tensor(array) for array in arrays_of(x)]
        return Rows(inputs, base, constants, samples, donors, self.network.by_weight)


def nearness(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Return the weight of each rival of a class in its score; see `RIVALS`."""
    scaled = values / (values.std(axis=-1, keepdims=True) + 1e-6) - 1e9 * (weights > 0)
    powers = np.exp(scaled - scaled.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)
