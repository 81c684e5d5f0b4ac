"""Where work runs, and where finished parts of it are kept: for all analyses."""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.engine.engines": (
        *("Engine", "AdaptiveEngine", "InProcessEngine", "SplittableJob", "ThreadEngine"),
        "make_engine",
    ),
    "nnslicer_tf.engine.ray_engine": ("RayEngine",),
    "nnslicer_tf.engine.store": ("Store",),
}

__all__ = [name for names in _MODULES.values() for name in names]

__getattr__, __dir__ = lazy_exports(__name__, _MODULES)
