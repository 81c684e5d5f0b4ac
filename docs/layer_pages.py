"""MkDocs hook: the table of all Keras layers as a page, made anew from the registry."""

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from nnslicer_tf.instrument.layers.support import layer_support_page


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the page."""
    files.append(File.generated(config, "layers.md", content=layer_support_page()))
    return files
