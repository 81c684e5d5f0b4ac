"""DeepBase: which units follow which hypotheses, declared in one call.

    frame = inspect(
        model, images,
        {"bright": brightness, "red": hue(0), **classes(labels, names)},
        ["correlation", "logistic_probe"], units="conv*", error=0.05,
    )

`hypotheses` has functions for images; any function or array is a hypothesis. To add a measure,
subclass `AdditiveMeasure`, see `measures.base`. `findings` draws conclusions from the result:
units to prune, and hypotheses that no unit follows.
"""

from nnslicer_tf._lazy import lazy_exports

_MODULES = {
    "nnslicer_tf.deepbase.cache": ("BehaviourCache",),
    "nnslicer_tf.deepbase.findings": ("best_units", "keep_masks", "unlearned"),
    "nnslicer_tf.deepbase.hypotheses": (
        "brightness",
        "classes",
        "edge_direction",
        "hue",
        "per_record",
    ),
    "nnslicer_tf.deepbase.inspection": ("inspect",),
    "nnslicer_tf.deepbase.measures": (
        "MEASURES",
        "AdditiveMeasure",
        "Block",
        "Correlation",
        "DifferenceOfMeans",
        "LinearProbe",
        "LogisticProbe",
        "Measure",
        "MutualInformation",
        "Scores",
    ),
    "nnslicer_tf.deepbase.units": ("Units",),
}

__all__ = [name for names in _MODULES.values() for name in names]

# Lazy: a worker imports the measures alone, without Keras.
__getattr__, __dir__ = lazy_exports(__name__, _MODULES, ("hypotheses", "measures"))
