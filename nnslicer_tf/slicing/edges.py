"""A slice as a list of edges: from which unit to which, with its weight and its contribution."""

from collections.abc import Callable, Iterator
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel, Synapses, instrumented
from nnslicer_tf.instrument.index_maps import routing_map
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.recurrence import SEQUENCE, Gate, Member
from nnslicer_tf.kinds import kind_of

if TYPE_CHECKING:
    import pandas as pd

    from nnslicer_tf.slicing.slice import Slice

Origin = Callable[[str, int], str]


def edges(one: "Slice", model: ModelLike) -> "pd.DataFrame":
    """Return the synapses of a slice as a table; see `Slice.edges`."""
    import pandas as pd

    im = instrumented(model)
    if one.info.get("fingerprint", im.fingerprint) != im.fingerprint:
        raise ProfileMismatchError(f"The slice is not from the weights of '{im.model.name}'.")
    for name, values in one.synapses.items():
        check_name("kernel", name, im.kernels)
        if values.shape != im.kernels[name].shape:
            raise ProfileMismatchError(
                f"The slice belongs to a different model than '{im.model.name}': its kernel "
                f"'{name}' has shape {values.shape}, the model's {im.kernels[name].shape}."
            )
    if not one.synapses:
        raise InvalidArgumentError(
            f"A slice of level '{one.level}' has no synapses, so no edges. Use level='synapse'."
        )
    origin = _origins(im)
    parts = []
    for kernel, columns, read, name in _sums(im):
        if kernel.name not in one.synapses:
            continue
        values, weights = (
            kernel.from_kernel(array)[..., columns]
            for array in (np.asarray(one.synapses[kernel.name]), kernel.kernel())
        )
        taps, inputs, outputs = np.nonzero(values)
        groups = outputs // max(1, values.shape[-1] // kernel.groups)
        channels = (groups * values.shape[1] + inputs).tolist()
        parts.append(
            pd.DataFrame(
                {
                    "kernel": kernel.name,
                    "from": [f"token {c}" for c in channels]
                    if isinstance(kernel, Lookup)
                    else [origin(read, c) for c in channels],
                    "to": [f"{name}[{output}]" for output in outputs],
                    "tap": taps,
                    "weight": weights[taps, inputs, outputs],
                    "contribution": values[taps, inputs, outputs],
                }
            )
        )
    return pd.concat(parts, ignore_index=True)


def _sums(im: InstrumentedModel) -> Iterator[tuple[Synapses, slice, str, str]]:
    """Yield each use of a kernel: its columns, what the sum reads, and the sum's name."""
    layers = set()
    for operation in im.operations:
        params: Any = operation.params
        if isinstance(params, Synapses):
            yield params, slice(None), operation.inputs[0], operation.name
        if not isinstance(params, Member) or params.unrolled in layers:
            continue
        layers.add(params.unrolled)
        prefix = operation.name.removesuffix(params.operation.name)
        for gate in (o for o in params.unrolled.cell if isinstance(o.params, Gate)):
            for weights, source in zip(gate.params.weights, gate.inputs, strict=True):
                read = operation.inputs[0] if source == SEQUENCE else prefix + source
                yield weights.kernel, slice(weights.start, weights.stop), read, prefix + gate.name


def _origins(im: InstrumentedModel) -> Origin:
    """Return a function that finds where a channel comes from, through one-to-one operations."""

    @cache
    def sources(name: str) -> np.ndarray:
        return routing_map(im[name])

    @cache
    def origin(name: str, channel: int) -> str:
        operation = im.graph.operations.get(name)
        if operation is None:  # a state of the step before
            return f"{name}[{channel}]"
        while len(operation.inputs) == 1 and operation.kind not in ("weighted_sum", "lookup"):
            before = im[operation.inputs[0]]
            same = before.shape[-1:] == operation.shape[-1:]
            if same and kind_of(operation).reach in ("element", "channel"):
                operation = before
            elif operation.kind == "routing" and len(operation.shape) == 1:
                index = int(sources(operation.name)[channel])
                if index < 0:
                    break
                operation, channel = before, index % before.shape[-1]
            else:
                break
        return f"{operation.name}[{channel}]"

    return origin
