"""Matching of a LiteRT file's tensors to the values of a Keras model's operations."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf.debugging._litert_graph import FileStep, LiteRTGraph
from nnslicer_tf.debugging.places import Counterpart, input_places, place_of
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Affine, InstrumentedModel, Operation, Synapses

_EXAMPLES = 8  # samples used to recognise tensors
_ROUNDING = 0.2  # relative error of a step that only rounds
_UNRELATED = 0.9  # relative error above which two values are unrelated


@dataclass(frozen=True)
class _Origin:
    """The origin of a tensor of a file.

    Attributes:
        places: The operations of the nearest places before it.
        kernels: Number of kernels since then.
        multiplied: The last step with a kernel since then, if there is one.
    """

    places: frozenset[str]
    kernels: int
    multiplied: FileStep | None = None


@dataclass(frozen=True)
class _Match:
    """The tensor that has an operation's value.

    Attributes:
        output: Index of the tensor.
        step: The step that computes it; for a value with a kernel, the one that multiplies by it.
        kernel: Name of the kernel, if it has one.
        error: Relative error to the value in floating point.
    """

    output: int
    step: FileStep
    kernel: str | None
    error: float


class LiteRTFile(Counterpart):
    """A LiteRT file.

    Its steps are matched in order. A step is matched to the operation after the step's inputs
    whose value, computed in floating point from the file's own inputs of the step, is nearest. So
    an error made at one layer does not affect the recognition of later ones.
    """

    def __init__(self, im: InstrumentedModel, file: LiteRTGraph, x: np.ndarray) -> None:
        if file.of_one_sample(file.input):
            self._file = file
        else:
            raise InvalidArgumentError(f"The TFLite model in {file.name} takes no single samples.")
        self._im, x = im, x[:_EXAMPLES]
        tensors = [
            s.output for s in file.steps if file.of_one_sample(s.output) and file.is_real(s.output)
        ]
        self._found = _Recognition(im, file, file.run(x, [file.input, *tensors])).found
        self._check(file)
        order = {name: i for i, name in enumerate(im.graph.operations)}
        places = input_places(im, file.tensor_name(file.input), file.stored(file.input))
        for name, match in sorted(self._found.items(), key=lambda item: order[item[0]]):
            tensor = file.tensor_name(match.step.output)
            weights = match.step.weights
            stored = file.stored(match.output if weights is None else weights)
            places.append(place_of(name, match.kernel, tensor, stored, im))
        self.places = tuple(places)

    def _check(self, file: LiteRTGraph) -> None:
        """Reject a file in which a kernel, or the output, has no counterpart."""
        there = {match.kernel: file.tensor_name(match.output) for match in self._found.values()}
        missing = [name for name in self._im.kernels if name not in there]
        if missing:
            kernels = ", ".join(f"'{n}' (kernel {self._im.kernels[n].shape})" for n in missing)
            layers = [s for s in file.steps if s.weights is not None]
            free = [s for s in layers if all(m.step is not s for m in self._found.values())]
            names = ", ".join(file.tensor_name(s.output) for s in free) or "none"
            known = ", ".join(f"'{name}'" for name in there if name is not None) or "none"
            raise InvalidArgumentError(
                f"Layer {kernels} has no counterpart in the TFLite model in {file.name}. Layers "
                f"with one: {known}. Layers of the file that were not recognised: {names}. Compare "
                "a model with the file that was made of it; of models with recurrent layers there "
                "is none yet that can be compared."
            )
        output = self._im.output_operations[0]
        if output not in self._found:
            raise InvalidArgumentError(
                f"The output '{output}' has no counterpart in the TFLite model in {file.name}, "
                f"whose output is '{file.tensor_name(file.output)}'. If one of them ends in a "
                "softmax and the other does not, use dflare.with_softmax."
            )

    def values(self, x: np.ndarray) -> dict[str, np.ndarray]:
        tensors = {self._im.input_operation: self._file.input}
        tensors |= {name: match.output for name, match in self._found.items()}
        values = self._file.run(x, set(tensors.values()))
        return {
            name: values[index].reshape(len(x), *self._im[name].shape)
            for name, index in tensors.items()
        }

    def kernels(self) -> dict[str, np.ndarray]:
        found = {}
        for name, match in self._found.items():
            if match.kernel is not None:
                shape = self._im.kernels[match.kernel].shape
                values = self._file.kernel(match.step).reshape(shape)
                found[match.kernel] = _unfolded(self._im, name, match.kernel, values)
        return found


class _Recognition:
    """The search for the operation that each step of a file computes.

    Attributes:
        found: Operation → the tensor that has its value.
    """

    def __init__(
        self, im: InstrumentedModel, file: LiteRTGraph, values: Mapping[int, np.ndarray]
    ) -> None:
        self._im = im
        self.found: dict[str, _Match] = {}
        self._computed: dict[str, np.ndarray] = {}  # the value in floating point
        self._known = {im.input_operation: values[file.input].reshape(-1, *im.input_shape)}
        masks = [o.name for o in im.operations if o.kind == "mask"]
        self._masks = dict(im.forward(values[file.input], masks)) if masks else {}
        origins = {file.input: _Origin(frozenset([im.input_operation]), 0)}
        for step in file.steps:
            origin = _joined([origins[i] for i in step.inputs], step)
            origins |= dict.fromkeys((step.output, *step.others), origin)
            # A product with a constant may be the first half of a normalisation.
            whole = step.kind not in ("QUANTIZE", "DEQUANTIZE") and (
                step.kind != "MUL" or len(step.inputs) > 1
            )
            if whole and step.output in values and step.output not in file.without_bias:
                name = self._nearest(origin, step, values[step.output])
                if name is not None:
                    origins[step.output] = _Origin(frozenset([name]), 0)

    def _nearest(self, origin: _Origin, step: FileStep, value: np.ndarray) -> str | None:
        """Return the operation whose value is nearest to a tensor, if one is near; record it."""
        best, least = None, _UNRELATED if origin.kernels else _ROUNDING
        for operation, computed, kernel in self._behind(origin):
            error = _error(value, operation, computed)
            if error < least:
                best, least = (operation.name, computed, kernel), error
        for name in origin.places & set(self.found):
            # What was taken for an operation's value was a part of it, such as x·γ/σ of a
            # normalisation.
            error = _error(value, self._im[name], self._computed[name])
            if error < min(least, self.found[name].error):
                best, least = (name, self._computed[name], self.found[name].kernel), error
        if best is None:
            return None
        name, self._computed[best[0]], kernel = best
        multiplied = self.found[name].step if name in self.found else origin.multiplied
        own = multiplied if kernel and multiplied else step
        self.found[name] = _Match(step.output, own, kernel, least)
        self._known[name] = value.reshape(-1, *self._im[name].shape)
        return name

    def _behind(self, origin: _Origin) -> Iterator[tuple[Operation, np.ndarray, str | None]]:
        """Yield operations after places, with their values and the kernel that they used."""
        values: dict[str, Any] = self._masks | {name: self._known[name] for name in origin.places}
        kernels: dict[str, tuple[str, ...]] = dict.fromkeys(values, ())
        for operation in self._im.operations:
            inputs = operation.inputs
            ready = bool(inputs) and set(inputs) <= set(values)
            if not ready or operation.kind == "mask" or operation.name in self._known:
                continue
            own = tuple(kernel.name for kernel in operation.kernels)
            used = own + tuple(k for i in dict.fromkeys(inputs) for k in kernels[i])
            if len(used) > origin.kernels or operation.kind == "recurrence":
                continue
            tensors = (ops.convert_to_tensor(values[i]) for i in inputs)
            values[operation.name] = ops.convert_to_numpy(operation.compute(*tensors))
            kernels[operation.name] = used
            if len(used) == origin.kernels:
                yield operation, values[operation.name], used[0] if used else None


def _joined(before: Sequence[_Origin], step: FileStep) -> _Origin:
    """Return the origin of a step's output, given the origins of its inputs."""
    places = frozenset().union(*(one.places for one in before))
    kernels = max(one.kernels for one in before)
    multiplied = next((one.multiplied for one in before if one.multiplied is not None), None)
    if step.weights is None:
        return _Origin(places, kernels, multiplied)
    return _Origin(places, kernels + 1, step)


def _error(value: np.ndarray, operation: Operation, computed: np.ndarray) -> float:
    """Return a tensor's error relative to an operation's value; ∞ if the shapes do not fit."""
    if len(value) != len(computed) or not _fits(operation.shape, value.shape[1:]):
        return np.inf
    return _relative(value.reshape(computed.shape) - computed.astype(np.float64), computed)


def _fits(shape: tuple[int, ...], other: tuple[int, ...]) -> bool:
    """Whether one shape is the other with some axes split, ignoring axes of size 1."""
    ends, others = (set(np.cumprod([1, *one[::-1]]).tolist()) for one in (shape, other))
    return max(ends) == max(others) and (ends <= others or others <= ends)


def _relative(difference: np.ndarray, values: np.ndarray) -> float:
    """Return the size of a difference relative to that of the values."""
    size = float(np.linalg.norm(values.astype(np.float64)))
    return float(np.linalg.norm(difference)) / size if size else np.inf


def _unfolded(im: InstrumentedModel, place: str, kernel: str, values: np.ndarray) -> np.ndarray:
    """Return weights without the normalisation factors that a converter folded into them."""
    synapses: Synapses = im.kernels[kernel]
    own = synapses.kernel()
    between = im.graph.between([o.name for o in im.operations if synapses in o.kernels], [place])
    affine = [o.params for o in between if isinstance(o.params, Affine)]
    if not affine:
        return values
    factor = np.broadcast_to(affine[0].read()[0].ravel(), synapses.matrix().shape[-1:])
    with np.errstate(divide="ignore", invalid="ignore"):
        matrix = np.where(factor == 0, synapses.matrix(), synapses.from_kernel(values) / factor)
    plain = synapses.to_kernel(matrix).astype(np.float32)
    nearer = np.linalg.norm(plain - own) < np.linalg.norm(values - own)
    return plain if nearer else values
