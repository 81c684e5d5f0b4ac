"""Slices of a vision transformer: contributions over patches and over heads."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image
from nnslicer_tf.slicing import Profile, Slice, Slicer
from reproduction.nnslicer.settings import PatchSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult

_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_PATCHES = "sequence"
_CANDIDATES = 500  # test images, of which the first recognised one of each class is drawn


def draw(s: PatchSettings) -> ExperimentResult:
    """Slice images of a vision transformer; draw contributions of patches and of heads."""
    train, test = datasets.load("cifar10", f"train[:{s.train}]"), datasets.load("cifar10", "test")
    im = InstrumentedModel(zoo.load("vit", "cifar10"))
    slicer = Slicer(im, Profile.from_data(im, train.x), s.theta, product="midpoint")
    first = test.x[:_CANDIDATES]
    right = im.logits(first).argmax(axis=1) == test.y[:_CANDIDATES]
    chosen = [int(np.argmax(right & (test.y[:_CANDIDATES] == target))) for target in s.classes]
    images = first[chosen]
    slices = [
        slicer.slice(image[None], outputs=[target])
        for image, target in zip(images, s.classes, strict=True)
    ]
    drawn = {
        "theta": np.array(s.theta),
        "classes": np.array(s.classes),
        "images": images,
        "patches": np.stack([over_pixels(one, im, images.shape[1:]) for one in slices]),
        "heads": np.stack([of_heads(one, im) for one in slices]),
    }
    return ExperimentResult([], [ExperimentFigure("patches", plot(drawn), drawn=drawn)])


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw images and the contributions of their patches and of the heads, one column per image."""
    count, heads = len(drawn["classes"]), drawn["heads"]
    largest = np.abs(heads).max()
    figure = Figure(figsize=(1.75 * count, 6), layout="constrained")
    axes = figure.subplots(3, count, squeeze=False)
    parts = (drawn[key] for key in ("classes", "images", "patches", "heads"))
    for (above, middle, below), target, image, patches, own in zip(axes.T, *parts, strict=True):
        above.imshow(image)
        above.set_title(_NAMES[target], fontsize=9)
        above.set_axis_off()
        plot_over_image(patches, image, middle)
        middle.set_title("patches", fontsize=9)
        below.imshow(own, cmap="RdBu", vmin=-largest, vmax=largest)
        for (block, head), value in np.ndenumerate(own):
            shade = "white" if abs(value) > 0.6 * largest else "black"
            below.text(head, block, value, ha="center", va="center", fontsize=7, color=shade)
        below.set_xticks(range(own.shape[1]))
        below.set_yticks(range(len(own)), [f"block {k + 1}" for k in range(len(own))])
        below.set_xlabel("head", fontsize=9)
        below.tick_params(labelsize=8)
    for axis in axes[2, 1:]:
        axis.set_yticks([])
    sizes = np.abs(heads).sum(axis=(0, 2))
    put_finding(
        figure,
        f"A vision transformer's heads of block {sizes.argmax() + 1} have "
        f"{sizes.max() / sizes.sum():.0%} of the contributions (θ = {drawn['theta']:g}; blue: for "
        "the class, red: against it)",
    )
    return figure


def over_pixels(one: Slice, im: InstrumentedModel, shape: tuple[int, ...]) -> np.ndarray:
    """Return each patch's total contribution at its pixels, of an image's `shape` (h, w, c)."""
    height, width = im["patches"].shape[:2]
    by_patch = one.neurons[_PATCHES].sum(axis=-1).reshape(height, width)
    return np.kron(by_patch, np.ones((shape[0] // height, shape[1] // width)))


def of_heads(one: Slice, im: InstrumentedModel) -> np.ndarray:
    """Return the contributions of the heads' outputs, summed over positions, (blocks, heads)."""
    contexts = [o.name for o in im.operations if o.name.endswith("/context")]
    return np.stack([one.neurons[name].sum(axis=(0, 2)) for name in contexts])
