"""`shrink-maps`: a U-Net for maps of digits, at half its parameters (ours, not the paper's).

A handwritten digit from 0 to 3 lies at a random place of a grey photograph; each pixel is one of
five classes: the background, or the digit that it belongs to. The network is trained, shrunk by
several rankings, and fine-tuned with the training labels. Training, validation and test maps are
made of different digits and photographs; settings were chosen by validation maps alone.
"""

import itertools

import keras
import numpy as np
from keras import layers

from nnslicer_tf import datasets, pruning
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.nnslicer.settings import MapSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

SIDE, CLASSES = 32, 5
METHODS = ("contributions", "weight", "random")
_INK = 0.4  # brightness from which on a pixel belongs to the digit
_KEYS = ("seed", "method")


def digit_maps(digits: str, photos: str, count: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return images `(count, 32, 32, 1)` of 0 … 1, and the classes of their pixels, int64."""
    rng = np.random.default_rng(seed)
    of_digits, backgrounds = datasets.load("mnist", digits), datasets.load("cifar10", photos).x
    x = 0.7 * backgrounds[rng.integers(len(backgrounds), size=count)].mean(axis=-1, keepdims=True)
    y = np.zeros((count, SIDE, SIDE), np.int64)
    chosen = rng.permutation(np.flatnonzero(of_digits.y < CLASSES - 1))[:count]
    x, y = x[: len(chosen)], y[: len(chosen)]
    for image, labels, digit in zip(x, y, chosen, strict=True):
        ink, size = of_digits.x[digit], of_digits.x.shape[1]
        top, left = rng.integers(SIDE - size + 1, size=2)
        place = slice(top, top + size), slice(left, left + size)
        image[place] = (1 - ink) * image[place] + ink * rng.uniform(0.6, 1.0)
        labels[place][ink[..., 0] > _INK] = 1 + of_digits.y[digit]
    return x.astype(np.float32), y


def u_net(width: int) -> keras.Model:
    """Return a U-Net of two levels with batch normalisation, and `width` filters at its top."""

    def block(x: keras.KerasTensor, filters: int, name: str) -> keras.KerasTensor:
        for part in "ab":
            x = layers.Conv2D(filters, 3, padding="same", use_bias=False, name=f"{name}{part}")(x)
            x = layers.ReLU()(layers.BatchNormalization()(x))
        return x

    inputs = keras.Input((SIDE, SIDE, 1))
    first = block(inputs, width, "first")
    second = block(layers.MaxPooling2D()(first), 2 * width, "second")
    x = block(layers.MaxPooling2D()(second), 4 * width, "deepest")
    for skipped, filters, name in ((second, 2 * width, "third"), (first, width, "last")):
        x = layers.Conv2DTranspose(filters, 2, strides=2, name=f"{name}_up")(x)
        x = block(layers.Concatenate()([skipped, x]), filters, name)
    outputs = layers.Conv2D(CLASSES, 1, activation="softmax", name="map")(x)
    return keras.Model(inputs, outputs, name="u_net")


def train(model: keras.Model, x: np.ndarray, y: np.ndarray, epochs: int, seed: int) -> None:
    """Train a model in place, with a learning rate that falls to zero."""
    batch = 32
    steps = max(1, epochs * (len(x) // batch))
    rate = keras.optimizers.schedules.CosineDecay(2e-3, steps)
    options = {"learning_rate": rate, "batch_size": batch, "rng": seed, "progress": False}
    pruning.fine_tune(model, x, y, epochs, **options)


def shrink_maps(s: MapSettings) -> ExperimentResult:
    """Shrink a U-Net to half its parameters, and fine-tune it; intersections over unions."""
    fields = ("width", "images", "tested", "epochs", "tuned", "ratio", "split")
    store = RowStore.of(s, "shrink-maps", _KEYS, *fields)
    networks: dict[int, tuple[InstrumentedModel, tuple, tuple]] = {}

    def trained(seed: int) -> tuple[InstrumentedModel, tuple, tuple]:
        """Return the whole network, and its training and test maps."""
        if seed not in networks:
            keras.utils.set_random_seed(seed)
            maps = digit_maps("train[:50000]", "train[:40000]", s.images, seed)
            split = (
                ("train[50000:]", "train[40000:]") if s.split == "held-out" else ("test", "test")
            )
            model = u_net(s.width)
            train(model, *maps, s.epochs, seed)
            networks[seed] = (
                InstrumentedModel(model),
                maps,
                digit_maps(*split, s.tested, 1000 + seed),
            )
        return networks[seed]

    def shrunk(seed: int, method: str) -> list[dict[str, float]]:
        im, (x, y), (test_x, test_y) = trained(seed)
        found = pruning.shrink(
            im, x, y, ratio=s.ratio, by=method, test=(test_x, test_y), rng=seed, progress=False
        )
        train(found.model, x, y, s.tuned, seed)
        answers = found.model.predict(test_x, batch_size=256, verbose=0).argmax(axis=-1)
        tuned = im.classes.quality(answers, test_y)
        row = {"parameters left": found.after.parameters / found.before.parameters}
        row["multiply-adds left"] = found.after.multiply_adds / found.before.multiply_adds
        for name, (before, after) in found.quality.items():
            row |= {
                f"{name}, whole": before,
                f"{name}, shrunk": after,
                f"{name}, tuned": tuned[name],
            }
        return [row]

    cases = itertools.product(range(s.seeds), s.method or METHODS)
    table = store.fill([dict(zip(_KEYS, case, strict=True)) for case in cases], shrunk, "Networks")
    lost = 100 * (table["mean IoU, whole"] - table["mean IoU, tuned"])
    groups = table.assign(**{"points lost": lost}).groupby("method", sort=False)
    columns = ["parameters left", "multiply-adds left"]
    columns += [f"mean IoU, {name}" for name in ("whole", "shrunk", "tuned")]
    means = groups[[*columns, "points lost"]].mean()
    means["most points lost"] = groups["points lost"].max()
    classes = [f"IoU of class {label}, tuned" for label in range(CLASSES)]
    means["least of a class"] = groups[classes].mean().min(axis=1)
    head = {
        "network": f"U-Net, {s.width} filters at its top, softmax of {CLASSES} classes per pixel",
        "maps": f"{s.images:,} to train, score, fit and tune, {s.tested:,} {s.split} to measure",
        "epochs": f"{s.epochs} of the whole network, {s.tuned} of fine-tuning",
        "ratio": f"{s.ratio} of the parameters, the same share of every layer",
        "seeds": ", ".join(map(str, range(s.seeds))),
    }
    title = "A smaller U-Net for maps of digits"
    return ExperimentResult(
        [
            ExperimentTable("shrink-maps", means.reset_index(), title, head, note("shrink_maps")),
            ExperimentTable("shrink-maps-seeds", table),
        ]
    )
