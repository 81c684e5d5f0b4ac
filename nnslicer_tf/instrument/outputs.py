"""The end of a model: the softmax or sigmoid of an output, and its meaning for classes."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import keras
import numpy as np
from keras import ops
from scipy.optimize import brentq

from nnslicer_tf._checks import as_array, is_int
from nnslicer_tf._numerics import FINAL_ACTIVATIONS, TASKS, OutputClasses, sigmoid
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument.graph import Graph
from nnslicer_tf.instrument.index_maps import sources_of
from nnslicer_tf.instrument.layers.normalisation import affine_step
from nnslicer_tf.instrument.operations import Affine, Elementwise, Operation, Softmax, Step
from nnslicer_tf.instrument.registry import Shape

_FAR = 1e4
_GRID: np.ndarray = np.concatenate([[-_FAR, -50], np.linspace(-8, 8, 33), [50, _FAR]])
_CLOSE = 1e-3
_MAX_PROBED = 1 << 22  # values
_PROBABILITIES = {"softmax", "sparsemax", "sigmoid", "hard_sigmoid"}
# Kinds that turn probabilities into others, such as their means or some of them.
_COMBINING = (
    *("routing", "average", "maximum", "maximum_merge", "minimum_merge"),
    *("add", "multiply", "scale"),
)
# Task → losses, by their names without "_" in lower case.
_LOSSES = {
    "multilabel": ("binarycrossentropy", "binaryfocalcrossentropy"),
    "multiclass": (
        *("categoricalcrossentropy", "sparsecategoricalcrossentropy", "kldivergence"),
        *("categoricalfocalcrossentropy", "categoricalhinge"),
    ),
    "regression": (
        *("meansquarederror", "meanabsoluteerror", "meansquaredlogarithmicerror", "huber"),
        *("meanabsolutepercentageerror", "logcosh", "poisson", "mse", "mae", "msle", "mape"),
    ),
}
_REMARKS = {
    "number": (
        "The model's one output is treated as a number, because neither the last layer nor the "
        "loss says otherwise. If it is the logit of two classes, end the model with a sigmoid, or "
        "state the task: InstrumentedModel(model, task='binary'), or nnslicer --task binary."
    ),
    "classes": (
        "The model's outputs are treated as class logits, because neither the last layer nor the "
        "loss says otherwise. If they are numbers, state the task: InstrumentedModel(model, "
        "task='regression'), or nnslicer --task regression."
    ),
    "loss": (
        "Its loss is for regression. If the model separates classes, state the task: "
        "InstrumentedModel(model, task='binary')."
    ),
    "constant": "A softmax over one unit is always 1: train the model with a sigmoid.",
}


@dataclass(frozen=True, eq=False)
class Ending:
    """The final activation of an output, and the logits before it."""

    logits: str  # name of the operation before the final activation, or of the output without one
    final: Operation | None = None
    function: str = ""  # its name; "sigmoid" if probabilities are σ(sign · (logit − threshold))
    sign: int = 1  # −1 if a probability falls with its logit
    threshold: float = 0.0  # the logit of the probability 1/2


def ending_of(graph: Graph, output: str) -> Ending:
    """Return the final activation of an output operation, and its logits.

    A final softmax, or a function of single values that rises or falls between 0 and 1, may be
    followed by identities, casts, reshapes that keep the order of the values, and clips that change
    no probability. Logits that are a vector but for axes of size 1, like the output, are one.
    """
    operation, keeps = graph.operations[output], True
    tail: list[Operation] = []
    ending: Ending | None = None
    while True:
        params = operation.params
        named = isinstance(params, Elementwise) and params.function in FINAL_ACTIVATIONS
        if named and keeps:  # recognised without running it
            ending = Ending("", operation, params.function)
            break
        if not _is_pointwise(operation):
            break
        tail.insert(0, operation)
        is_clip = _is_identity(operation)
        if operation.kind in ("elementwise", "rectify"):
            # A clip of what may be a sigmoid
            ending = _pointwise_ending(tail) or ending
            if ending is not None and not is_clip:
                break
        keeps &= is_clip
        operation = graph.operations[operation.inputs[0]]
    if ending is None or ending.final is None:
        return Ending(output)
    final = ending.final
    logits = operation = graph.operations[final.inputs[0]]
    axis = final.params.axes[0] if isinstance(final.params, Softmax) else -1
    if len(graph.operations[output].shape) == 1 and (1, *final.shape)[axis] == final.size:
        while len(operation.shape) > 1 and _keeps_values(operation):
            operation = graph.operations[operation.inputs[0]]
    return replace(ending, logits=(operation if len(operation.shape) == 1 else logits).name)


def mark_final(graph: Graph) -> dict[str, Ending]:
    """Return the ending of each output, in the form that all analyses expect.

    Final softmaxes become elementwise operations, which are captured but not walked. Operations are
    added where logits have axes of size 1 and the output has none, and where a probability falls
    with its logit, or is not 1/2 at 0. Raises UnsupportedLayerError if a function that mixes its
    inputs is not at the end.
    """

    def is_read(name: str) -> bool:
        return any(not _keeps_values(o) or is_read(o.name) for o in graph.consumers[name])

    endings, finals = {}, set()
    for output in graph.outputs:
        endings[output] = ending = ending_of(graph, output)
        final = ending.final
        if final is None:
            continue
        if not is_read(final.name):
            finals.add(final.name)
            if final.kind == "softmax":
                graph.operations[final.name] = replace(final, kind="elementwise")
        is_vector = len(graph.operations[output].shape) == 1
        shape = graph.operations[ending.logits].shape
        is_flat = not is_vector or len(shape) <= 1 or shape[-1] != final.size
        if not is_flat or ending.sign < 0 or ending.threshold:
            endings[output] = replace(ending, logits=_normalised(graph, ending, not is_flat))
    vars(graph).pop("consumers", None)  # it holds the replaced operations
    for operation in graph.operations.values():
        mixes = operation.kind == "elementwise" and getattr(operation.params, "mixes", False)
        if mixes and operation.name not in finals:
            raise UnsupportedLayerError(
                f"Operation '{operation.name}' applies {operation.params.function}, whose outputs "
                "depend on several inputs. It has a rule only at the end of a model; inside, only "
                "softmax has. Use softmax, or register operations for the layer with "
                "nnslicer_tf.register_layer."
            )
    return endings


def classes_of(
    graph: Graph,
    output: str,
    ending: Ending,
    example: np.ndarray,
    task: str | None,
    of_loss: str,
    from_logits: bool,
) -> OutputClasses:
    """Return how an output gives classes.

    `example` are some of its values `(samples, …)`, `task` is one of `TASKS` or None to find it
    out, `of_loss` the task of the loss or "", and `from_logits` whether the loss takes logits.
    Raises InvalidArgumentError if the task is unknown, or does not fit the output's shape.
    """
    shape, axis, final = graph.operations[output].shape, -1, ending.final
    function = ending.function
    excludes = function in ("softmax", "log_softmax", "sparsemax")
    if final is not None:
        shape = graph.operations[ending.logits].shape
        if len(shape) != 1:
            axes = final.params.axes if isinstance(final.params, Softmax) else (-1,)
            rank = len(final.shape) + 1
            shape, axis = final.shape, axes[0] % rank - rank
    classes = OutputClasses(function, tuple(shape), axis)
    units = classes.count
    if final is None:
        rows = classes.by_class(example).astype(np.float64)
        sources = _sources_of(graph, output)
        are_positive = (rows >= 0).all()
        between_0_and_1 = are_positive and (rows <= 1 + _CLOSE).all() and sources <= _PROBABILITIES
        sums_to_1 = are_positive and np.allclose(rows.sum(axis=-1), 1, atol=_CLOSE)
        excludes = units > 1 and bool(sources & {"softmax", "sparsemax"} or sums_to_1)
        of_loss_alone = of_loss == "multilabel" and not from_logits
        if between_0_and_1 or (units > 1 and sums_to_1) or of_loss_alone:
            function = "distribution"
    remark = ""
    if task is None:
        single = "binary" if units == 1 else "multilabel"
        if excludes and units == 1:
            task, remark = "regression", _REMARKS["constant"]
        elif excludes:
            task = "multiclass"
        elif of_loss == "regression" and (len(shape) > 1 or "sigmoid" not in function):
            task, remark = "regression", _REMARKS["loss"]
        elif function or of_loss == "multilabel":
            task = single
        elif units == 1:
            task, remark = "regression", _REMARKS["number"]
        else:
            task, remark = "multiclass", "" if of_loss else _REMARKS["classes"]
    elif task not in TASKS or (task != "regression" and (units == 1) != (task == "binary")):
        raise InvalidArgumentError(
            "task must be 'binary' for one output value, 'multiclass' or 'multilabel' for several, "
            f"or 'regression'. Received: {task!r} for output '{output}' of shape {shape}"
        )
    return replace(classes, final=function, task=task, remark=remark)


def check_classifier(im: Any, *, exclusive: bool = False, one_output: bool = False) -> int:
    """Return the number of a model's classes, two for one sigmoid; reject other models.

    `exclusive` also rejects independent labels, of which a sample can have several, and
    `one_output` a model with several outputs.
    """
    name, shape, classes = im.model.name, im[im.logit_operation].shape, im.classes
    if len(shape) != 1 or classes.is_number:
        raise InvalidArgumentError(
            f"Model '{name}' is not a classifier: its output has the shape {shape}, expected one "
            f"score for each class, or one sigmoid for two classes. {classes.remark}"
        )
    if exclusive:
        check_exclusive(im)
    if one_output and len(im.output_operations) > 1:
        raise InvalidArgumentError(
            f"This analysis needs a model with one output; '{name}' has "
            f"{len(im.output_operations)}: {', '.join(im.outputs)}. Choose one: "
            f"InstrumentedModel(model).of_output({im.output_names[0]!r})."
        )
    return classes.count


def check_classes(im: Any, y: np.ndarray, classes: Iterable[int] | None = None) -> list[int]:
    """Return the target classes in order, by default all of `y`; reject unknown and unseen ones.

    Numbers have no classes: one target, 0, stands for all of them.
    """
    kind = im.classes
    present = np.unique(kind.truth(y, len(as_array(y))))
    if kind.is_number:
        if classes is not None:
            raise InvalidArgumentError(
                f"Model '{im.model.name}' predicts numbers, which have no classes: omit `classes`. "
                f"{kind.remark}"
            )
        return [0]
    targets = present.tolist() if classes is None else sorted(set(classes))
    if not targets:
        raise InvalidArgumentError("The set of target classes is empty: name at least one.")
    for target in targets:
        if not is_int(target) or not 0 <= target < kind.count:
            raise InvalidArgumentError(
                f"The model has no class {target!r}: its classes are 0 … {kind.count - 1}."
            )
        if target not in present:
            raise InvalidArgumentError(f"`y` has no samples of class {target}.")
    return [int(target) for target in targets]


def check_exclusive(im: Any) -> None:
    """Raise InvalidArgumentError if a model has independent labels; maps and numbers pass."""
    if im.classes.is_multi_label:
        raise InvalidArgumentError(
            f"This analysis needs classes that exclude each other; '{im.model.name}' has a sigmoid "
            f"for each of {im.classes.count} labels. Pass a model that ends in logits, a softmax "
            f"or one sigmoid. {im.classes.remark}"
        )


def check_synapses(im: Any) -> None:
    """Raise UnsupportedLayerError for an `InstrumentedModel` without synapses."""
    if not im.kernels:
        raise UnsupportedLayerError(
            f"Model '{im.model.name}' has no layer with weights, and therefore no synapses. Use "
            "`attributions`, such as occlusion, to explain its answers."
        )


def centred(graph: Graph, output: str) -> str:
    """Add the logit of a probability that has none, p − 1/2, as a vector; return its name."""
    operation = source = graph.operations[output]
    if not operation.shape:
        source = _added(graph, operation, source, ":flat", _flattening(1), (1,))
    return _added(graph, operation, source, ":logits", affine_step(1.0, -0.5), source.shape).name


def tasks_of_losses(
    model: keras.Model, outputs: Mapping[str, str], operations: Sequence[str] = ()
) -> dict[str, tuple[str, bool]]:
    """Return output operation → (the task that its loss is for or "", whether it takes logits).

    `outputs` maps each output's name to its operation; `operations` are all of them, if several
    outputs have one name. A model that is not compiled may still have a loss.
    """
    loss = getattr(model, "loss", None)
    operations = operations or list(dict.fromkeys(outputs.values()))
    losses: dict[str, Any] = dict.fromkeys(operations, loss)
    if isinstance(loss, Mapping) and "class_name" not in loss:
        losses = {**dict.fromkeys(operations), **{outputs.get(k, k): v for k, v in loss.items()}}
    elif isinstance(loss, (list, tuple)):
        losses = {**dict.fromkeys(operations), **dict(zip(operations, loss, strict=False))}
    return {operation: _task_of_loss(losses[operation]) for operation in operations}


def _task_of_loss(loss: Any) -> tuple[str, bool]:
    """Return the task of a loss: a name, a function, perhaps partial, an object or its config."""
    options: Any = {}
    if isinstance(loss, Mapping):
        loss, options = loss.get("class_name"), loss.get("config")
    elif hasattr(loss, "keywords"):  # of functools.partial
        loss, options = loss.func, loss.keywords
    elif isinstance(loss, keras.losses.Loss):
        options = vars(loss)
    names = [loss, getattr(loss, "__name__", ""), *(kind.__name__ for kind in type(loss).__mro__)]
    plain = {str(name).replace("_", "").lower() for name in names}
    from_logits = bool(isinstance(options, Mapping) and options.get("from_logits"))
    if plain.intersection(("hinge", "squaredhinge")):  # of margins: above 0 for class 1
        return "multilabel", True
    for task, losses in _LOSSES.items():
        if plain.intersection(losses):
            return task, from_logits
    return "", from_logits


def _normalised(graph: Graph, ending: Ending, flat: bool) -> str:
    """Insert logits sign · (logit − threshold), as a vector if `flat`; return their name."""
    assert ending.final is not None
    final, sign, threshold = graph.operations[ending.final.name], ending.sign, ending.threshold
    shape, source = final.input_shapes[0], graph.operations[final.inputs[0]]
    names = list(graph.operations)
    later = {name: graph.operations.pop(name) for name in names[names.index(final.name) :]}
    del later[final.name]
    if flat:
        source = _added(graph, final, source, ":flat", _flattening(final.size), (final.size,))
    moves = sign < 0 or threshold != 0
    if moves:
        step = affine_step(float(sign), float(-sign * threshold))
        source = _added(graph, final, source, ":logits", step, source.shape)

    def compute_final(x: Any) -> Any:
        x = ops.reshape(x, (-1, *shape)) if flat else x
        return final.compute(sign * x + threshold if moves else x)

    graph.add(
        replace(final, compute=compute_final, inputs=(source.name,), input_shapes=(source.shape,))
    )
    graph.operations.update(later)
    return source.name


def _flattening(size: int) -> Step:
    return Step("routing", lambda x: ops.reshape(x, (-1, size)))


def _added(
    graph: Graph, of: Operation, source: Operation, suffix: str, step: Step, shape: Shape
) -> Operation:
    operation = replace(
        of,
        name=of.name.split(":")[0] + suffix,
        kind=step.kind,
        inputs=(source.name,),
        input_shapes=(source.shape,),
        shape=shape,
        params=step.params,
        compute=step.compute,
        mask=of.mask if shape == of.shape else None,
    )
    graph.add(operation)
    return operation


def _is_pointwise(operation: Operation) -> bool:
    """Whether each output value depends on one input value, as far as it is known."""
    if len(operation.inputs) != 1:
        return False
    params = operation.params
    if operation.kind in ("elementwise", "rectify"):
        return params is None or (isinstance(params, Elementwise) and not params.mixes)
    return _keeps_values(operation) or (operation.kind == "scale" and isinstance(params, Affine))


def _run(operations: Sequence[Operation], values: np.ndarray) -> np.ndarray | None:
    """Return the values `(rows,)` of pointwise operations; None if large or if units differ."""
    shape = operations[0].input_shapes[0]
    if len(values) * max(1, int(np.prod(shape))) > _MAX_PROBED:
        return None
    rows = np.broadcast_to(values.reshape(-1, *(1,) * len(shape)), (len(values), *shape))
    result: Any = ops.convert_to_tensor(rows.astype(np.float32))
    for operation in operations:
        result = operation.compute(result)
    array = ops.convert_to_numpy(result).astype(np.float64).reshape(len(values), -1)
    return array[:, 0] if np.allclose(array, array[:, :1], atol=1e-6, equal_nan=True) else None


def _pointwise_ending(tail: Sequence[Operation]) -> Ending | None:
    """Return the ending of operations on single values, if they lead from 0 to 1 or back."""
    values = _run(tail, _GRID)
    if values is None or not np.isfinite(values).all():
        return None
    sign = 1 if values[-1] > values[0] else -1
    rises = (np.diff(sign * values) >= -1e-6).all()
    if not rises or not np.allclose(values[[0, -1]][::sign], (0, 1), atol=_CLOSE):
        return None
    if np.allclose(values, sigmoid(sign * _GRID), atol=1e-6):
        return Ending("", tail[0], "sigmoid", sign)
    threshold = 0.0
    if abs(values[len(values) // 2] - 0.5) >= 1e-6:

        def above(logit: float) -> float:
            probability = _run(tail, np.array([logit]))
            assert probability is not None  # as before
            return float(probability[0]) - 0.5

        threshold = brentq(above, -_FAR, _FAR, xtol=1e-7)
    name = getattr(tail[0].params, "function", "relu")
    name = "probability" if name in FINAL_ACTIVATIONS else name  # it is not the sigmoid itself
    return Ending("", tail[0], name, sign, threshold)


def _is_identity(operation: Operation) -> bool:
    """Whether an operation changes no probability: an identity, a reshape, or a clip."""
    if _keeps_values(operation):
        return True
    if operation.kind not in ("elementwise", "rectify") or not _is_pointwise(operation):
        return False
    grid = np.linspace(0, 1, 9)
    values = _run([operation], grid)
    return values is not None and np.allclose(values, grid, atol=_CLOSE)


def _sources_of(graph: Graph, name: str) -> set[str]:
    """Return the functions that an output combines; "" for what is no function of Keras."""
    functions, waiting = set(), [name]
    while waiting:
        operation = graph.operations[waiting.pop()]
        function = getattr(operation.params, "function", "")
        if operation.kind in _COMBINING or function == "clip":
            waiting += operation.inputs
        elif operation.kind != "mask":
            functions.add(function)
    return functions


def _keeps_values(operation: Operation) -> bool:
    """Whether an operation returns its input's values in their order, perhaps reshaped."""
    if operation.kind != "routing" or len(operation.inputs) != 1:
        return False
    if np.prod(operation.input_shapes[0]) != operation.size:
        return False
    source = sources_of(operation.compute, operation.input_shapes)
    return source is not None and np.array_equal(source.ravel(), np.arange(operation.size))
