"""The backward walk with multipliers, which DeepLIFT, amounts and the semantic metric share.

A multiplier is the change of a target per change of a neuron, between a reference and a sample
(Shrikumar et al., ICML 2017). `kinds.rescale.multipliers_of` has the rule of each operation; a walk
with `gradient` in its place is back-propagation. Recurrent layers are expanded. Cost: two passes.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nnslicer_tf.instrument import InstrumentedModel, Operation
from nnslicer_tf.instrument.backend import vector_jacobian_product
from nnslicer_tf.instrument.backward import propagate
from nnslicer_tf.instrument.recurrence import RecurrentLayer
from nnslicer_tf.kinds.kind import MultiplierRule
from nnslicer_tf.kinds.recurrence import unwind_multipliers
from nnslicer_tf.kinds.rescale import multipliers_of


def propagate_multipliers(
    im: InstrumentedModel,
    order: Sequence[Operation | RecurrentLayer],
    seed: Mapping[str, Any],
    values: Mapping[str, Any],
    reference: Mapping[str, Any],
    rule: MultiplierRule = multipliers_of,
    *,
    before: Callable[[Operation, Any], Sequence[Any] | None] = lambda node, multipliers: None,
    arrive: Callable[[Operation | RecurrentLayer, str, Any], Any] = lambda node, name, part: part,
    on_gates: Callable[[str, Any], None] = lambda name, of_gates: None,
) -> dict[str, Any]:
    """Return the multipliers that operations receive, `(batch, *shape)` by name, with the seed.

    Args:
        im: The model.
        order: What is expanded, from `consumers_first`.
        seed: Operation → its first multipliers.
        values: Operation → its values `(batch, *shape)`; of a recurrent layer, all operations.
        reference: The same for the reference, with the padding of the samples.
        rule: The rule of each operation.
        before: Called with each operation and its multipliers; what it returns, unless it is None,
            is used in place of the rule's result.
        arrive: Maps what an operation passes to an input, given by name, to what arrives there.
        on_gates: Called for each kernel of a recurrent layer, as in `Unwound.synapses`.
    """

    def expand(node: Operation | RecurrentLayer, multipliers: Any) -> Any:
        if isinstance(node, RecurrentLayer):
            through_time = unwind_multipliers(node, multipliers, values, reference, rule)
            for name, of_gates in through_time.synapses.items():
                on_gates(name, of_gates)
            return arriving(node, through_time.inputs), through_time.members
        parts = before(node, multipliers)
        if parts is None:
            inputs, usual = ([at[name] for name in node.inputs] for at in (values, reference))
            parts = rule(node, inputs, usual, multipliers)
        return arriving(node, parts)

    def arriving(node: Operation | RecurrentLayer, parts: Sequence[Any]) -> Sequence[Any]:
        return [arrive(node, name, part) for name, part in zip(node.inputs, parts, strict=True)]

    shapes = {operation.name: operation.shape for operation in im.operations}
    return propagate(order, seed, expand, shapes)


def gradient(operation: Operation, inputs: list, reference: list, cotangent: Any) -> Sequence[Any]:
    """Return the gradients by the inputs, a rule that ignores the reference."""
    return vector_jacobian_product(operation.compute, inputs, cotangent)
