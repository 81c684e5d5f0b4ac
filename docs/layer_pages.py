"""MkDocs hook: the table of all Keras layers as a page, made anew from the registry."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import TYPE_CHECKING

from keras import layers

import nnslicer_tf.instrument.layers  # noqa: F401  # fills the registry
from nnslicer_tf.instrument.layers.routing import identity
from nnslicer_tf.instrument.registry import REASONS, registered

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

_HEAD = """# Every layer of Keras

Every class of `keras.layers`, by the Keras that made this page. A refused layer is named when a
model is wrapped; [Add a layer](own-layers.md) says how to register one. The last column is about
slices at `granularity="channel"`; at `"activation"` all are sliced.

| layer | status | operations, or why not | by channel |
|---|---|---|---|
"""

# The reason why a layer, or a family of layers, has no rule at granularity "channel".
_NO_CHANNELS = {
    "attention": (
        "no: probabilities of a row sum to one, so that their mean over positions says nothing, "
        "and the mean of products is not the product of means"
    ),
    "recurrence": (
        "no: each step reads the one before, so that a mean over steps would depend on itself"
    ),
    "Dot": "of vectors; with positions no: the mean of products is not the product of means",
    "Lambda": "as what its function is recognised to be",
    "Softmax": "of vectors; with positions no: probabilities sum to one",
    "Bidirectional": "no: as the layer that it wraps",
}


@dataclass(frozen=True)
class LayerSupport:
    """How well one class of `keras.layers` is supported."""

    name: str
    status: str  # "supported", "passes through at inference" or "refused"
    detail: str  # the family of its operations, or why it is refused
    channels: str = ""  # "yes", or why granularity "channel" does not support it; "" if refused


def layer_support() -> tuple[LayerSupport, ...]:
    """Return one row for each class of `keras.layers`, sorted by name; aliases are left out."""
    classes = {
        value.__name__: value
        for value in vars(layers).values()
        if inspect.isclass(value) and issubclass(value, layers.Layer)
    }
    rows = []
    for name, layer_class in sorted(classes.items()):
        operations_fn = registered(layer_class)
        if layer_class is layers.InputLayer:
            row = LayerSupport(name, "supported", "input", "yes")
        elif operations_fn is None:
            reason = REASONS.get(name, "no rule is registered for it")
            row = LayerSupport(name, "refused", reason)
        elif operations_fn is identity:
            row = LayerSupport(name, "passes through at inference", "", "yes")
        else:
            function = getattr(operations_fn, "func", operations_fn)  # of a `partial`
            family = function.__module__.rpartition(".")[2].replace("_", " ")
            channels = _NO_CHANNELS.get(name) or _NO_CHANNELS.get(family, "yes")
            row = LayerSupport(name, "supported", family, channels)
        rows.append(row)
    return tuple(rows)


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    from mkdocs.structure.files import File

    rows = [f"| `{r.name}` | {r.status} | {r.detail} | {r.channels} |\n" for r in layer_support()]
    files.append(File.generated(config, "layers.md", content="".join([_HEAD, *rows])))
    return files
