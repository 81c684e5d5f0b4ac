"""Attributions: how much each feature of the input raises the score of a target.

    values = ATTRIBUTIONS["occlusion"](im, x, baseline, target)
    metrics.deletion(im, x, baseline, target, values).area

A feature with a positive value raises the score relative to the baseline. To add a method, write a
function with the arguments of `Attribution` and add it to `ATTRIBUTIONS`. `metrics` compares
attributions. Exact integrated gradients are part of `exactline`, which their first call loads.
"""

from collections.abc import Callable
from typing import Any, TypeAlias

from nnslicer_tf._environment import LazyModule
from nnslicer_tf._faces import explain_all
from nnslicer_tf.attributions import methods, metrics
from nnslicer_tf.attributions.deep_explainer import DeepExplainer
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.target import Target, TargetLike

Attribution: TypeAlias = Callable[[InstrumentedModel, Any, Any, TargetLike], Any]
"""Function `method(im, x, baseline, target)` that returns attributions of a sample.

`x` is a sample of the model's input shape, and so is `baseline`, the values that stand for absent
features; for several inputs they are dicts by name. For an input of tokens the baseline may be
other tokens, or values of the embedding. `target` says what is explained. The result has the
sample's shape, float64; for several inputs it is a dict by name.

All raise InvalidArgumentError, InputShapeError or NonFiniteActivationError for bad arguments."""

_exactline: Any = LazyModule("nnslicer_tf.exactline.gradients")

ATTRIBUTIONS: dict[str, Attribution] = {
    "DeepLIFT": methods.deeplift,
    "gradient × input": methods.gradient_times_input,
    "integrated gradients": lambda *args: _exactline.exact_gradients(*args),
    "integrated gradients, 50 samples": methods.sampled_gradients,
    "occlusion": methods.occlusion,
}
"""The methods by name."""

__all__ = ["ATTRIBUTIONS", "Attribution", "DeepExplainer", "Target", "TargetLike", "metrics"]
explain_all(globals())
