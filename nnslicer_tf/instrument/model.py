"""`InstrumentedModel`: the view of a Keras model that all analyses use.

Wrapping costs one forward pass of two samples. Capturing costs a forward pass, and the
memory of the requested activations: of one batch (streaming) or of all samples at once.
"""

import os
import re
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property, partial
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypeVar

import keras
import numpy as np
from typing_extensions import TypeAliasType

from nnslicer_tf import _checks
from nnslicer_tf._environment import track, waiting
from nnslicer_tf._files import digest
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf._tables import ShownAsTable, text_table
from nnslicer_tf.datasets import Dataset, load_data
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, SeveralInputsError
from nnslicer_tf.instrument.comparison import compare_with_original
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.data import (
    KEYS,
    Bounds,
    DataLike,
    Samples,
    WholeBounds,
    aligned,
    bounds_of_dtype,
    check_class_order,
    is_numbered,
    read_labelled,
    shapes_at_hand,
    table_columns,
)
from nnslicer_tf.instrument.fingerprint import model_fingerprint, own_code, weights_checksum
from nnslicer_tf.instrument.functional import (
    Shapes,
    as_functional,
    has_graph,
    input_name,
    structure_of,
    sublayers,
)
from nnslicer_tf.instrument.graph import Graph, build_graph, gradient_function
from nnslicer_tf.instrument.inputs import Activations, Inputs, arrays_of, check_finite
from nnslicer_tf.instrument.operations import Operation, Synapses
from nnslicer_tf.instrument.outputs import Ending, centred, classes_of, mark_final, tasks_of_losses
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.instrument.tracing import trace

if TYPE_CHECKING:
    import pandas as pd

Prepared = TypeVar("Prepared")


class InstrumentedModel(ShownAsTable):
    """A Keras model seen as a graph of operations whose values can be captured.

    It shares the weights of `model`, which is not changed. On construction, its outputs are
    compared with the model's on random samples. bfloat16 and float16 are analysed in float32.

    Args:
        model: A functional, sequential, nested or subclassed Keras model.
        input_shape: Shape of one sample, if the model has none; of several inputs, a list or dict.
        preprocess: A Keras layer or a function written with `keras.ops`, such as
            `lambda x: x / 255`. It becomes part of the model, so that analyses accept raw data.
        bounds: Smallest and largest value of an input, before `preprocess`. Analyses reject data
            outside them. For tokens, they are known.
        task: What the outputs are: "binary" (one value for two classes), "multiclass",
            "multilabel" or "regression"; for several outputs, a dict by name. By default, it is
            recognised by a final softmax, sigmoid or other function with values from 0 to 1, and
            otherwise by the loss that the model was compiled with. Without one, a single value is
            taken for a number, and several for logits of classes.
        progress: Show a progress bar, if wrapping takes more than two seconds.

    Attributes:
        model: The original model; with `preprocess`, a new one that shares its layers.
        functional: The model in functional or sequential form, with the same layers.
        preparation: A Keras model of `preprocess`, from a sample to the original's input, or None.
        preprocessing: Names of the inputs and the operations of `preprocess`: these are no layers.
        bounds: The bounds; None if they are not known.
        given_shape: The argument `input_shape`.
        given_task: The argument `task`.
        columns: Names of a table's columns, in the order of the inputs; a slicer sets those of its
            profile. Tables with the same columns in another order are then put into this order.
        operations: Tuple of `Operation`, in topological order, starting with the inputs.
        graph: Graph of the operations; see `nnslicer_tf.instrument.graph.Graph`.

    Raises UnsupportedLayerError if a layer has no rule, or an output differs from the original's;
    InputShapeError if the shape of the input is not known; InvalidArgumentError if `model` is no
    Keras model, or bounds or task do not fit it.
    """

    def __init__(
        self,
        model: keras.Model,
        input_shape: Shapes | None = None,
        *,
        preprocess: Callable[[Any], Any] | None = None,
        bounds: Bounds | None = None,
        task: str | Mapping[str, str] | None = None,
        progress: bool = True,
    ) -> None:
        if not isinstance(model, keras.Model):
            raise InvalidArgumentError(
                f"A Keras model is needed; load_model reads files. Received: {type(model).__name__}"
            )
        self.bounds = None if bounds is None else _checks.check_bounds(bounds)
        with waiting(f"Wrapping {model.name}", progress):
            functional = as_functional(model, input_shape)
            compiled, self.preparation = model, None
            if preprocess is not None:
                model, self.preparation = _preprocessed(functional, preprocess, input_shape)
                self._unprepared, functional = functional, model
            self.model, self.functional = model, functional
            self.given_shape, self.given_task = input_shape, task
            self.columns: tuple[str, ...] = ()
            traced = trace(functional, input_shape)
            self.graph: Graph = build_graph(traced)
            self.preprocessing = frozenset(self.graph.inputs)
            if self.preparation is not None:
                before = build_graph(trace(self.preparation, input_shape))
                self.preprocessing |= before.operations.keys()
            self._endings = mark_final(self.graph)
            held = ((layer, n) for layer in sublayers(model) for n in vars(layer))
            self._activations = [(x, n, vars(x)[n]) for x, n in held if n.endswith("activation")]
            self._bounds: dict[str, Bounds | None] = {}
            for name, tensor in zip(self.graph.inputs, functional.inputs, strict=True):
                by_dtype = bounds_of_dtype(keras.backend.standardize_dtype(tensor.dtype))
                tokens = self.graph.vocabulary(name)
                limits = self.bounds or (by_dtype if tokens is None else (0.0, tokens - 1.0))
                self._bounds[name] = WholeBounds(limits) if by_dtype and limits else limits
            if len(self._bounds) == 1:
                (known,) = self._bounds.values()
                self.bounds = known if known is None or np.isfinite(known).all() else None
            self._captures: dict[tuple[str, ...], Callable] = {}
            self._gradients: dict[tuple, Callable] = {}
            self._prepared: dict[Hashable, tuple[tuple[int, ...], Any]] = {}
            examples = compare_with_original(model, functional, self.graph, traced, self.bounds)
        given = {None: task} if isinstance(task, str) else dict(task or {})
        tasks = {self.output_operation_of(name): one for name, one in given.items()}
        losses = tasks_of_losses(compiled, self.outputs, self.graph.outputs)
        self._classes: dict[str, OutputClasses] = {}
        for name, ending in list(self._endings.items()):
            of = (self.graph, name, ending, examples[name])
            self._classes[name] = classes = classes_of(*of, tasks.get(name), *losses[name])
            if classes.is_binary and classes.final == "distribution":
                self._endings[name] = Ending(centred(self.graph, name))
        self.operations: tuple[Operation, ...] = tuple(self.graph.operations.values())
        if bounds is None:
            # `instrumented` finds it here. Keras would track an attribute, and search a tuple for
            # layers whose weights it loads.
            vars(model)[_INSTRUMENTED] = SimpleNamespace(im=self, state=_state_of(model))

    @property
    def input_shape(self) -> tuple[int, ...]:
        """Shape of one sample; raises SeveralInputsError if the model has several inputs."""
        return self[self.input_operation].shape

    @property
    def input_operation(self) -> str:
        """Name of the input operation; raises SeveralInputsError if there are several."""
        if len(self.graph.inputs) > 1:
            raise SeveralInputsError(
                f"Model '{self.model.name}' has {len(self.graph.inputs)} inputs "
                f"({', '.join(self.graph.inputs)}), but this analysis needs a model with one. Join "
                "the inputs in a wrapping model, which splits one tensor into them."
            )
        return self.graph.inputs[0]

    @property
    def input_operations(self) -> tuple[str, ...]:
        """Names of the input operations, in the order of the model's inputs."""
        return self.graph.inputs

    @property
    def input_shapes(self) -> dict[str, tuple[int, ...]]:
        """Name of each input operation → shape of one sample."""
        return {name: self[name].shape for name in self.graph.inputs}

    @property
    def output_operations(self) -> tuple[str, ...]:
        """Names of the operations that compute the model's outputs."""
        return self.graph.outputs

    @property
    def logit_operation(self) -> str:
        """Name of the first output's logits; see `logit_operation_of`."""
        return self.logit_operation_of(None)

    @cached_property
    def outputs(self) -> dict[str, str]:
        """Name of each output → the operation that computes it.

        An output's name is its key if the model's outputs are a dict, otherwise its layer's name.
        """
        layers = getattr(self.functional, "output_names", self.graph.outputs)
        by_layer = dict(zip(layers, self.graph.outputs, strict=False))
        structure = structure_of(self.functional, "output")
        by_place = keras.tree.pack_sequence_as(structure, list(self.graph.outputs))
        return {**by_layer, **by_place} if isinstance(by_place, Mapping) else by_layer

    @property
    def output_names(self) -> tuple[str, ...]:
        """One name of each output, in the order of the model's outputs; see `outputs`."""
        return tuple({operation: name for name, operation in self.outputs.items()}.values())

    def output_operation_of(self, output: str | None) -> str:
        """Return the operation that computes an output.

        Args:
            output: Name of the output, or of its operation; by default the first output.

        Raises InvalidArgumentError if the model has no such output.
        """
        if output is None:
            return self.graph.outputs[0]
        if output in self.graph.outputs:
            return output
        _checks.check_name("output", output, self.outputs)
        return self.outputs[output]

    def logit_operation_of(self, output: str | None) -> str:
        """Return the operation before an output's final softmax or sigmoid, or its own if none."""
        return self._endings[self.output_operation_of(output)].logits

    @property
    def classes(self) -> OutputClasses:
        """What the first output says about classes; see `classes_of`."""
        return self.classes_of(None)

    def classes_of(self, output: str | None) -> OutputClasses:
        """Return an output's `OutputClasses`; arguments and errors as in `output_operation_of`."""
        return self._classes[self.output_operation_of(output)]

    @property
    def kernels(self) -> dict[str, Synapses]:
        """Name → kernel with its synapses, in topological order; a shared kernel occurs once."""
        kernels: dict[str, Synapses] = {}
        for operation in self.operations:
            for kernel in operation.kernels:
                kernels.setdefault(kernel.name, kernel)
        return kernels

    @property
    def fingerprint(self) -> str:
        """Hash of the model's architecture and current weights."""
        return model_fingerprint(self.functional)

    @property
    def own_code(self) -> str:
        """Version of Python's bytecode and hash of the user's own code; "" without any."""
        return own_code(self.model)

    @property
    def identity(self) -> str:
        """What stored results depend on: fingerprint, operations' names and shapes, own code."""
        operations = digest([repr([(o.name, o.shape) for o in self.operations]).encode()])
        return f"{self.fingerprint} {operations} {self.own_code}".strip()

    def __reduce__(self) -> tuple:
        """Pickle and copy the model and the arguments, without what was traced and compiled."""
        shape = self.input_shapes if len(self.graph.inputs) > 1 else self.input_shape
        rebuilt = partial(InstrumentedModel, bounds=self.bounds, task=self.given_task)
        state = {"columns": self.columns, "preprocessing": self.preprocessing}
        return rebuilt, (self.model, shape), state

    def with_columns(self, columns: tuple[str, ...]) -> "InstrumentedModel":
        """Return the same instrumented model for tables with other columns, or in another order."""
        if columns == self.columns:
            return self
        view = object.__new__(type(self))
        vars(view).update(vars(self) | {"columns": columns})
        return view

    def named_by(self, *tables: Any) -> "InstrumentedModel":
        """Return the model for tables with the columns of the first one here, if it knows none.

        A call that takes several tables reads them with this model, so that all have one order.
        """
        if self.columns:
            return self
        columns: list[str] = []
        for name, shape in self.input_shapes.items():
            parts = [self._by_input(table).get(name) for table in tables]
            sizes = {self[name].size, *shape[-1:]} - {1}  # a Series may be a column of an input
            found = [names for part in parts if len(names := table_columns(part)) in sizes]
            chosen = min(found, key=is_numbered, default=())  # the first one of words, if any
            columns += [f"{name}: {c}" if len(self.graph.inputs) > 1 else c for c in chosen]
        return self.with_columns(tuple(columns))

    def _by_input(self, data: Any) -> dict[Any, Any]:
        """Return the data of each input by the inputs' names, as far as these are known."""
        if len(self.graph.inputs) == 1:
            return {self.input_operation: data}
        if isinstance(data, tuple) and data and isinstance(data[0], Mapping):
            data = data[0]  # labels follow
        if isinstance(data, (list, tuple)):  # perhaps too long, which is checked later
            return dict(zip([*self.graph.inputs, *range(len(data))], data, strict=False))
        names: Any = self._input_keys
        return {names.get(k, k): v for k, v in data.items()} if isinstance(data, Mapping) else {}

    @property
    def _input_keys(self) -> dict[Any, str]:
        """Key of each input, if the model takes a dict of them → the input's name."""
        structure = structure_of(self.functional, "input")
        keys: Any = structure if isinstance(structure, Mapping) else {}
        return {k: input_name(t) for k, t in keys.items() if isinstance(t, keras.KerasTensor)}

    def in_order(self, sample: Any) -> Any:
        """Return one sample, or a dict or list of its inputs, with tables' columns in order."""
        if len(self.graph.inputs) > 1:
            parts = aligned(self._by_input(sample), self.columns)
            return parts if isinstance(sample, Mapping) else list(parts.values()) or sample
        if isinstance(sample, Mapping):
            return {key: aligned(part, self.columns) for key, part in sample.items()}
        return aligned(sample, self.columns)

    def copy(self) -> "InstrumentedModel":
        """Return an instrumented copy of the model, whose weights can be changed."""
        return self.like(copy_model(self.model, self.given_shape))

    def like(self, model: keras.Model) -> "InstrumentedModel":
        """Instrument another model, such as a copy, for samples of the same shapes."""
        im = InstrumentedModel(model, self.given_shape, bounds=self.bounds, task=self.given_task)
        im.preprocessing = self.preprocessing
        return im

    @cached_property
    def unprepared(self) -> "InstrumentedModel":
        """The model without `preprocess`; itself if it has none."""
        if self.preparation is None:
            return self
        return InstrumentedModel(self._unprepared, task=self.given_task)

    def at_position(self, position: int) -> "InstrumentedModel":
        """Return the model that answers with the classes at one position of a map or sequence.

        Of a causal language model it answers with the next token: explanations, decisive slices,
        heads and patching then take tokens as classes. Weights are shared.

        Args:
            position: Index along the output's first axis, `(positions, classes)`, or from its end.

        Raises InvalidArgumentError if the output has no such position.
        """
        shape = self[self.logit_operation].shape
        if len(self.outputs) > 1 or len(shape) != 2 or not -shape[0] <= position < shape[0]:
            raise InvalidArgumentError(
                f"Model '{self.model.name}' needs one output of shape (positions, classes) with "
                f"position {position}. Its outputs are {list(self.outputs)}, the first {shape}."
            )
        return self._ending_in(self.functional.outputs[0][:, position])

    def of_output(self, output: str | None) -> "InstrumentedModel":
        """Return the model with one of its outputs, itself if it has no other; weights are shared.

        Raises InvalidArgumentError if there is no such output, or several and none is named.
        """
        name = self.output_operation_of(output)
        if len(self.graph.outputs) == 1:
            return self
        if output is None:
            raise InvalidArgumentError(
                f"'{self.model.name}' has several outputs: {', '.join(self.output_names)}. Name "
                f"one: output={self.output_names[0]!r}."
            )
        end = self.functional.outputs[self.graph.outputs.index(name)]
        return self._ending_in(end, bounds=self.bounds, task=self.classes_of(name).task)

    def _ending_in(self, end: Any, **options: Any) -> "InstrumentedModel":
        """Return the model from the inputs to a symbolic tensor."""
        model = keras.Model(self.functional.input, end, name=self.model.name)
        shape = self.input_shapes if len(self.graph.inputs) > 1 else self.input_shape
        im = InstrumentedModel(model, shape, **options).with_columns(self.columns)
        im.preprocessing = self.preprocessing
        return im

    def __getitem__(self, name: str) -> Operation:
        """Return the operation called `name`; raise InvalidArgumentError if there is none."""
        if not isinstance(name, str) or name not in self.graph.operations:
            hint = _checks.did_you_mean(name, self.graph.operations)
            raise InvalidArgumentError(f"The model has no operation {name!r}.{hint}")
        return self.graph.operations[name]

    def samples(self, data: DataLike | Samples) -> Samples:
        """Return samples in any form of `DataLike`, checked against the input shapes and bounds.

        Raises the errors of `Samples`, and InvalidArgumentError if an activation was replaced.
        """
        for layer, name, value in self._activations:
            if getattr(layer, name) is not value:
                raise InvalidArgumentError(
                    f"The {name} of layer '{layer.name}' was replaced after the model was wrapped. "
                    "Wrap it again: InstrumentedModel(model)."
                )
        if isinstance(data, Samples):
            return data
        if len(self.graph.inputs) == 1:
            if isinstance(data, Mapping) and len(data) == 1:
                data = self.only_input(data)
            bounds = self._bounds[self.input_operation]
            return Samples(data, self.input_shape, bounds, columns=self.columns)
        structure = structure_of(self.functional, "input")
        keys = structure if isinstance(structure, Mapping) else {}
        names = self._input_keys
        if len(names) < len(keys) and isinstance(data, Mapping) and set(data) == set(keys):
            parts = keras.tree.flatten({key: data[key] for key in keys})  # nested, as the inputs
            data = dict(zip(self.graph.inputs, parts, strict=False))
        return Samples(data, self.input_shapes, self._bounds, names, self.columns)

    def only_input(self, data: Mapping) -> Any:
        """Return the samples in a dict with one key: the input's name, or a common one."""
        structure = structure_of(self.functional, "input")
        names = {self.input_operation, input_name(self.functional.inputs[0]), *KEYS}
        names |= set(structure) if isinstance(structure, Mapping) else set()
        ((key, samples),) = data.items()
        if key not in names and str(key).lower() not in KEYS:
            raise InvalidArgumentError(
                f"The model has one input, '{self.input_operation}'. Received the key {key!r}; "
                "pass the array itself, or a dict with that name."
            )
        return samples

    def check(self, x: DataLike) -> np.ndarray:
        """Return a float32 array `(samples, *input_shape)`, or `Inputs`; errors as in `samples`."""
        return self.samples(x).array()

    def labelled(
        self, data: DataLike, y: Any = None, by_output: bool = False, required: bool = True
    ) -> tuple[np.ndarray, Any]:
        """Return samples `(samples, *input_shape)` float32 and the right answers to them.

        Args:
            data: Samples in one of the forms of `DataLike`.
            y: Their classes, integers or one-hot, for maps at each position, or numbers; of the
                first output, or, in a dict by name, of several. None if `data` has them.
            by_output: Whether the analysis takes a dict.
            required: Whether missing labels are an error; else they are None.

        Returns the samples, and classes int64 or numbers float64 `(samples, …)`, by output as `y`.

        Raises InvalidArgumentError if labels are missing, or do not fit an output; InputShapeError,
        InputRangeError or NonFiniteActivationError as in `samples`.
        """
        if y is None:
            if isinstance(data, (str, os.PathLike)):
                data = load_data(data, labels=required, shape=self.input_shape)
            if isinstance(data, Dataset):
                ordered: Any = aligned(data, self.columns)
                check_class_order(self, ordered)
                data = ordered

        def check(y: Any, samples: int) -> Any:
            if isinstance(y, Mapping) and not by_output:
                raise InvalidArgumentError(
                    f"This analysis takes the labels of one output, '{self.output_names[0]}', as "
                    f"an array. Received: a dict of {', '.join(map(str, y))}"
                )
            if isinstance(y, Mapping):
                by_operation = {self.output_operation_of(name): part for name, part in y.items()}
                return {
                    name: self.classes_of(name).truth(by_operation[self.outputs[name]], samples)
                    for name in self.output_names
                    if self.outputs[name] in by_operation
                }
            return self.classes.truth(y, samples)

        bounds = self._bounds[self.input_operation]
        return read_labelled(data, y, self.input_shape, bounds, self.columns, check, required)

    def capture(
        self, x: DataLike, batch_size: int = 256, of: Iterable[str] | None = None
    ) -> Activations:
        """Return the values of operations for all samples; arguments as in `capture_batches`."""
        parts = [dict(part) for part in self.capture_batches(x, batch_size, of)]
        return Activations({name: np.concatenate([p[name] for p in parts]) for name in parts[0]})

    def capture_batches(
        self,
        data: DataLike | Samples,
        batch_size: int = 256,
        of: Iterable[str] | None = None,
        progress: bool = False,
    ) -> Iterator[Activations]:
        """Yield the values of operations batch by batch, in constant memory.

        Args:
            data: Samples in any form of `DataLike`; an array is checked before the first pass.
            batch_size: Samples in one forward pass.
            of: Names of operations; all by default.
            progress: Show a progress bar.

        Raises InvalidArgumentError if `data` is empty or an operation does not exist;
        InputShapeError if samples have another shape, or are not numeric; NonFiniteActivationError
        if data or activations are NaN or infinite.
        """
        names = self._names(of)
        _checks.check_count("batch_size", batch_size)
        samples = self.samples(data)
        steps = None if samples.count is None else -(-samples.count // batch_size)
        first = 0
        stream = samples.batches(batch_size)
        for batch in track(stream, "Capturing", total=steps, progress=progress):
            yield Activations(self.forward(batch, names, first))
            first += len(batch)

    def forward(
        self, batch: np.ndarray | Inputs, of: Iterable[str], first: int = 0
    ) -> dict[str, np.ndarray]:
        """Return the values of operations for one batch, which `Samples.batches` has checked.

        They are `(batch, *operation shape)` float32, by name; `first` is the index of the first
        sample, for messages. Raises InvalidArgumentError if an operation does not exist,
        NonFiniteActivationError if an activation is NaN or infinite.
        """
        names = self._names(of)
        if set(names) <= set(self.graph.inputs):
            arrays = dict(zip(self.graph.inputs, arrays_of(batch), strict=True))
            return {name: arrays[name] for name in names}
        if names not in self._captures:
            self._captures[names] = self.graph.forward_pass(names)
        run = self._captures[names]
        if keras.backend.backend() == "jax":  # whose compiled functions keep the weights
            run = self.prepared(("forward", names), lambda: self.graph.forward_pass(names))
        values = dict(zip(names, run(batch), strict=True))
        check_finite(values, first)
        return values

    def points(self, x: Any, name: str = "x", batch_axes: int = 0) -> np.ndarray:
        """Return a point of the input space, `(*input_shape)` float64; `name` is for messages.

        With `batch_axes=1` there are several, `(points, *input_shape)`. A table's columns are put
        into the profile's order. Raises InputShapeError, or NonFiniteActivationError for NaN.
        """
        return _checks.check_points(aligned(x, self.columns), name, self.input_shape, batch_axes)

    def compute(self, x: Any, of: Iterable[str]) -> dict[str, Any]:
        """Return the values of operations as differentiable tensors of the backend, by name.

        `x` is a tensor of samples `(batch, *input_shape)`; for several inputs, a list of tensors.
        Raises InvalidArgumentError if an operation does not exist, InputShapeError for other `x`.
        """
        parts = x if isinstance(x, (list, tuple)) else [x]
        real = [re.search("float|int|bool", str(getattr(part, "dtype", ""))) for part in parts]
        if len(parts) != len(self.graph.inputs) or not all(real):
            raise InputShapeError("x must be a tensor of real numbers, or one for each input.")
        return self.graph.run(x, self._names(of))

    def predict(self, x: DataLike, batch_size: int = 256, output: str | None = None) -> np.ndarray:
        """Return an output `(samples, …)` float32, by default the first; see `capture_batches`."""
        name = self.output_operation_of(output)
        return self.capture(x, batch_size, of=[name])[name]

    def logits(self, x: DataLike, batch_size: int = 256, output: str | None = None) -> np.ndarray:
        """Return an output before its final softmax or sigmoid, `(samples, …)` float32.

        Arguments and errors as in `predict`.
        """
        name = self.logit_operation_of(output)
        return self.capture(x, batch_size, of=[name])[name]

    def outputs_from(self, logits: np.ndarray, output: str | None = None) -> np.ndarray:
        """Return an output `(samples, …)` float32, given its logits `(samples, …)`."""
        name, first = self.output_operation_of(output), self.logit_operation_of(output)
        if first != name and not self.graph.between([first], [name]):
            return (logits + np.float32(0.5)).reshape(-1, *self[name].shape)  # see `centred`
        values = {first: keras.ops.convert_to_tensor(logits, "float32")}
        for operation in self.graph.between([first], [name]):
            values[operation.name] = operation.compute(*(values[n] for n in operation.inputs))
        return keras.ops.convert_to_numpy(values[name])

    def gradients(
        self,
        x: DataLike,
        of: Callable[..., Any] | Sequence[int] | int,
        wrt: Iterable[str] | None = None,
        needs: Iterable[str] | None = None,
        batch_size: int = 256,
    ) -> Activations:
        """Return the gradients of a target for every sample.

        Args:
            x: Samples `(samples, *input_shape)`.
            of: The target: a logit's index, one index per sample, or a function from
                {operation: tensor (batch, …)} to a tensor `(batch,)`, written with
                `keras.ops`. Reuse the same function object: each one is compiled.
            wrt: Names of the operations to differentiate with respect to; by default the inputs.
            needs: Names of the operations that a function `of` reads; the logits by default.
            batch_size: Samples in one pass.

        Returns operation name → gradients `(samples, *operation shape)` float32.
        Raises InvalidArgumentError for unknown operations, those of recurrent layers, or indices;
        InputShapeError or NonFiniteActivationError as in `capture_batches`.
        """
        names = self._names(self.graph.inputs if wrt is None else wrt)
        for name in names:
            if isinstance(self[name].params, Member):
                raise InvalidArgumentError(
                    f"Operation '{name}' is inside a recurrent layer: a gradient would leave out "
                    "what it does through later steps. Take the layer's output or an input."
                )
        stream = list(self.samples(x).batches(batch_size))
        logits = self.logit_operation
        target: Callable[..., Any]
        if callable(of):
            target = of
            needed = self._names([logits] if needs is None else needs)
            extra: list[tuple[np.ndarray, ...]] = [()] * len(stream)
        else:
            needed = (logits,)
            ends = np.cumsum([len(batch) for batch in stream])
            index, samples, shape = np.asarray(of), int(ends[-1]), self[logits].shape
            valid = index.dtype.kind in "iu" and index.shape in ((), (samples,)) and len(shape) == 1
            if not valid or index.min() < 0 or index.max() >= shape[0]:
                raise InvalidArgumentError(
                    f"`of` must be a function, or one index or {samples} of them into logits of "
                    f"shape {shape}. Received: {of!r}"
                )
            indices = np.broadcast_to(index, (samples,)).astype(np.int32)
            extra = [(part,) for part in np.split(indices, ends[:-1])]

            def chosen(values: Mapping[str, Any], index: Any) -> Any:
                return keras.ops.take_along_axis(values[logits], index[:, None], axis=1)[:, 0]

            target = chosen
        key = (of if callable(of) else None, needed, names)
        if key not in self._gradients:
            self._gradients[key] = gradient_function(self.graph, target, needed, names)
        pairs = zip(stream, extra, strict=True)
        with _checks.of_user("of"):
            parts = [self._gradients[key](arrays_of(batch), *more) for batch, more in pairs]
        return Activations(
            {name: np.concatenate([part[i] for part in parts]) for i, name in enumerate(names)}
        )

    def summary(self) -> str:
        """Return a table of the operations: name, kind, layer, shape, synapses."""
        frame = self.to_frame()
        frame["synapses"] = [f"{count:,}" if count else "" for count in frame["synapses"]]
        return text_table(list(frame), frame.itertuples(index=False))

    def to_frame(self) -> "pd.DataFrame":
        """Return the operations as a table: name, kind, layer, shape, synapses."""
        import pandas as pd

        rows = []
        for o in self.operations:
            layer = type(o.keras_layer).__name__ if o.keras_layer else "Input"
            rows.append((o.name, o.kind, layer, "×".join(map(str, o.shape)), o.synapses))
        return pd.DataFrame(rows, columns=["operation", "kind", "layer", "shape", "synapses"])

    def __repr__(self) -> str:
        synapses = sum(kernel.size for kernel in self.kernels.values())
        counts = {"operation": len(self.operations), "synapse": synapses}
        size = ", ".join(_checks.counted(count, noun) for noun, count in counts.items())
        return f"InstrumentedModel({self.model.name!r}, {size})"

    def _names(self, names: Iterable[str] | None) -> tuple[str, ...]:
        if names is None:
            return tuple(self.graph.operations)
        if isinstance(names, str):
            names = [names]
        return tuple(self[name].name for name in names)

    def prepared(self, key: Hashable, prepare: Callable[[], Prepared]) -> Prepared:
        """Return what `prepare` creates, such as a compiled function, once for key and weights."""
        weights = weights_checksum(self.model)
        if key not in self._prepared or self._prepared[key][0] != weights:
            self._prepared[key] = weights, prepare()
        return self._prepared[key][1]


ModelLike = TypeAliasType("ModelLike", InstrumentedModel | keras.Model)
"""An instrumented model, or a Keras model, which will be instrumented."""

_INSTRUMENTED = "_nnslicer_instrumented"
# Attributes of models that training changes.
_OF_TRAINING = ("optimizer", "loss", "loss_weights", "history", "stop_training", "compiled")


def instrumented(model: ModelLike, data: Any = None) -> InstrumentedModel:
    """Instrument a Keras model; an instrumented model is returned unchanged.

    Later calls return the same object, with its `input_shape`, until layers or options change.

    Args:
        model: The model.
        data: Samples or a profile, whose shape is used for axes whose size the model leaves open.

    Raises InvalidArgumentError, InputShapeError or UnsupportedLayerError as in `InstrumentedModel`.
    """
    if isinstance(model, InstrumentedModel):
        return model
    if not isinstance(model, keras.Model):
        return InstrumentedModel(model)  # which refuses it
    shapes = None if data is None else _open_shapes(model, data)
    if _INSTRUMENTED not in vars(model):
        return InstrumentedModel(model, shapes)
    found = vars(model)[_INSTRUMENTED]
    known, before, now = found.im, found.state, _state_of(model)
    plain = (bool, int, float, str, tuple)
    if len(before) == len(now) and all(
        a is b or (type(a) is type(b) and isinstance(a, plain) and a == b)
        for a, b in zip(before, now, strict=True)
    ):
        of_one = shapes if isinstance(shapes, list) else [shapes]
        if shapes is None or of_one == list(known.input_shapes.values()):
            return known
    return InstrumentedModel(model, shapes or known.given_shape, task=known.given_task)


def _open_shapes(model: keras.Model, data: Any) -> Shapes | None:
    """Return the shapes of samples for a model with axes of unknown size, None for others."""
    if has_graph(model) != model.built:
        return None
    if not model.built:  # a subclassed one
        return (np.shape(data)[1:] or None) if hasattr(data, "shape") else None
    inputs = {input_name(tensor): tuple(tensor.shape[1:]) for tensor in model.inputs}
    if not any(None in shape for shape in inputs.values()):
        return None
    shapes_found = shapes_at_hand(data, inputs)
    return shapes_found[0] if shapes_found and len(inputs) == 1 else shapes_found


def _state_of(model: keras.Model) -> list[Any]:
    """Return everything that a graph depends on: layers, their variables and public options."""
    names = getattr(model, "output_names", ["one"])
    state: list[Any] = [str(tasks_of_losses(model, dict(zip(names, names, strict=True))))]
    for layer in sublayers(model):
        state += [layer, *layer._trainable_variables, *layer._non_trainable_variables]
        if not has_graph(layer):
            of_training = _OF_TRAINING if isinstance(layer, keras.Model) else ()
            state += [
                value
                for name, value in vars(layer).items()
                if not name.startswith("_") and name not in ("built", *of_training)
            ]
    return state


def _preprocessed(
    model: keras.Model, preprocess: Callable[[Any], Any], input_shape: Shapes | None
) -> tuple[keras.Model, keras.Model]:
    """Return the model after `preprocess`, and `preprocess` alone."""
    if len(model.inputs) > 1:
        raise InvalidArgumentError(
            "preprocess needs a model with one input. Put the preprocessing into the model."
        )
    old = model.inputs[0]
    inputs = keras.Input(input_shape or old.shape[1:], name=old._keras_history.operation.name)
    with _checks.of_user("preprocess"):
        prepared = preprocess(inputs)
    try:
        for place, one in enumerate(keras.Model(inputs, prepared).operations):
            if not isinstance(one, keras.Layer):  # Keras numbers operators anew each time
                one.name = f"preprocess_{place}_{type(one).__name__.lower()}"
        # Not model(…), which would prefix the operations' names with the nested model's name.
        whole = keras.Model(inputs, model.call(prepared), name=model.name)
        return whole, keras.Model(inputs, prepared)
    except (TypeError, ValueError) as error:
        raise InvalidArgumentError(
            "preprocess must be a Keras layer, or a function written with keras.ops and "
            f"operators, for the model's inputs. It failed on a symbolic input: {error}"
        ) from error
