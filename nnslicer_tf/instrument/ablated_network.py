"""The network behind an `Ablation`: a model's graph, computed under a mask of its units.

At level "synapse", a weighted sum becomes (x − r) · (w ∘ m) + r · w + b, for the mask m and the
reference r of its input x; inside recurrent layers, gates are increased by what inactive synapses
contribute to the reference's sums. Neurons become r + m · (y − r), and so do masked weights.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import Any, TypeAlias

import keras
import numpy as np
from keras import ops

from nnslicer_tf._checks import check_name, did_you_mean
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import recurrence as rnn
from nnslicer_tf.instrument.backend import compiled_function, value_and_product
from nnslicer_tf.instrument.copies import examples
from nnslicer_tf.instrument.expansion import moved
from nnslicer_tf.instrument.layout import LEVELS
from nnslicer_tf.instrument.model import InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.operations import Lookup, Operation, Synapses
from nnslicer_tf.instrument.references import Weights

Named: TypeAlias = Mapping[str, Any]  # tensors by operation, kernel or variable


def maskable(model: ModelLike) -> InstrumentedModel:
    """Return an instrumented model whose kernels are variables: a copy if LoRA must be merged."""

    def computed(im: InstrumentedModel) -> list[Operation]:
        kernels = [(o, kernel) for o in im.operations for kernel in o.kernels]
        return [o for o, kernel in kernels if not isinstance(kernel.variable(), keras.Variable)]

    im = instrumented(model)
    if not computed(im):
        return im
    im = im.copy()
    for operation in computed(im):
        raise UnsupportedLayerError(
            f"The kernel of layer '{operation.layer}' ({type(operation.keras_layer).__name__}) is "
            "computed, so it cannot be masked: only variables can be. Replace the layer by one "
            "that stores the computed kernel, such as a Dense layer."
        )
    return im


def has_tied_kernels(im: InstrumentedModel) -> bool:
    """Whether an operation reads another one's kernel, as `matmul(x, transpose(dense.kernel))`."""

    def find() -> bool:
        kernels = [kernel.variable() for kernel in im.kernels.values()]
        tables = {o.params.name for o in im.operations if isinstance(o.params, Lookup)}
        own = {k.name for o in im.operations if not isinstance(o.params, Lookup) for k in o.kernels}
        if len(set(map(id, kernels))) < len(kernels) or tables & own:
            return True
        others = [o for o in im.operations if o.inputs and not o.kernels]
        others = [o for o in others if not isinstance(o.keras_layer, keras.layers.Layer)]
        x = examples(im.functional, list(im.input_shapes.values())) if others else None
        if x is None:
            return False
        tensors = [ops.convert_to_tensor(v, "float32") for v in keras.tree.flatten(x)]
        values = im.graph.run(tensors, [o.name for o in others])
        with keras.StatelessScope(moved(kernels)):
            moved_values = [o.compute(*(values[name] for name in o.inputs)) for o in others]
        pairs = [(values[o.name], v) for o, v in zip(others, moved_values, strict=True)]
        return any(not ops.all(ops.cast(v, a.dtype) == a) for a, v in pairs)

    return im.prepared("tied kernels", find)


@dataclass(frozen=True, eq=False)
class Rows:
    """Samples and the reference values of what they read, ready to be run under many masks."""

    inputs: list[Any]  # tensors (rows, …): each sample with every donor
    base: dict[str, Any]  # operation → (1 or rows, *shape); variable → its reference
    constants: dict[str, Any]  # weighted sum → its value for the reference
    samples: int
    donors: int
    of_weights: bool = False  # the reference's values are weights, the same for all rows

    def times(self, count: int) -> "Rows":
        """Return all rows `count` times over, for as many masks."""
        return self._each(lambda v: ops.concatenate([v] * count), self.samples * count, self.donors)

    def part(self, chosen: np.ndarray) -> "Rows":
        """Return the rows of some indices, each with its donor as a sample of its own."""
        return self._each(lambda v: ops.take(v, chosen, axis=0), len(chosen), 1)

    def _each(self, change: Callable[[Any], Any], samples: int, donors: int) -> "Rows":
        def of(part: dict[str, Any]) -> dict[str, Any]:
            return {n: v if self.of_weights or len(v) == 1 else change(v) for n, v in part.items()}

        inputs, base, constants = map(change, self.inputs), of(self.base), of(self.constants)
        return Rows(list(inputs), base, constants, samples, donors, self.of_weights)


class Network:
    """The computation behind an `Ablation`, for any mask, samples and reference; compiled."""

    def __init__(
        self,
        im: InstrumentedModel,
        level: str,
        by_weight: bool,
        wanted: tuple[str, ...],
        of: Sequence[str] | None = None,
        groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
        lookups: bool | None = None,
    ) -> None:
        self.im = im
        # Whether the synapses of embeddings are units, too: by default, if kernels are named.
        self.lookups = (of is not None) if lookups is None else lookups
        self.level, self.by_weight, self.wanted = level, by_weight, wanted
        self.groups = dict(groups or {})
        self._by_synapse = level == "synapse" and not by_weight
        self._order = im.graph.ancestors(wanted)
        # Units that are named may be some that act on other outputs alone, as in a model of a mask.
        self._candidates = self._order if of is None else list(im.operations)
        self.variables = named_variables(im) if by_weight else {}
        self._place = {id(v): place for place, v in enumerate(self.variables.values())}
        if level == "synapse":  # kernels by the names that slices give them; two may share one
            kernels = {name: kernel.variable() for name, kernel in im.kernels.items()}
            known = set(map(id, kernels.values()))
            others = {n: v for n, v in self.variables.items() if id(v) not in known}
            self.variables = kernels | others
        # Name → shape of the mask, in topological order; the shape in which it broadcasts to a
        # value or is a kernel's; and the units that entries of the latter belong to, if others.
        self.shapes: dict[str, tuple[int, ...]] = {}
        self._spread: dict[str, tuple[int, ...]] = {}
        self._gathered: dict[str, np.ndarray] = {}
        self._masked: dict[str, str] = {}  # operation → name of its mask
        read: dict[str, None] = {}  # operations whose reference values are needed
        if by_weight:
            kernels = im.kernels
            for name, variable in self.variables.items():
                is_float = keras.backend.is_float_dtype(variable.dtype)
                if (name in kernels if level == "synapse" else is_float) and _in(name, of):
                    self._add(name, tuple(variable.shape))
            read = dict.fromkeys(self.shapes)
        elif self._by_synapse:
            read = self._find_synapses(of)
        else:
            self._find_neurons(level, of)
            read = dict.fromkeys(self._masked)
        for name in of or ():
            self.check(name)
        if not self.shapes:
            raise UnsupportedLayerError(
                f"'{im.model.name}' has nothing to mask at level {level!r}. "
                f"The levels are {', '.join(LEVELS)}."
            )
        for name, lists in self.groups.items():
            check_name("unit", name, self.shapes)
            units = self._gathered.get(name, np.arange(int(np.prod(self._spread[name]))))
            self._gathered[name] = _group_of(name, int(np.prod(self.shapes[name])), lists)[units]
            self.shapes[name] = (int(self._gathered[name].max()) + 1,)
        self._sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        self.units = sum(self._sizes)
        self.bases = tuple(read)
        self._compiled: dict[Any, Callable[..., Any]] = {}

    def _add(self, name: str, shape: tuple, spread: tuple | None = None) -> None:
        self.shapes[name] = shape
        self._spread[name] = shape if spread is None else spread

    def _find_synapses(self, of: Sequence[str] | None) -> dict[str, None]:
        read: dict[str, None] = {}
        for operation in self._candidates:
            name, params = operation.name, operation.params
            kernels = [kernel for kernel in _kernels(operation) if _in(kernel.name, of)]
            if not kernels or (isinstance(params, Lookup) and not self.lookups):
                continue
            for kernel in kernels:
                self._add(kernel.name, kernel.shape)
            if isinstance(params, rnn.Member):
                read |= dict.fromkeys(_read_by(operation))
                continue
            self._masked[name] = params.name
            read[name if isinstance(params, Lookup) else operation.inputs[0]] = None
        return read

    def _find_neurons(self, level: str, of: Sequence[str] | None) -> None:
        has_tokens = any(o.kind == "lookup" for o in self._order)
        inside = projections_of_heads(self.im) if level == "head" else frozenset()
        ends = {n for w in self.wanted for n in (self.im.graph.ends(w) if of is None else [w])}
        for operation in self._candidates:
            name, shape, heads = operation.name, operation.shape, operation.heads
            is_unit = operation.kind == "weighted_sum" or isinstance(operation.params, rnn.Member)
            is_unit = ((is_unit and name not in inside) or of is not None) and _in(name, of)
            is_input = operation.kind == "lookup" or not (operation.inputs or has_tokens)
            before = len(self.shapes)
            if level == "input":
                lead = shape[:-1] if len(shape) > 1 else shape
                if is_input and _in(name, of):
                    self._add(name, lead, (*lead, *(1,) * (len(shape) > 1)))
            elif level == "head" and heads and heads.role == "context" and _in(name, of):
                spread = [n if a in heads.axes else 1 for a, n in enumerate(shape)]
                self._add(name, (heads.count,), tuple(spread))
                order = np.argsort(heads.axes)
                if (order != np.arange(len(order))).any():
                    units = np.arange(heads.count).reshape([shape[a] for a in heads.axes])
                    self._gathered[name] = units.transpose(order).ravel()
            elif is_unit and name not in ends and level == "neuron":
                self._add(name, shape)
            elif is_unit and name not in ends:
                self._add(name, shape[-1:], (*(1,) * (len(shape) - 1), shape[-1]))
            if len(self.shapes) > before:
                self._masked[name] = name

    def check(self, name: str) -> None:
        """Raise InvalidArgumentError if the model has no such kernel, variable or operation."""
        if self._by_synapse or self.level == "synapse":
            check_name("kernel", name, self.im.kernels)
        elif self.by_weight:
            check_name("variable", name, self.variables)
        else:
            check_name("operation", name, self.im.graph.operations)

    def check_unit(self, name: str) -> None:
        """Raise InvalidArgumentError for a part of the target's network that has no units."""
        acts = self.by_weight
        if self._by_synapse:
            acts = any(name == kernel.name for o in self._order for kernel in _kernels(o))
        elif not acts:
            operation = self.im[name]
            has_units = isinstance(operation.params, rnn.Member) or operation.heads
            has_units = has_units or operation.kind in ("weighted_sum", "lookup", "input")
            acts = not has_units or any(o is operation for o in self._order)
        if acts:
            none = name in self.wanted or self.level == "input"
            remedy = "" if none else f" To mask it, name all: Ablation(..., of=['{name}', …])."
            raise InvalidArgumentError(
                f"'{name}' has no units at level '{self.level}' here, which a mask could keep."
                f"{did_you_mean(name, self.shapes)} Those with units: {', '.join(self.shapes)}."
                f"{remedy}"
            )

    # The compiled functions

    def outputs(self, flat: np.ndarray, rows: Rows) -> Any:
        """Return the wanted operation's values, `(samples, [donors,] *shape)`."""
        key, signature = ("outputs", flat.ndim), self._signature(flat)
        run = self._function(key, lambda *args: self.run(*args)[0], signature)
        values = run(self._tensor(flat, rows), rows.inputs, rows.base, rows.constants)
        if rows.donors == 1:
            return values
        return ops.reshape(values, (rows.samples, rows.donors, *values.shape[1:]))

    def effects(
        self, flat: np.ndarray, rows: Rows, weights: np.ndarray, rivals: float
    ) -> tuple[Any, Any]:
        """Return the wanted operation's values, and the score's derivative by the mask."""

        def run(mask: Any, x: Any, base: Any, constants: Any, weights: Any) -> Any:
            def cotangent(values: Any) -> Any:
                size = self.im[self.wanted[0]].size  # not of the tensor, which may have free axes
                flat = ops.reshape(values, (-1, size))
                vector = ops.broadcast_to(weights, ops.shape(flat))
                if rivals:
                    spread = ops.std(flat, axis=-1, keepdims=True) + 1e-6
                    chosen = ops.cast(weights > 0, flat.dtype)
                    vector -= rivals * ops.softmax(flat / spread - 1e9 * chosen, axis=-1)
                return ops.reshape(vector, ops.shape(values))

            values, (effects,) = value_and_product(
                lambda m: self.run(m, x, base, constants)[0], [mask], cotangent
            )
            return values, effects

        score = ops.convert_to_tensor(weights, "float32")
        mask, signature = self._tensor(flat, rows), self._signature(flat, score)
        compiled = self._function(("effects", flat.ndim, rivals, weights.ndim), run, signature)
        values, effects = compiled(mask, rows.inputs, rows.base, rows.constants, score)
        if flat.ndim == 1:
            return values, effects[0]
        if rows.donors > 1:
            effects = ops.sum(ops.reshape(effects, (rows.samples, rows.donors, -1)), axis=1)
        return values, effects

    def sums_of(self, base: Named) -> dict[str, Any]:
        """Return the weighted sums of a reference, which do not depend on masks."""
        return {o.name: o.compute(base[o.inputs[0]]) for o in self._sums}

    @property
    def _sums(self) -> list[Operation]:
        masked = map(self.im.__getitem__, self._masked if self._by_synapse else ())
        return [o for o in masked if not isinstance(o.params, Lookup)]

    def references(self, reference: Weights) -> dict[str, np.ndarray]:
        """Return the masked variables of another version."""
        arrays = reference.variables
        return {name: arrays[self._place[id(self.variables[name])]] for name in self.shapes}

    def _function(self, key: Any, function: Callable, signature: Any = None) -> Callable[..., Any]:
        if key not in self._compiled:
            self._compiled[key] = compiled_function(function, signature)
        return self._compiled[key]

    def _signature(self, flat: np.ndarray, *more: Any) -> Any:
        """Return the shapes of the arguments of `run`, and more, for any number of rows."""
        if self.by_weight:
            return None

        def shapes(names: Iterable[str]) -> dict[str, tuple[int | None, ...]]:
            return {name: (None, *self.im[name].shape) for name in names}

        inputs, sums = self.im.input_operations, [o.name for o in self._sums]
        mask = (1 if flat.ndim == 1 else None, self.units)
        of_more = [(*(None for _ in one.shape[1:]), one.shape[-1]) for one in more]
        return (mask, list(shapes(inputs).values()), shapes(self.bases), shapes(sums), *of_more)

    def _tensor(self, flat: np.ndarray, rows: Rows) -> Any:
        """Return a mask as a tensor `(1 or rows, units)`."""
        flat = np.repeat(flat, rows.donors, axis=0) if flat.ndim > 1 and rows.donors > 1 else flat
        return ops.convert_to_tensor(np.atleast_2d(flat), "float32")

    def split(self, mask: Any) -> dict[str, Any]:
        """Return the masks `(1 or rows, …)` of values, kernels or variables, by unit name."""
        masks = {}
        # The gradient of a split is one concatenation; of slices, it is a full array for each.
        cuts = np.cumsum(self._sizes)[:-1].tolist()
        parts = ops.split(mask, cuts, axis=1) if cuts else [mask]
        for name, part in zip(self.shapes, parts, strict=True):
            if name in self._gathered:
                part = ops.take(part, self._gathered[name], axis=1)
            masks[name] = ops.reshape(part, (-1, *self._spread[name]))
        return masks

    def run(self, mask: Any, x: Sequence[Any], base: Named, constants: Named) -> list[Any]:
        """Return the wanted operations' values for a mask `(1 or rows, units)`, inputs `(rows, …)`.

        `base` has reference values `(1 or rows, *shape)` by operation or variable; `constants` are
        as of `sums_of`.
        """
        masks = self.split(mask)
        if not self.by_weight:
            return self._values(masks, x, base, constants)

        def changed(masks: Named) -> list[tuple[keras.Variable, Any]]:
            changes: dict[int, tuple[keras.Variable, Any]] = {}
            for name, part in masks.items():
                variable = self.variables[name]
                own = changes.get(id(variable), (variable, ops.convert_to_tensor(variable)))[1]
                kept = ops.cast(part, variable.dtype)
                value = own * kept
                if name in base:
                    value = value + (1 - kept) * ops.cast(base[name], variable.dtype)
                changes[id(variable)] = variable, value
            return list(changes.values())

        def values(masks: Named, *inputs: Any) -> list[Any]:
            with keras.StatelessScope(changed(masks)):
                return self._values({}, inputs, base, constants)

        return _by_row(values, masks, *x)

    def _values(self, masks: Named, x: Sequence[Any], base: Named, constants: Named) -> list[Any]:
        values: dict[str, Any] = dict(zip(self.im.input_operations, x, strict=True))
        through_time: dict[Any, dict[str, Any]] = {}
        for operation in self._order:
            name, params = operation.name, operation.params
            inputs = [values[source] for source in operation.inputs]
            is_masked = name in self._masked and not self.by_weight
            if isinstance(params, rnn.Member):
                if params.unrolled not in through_time:
                    through_time[params.unrolled] = self._recurrent(operation, masks, base)(*inputs)
                value = through_time[params.unrolled][params.operation.name]
            elif is_masked and self._by_synapse and isinstance(params, Lookup):
                value = self._looked_up(operation, masks, base, inputs)
            elif is_masked and self._by_synapse:
                change = inputs[0] - base[operation.inputs[0]]
                value = _weighted(params, change, masks[params.name]) + constants[name]
            else:
                value = values[name] if name in values else operation.compute(*inputs)
            if keras.backend.standardize_dtype(value.dtype) in ("float16", "bfloat16"):
                value = ops.cast(value, "float32")  # as everywhere in the analyses
            if is_masked and not self._by_synapse and not isinstance(params, rnn.Member):
                value = base[name] + masks[name] * (value - base[name])
                if not operation.inputs:
                    value = self.im.graph.keep_padding(name, value, x)
            values[name] = value
        return [values[name] for name in self.wanted]

    def _looked_up(self, operation: Operation, masks: Named, base: Named, inputs: Any) -> Any:
        """Return an embedding whose masked entries are the reference's values."""
        table = operation.params.variable()

        def kept(mask: Any, *tokens: Any) -> Any:
            with keras.StatelessScope([(table, ops.cast(mask, table.dtype))]):
                return operation.compute(*tokens)

        value = operation.compute(*inputs)
        share = _by_row(kept, masks[operation.params.name], *inputs)
        return value * share + (1 - share) * base[operation.name]

    def _recurrent(self, operation: Operation, masks: Named, base: Named) -> Callable[..., Any]:
        """Return the function that computes a recurrent layer, with masked units or synapses."""
        unrolled = operation.params.unrolled
        run = partial(unrolled.run, wanted=rnn.inside(unrolled, self._order))
        if self.by_weight:
            return run
        if not self._by_synapse:  # a layer's units are masked before its next step reads them
            factors, added = {}, {}
            for name in self._masked:
                params = self.im[name].params
                if isinstance(params, rnn.Member) and params.unrolled is unrolled:
                    here = masks[name] * ops.ones((1, *self.im[name].shape))
                    factors[params.operation.name] = here
                    added[params.operation.name] = (1 - here) * base[name]
            return partial(run, added=added, factors=factors)
        names = {kernel.name for o in unrolled.cell for kernel in o.kernels} & masks.keys()
        if not names:
            return run
        own = {name: masks[name] for name in names}
        if next(iter(own.values())).shape[0] == 1:
            return partial(_run_masked, run, operation, {n: m[0] for n, m in own.items()}, base)

        def each(*inputs: Any) -> dict[str, Any]:
            rows = ops.shape(inputs[0])[0]
            read = {
                name: ops.broadcast_to(base[name], (rows, *base[name].shape[1:]))
                for name in _read_by(operation)
            }
            return _by_row(partial(_run_masked, run, operation), own, read, *inputs)

        return each


def _kernels(operation: Operation) -> list[Synapses]:
    """Return the kernels of an operation, or of the recurrent layer that it is of."""
    params = operation.params
    cell = params.unrolled.cell if isinstance(params, rnn.Member) else (operation,)
    return [kernel for o in cell for kernel in o.kernels]


def _read_by(operation: Operation) -> list[str]:
    """Return the sequence, the initial states and the operations of a recurrent layer, by name."""
    unrolled = operation.params.unrolled
    sequence, initial, _ = rnn.split_inputs(operation.inputs, unrolled.masked)
    start = operation.name.removesuffix(operation.params.operation.name)
    return [sequence, *initial, *(start + o.name for o in unrolled.cell)]


def _run_masked(
    run: Callable[..., Any], operation: Operation, masks: Named, base: Named, *inputs: Any
) -> dict[str, Any]:
    """Run a recurrent layer some of whose synapses are masked."""
    unrolled: rnn.Unrolled = operation.params.unrolled
    sequence, initial, _ = rnn.split_inputs(operation.inputs, unrolled.masked)
    # What the gates read for the reference, (rows, time, …).
    start = operation.name.removesuffix(operation.params.operation.name)
    reference = {o.name: base[start + o.name] for o in unrolled.cell}
    reference[rnn.SEQUENCE] = unrolled.in_order(base[sequence])
    for place, state in enumerate(unrolled.states):
        first = base[initial[place]] if initial else 0 * reference[state][:, 0]
        reference[rnn.before(state)] = ops.concatenate(
            [first[:, None], reference[state][:, :-1]], axis=1
        )

    def sums() -> dict[str, Any]:
        totals = {}
        for gate in (o for o in unrolled.cell if isinstance(o.params, rnn.Gate)):
            parts = []
            for weights, source in zip(gate.params.weights, gate.inputs, strict=True):
                value = reference[source]
                flat = ops.reshape(value, (-1, *value.shape[2:]))  # each row and time for itself
                part = weights.apply(flat)
                parts.append(ops.reshape(part, (-1, unrolled.steps, *part.shape[1:])))
            totals[gate.name] = sum(parts)
        return totals

    # An inactive synapse contributes what it does to the reference's sum.
    whole = sums()
    variables = {k.name: k.variable() for o in unrolled.cell for k in o.kernels}
    masked = [(v, v * ops.cast(masks[n], v.dtype)) for n, v in variables.items() if n in masks]
    with keras.StatelessScope(masked):
        return run(*inputs, added={name: whole[name] - value for name, value in sums().items()})


def _weighted(params: Synapses, x: Any, mask: Any) -> Any:
    """Return a weighted sum without bias of `x` `(rows, …)`; `mask` is `(1 or rows, *kernel)`."""
    kernel = ops.cast(params.variable(), "float32")
    if mask.shape[0] != 1 and params.by_rows is not None:
        return params.by_rows(x, kernel * mask)
    return _by_row(lambda one, value: params.apply(value, kernel * one), mask, x)


def _by_row(function: Callable[..., Any], masks: Any, *values: Any) -> Any:
    """Return a function of masks and values `(rows, …)`, which may be structures of tensors.

    Masks `(1, …)` are those of all rows; others are of each row, which is computed by itself.
    """
    if keras.tree.flatten(masks)[0].shape[0] == 1:
        return function(keras.tree.map_structure(lambda mask: mask[0], masks), *values)

    def one(row: Any) -> Any:
        masks, values = row
        alone = keras.tree.map_structure(lambda value: value[None], values)
        return keras.tree.map_structure(lambda value: value[0], function(masks, *alone))

    return ops.map(one, (masks, list(values)))


def named_variables(im: InstrumentedModel) -> dict[str, keras.Variable]:
    """Return a model's variables by unique name: their path, `#k` appended for the k-th again."""
    named: dict[str, keras.Variable] = {}
    for variable in im.functional.variables:
        name, k = variable.path, 0
        while name in named:
            k += 1
            name = f"{variable.path}#{k}"
        named[name] = variable
    return named


def _in(name: str, names: Sequence[str] | None) -> bool:
    return names is None or name in names


def projections_of_heads(im: InstrumentedModel) -> frozenset[str]:
    """Return the weighted sums inside attentions: of queries, keys, values and the result."""

    @cache
    def sums(name: str) -> frozenset[str]:
        """Return the weighted sums that a value comes from, if those of all its inputs are one."""
        operation = im[name]
        if operation.kind == "weighted_sum":
            return frozenset((name,))
        sources = {sums(source) for source in operation.inputs}
        return sources.pop() if len(sources) == 1 else frozenset()

    inside: set[str] = set()
    for operation in im.operations:
        heads = operation.heads
        if heads is None:
            continue
        if heads.role in ("query", "key", "value"):
            inside |= sums(operation.name)
        after = operation
        while heads.role == "context" and after.kind != "weighted_sum":
            readers = im.graph.consumers[after.name]
            if len(readers) != 1:
                break
            (after,) = readers
        if heads.role == "context" and after.kind == "weighted_sum":
            inside.add(after.name)
    return frozenset(inside)


def _group_of(name: str, units: int, groups: Sequence[Sequence[int]]) -> np.ndarray:
    """Return the index of each unit's group: the given ones first, then those of single units."""
    group_of = np.full(units, -1)
    for index, members in enumerate(groups):
        chosen = np.ravel(np.asarray(members))
        if chosen.dtype.kind not in "iu" or chosen.min() < 0 or chosen.max() >= units:
            raise InvalidArgumentError(
                f"Group {index} of '{name}' must name units in 0 … {units - 1}, not {list(members)}"
            )
        if (group_of[chosen] >= 0).any():
            raise InvalidArgumentError(f"Group {index} of '{name}' shares units with another.")
        group_of[chosen] = index
    alone = group_of < 0
    group_of[alone] = len(groups) + np.arange(alone.sum())
    return group_of
