"""`Problem`: the score of one sample as a function of its features, for all attributions.

A feature is an entry of an input. Tokens have no gradient; their features are the elements of their
embeddings, which are added up per token. A *unit* is hidden as a whole: a pixel, step or token with
all its channels, or a column.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from keras import ops, tree

from nnslicer_tf._checks import as_array, check_points
from nnslicer_tf._numerics import parted
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.instrument.target import TargetLike, resolve_target

_BATCH_BYTES = 64 << 20
_UNCOMPILED = 8  # calls before a function is compiled: an explanation may need no more
Features = dict[str, np.ndarray]


class Problem:
    """One sample, a baseline and a target, checked against a model; see `Attribution`.

    The attributes `x` and `baseline` map the name of an input or embedding to float32 features. The
    argument `baseline` may also be a dict by input or embedding, such as `Profile.means`.
    """

    def __init__(self, im: InstrumentedModel, x: Any, baseline: Any, target: TargetLike) -> None:
        self.im = im = im.named_by(x, baseline)
        self.target = resolve_target(im, target)
        self._sources = {name: feature_operations(im, name) for name in im.input_operations}
        self._inputs = self._checked(x)
        self.x = self._features(self._inputs)
        self.baseline = self._baseline(baseline)
        self._weights = self.target.weights(im[self.target.operation].size)
        self._run = im.prepared(
            ("scores", self.target.operation, self.target.answer, tuple(self.x)), self._functions
        )

    @property
    def unit_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each input → shape of its units."""
        return {
            name: shape[:-1] if len(shape) > 1 and self._sources[name] == (name,) else shape
            for name, shape in self.im.input_shapes.items()
        }

    @property
    def units(self) -> int:
        """Number of units of all inputs together."""
        return sum(int(np.prod(shape)) for shape in self.unit_shapes.values())

    @property
    def _batch_size(self) -> int:
        bytes_each = 4 * sum(operation.size for operation in self.im.operations)
        return int(np.clip(_BATCH_BYTES // bytes_each, 1, 256))

    def scores(self, features: Features) -> np.ndarray:
        """Return the target's scores `(batch,)` float64: logits, not probabilities."""
        return self._over_batches(self._run["scores"], features)[0]

    def answers(self, features: Features) -> np.ndarray:
        """Return what users see: the class's probability, or the value, `(batch,)` float64."""
        (outputs,) = self._over_batches(self._run["answers"], features)
        if self.target.label is not None:
            return self.im.classes.probabilities(outputs)[:, self.target.label]
        return outputs.reshape(len(outputs), -1)[:, list(self.target.neurons)].mean(axis=1)

    def gradients(self, features: Features) -> Features:
        """Return the score's gradients by name of input or embedding, `(batch, …)` float64."""
        return dict(zip(self.x, self._over_batches(self._run["gradients"], features), strict=True))

    def multipliers(self, rescaled: Callable[..., Any], baselines: Features) -> Features:
        """Return the multipliers of features against each of some baselines, float64.

        `rescaled` is a backward rule for a batch whose first half is the sample; see `deeplift`.
        """
        key = "multipliers", self.target.operation, tuple(self.x)
        run = self.im.prepared(key, lambda: self._compiled(rescaled))
        return dict(zip(self.x, self._over_batches(run, baselines, pairs=True), strict=True))

    def values(self, ids: Sequence[Any], features: Sequence[Any], wanted: Sequence[str]) -> dict:
        """Return the values of operations, given features, as tensors by name."""
        given = dict(zip(self.x, features, strict=True))
        graph = self.im.graph
        given |= {n: graph.keep_padding(n, v, ids) for n, v in given.items() if n in graph.inputs}
        inputs = [given.get(n, i) for n, i in zip(self.im.input_operations, ids, strict=True)]
        return graph.run(inputs, wanted, lambda name, value: given.get(name, value))

    def hidden(self, masks: np.ndarray) -> Features:
        """Replace units by the baseline; `masks` `(batch, units)` are 0 (shown) to 1 (hidden)."""
        features = {}
        for name, mask in parted(masks.astype(np.float32), self.unit_shapes).items():
            for source in self._sources[name]:
                shown = mask
                if source != name:
                    _, run = self._path(name, source)
                    shown = ops.convert_to_numpy(run(ops.convert_to_tensor(mask)))
                x, baseline = self.x[source], self.baseline[source]
                if shown.ndim <= x.ndim:
                    shown = shown[..., None]
                features[source] = x + shown * (baseline - x)
        return features

    def of_units(self, values: Any) -> np.ndarray:
        """Return attributions of one or several inputs as one checked array `(units,)`."""
        names, parts = list(self.im.input_shapes), []
        by_input = values if isinstance(values, Mapping) else {names[0]: values}
        if {*by_input} != {*names}:
            raise InvalidArgumentError(
                f"values must be a dict with an array for each input, {names}. Received: "
                f"{list(by_input) if isinstance(values, Mapping) else type(values).__name__}"
            )
        for name, shape in self.im.input_shapes.items():
            part = as_array(by_input[name])
            is_right = part.shape == shape and part.dtype.kind in "fiub"
            if not is_right or np.isnan(part).any():
                what = "NaN in places" if is_right else f"{part.dtype} of shape {part.shape}"
                raise InvalidArgumentError(
                    f"values must have the shape of the sample, {shape}. Received: {what}"
                )
            part = part.astype(np.float64)
            parts.append(part.reshape(*self.unit_shapes[name], -1).sum(axis=-1).ravel())
        return np.concatenate(parts)

    def from_units(self, values: np.ndarray) -> Any:
        """Return values `(units,)` as attributions: one array, or a dict for several inputs."""
        by_input = {}
        for name, part in parted(values, self.unit_shapes).items():
            full = self.im.input_shapes[name]
            wide = part[..., None] if full != part.shape else part
            by_input[name] = np.broadcast_to(wide, full).copy()
        return by_input if len(by_input) > 1 else by_input[self.im.input_operation]

    def attributions(
        self, slopes: Mapping[str, np.ndarray], baselines: Features | None = None
    ) -> Any:
        """Return slopes of features times their difference from the baseline, by input, float64.

        With several `baselines`, slopes and result have a leading axis of these.
        """
        if baselines is None:
            alone = {name: value[None] for name, value in self.baseline.items()}
            found = self.attributions({n: v[None] for n, v in slopes.items()}, alone)
            return {n: v[0] for n, v in found.items()} if isinstance(found, dict) else found[0]
        by_input = {}
        for name, sources in self._sources.items():
            total = np.zeros((len(baselines[sources[0]]), *self.im.input_shapes[name]))
            for source in sources:
                part = slopes[source] * (self.x[source].astype(np.float64) - baselines[source])
                if isinstance(self.im[source].params, Lookup):
                    part = part.sum(axis=-1)
                total += part if source == name else self._to_input(name, source, part)
            by_input[name] = total
        return by_input if len(by_input) > 1 else total

    def _over_batches(
        self, run: Callable[..., Any], features: Features, pairs: bool = False
    ) -> list[np.ndarray]:
        """Return the results of a compiled function, float64.

        With `pairs`, the first half of each batch repeats the sample, once for each of the rest.
        """
        count, size = len(next(iter(features.values()))), max(1, self._batch_size // (1 + pairs))
        weights = ops.convert_to_tensor(self._weights)
        parts = []
        for first in range(0, count, size):
            batch = [features[n][first : first + size].astype(np.float32) for n in self.x]
            if pairs:
                both = zip(self.x.values(), batch, strict=True)
                batch = [np.concatenate([np.broadcast_to(x, b.shape), b]) for x, b in both]
            tensors = [ops.convert_to_tensor(value) for value in batch]
            found = tree.flatten(run(self._tokens(len(batch[0])), tensors, weights))
            parts.append([np.asarray(ops.convert_to_numpy(r), np.float64) for r in found])
        return [np.concatenate(same) for same in zip(*parts, strict=True)]

    def _functions(self) -> dict[str, Callable[..., Any]]:
        """Return compiled functions of (inputs, features, weights of the target's neurons)."""
        operation, answer = self.target.operation, self.target.answer

        def scores(ids: Any, features: Any, weights: Any) -> Any:
            value = self.values(ids, features, [operation])[operation]
            return ops.matmul(ops.reshape(value, (-1, weights.shape[0])), weights[:, None])[:, 0]

        def gradients(ids: Any, features: Any, weights: Any) -> Any:
            ones = ops.ones_like(ops.reshape(features[0], (ops.shape(features[0])[0], -1))[:, 0])
            return vector_jacobian_product(
                lambda *given: scores(ids, given, weights), list(features), ones
            )

        def answers(ids: Any, features: Any, weights: Any) -> Any:
            return self.values(ids, features, [answer])[answer]

        return {f.__name__: self._compiled(f) for f in (scores, gradients, answers)}

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function of (inputs, features, weights), compiled once for any batch."""
        inputs = [(None, *shape) for shape in self.im.input_shapes.values()]
        features = [(None, *value.shape) for value in self.x.values()]
        loops = any(isinstance(o.params, Member) for o in self.im.operations)  # slow uncompiled
        signature = (inputs, features, tuple(self._weights.shape))
        return compiled_function(function, signature, after=0 if loops else _UNCOMPILED)

    def _tokens(self, count: int) -> list[Any]:
        """Return the sample's inputs, repeated; only tokens and masks are read from them."""
        return [ops.convert_to_tensor(x.repeat(count, axis=0)) for x in arrays_of(self._inputs)]

    def _checked(self, x: Any, name: str = "x") -> Any:
        """Return one sample's inputs as a checked batch, float32."""
        x = self.im.in_order(x)
        if len(self.im.input_operations) == 1:
            if isinstance(x, Mapping) and len(x) == 1:
                (x,) = x.values()
            return self.im.check(self.im.points(x, name).astype(np.float32)[None])
        if isinstance(x, Mapping):
            return self.im.check({key: np.asarray(value)[None] for key, value in x.items()})
        return self.im.check([np.asarray(value)[None] for value in x])

    def features(self, batch: Any) -> Features:
        """Return the features of a checked batch: its inputs, or the embeddings of its tokens."""
        names = [source for sources in self._sources.values() for source in sources]
        return self.im.forward(batch, names)

    def _features(self, batch: Any) -> Features:
        """Return the features of a batch of one sample, without the batch axis."""
        return {name: values[0] for name, values in self.features(batch).items()}

    def _baseline(self, baseline: Any) -> Features:
        """Return the features of a baseline, in any of its forms."""
        if not isinstance(baseline, Mapping) and len(self.x) == 1:
            ((name, value),) = self.x.items()
            if name not in self.im.input_operations and np.shape(baseline) == value.shape:
                baseline = {name: baseline}
        if isinstance(baseline, Mapping) and set(self.x) <= set(baseline):
            of_inputs = {n: baseline[n] for n in self.x if n in self.im.input_operations}
            parts = {**baseline, **self.im.in_order(of_inputs)}
            return {
                name: check_points(parts[name], "baseline", value.shape).astype(np.float32)
                for name, value in self.x.items()
            }
        try:
            return self._features(self._checked(baseline, "baseline"))
        except (KeyError, TypeError) as error:
            raise InputShapeError(
                f"baseline must have an array for {list(self.x)}, not {type(baseline).__name__}."
            ) from error

    def _path(self, name: str, source: str) -> tuple[str, Callable[[Any], Any]]:
        """Return the operation that a source reads, or is, and the function from an input to it."""
        operation = self.im[source]
        end = operation.inputs[0] if isinstance(operation.params, Lookup) else source
        position = self.im.input_operations.index(name)

        def run(x: Any) -> Any:
            inputs = [x] * len(self.im.input_operations)
            inputs[position] = x
            return self.im.graph.run(inputs, [end])[end]

        return end, run

    def _to_input(self, name: str, source: str, values: np.ndarray) -> np.ndarray:
        """Map a source's values `(batch, …)` to the entries of the input that it reads."""
        end, run = self._path(name, source)
        if end == name:
            return values
        zeros = ops.zeros((len(values), *self.im.input_shapes[name]))
        cotangent = ops.convert_to_tensor(values.astype(np.float32))
        return ops.convert_to_numpy(vector_jacobian_product(run, [zeros], cotangent)[0])


def feature_operations(im: InstrumentedModel, name: str) -> tuple[str, ...]:
    """Return the operations with an input's features: itself, or embeddings and other parts."""
    found: dict[str, None] = {}  # in order

    def visit(source: str) -> None:
        others = False
        for taker in im.graph.consumers[source]:
            if isinstance(taker.params, Lookup):
                found[taker.name] = None
            elif taker.kind == "routing" and len(taker.inputs) == 1:
                visit(taker.name)
            elif taker.kind != "mask":
                others = True
        if others and source != name:
            found[source] = None

    visit(name)
    looked_up = any(isinstance(im[source].params, Lookup) for source in found)
    return tuple(found) if looked_up else (name,)
