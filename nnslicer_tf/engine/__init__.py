"""Where long work runs, and where its finished parts are kept."""

from nnslicer_tf.engine.rows import RowStore

__all__ = ["RowStore"]
