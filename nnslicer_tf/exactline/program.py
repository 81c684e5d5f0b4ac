"""The walk through a model as a list of steps, simplified without loss of exactness."""

from typing import NamedTuple

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline.bends import Transformer, build_transformer
from nnslicer_tf.exactline.mesh import MAX_TAPS
from nnslicer_tf.exactline.rules.pointwise import RectifyLine, ScaleLine
from nnslicer_tf.exactline.rules.routing import RoutingLine
from nnslicer_tf.exactline.rules.windows import MaximumLine, WeightedSumLine
from nnslicer_tf.instrument import InstrumentedModel


class LineStep(NamedTuple):
    """One operation of the walk."""

    name: str
    inputs: tuple[str, ...]  # names of the operations whose outputs it takes
    transformer: Transformer
    dead: tuple[str, ...] = ()  # names of the values that no later step needs


class LineProgram(NamedTuple):
    """The steps from the input to the logits."""

    input: str  # name of the input
    output: str  # name of the value that is the result
    steps: tuple[LineStep, ...]
    input_shape: tuple[int, ...]
    output_shape: tuple[int, ...]


def program_of(im: InstrumentedModel) -> LineProgram:
    """Return the program of a model, with a copy of its weights.

    Raises UnsupportedLayerError if an operation before the logits is not piecewise linear.
    """
    _ = im.input_shape  # raises an error for several inputs
    if len(im.output_operations) > 1:
        raise InvalidArgumentError(
            f"Exact lines and planes need a model with one output; '{im.model.name}' has "
            f"{', '.join(im.outputs)}. Choose one: keras.Model(model.inputs, model.outputs[0])."
        )
    steps: list[LineStep] = []
    same: dict[str, str] = {}  # operations that change at most the shape, which curves ignore
    for operation in im.graph.ancestors([im.logit_operation]):
        if operation.name == im.input_operation:
            continue
        transformer = build_transformer(operation)
        inputs = tuple(same.get(name, name) for name in operation.inputs)
        if isinstance(transformer, RoutingLine) and transformer.is_identity:
            same[operation.name] = inputs[0]
        else:
            steps.append(LineStep(operation.name, inputs, transformer))
    output = same.get(im.logit_operation, im.logit_operation)

    # A step is merged into the one before it, if that has no other consumer.
    uses = [name for step in steps for name in step.inputs] + [output]
    merged: dict[str, LineStep] = {}
    for step in steps:
        only = step.inputs[0]
        before = merged.get(only) if len(step.inputs) == 1 and uses.count(only) == 1 else None
        both = _merged(before.transformer, step.transformer) if before else None
        if before is not None and both is not None:
            del merged[only]
            step = LineStep(step.name, before.inputs, both)
        merged[step.name] = step

    # The values that no later step needs.
    needed = {output}
    marked: list[LineStep] = []
    for step in reversed(merged.values()):
        dead = tuple({name for name in step.inputs if name not in needed})
        needed.update(step.inputs)
        marked.insert(0, step._replace(dead=dead))
    output_shape = im[im.logit_operation].shape
    return LineProgram(im.input_operation, output, tuple(marked), im.input_shape, output_shape)


def _merged(first: Transformer, second: Transformer) -> Transformer | None:
    """Return one transformer for two, or None if they cannot be merged."""
    scale = second.per_channel() if isinstance(second, ScaleLine) else None
    if isinstance(first, WeightedSumLine) and scale is not None:
        first.scale(*scale)
        return first
    for rectify, pool in ((first, second), (second, first)):
        if isinstance(rectify, RectifyLine) and isinstance(pool, MaximumLine):
            # With its constant, the maximum must still be one that planes support.
            if len(rectify.knots) > 1 or pool.bends.taps >= MAX_TAPS:
                return None
            pool.floor = 0.0
            return pool
    return None
