"""MkDocs hook: the table of all Keras layers as a page, made anew from the registry."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nnslicer_tf.instrument import layer_support

_HEAD = """# Every layer of Keras

Every class of `keras.layers`, by the Keras that made this page. A refused layer is named when a
model is wrapped; [Add a layer](own-layers.md) says how to register one. The last column is about
slices at `granularity="channel"`; at `"activation"` all are sliced.

| layer | status | operations, or why not | by channel |
|---|---|---|---|
"""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    rows = [f"| `{r.name}` | {r.status} | {r.detail} | {r.channels} |\n" for r in layer_support()]
    files.append(File.generated(config, "layers.md", content="".join([_HEAD, *rows])))
    return files
