"""The classes of `keras.layers` that can be instrumented, and why the others cannot."""

import inspect
from dataclasses import dataclass

from keras import layers

from nnslicer_tf.instrument.layers.refused import REASONS
from nnslicer_tf.instrument.layers.registry import registered
from nnslicer_tf.instrument.layers.routing import passes_through

SUPPORTED = "supported"
PASSES = "passes through at inference"
REFUSED = "refused"

# The reason why a family of layers has no rule at granularity "channel".
_NO_CHANNELS = {
    "attention": (
        "no: probabilities of a row sum to one, so that their mean over positions says nothing, "
        "and the mean of products is not the product of means"
    ),
    "recurrence": (
        "no: each step reads the one before, so that a mean over steps would depend on itself"
    ),
    "products": "of vectors; with positions no: the mean of products is not the product of means",
    "Lambda": "as what its function is recognised to be",
    "Softmax": "of vectors; with positions no: probabilities sum to one",
    "Bidirectional": "no: as the layer that it wraps",
}


@dataclass(frozen=True)
class LayerSupport:
    """How well one class of `keras.layers` is supported.

    Attributes:
        name: Name of the class.
        status: "supported", "passes through at inference" or "refused".
        detail: The family of operations that it consists of, or why it is refused.
        channels: Whether slices at granularity "channel" support it, or why not; "" if refused.
    """

    name: str
    status: str
    detail: str
    channels: str = ""


def layer_support() -> tuple[LayerSupport, ...]:
    """Return a row for every class of `keras.layers`, sorted by name.

    A class with several names has one row.
    """
    classes = {
        value.__name__: value
        for value in vars(layers).values()
        if inspect.isclass(value) and issubclass(value, layers.Layer)
    }
    return tuple(_row(name, classes[name]) for name in sorted(classes))


def _row(name: str, layer_class: type) -> LayerSupport:
    if layer_class is layers.InputLayer:
        return LayerSupport(name, SUPPORTED, "input", "yes")
    operations_fn = registered(layer_class)
    if operations_fn is None:
        return LayerSupport(name, REFUSED, REASONS.get(name, "no rule is registered for it"))
    if passes_through(operations_fn):
        return LayerSupport(name, PASSES, "", "yes")
    family = operations_fn.__module__.rpartition(".")[2].replace("_", " ")
    channels = _NO_CHANNELS.get(name) or _NO_CHANNELS.get(family, "yes")
    return LayerSupport(name, SUPPORTED, family, channels)


def layer_support_page() -> str:
    """Return the table as a Markdown page."""
    lines = [
        "# Every layer of Keras",
        "",
        "Every class of `keras.layers`, by the Keras that made this page. A refused layer is named "
        "when a model is wrapped; [Add a layer](own-layers.md) says how to register one. The last "
        'column is about slices at `granularity="channel"`; at `"activation"` all are sliced.',
        "",
        "| layer | status | operations, or why not | by channel |",
        "|---|---|---|---|",
    ]
    lines += [
        f"| `{row.name}` | {row.status} | {row.detail} | {row.channels} |"
        for row in layer_support()
    ]
    return "\n".join([*lines, ""])
