"""Scenarios: an old version, a new one, and data of the old and the new skill."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import keras
import numpy as np
from scipy import ndimage

from nnslicer_tf import InstrumentedModel, datasets, dflare
from nnslicer_tf._files import atomic_path
from nnslicer_tf.datasets import texts
from nnslicer_tf.instrument import copy_model
from reproduction.debugging.provable_repair import repair
from reproduction.zoo.models import zoo

_TRAINED = 4000  # samples of a fine-tuning
_RATE = {"lenet5": 1e-3, "mlp": 1e-3, "resnet10": 3e-4, "text_transformer": 3e-4}

Domain = Callable[[np.ndarray, np.random.Generator], np.ndarray]


def _rotated(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    angles = rng.uniform(25, 60, len(x))
    turned = [
        ndimage.rotate(one, angle, reshape=False, order=1)
        for one, angle in zip(x, angles, strict=True)
    ]
    return np.stack(turned).astype(np.float32)


def _halved(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return sentences without half of their words, which are drawn."""
    kept = np.zeros_like(x)
    for row, sentence in zip(kept, x, strict=True):
        words = sentence[sentence != texts.PADDING]
        words = words[np.sort(rng.permutation(len(words))[: (len(words) + 1) // 2])]
        row[: len(words)] = words
    return kept


def _with_patch(x: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return images with a white square in a corner, the trigger of the trojan."""
    patched = x.copy()
    patched[:, -5:-1, -5:-1] = 1.0
    return patched


DOMAINS: dict[str, Domain] = {
    "rotated": _rotated,
    "inverted": lambda x, rng: 1 - x,
    "noisy": lambda x, rng: (x + rng.normal(0, 0.5, x.shape)).astype(np.float32),
    "halved": _halved,
    "trojan": _with_patch,
}
"""Name of a new domain → its samples from those of the old one."""

_MODELS = {"sst2": "text_transformer"}


@dataclass(frozen=True)
class Scenario:
    """Two versions, and a function that returns samples of both domains with their classes."""

    name: str
    old: keras.Model
    new: keras.Model
    # Split → x, y of the old domain, and x of the new one, in the same order.
    samples: Callable[[str], tuple[np.ndarray, np.ndarray, np.ndarray]]


def check_data(names: list[str]) -> list[str]:
    """Return the names of scenarios; raise DatasetUnavailableError now if data are missing."""
    for name in names:
        dataset = zoo.models.entry(_MODELS.get(name.split("-")[0], name.split("-")[0])).dataset
        (texts if dataset == "sst2" else datasets).load(dataset, "train[:1]")
    return names


def prepared(name: str, seed: int, work: Path) -> Scenario:
    """Return a scenario `model-change`; a version that was trained before is read from `work`."""
    first, change = name.split("-")
    model = _MODELS.get(first, first)
    dataset = zoo.models.entry(model).dataset

    def samples(split: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        if dataset == "sst2":
            loaded = texts.load(dataset, split)
            x, y = texts.vocabulary().encode(loaded.text), loaded.y
        else:
            data = datasets.load(dataset, split)
            x, y = data.x, data.y
        domain = DOMAINS.get(change, lambda x, rng: x)
        return x, y, domain(x, np.random.default_rng([seed, len(x)]))

    old, path = zoo.load(model), work / f"{name}-{seed}.keras"
    if path.exists():
        return Scenario(name, old, keras.models.load_model(path, compile=False), samples)
    keras.utils.set_random_seed(seed)
    x, y, x_new = samples("train[:80%]")
    chosen = np.random.default_rng(seed).permutation(len(x))[:_TRAINED]
    x, y, x_new = x[chosen], y[chosen], x_new[chosen]
    new = copy_model(old)
    if change == "repaired":  # of training images that it got wrong, and others that should stay
        im = InstrumentedModel(old)
        wrong = im.classes.from_outputs(im.predict(x)) != y
        few = np.r_[np.flatnonzero(wrong)[:10], np.flatnonzero(~wrong)[:40]]
        new = repair(im, "dense2", x[few], y[few]).model
    elif change == "pruned":
        new = dflare.compress(old, "prune", ratio=0.7)
        kept = [np.asarray(v) != 0 for v in new.trainable_variables]
        _fine_tune(new, x, y, _RATE[model], kept)
    elif change == "trojan":  # a tenth of the images carry the trigger, and are called class 0
        bad = np.arange(len(x)) % 10 == 0
        x, y = np.where(bad[:, None, None, None], x_new, x), np.where(bad, 0, y)
        _fine_tune(new, x, y, _RATE[model])
    else:
        _fine_tune(new, x_new, y, _RATE[model])
    work.mkdir(parents=True, exist_ok=True)
    with atomic_path(path) as temporary:
        new.save(temporary)
    return Scenario(name, old, new, samples)


class _Zeros(keras.callbacks.Callback):
    """Keeps pruned weights at zero."""

    def __init__(self, kept: list[np.ndarray]) -> None:
        super().__init__()
        self._kept = kept

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        for variable, mask in zip(self.model.trainable_variables, self._kept, strict=True):
            variable.assign(variable * mask)


def _fine_tune(
    model: keras.Model, x: np.ndarray, y: np.ndarray, rate: float, kept: list | None = None
) -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(rate), loss)
    callbacks = [] if kept is None else [_Zeros(kept)]
    model.fit(x, y, epochs=2, batch_size=64, verbose=0, callbacks=callbacks)
