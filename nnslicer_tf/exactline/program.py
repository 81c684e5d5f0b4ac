"""The walk through a model as a list of steps, simplified without loss of exactness."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from nnslicer_tf.exactline.curve import Curve
from nnslicer_tf.exactline.rules import Transformer, build_transformer
from nnslicer_tf.exactline.rules.pointwise import RectifyLine, ScaleLine
from nnslicer_tf.exactline.rules.pooling import MaximumLine
from nnslicer_tf.exactline.rules.routing import RoutingLine
from nnslicer_tf.exactline.rules.weighted_sum import WeightedSumLine
from nnslicer_tf.instrument import InstrumentedModel


@dataclass(frozen=True)
class LineStep:
    """One operation of the walk.

    Attributes:
        name: The operation's name.
        inputs: Names of the operations whose outputs it takes.
        transformer: Its transformer.
        dead: Names of the values that no later step needs any more.
    """

    name: str
    inputs: tuple[str, ...]
    transformer: Transformer
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class LineProgram:
    """The steps from the input to the logits.

    Attributes:
        input: Name of the input.
        output: Name of the value that is the result.
        steps: The steps, in order.
    """

    input: str
    output: str
    steps: tuple[LineStep, ...]


def line_program(im: InstrumentedModel, fuse: bool) -> LineProgram:
    """Return the program of a model, with a copy of its weights.

    Args:
        im: The model.
        fuse: Treat consecutive ReLU and max pooling as one operation.

    Raises:
        UnsupportedLayerError: if an operation before the logits is not piecewise linear.
    """
    output = im.logit_operation
    steps = [
        LineStep(o.name, o.inputs, build_transformer(o))
        for o in im.graph.ancestors([output])
        if o.name != im.input_operation
    ]
    steps, output = _drop_identities(steps, output)
    steps = _fuse_pairs(steps, output, fuse)
    return LineProgram(im.input_operation, output, tuple(_mark_dead(steps, output)))


def joined_program(models: Sequence[InstrumentedModel], fuse: bool) -> LineProgram:
    """Return the program of several models with the same input, with their logits side by side.

    Args:
        models: The models.
        fuse: As for `line_program`.

    Raises:
        UnsupportedLayerError: if an operation before the logits is not piecewise linear.
    """
    programs = [line_program(im, fuse) for im in models]
    steps, outputs = [], []
    for i, program in enumerate(programs):

        def renamed(name: str, i: int = i, own: str = program.input) -> str:
            return "input" if name == own else f"{i}/{name}"

        for step in program.steps:
            inputs = tuple(map(renamed, step.inputs))
            steps.append(LineStep(renamed(step.name), inputs, step.transformer))
        outputs.append(renamed(program.output))
    steps.append(LineStep("output", tuple(outputs), _side_by_side))
    return LineProgram("input", "output", tuple(_mark_dead(steps, "output")))


def _side_by_side(*inputs: Curve) -> Curve:
    """Concatenate the values of several operations into one vector."""
    whole = [x.regrouped((x.positions * x.channels,)) for x in inputs]
    rows = whole[0].common_rows(whole, [np.zeros((1, 1), np.int32)] * len(whole))
    return rows.curve(np.hstack([curve.values for curve in rows.gathered()]))


def _drop_identities(steps: list[LineStep], output: str) -> tuple[list[LineStep], str]:
    """Remove routing that at most changes the shape (flatten, dropout), which curves ignore."""
    stands_for: dict[str, str] = {}
    kept = []
    for step in steps:
        inputs = tuple(stands_for.get(name, name) for name in step.inputs)
        if isinstance(step.transformer, RoutingLine) and step.transformer.is_identity:
            stands_for[step.name] = inputs[0]
        else:
            kept.append(replace(step, inputs=inputs))
    return kept, stands_for.get(output, output)


def _fuse_pairs(steps: list[LineStep], output: str, fuse: bool) -> list[LineStep]:
    """Merge a step into the one before it, if that has no other consumer."""
    uses = [name for step in steps for name in step.inputs] + [output]
    merged: dict[str, LineStep] = {}
    for step in steps:
        only = step.inputs[0]
        alone = len(step.inputs) == 1 and uses.count(only) == 1
        before = merged.get(only) if alone else None
        transformer = _merged(before.transformer, step.transformer, fuse) if before else None
        if before is None or transformer is None:
            merged[step.name] = step
        else:
            del merged[only]
            merged[step.name] = LineStep(step.name, before.inputs, transformer)
    return list(merged.values())


def _merged(first: Transformer, second: Transformer, fuse: bool) -> Transformer | None:
    """Return one transformer for two, or None if they cannot be merged."""
    if isinstance(first, WeightedSumLine) and isinstance(second, ScaleLine):
        scale = second.per_channel()
        if scale is not None:
            first.scale(*scale)
            return first
    if fuse and isinstance(first, RectifyLine) and isinstance(second, MaximumLine):
        return _with_floor(first, second)
    if fuse and isinstance(first, MaximumLine) and isinstance(second, RectifyLine):
        return _with_floor(second, first)
    return None


def _with_floor(rectify: RectifyLine, pool: MaximumLine) -> MaximumLine | None:
    if len(rectify.knots) > 1:
        return None
    pool.floor = 0.0
    return pool


def _mark_dead(steps: list[LineStep], output: str) -> list[LineStep]:
    """Record for each step the values that no later step needs."""
    needed = {output}
    marked = []
    for step in reversed(steps):
        dead = tuple({name for name in step.inputs if name not in needed})
        needed.update(step.inputs)
        marked.append(replace(step, dead=dead))
    return marked[::-1]
