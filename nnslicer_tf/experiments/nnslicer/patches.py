"""Slices of a vision transformer: contributions over patches and over heads."""

import numpy as np
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf.experiments.nnslicer.settings import PatchSettings
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image
from nnslicer_tf.slicing import Profile, Slice, Slicer

_NAMES = (
    *("airplane", "automobile", "bird", "cat", "deer"),
    *("dog", "frog", "horse", "ship", "truck"),
)
_PATCHES = "sequence"


def draw(s: PatchSettings) -> ExperimentResult:
    """Slice images of a vision transformer; draw contributions of patches and of heads."""
    train, test = datasets.load("cifar10", f"train[:{s.train}]"), datasets.load("cifar10", "test")
    im = InstrumentedModel(zoo.load("vit", "cifar10"))
    slicer = Slicer(im, Profile.from_data(im, train.x), s.theta, product=s.product)
    figure = Figure(figsize=(2.6 * len(s.classes), 7.4), layout="constrained")
    axes = figure.subplots(3, len(s.classes), squeeze=False)
    first = test.x[:500]
    right = im.logits(first).argmax(axis=1) == test.y[:500]
    largest = 0
    drawn = []
    for column, target in zip(axes.T, s.classes, strict=True):
        image = first[np.argmax(right & (test.y[:500] == target))]
        one = slicer.slice(image[None], outputs=[target])
        column[0].imshow(image)
        column[0].set_title(f"{_NAMES[target]}, recognised", fontsize=9)
        column[0].set_axis_off()
        plot_over_image(over_pixels(one, im, image.shape), image, column[1])
        column[1].set_title("patches", fontsize=9)
        drawn.append((column[2], of_heads(one, im)))
        largest = max(largest, int(np.abs(drawn[-1][1]).max()))
    for axis, values in drawn:
        axis.imshow(values, cmap="RdBu", vmin=-largest, vmax=largest)
        for (block, head), value in np.ndenumerate(values):
            shade = "white" if abs(value) > 0.6 * largest else "black"
            axis.text(head, block, value, ha="center", va="center", fontsize=7, color=shade)
        axis.set_xticks(range(values.shape[1]))
        axis.set_yticks(range(len(values)), [f"block {k + 1}" for k in range(len(values))])
        axis.set_xlabel("head", fontsize=8)
        axis.tick_params(labelsize=7)
    figure.suptitle(
        f"A vision transformer on CIFAR-10, slices at θ = {s.theta:g}: blue for the class, red "
        "against it",
        fontsize=10,
    )
    return ExperimentResult([], [ExperimentFigure("patches", figure)])


def over_pixels(one: Slice, im: InstrumentedModel, shape: tuple[int, ...]) -> np.ndarray:
    """Return the contributions of the patches' channels together, at each of the patch's pixels.

    Args:
        one: A slice.
        im: The vision transformer.
        shape: Of the image: (height, width, channels).
    """
    height, width = im["patches"].shape[:2]
    by_patch = one.neurons[_PATCHES].sum(axis=-1).reshape(height, width)
    return np.kron(by_patch, np.ones((shape[0] // height, shape[1] // width)))


def of_heads(one: Slice, im: InstrumentedModel) -> np.ndarray:
    """Return the contributions of what heads hand on, summed over positions, (blocks, heads)."""
    contexts = [o.name for o in im.operations if o.name.endswith("/context")]
    return np.stack([one.neurons[name].sum(axis=(0, 2)) for name in contexts])
