"""Masks of weights: masked weights are zero and stay zero, even in training.

A mask is a kernel constraint, `WeightMask`, which Keras applies after every step of an optimiser
and saves and loads with its layer. The config of an attention layer has one constraint for all its
kernels, and that of some layers has none: there, the variables get it directly. Model files do not
preserve it, so that training after loading changes these weights.

Cost: a copy of the model; in a file, one bit per weight.
"""

import base64
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import ArrayLike
from nnslicer_tf.instrument import InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.ablated_models import check_masks, with_constants
from nnslicer_tf.instrument.ablated_network import maskable, named_variables
from nnslicer_tf.instrument.copies import rebuild
from nnslicer_tf.pruning.channels import ChannelGraph, Offset, is_reader

Variables = Iterable[tuple[keras.Variable, np.ndarray]]
SLOTS = (
    *("kernel_constraint", "depthwise_constraint", "pointwise_constraint"),
    *("embeddings_constraint", "recurrent_constraint", "bias_constraint", "beta_constraint"),
)


@keras.saving.register_keras_serializable(package="nnslicer_tf")
class WeightMask(keras.constraints.Constraint):
    """Constraint that multiplies weights by a mask of zeros and ones after every optimiser step.

    Keras finds it when loading a model if `nnslicer_tf.pruning` has been imported; models from
    `without_masks` load without this package.

    Args:
        mask: Array of the weights' shape, false (or 0) where weights are pruned.
        other: Another Keras constraint on the remaining weights.
    """

    def __init__(self, mask: ArrayLike, other: keras.constraints.Constraint | None = None) -> None:
        self.mask = np.array(mask, bool)
        self.mask.setflags(write=False)
        self.other = other

    def __call__(self, w: Any) -> Any:
        """Return the masked weights."""
        zeros = keras.ops.zeros_like(w)
        w = keras.ops.where(self.mask, w, zeros)
        return w if self.other is None else keras.ops.where(self.mask, self.other(w), zeros)

    def get_config(self) -> dict[str, Any]:
        """Return the mask as text for JSON, with one bit per weight."""
        bits = base64.b64encode(np.packbits(self.mask).tobytes()).decode()
        other = keras.constraints.serialize(self.other) if self.other is not None else None
        return {"bits": bits, "shape": list(self.mask.shape), "other": other}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "WeightMask":
        """Create the constraint from its config."""
        bits = np.frombuffer(base64.b64decode(config["bits"]), np.uint8)
        mask = np.unpackbits(bits, count=int(np.prod(config["shape"]))).reshape(config["shape"])
        return cls(mask, keras.constraints.get(config.get("other")))

    def __repr__(self) -> str:
        return f"WeightMask({np.count_nonzero(self.mask):,} of {self.mask.size:,} weights kept)"


def masks(model: ModelLike) -> dict[str, np.ndarray]:
    """Return a model's masks: kernel name → bool array of the kernel's shape, false if pruned.

    They are in models from `prune`, `apply_masks` or `compact`, also if loaded from their files.
    """
    im = instrumented(model)
    constraints = {name: getattr(k.variable(), "constraint", 0) for name, k in im.kernels.items()}
    return {name: c.mask for name, c in constraints.items() if isinstance(c, WeightMask)}


def apply_masks(model: ModelLike, keep: Mapping[str, np.ndarray]) -> keras.Model:
    """Return a copy with masked kernels; the masks persist in training and in files.

    A neuron without synapses is pruned completely: its bias, and the shift of a batch normalisation
    after it, become and stay zero. If an activation does not map zero to zero (such as a sigmoid),
    the outgoing synapses are masked instead.

    Args:
        model: Any that `InstrumentedModel` accepts; the copy of a subclassed one is functional.
        keep: Kernel name → bool array of the kernel's shape, false where weights become zero.
            Kernels that are not named are unchanged; existing masks persist.

    Raises InvalidArgumentError if there is no such kernel, or its shape is different;
    UnsupportedLayerError if a layer cannot be copied, or computes its kernel.
    """
    return masked_copy(maskable(model), keep)


def without_masks(model: ModelLike) -> keras.Model:
    """Return a copy without its masks, whose file loads without this package.

    The weights are equal, but training can change them all.
    """
    im = instrumented(model)
    configs = {
        id(o.keras_layer): {
            slot: getattr(o.keras_layer, slot).get_config()["other"]
            for slot in SLOTS
            if read_mask(o.keras_layer, slot) is not None
        }
        for o in im.operations
        if o.keras_layer
    }
    return rebuild(im.functional, {}, configs)


def masked_copy(
    im: InstrumentedModel,
    keep: Mapping[str, np.ndarray],
    means: Mapping[str, np.ndarray] | None = None,
) -> keras.Model:
    """Copy as `apply_masks` does; with means, neurons without synapses output their mean.

    `im` has no LoRA weights (see `maskable`).
    """
    owners = kernel_layers(im)
    keep, offsets = (check_masks(im, keep), ()) if means is not None else _completed(im, keep)
    bare = {id(layer) for layer, slot in owners.values() if slot is None}
    masked = [(im.kernels[name].variable(), mask, *owners[name]) for name, mask in keep.items()]
    for offset in offsets:
        slot = None if id(offset.layer) in bare else offset.slot
        masked.append((offset.variable, ~offset.channels, offset.layer, slot))
    masks: dict[int, np.ndarray] = {}
    values: dict[int, np.ndarray] = {}
    configs: dict[int, dict[str, Any]] = {}
    for variable, mask, layer, slot in masked:
        before = variable.constraint  # an earlier mask persists, also that of another kernel
        before = before.mask if isinstance(before, WeightMask) else True
        mask = masks[id(variable)] = mask & masks.get(id(variable), before)
        values[id(variable)] = np.where(mask, keras.ops.convert_to_numpy(variable), 0)
        if slot is not None:
            configs.setdefault(id(layer), {})[slot] = serialized(mask, getattr(layer, slot, None))
    if means is not None:
        keep = {name: masks[id(im.kernels[name].variable())] for name in keep}
        return with_constants(im, keep, means, configs)
    copy = rebuild(im.functional, values, configs)

    # Some configs have one constraint for several kernels, or none: their variables get it.
    for variable, twin in zip(im.functional.variables, copy.variables, strict=True):
        known, kept = twin.constraint, masks.get(id(variable))
        other = known.other if isinstance(known, WeightMask) else known
        if kept is not None and (known is other or not np.array_equal(known.mask, kept)):
            twin.constraint = WeightMask(kept, other)
    return copy


def _completed(
    im: InstrumentedModel, keep: Mapping[str, np.ndarray]
) -> tuple[dict[str, np.ndarray], list[Offset]]:
    """Return all that is masked along with these kernels: more kernels, biases and shifts.

    The outgoing synapses of pruned neurons are masked, too, if their value is not zero.
    """
    graph = im.prepared("channel graph", lambda: ChannelGraph(im))
    keep = check_masks(im, keep)
    sums = [o for o in im.operations if o.kind == "weighted_sum"]

    def affected() -> dict[str, np.ndarray]:
        """Mark the channels that depend only on neurons without any synapse."""
        pruned = {
            o.name: ~o.params.from_kernel(keep[o.params.name]).any(axis=(0, 1))
            for o in sums
            if o.params.name in keep
        }
        return graph.affected(pruned)

    before = affected()
    zeroed = graph.zeroed(before)
    for operation in filter(is_reader, sums):
        source, kernel = operation.inputs[0], operation.params
        nonzero = before[source] & ~zeroed[source]
        if nonzero.any() and kernel.groups == 1:
            mask = kernel.from_kernel(keep.get(kernel.name, np.ones(kernel.shape, bool)))
            keep[kernel.name] = kernel.to_kernel(mask & ~nonzero[:, None])
    return keep, list(graph.offsets(affected()))


def weight_masks(
    model: ModelLike, keep: Mapping[str, np.ndarray], factors: Variables = ()
) -> dict[str, np.ndarray]:
    """Return all weights that `apply_masks` keeps, as a mask of an `Ablation`.

    `Ablation(model, "zero", level="weight")` runs the model under many such masks, or makes models
    of them, without building a new one each time.

    Args:
        model: The model: the ablation's `im` if it may have LoRA weights.
        keep: Kernel name → bool array of the kernel's shape, false where weights become zero.
        factors: Pairs of another variable, such as a bias, and an array of its shape.

    Returns variable's name → array of its shape, 1 for weights that are kept; others are not named.
    Raises InvalidArgumentError if there is no such kernel, or its shape is different.
    """
    im = maskable(model)
    completed, offsets = _completed(im, keep)
    by_variable = [(im.kernels[name].variable(), mask) for name, mask in completed.items()]
    by_variable += [(offset.variable, ~offset.channels) for offset in offsets]
    names = {id(variable): name for name, variable in named_variables(im).items()}
    masks: dict[str, np.ndarray] = {}
    for variable, factor in (*by_variable, *factors):
        name = names[id(variable)]
        masks[name] = masks.get(name, 1) * np.asarray(factor, np.float32)
    return masks


def kernel_layers(im: InstrumentedModel) -> dict[str, tuple[keras.Layer, str | None]]:
    """Return kernel name → its layer, and its constraint's name in the layer's config.

    The name is None if the config has none, or one for several kernels, as in attention layers.
    """
    owners: dict[str, tuple[keras.Layer, str | None]] = {}
    for operation in im.operations:
        for kernel in operation.kernels:
            layer, part = operation.keras_layer, kernel.name.rpartition("/")[2]
            config = layer.get_config()
            names = ["kernel_constraint", "depthwise_constraint", "embeddings_constraint"]
            if part in ("depthwise", "pointwise") and "pointwise_constraint" in config:
                names[0] = f"{part}_constraint"
            if part == "recurrent_kernel":
                names.insert(0, "recurrent_constraint")
            slot = next((name for name in names if name in config), None)
            owners.setdefault(kernel.name, (layer, slot))
    uses = Counter((id(layer), slot) for layer, slot in owners.values())
    return {
        name: (layer, slot if uses[id(layer), slot] == 1 else None)
        for name, (layer, slot) in owners.items()
    }


def read_mask(layer: keras.Layer, slot: str) -> np.ndarray | None:
    """Return the mask in a constraint of a layer; None if it is not a `WeightMask`."""
    constraint = getattr(layer, slot, None)
    return constraint.mask if isinstance(constraint, WeightMask) else None


def serialized(mask: np.ndarray, constraint: Any = None) -> dict[str, Any]:
    """Return the config of a mask combined with a layer's other constraint."""
    other = constraint.other if isinstance(constraint, WeightMask) else constraint
    return keras.constraints.serialize(WeightMask(mask, other))
