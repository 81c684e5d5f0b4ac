"""Where long work is kept and run: finished parts in a folder, from which it resumes."""

from nnslicer_tf.engine.store import Store

__all__ = ["Store"]
