"""Walkers that are kept with their model, until its weights change."""

from typing import Any, TypeVar
from weakref import WeakKeyDictionary

from nnslicer_tf.instrument import InstrumentedModel, instrumented
from nnslicer_tf.instrument.fingerprint import weights_digest
from nnslicer_tf.instrument.model import ModelLike

Walker = TypeVar("Walker")

# Model → class of a walker → digest of the model's weights, and the walker.
_KEPT: WeakKeyDictionary[InstrumentedModel, dict[type, tuple[str, Any]]] = WeakKeyDictionary()


def walker_of(im: ModelLike, walker_class: type[Walker]) -> Walker:
    """Return a walker of the model with its current weights; the last of a class is kept."""
    im = instrumented(im)
    digest = weights_digest(im.model)
    kept = _KEPT.setdefault(im, {})
    if walker_class not in kept or kept[walker_class][0] != digest:
        kept[walker_class] = digest, walker_class(im)  # type: ignore[call-arg]
    return kept[walker_class][1]
