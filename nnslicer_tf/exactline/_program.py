"""The walk of one model as a list of steps, made shorter where that is exact."""

from dataclasses import dataclass, replace

from nnslicer_tf.exactline._affine import Scale, WeightedSum
from nnslicer_tf.exactline._bending import MaximumPool, Rectify
from nnslicer_tf.exactline._routing import IndexMap
from nnslicer_tf.exactline.transformers import Transformer, build_transformer
from nnslicer_tf.instrument import InstrumentedModel, Operation

__all__ = ["Program", "Step", "build_program"]


@dataclass(frozen=True)
class Step:
    """One operation of the walk.

    Attributes:
        name: The operation's name.
        inputs: Names of the operations that it takes.
        transformer: What it does.
        dead: Names of the values that no later step needs.
    """

    name: str
    inputs: tuple[str, ...]
    transformer: Transformer
    dead: tuple[str, ...] = ()


@dataclass(frozen=True)
class Program:
    """The steps from the input to the logits.

    Attributes:
        input: Name of the input.
        output: Name of the value that is the result.
        steps: In order.
    """

    input: str
    output: str
    steps: tuple[Step, ...]


def build_program(im: InstrumentedModel, fuse: bool) -> Program:
    """Return the program of a model, with a copy of its weights.

    Args:
        im: The model.
        fuse: Treat a rectify and a maximum pooling that follow each other as one.

    Raises:
        UnsupportedLayerError: if an operation before the logits is not piecewise linear.
    """
    operations = _needed(im)
    steps = [Step(o.name, o.inputs, build_transformer(o)) for o in operations[1:]]
    output = im.logit_operation
    steps, output = _drop_identities(steps, output)
    steps = _fuse_pairs(steps, output, fuse)
    return Program(im.input_operation, output, tuple(_mark_dead(steps, output)))


def _needed(im: InstrumentedModel) -> list[Operation]:
    """Return the operations that the logits depend on, the input first."""
    names = {im.logit_operation, im.input_operation}
    kept = []
    for operation in reversed(im.operations):
        if operation.name in names:
            names.update(operation.inputs)
            kept.append(operation)
    return kept[::-1]


def _drop_identities(steps: list[Step], output: str) -> tuple[list[Step], str]:
    """Leave out routing that moves nothing (flatten, dropout): values are raveled anyway."""
    stands_for: dict[str, str] = {}
    kept = []
    for step in steps:
        inputs = tuple(stands_for.get(name, name) for name in step.inputs)
        if isinstance(step.transformer, IndexMap) and step.transformer.is_identity:
            stands_for[step.name] = inputs[0]
        else:
            kept.append(replace(step, inputs=inputs))
    return kept, stands_for.get(output, output)


def _fuse_pairs(steps: list[Step], output: str, fuse: bool) -> list[Step]:
    """Merge a step into the one before it, where that has no other consumer."""
    uses = [name for step in steps for name in step.inputs] + [output]
    merged: dict[str, Step] = {}
    for step in steps:
        only = step.inputs[0]
        before = merged.get(only)
        alone = len(step.inputs) == 1 and before is not None and uses.count(only) == 1
        transformer = _merged(before.transformer, step.transformer, fuse) if alone else None
        if transformer is None:
            merged[step.name] = step
        else:
            del merged[only]
            merged[step.name] = Step(step.name, before.inputs, transformer)
    return list(merged.values())


def _merged(first: Transformer, second: Transformer, fuse: bool) -> Transformer | None:
    """Return one transformer for two, or None if there is none."""
    if isinstance(first, WeightedSum) and isinstance(second, Scale):
        scale = second.per_channel()
        if scale is not None:
            first.scale(*scale)
            return first
    if fuse and isinstance(first, Rectify) and isinstance(second, MaximumPool):
        return _with_floor(first, second)
    if fuse and isinstance(first, MaximumPool) and isinstance(second, Rectify):
        return _with_floor(second, first)
    return None


def _with_floor(rectify: Rectify, pool: MaximumPool) -> MaximumPool | None:
    if len(rectify.knots) > 1:
        return None
    pool.floor = 0.0
    return pool


def _mark_dead(steps: list[Step], output: str) -> list[Step]:
    """Say after each step which values nobody needs any more."""
    needed = {output}
    marked = []
    for step in reversed(steps):
        dead = tuple({name for name in step.inputs if name not in needed})
        needed.update(step.inputs)
        marked.append(replace(step, dead=dead))
    return marked[::-1]
