"""Things to explore: slices, sets of slices, and marks or scores of neurons and weights.

Everything becomes an `Exhibit`: a name, a few facts and, for each sample, arrays by operation and
by kernel. Slices are recognised only by protocol, so that every result can be shown that maps
operations, layers or kernels to arrays: critical neurons, coverage, pruning masks.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel

Arrays = Mapping[str, np.ndarray]


@dataclass(frozen=True, eq=False)
class Part:
    """The neurons and synapses of one sample, or of several together.

    Attributes:
        neurons: Operation name → contributions, marks or scores, of the operation's shape or
            one for each channel; neurons with 0 or False are not members.
        synapses: Kernel name → the same for synapses, of the kernel's shape.
        samples: Number of samples that it describes.
    """

    neurons: Arrays
    synapses: Arrays
    samples: int = 1


@dataclass(frozen=True, eq=False)
class Exhibit:
    """One thing to explore, for one sample or for each of several.

    Attributes:
        name: Name given by the user.
        facts: Facts about its origin, such as theta and granularity.
        parts: One for each sample, or one for all of them.
        each: Whether there is a part for each sample.
    """

    name: str
    facts: dict[str, Any]
    parts: Sequence[Part]
    each: bool


def exhibits(shown: Any) -> list[Exhibit]:
    """Convert the user's input to exhibits.

    Args:
        shown: A slice, a set of slices, a mapping of operations, layers or kernels to arrays, or
            several of these as a mapping by name or as a list.

    Raises:
        InvalidArgumentError: if it is none of these, or empty.
    """
    if isinstance(shown, Mapping) and not _is_marks(shown):
        named = dict(shown)
    elif isinstance(shown, Sequence) and not _is_set(shown):
        named = {_title(one, place): one for place, one in enumerate(shown)}
    else:
        named = {_title(shown, 0): shown}
    if not named:
        raise InvalidArgumentError("There is nothing to explore: no slice was given.")
    return [_exhibit(str(name), one) for name, one in named.items()]


def check_fits(exhibit: Exhibit, im: InstrumentedModel) -> None:
    """Check that an exhibit belongs to a model.

    Raises:
        ProfileMismatchError: if the fingerprint is that of a different model.
        InvalidArgumentError: if names or shapes are not those of the model.
    """
    fingerprint = exhibit.facts.get("fingerprint")
    if fingerprint and fingerprint != im.fingerprint:
        raise ProfileMismatchError(
            f"'{exhibit.name}' is of another model (fingerprint {fingerprint[:12]}…) than "
            f"'{im.model.name}' ({im.fingerprint[:12]}…). Several models can be given by name: "
            "im={'original': …, 'compressed': …}, with the names of the slices."
        )
    for part in exhibit.parts[:1]:
        for name, values in part.neurons.items():
            check_name("operation", name, im.graph.operations)
            _check_shape(exhibit, name, values, [im[name].shape, im[name].shape[-1:]])
        kernels = im.kernels
        for name, values in part.synapses.items():
            check_name("kernel", name, kernels)
            _check_shape(exhibit, name, values, [kernels[name].shape])


def _check_shape(exhibit: Exhibit, name: str, values: np.ndarray, known: Sequence) -> None:
    if tuple(np.shape(values)) not in [tuple(shape) for shape in known]:
        raise InvalidArgumentError(
            f"'{exhibit.name}' does not fit the model: its '{name}' is of shape "
            f"{np.shape(values)}, expected {' or '.join(map(str, known))}."
        )


def with_operations(exhibit: Exhibit, im: InstrumentedModel) -> Exhibit:
    """Return an exhibit whose arrays are named after the model's operations and kernels.

    The marks in a mapping are for neurons if name and shape are those of an operation or of a
    layer's units, and for weights if they are those of a kernel.
    """
    if "marks" not in exhibit.facts:
        return exhibit
    facts = {key: value for key, value in exhibit.facts.items() if key != "marks"}
    neurons, synapses = {}, {}
    kernels = im.kernels
    for name, values in exhibit.facts["marks"].items():
        values = np.asarray(values)
        if name in kernels and values.shape == tuple(kernels[name].shape):
            synapses[name] = values
        else:
            neurons[_operation_of(name, im)] = values
    shapes = [(np.ndim(values), len(im[name].shape)) for name, values in neurons.items()]
    coarse = any(rank < of_operation for rank, of_operation in shapes)
    facts["granularity"] = "channel" if coarse else "activation"
    return Exhibit(exhibit.name, facts, [Part(neurons, synapses, 0)], False)


def _operation_of(name: str, im: InstrumentedModel) -> str:
    """Return the operation that an operation's or layer's name refers to."""
    if name in im.graph.operations:
        return name
    of_layer = [o.name for o in im.operations if o.layer == name]
    if not of_layer:
        check_name("operation, layer or kernel", name, im.graph.operations)
    return of_layer[-1]


def _exhibit(name: str, one: Any) -> Exhibit:
    if _is_set(one):
        parts: Sequence[Part] = _SetParts(one)
        predicted = [int(p) for p in one.predicted]
        return Exhibit(name, {**one.info, "predicted": predicted}, parts, True)
    if hasattr(one, "neurons") and hasattr(one, "synapses"):
        info = dict(getattr(one, "info", {}))
        samples = int(info.pop("samples", 1) or 0)
        return Exhibit(name, info, [Part(one.neurons, one.synapses, samples)], samples == 1)
    if isinstance(one, Mapping) and _is_marks(one):
        return Exhibit(name, {"marks": one}, [], False)
    raise InvalidArgumentError(
        "A slice, a set of slices, or a mapping of operations or kernels to arrays can be "
        f"explored. Received for {name!r}: {type(one).__name__}"
    )


class _SetParts(Sequence):
    """The slices of a set, created on access, because all of them together would be large."""

    def __init__(self, slices: Any) -> None:
        self._slices = slices

    def __len__(self) -> int:
        return len(self._slices)

    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        one = self._slices[index]
        return Part(one.neurons, one.synapses)


def _is_set(one: Any) -> bool:
    return all(hasattr(one, name) for name in ("predicted", "kernels", "operations", "__len__"))


def _is_marks(one: Mapping) -> bool:
    values: Iterable[Any] = one.values()
    return bool(one) and all(isinstance(value, np.ndarray) for value in values)


def _title(one: Any, place: int) -> str:
    info = getattr(one, "info", {})
    theta = info.get("theta") if isinstance(info, Mapping) else None
    name = type(one).__name__ if theta is None else f"θ = {theta:g}"
    return f"{name} ({place + 1})" if place else name
