"""Results that can be explored: slices, sets of them, decisive ones, arrays of marks or scores.

Slices are recognised by their attributes, so that any mapping from operations, layers or kernels to
arrays can be shown: critical neurons, coverage, pruning masks.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name, counted
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.fingerprint import same_model


@dataclass(frozen=True, eq=False)
class Part:
    """The neurons and synapses of one sample, or of several together."""

    # Operation name → contributions, marks or scores, of the operation's shape or one for each
    # channel; neurons with 0 or False are not members.
    neurons: Mapping[str, np.ndarray]
    synapses: Mapping[str, np.ndarray]  # kernel name → the same, of the kernel's shape
    samples: int = 1  # 0 if unknown
    certificate: str = ""  # of a decisive slice, in words
    measured: Mapping[str, Any] | None = None  # its columns, and what they are about


@dataclass(frozen=True, eq=False)
class Exhibit:
    """A result to explore, for one sample or for each of several, with its model and data."""

    name: str
    facts: Mapping[str, Any]  # about its origin, such as theta and granularity
    parts: Any  # a `Part` for each sample or for all of them; or a set of slices, made on access
    each: bool  # whether there is a part for each sample
    im: InstrumentedModel
    x: np.ndarray | None = None  # (samples, *input_shape) float32
    means: Mapping[str, np.ndarray] | None = None  # the profile's means by operation

    @property
    def granularity(self) -> str:
        """Granularity of the neurons, "activation" or "channel"."""
        return str(self.facts.get("granularity", "activation"))


def named_results(slices: Any) -> dict[str, Any]:
    """Return name → result for the argument of `explore`; raise InvalidArgumentError if empty."""
    if hasattr(slices, "contrast"):  # an explanation
        first = "decisive" if slices.contrast is None else slices.question.split(" rather than ")[0]
        by = {slices.question: slices.contrast, first: slices.decisive, "by counts": slices.slice}
        return {name: one for name, one in by.items() if one is not None}
    if isinstance(slices, Mapping) and not _is_marks(slices):
        results = {str(name): one for name, one in slices.items()}
    else:
        several = isinstance(slices, Sequence) and not _is_set(slices)
        results = {}
        for place, one in enumerate(slices if several else [slices]):
            info = getattr(one, "info", {})
            theta = info.get("theta") if isinstance(info, Mapping) else None
            name = type(one).__name__ if theta is None else f"θ = {theta:g}"
            results[f"{name} ({place + 1})" if place else name] = one
    if not results:
        raise InvalidArgumentError("There is nothing to explore: pass at least one slice.")
    return results


def read_exhibit(
    name: str,
    one: Any,
    im: InstrumentedModel,
    x: np.ndarray | None,
    means: Mapping[str, np.ndarray] | None,
    classes: Sequence[str] = (),
) -> Exhibit:
    """Return a result as an exhibit, after checking that it belongs to the model.

    An array in a mapping belongs to neurons if name and shape are those of an operation or of a
    layer's units, to weights if they are those of a kernel. Raises ProfileMismatchError for another
    model's fingerprint, InvalidArgumentError for other mismatches.
    """
    parts: Any
    facts: dict[str, Any] = {}
    each = False
    if _is_set(one):
        parts, each = one, True
        facts = {**one.info, "predicted": [int(p) for p in one.predicted]}
    elif hasattr(one, "neurons") and hasattr(one, "synapses"):
        facts = dict(getattr(one, "info", {}))
        samples = int(facts.pop("samples", 1) or 0)
        level = facts.get("level", "")  # of a decisive slice
        if level:
            facts["granularity"] = _granularity(level)
        neurons = _spread(im, level, one.neurons)
        parts, each = [Part(neurons, one.synapses, samples)], samples == 1
    elif hasattr(one, "certificate"):
        facts, each = dict(one.info), not one.info["together"]
        facts["granularity"] = _granularity(one.info["level"])
        parts = [_decisive(one, i, im, classes) for i in range(len(one) if each else 1)]
    elif isinstance(one, Mapping) and _is_marks(one):
        neurons, synapses = {}, {}
        for key, values in one.items():
            if key in im.kernels and values.shape == tuple(im.kernels[key].shape):
                synapses[key] = values
                continue
            of_layer = [o.name for o in im.operations if o.layer == key]
            if key not in im.graph.operations and not of_layer:
                check_name("operation, layer or kernel", key, im.graph.operations)
            neurons[key if key in im.graph.operations else of_layer[-1]] = values
        coarse = any(np.ndim(values) < len(im[key].shape) for key, values in neurons.items())
        facts = {"granularity": "channel" if coarse else "activation"}
        parts = [Part(neurons, synapses, 0)]
    else:
        raise InvalidArgumentError(
            "A slice, a set of slices, decisive slices, or a mapping of operations or kernels to "
            f"arrays can be explored. Received for {name!r}: {type(one).__name__}"
        )

    known = facts.get("fingerprint", im.fingerprint), facts.get("own_code", "")
    if not same_model("{} - {}".format(*known), f"{im.fingerprint} - {im.own_code}"):
        raise ProfileMismatchError(
            f"'{name}' belongs to another model than '{im.model.name}': architecture, weights or "
            "own code differ. Give several models by name: im={'original': …, 'compressed': …}, "
            "with the names of the slices."
        )
    if len(parts):
        # An operation has contributions of its own shape, or one for each channel.
        for key, values in parts[0].neurons.items():
            check_name("operation", key, im.graph.operations)
            _check_shape(name, key, values, im[key].shape, im[key].shape[-1:])
        for key, values in parts[0].synapses.items():
            check_name("kernel", key, im.kernels)
            _check_shape(name, key, values, im.kernels[key].shape)
    expected = len(parts) if each else parts[0].samples
    if x is not None and expected and len(x) != expected:
        raise InvalidArgumentError(
            f"'{name}' is of {counted(expected, 'sample')}; x has {len(x)}. Pass the sliced "
            "samples, in the same order."
        )
    return Exhibit(name, facts, parts, each, im, x, means)


def _decisive(one: Any, index: int, im: InstrumentedModel, classes: Sequence[str]) -> Part:
    """Return the decisive slice of a sample as marks, with its certificate."""
    masks = one.masks(index)
    samples = 1 if not one.info["together"] else len(one)
    row = {name: column[index].item() for name, column in one.certificate.items()}
    facts = {name: one.info[name] for name in ("kind", "names", "level", "inactive")}
    # A number has no probabilities.
    facts |= {name: value for name, value in row.items() if np.isfinite(value)}
    said = one.summary(index, classes), facts
    if one.info["level"] != "synapse":
        return Part(_spread(im, one.info["level"], masks), {}, samples, *said)
    # For each channel, the number of its synapses in the slice.
    neurons = {
        o.name: im.kernels[o.params.name].layout.from_kernel(masks[o.params.name]).sum(axis=(0, 1))
        for o in im.operations
        if getattr(o.params, "name", None) in masks
    }
    return Part(neurons, masks, samples, *said)


def _granularity(level: str) -> str:
    return "channel" if level in ("synapse", "channel") else "activation"


def _spread(
    im: InstrumentedModel, level: str, values: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Return values of positions of an input, or of heads, for all their neurons."""
    if level not in ("input", "head"):
        return dict(values)
    spread = {}
    for name, one in values.items():
        operation = im[name]
        full = np.asarray(one)
        if level == "input" and full.ndim < len(operation.shape):
            full = full[..., None]
        elif level == "head" and operation.heads is not None:
            members = [operation.heads.members(operation.shape, h) for h in range(len(full))]
            full = full[np.argmax(members, axis=0)]
        spread[name] = np.broadcast_to(full, operation.shape)
    return spread


def _check_shape(name: str, key: str, values: np.ndarray, *known: Sequence[int]) -> None:
    if tuple(np.shape(values)) not in [tuple(shape) for shape in known]:
        raise InvalidArgumentError(
            f"'{name}' does not fit the model: its '{key}' has shape {np.shape(values)}, "
            f"expected {' or '.join(map(str, dict.fromkeys(map(tuple, known))))}."
        )


def _is_set(one: Any) -> bool:
    return all(hasattr(one, name) for name in ("predicted", "kernels", "operations", "__len__"))


def _is_marks(one: Mapping) -> bool:
    return bool(one) and all(isinstance(value, np.ndarray) for value in one.values())
