"""The demo behind `nnslicer demo`: slicing on data that is always available.

Uses scikit-learn's handwritten digits and a small convolutional network whose weights come with
the package: makes a profile, slices an image, a class and all images, and tests the network with
only the synapses of each slice.
"""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import keras
import numpy as np

from nnslicer_tf import datasets, zoo
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_slices, save_figure
from nnslicer_tf.slicing import Profile, Slice, Slicer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_IMAGE = 13
_THETA = 0.3


@dataclass(frozen=True)
class DemoResult:
    """The results of the demo.

    Attributes:
        label: Class that the model predicts for the sliced image.
        image_slice: Slice of the image, for that class.
        class_slice: Slice of all training images of the class.
        whole: Accuracy of the whole model on the test images of the class, and on all.
        sliced: The same for the model with only the class's slice.
        image_label: Class that the model with only the image's slice predicts for the image.
        all_slice: Slice of all training images, each for the class predicted for it.
        all_accuracy: Accuracy of the model with only that slice on all test images.
    """

    label: int
    image_slice: Slice
    class_slice: Slice
    whole: tuple[float, float]
    sliced: tuple[float, float]
    image_label: int
    all_slice: Slice
    all_accuracy: float


def run_demo(folder: Path, progress: bool = True) -> DemoResult:
    """Slice the digits model and write `profile.npz`, the slices and `slices.png` to a folder."""
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    model = zoo.load("digits_cnn")
    im = InstrumentedModel(model)
    profile = Profile.from_data(im, train.x, progress=progress)
    slicer = Slicer(im, profile, theta=_THETA, workers=0, progress=progress)

    image = test.x[_IMAGE : _IMAGE + 1]
    label = int(im.logits(image).argmax())
    image_slice = slicer.slice(image, outputs=[label])
    of_class = train.x[train.y == label]
    class_slice = slicer.slice(of_class, outputs=[label])
    all_slice = slicer.slice(train.x, outputs="predicted")

    profile.save(folder / "profile.npz")
    image_slice.save(folder / "image.npz")
    class_slice.save(folder / "class.npz")
    images = {f"one image of a {label}": image[0], f"all images of a {label}": of_class.mean(0)}
    slices = dict(zip(images, (image_slice, class_slice), strict=True))
    save_figure(_drawn(slices, images, im), folder / "slices.png")

    sliced_model = class_slice.apply(model)
    image_model = image_slice.apply(model)
    return DemoResult(
        label=label,
        image_slice=image_slice,
        class_slice=class_slice,
        whole=_accuracies(model, test, label),
        sliced=_accuracies(sliced_model, test, label),
        image_label=int(image_model.predict(image, verbose=0).argmax()),
        all_slice=all_slice,
        all_accuracy=_accuracies(all_slice.apply(model), test, label)[1],
    )


def draw_demo(path: Path) -> Path:
    """Redraw the demo's picture, which takes seconds, and return the file."""
    with TemporaryDirectory() as folder:
        run_demo(Path(folder), progress=False)
        shutil.copyfile(Path(folder) / "slices.png", path)
    return path


def _drawn(
    slices: Mapping[str, Slice], images: Mapping[str, np.ndarray], im: InstrumentedModel
) -> "Figure":
    """Draw the slices, with the share of neurons in each as the title."""
    rectified = [o.name for o in im.operations if o.kind == "rectify"]
    figure = plot_slices(slices, rectified, images)
    shares = [
        np.mean(np.concatenate([one.neurons[o].ravel() for o in rectified]) != 0)
        for one in slices.values()
    ]
    figure.suptitle(
        f"{shares[0]:.0%} of the neurons decide one image, {shares[1]:.0%} all images of the class"
    )
    return figure


def _accuracies(model: keras.Model, test: datasets.Dataset, label: int) -> tuple[float, float]:
    correct = model.predict(test.x, verbose=0).argmax(axis=1) == test.y
    return float(correct[test.y == label].mean()), float(correct.mean())
