"""Slices of a recurrent network: contributions over time."""

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from nnslicer_tf import datasets, explore, zoo
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image, plot_over_time
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.nnslicer.settings import OverTimeSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentView

_OPERATIONS = {
    "lstm:i": "input gate",
    "lstm:f": "forget gate",
    "lstm:c": "cell state",
    "lstm:h": "hidden state",
}


def draw(s: OverTimeSettings) -> ExperimentResult:
    """Slice images of an LSTM that reads them row by row; draw contributions over time."""
    train, test = datasets.load("mnist", f"train[:{s.train}]"), datasets.load("mnist", "test")
    im = InstrumentedModel(zoo.load("lstm_rows", "mnist"))
    slicer = Slicer(im, Profile.from_data(im, train.x), s.theta)
    images = np.stack([test.x[int(np.argmax(test.y == target))] for target in s.classes])
    slices = [slicer.slice(x[None], [target]) for x, target in zip(images, s.classes, strict=True)]
    drawn = {"classes": np.array(s.classes), "images": images} | {
        name: np.stack([one.neurons[name] for one in slices])
        for name in (im.input_operation, *_OPERATIONS)
    }
    drawn["pixels"] = drawn.pop(im.input_operation)
    figure = ExperimentFigure("over-time", plot(drawn), drawn=drawn)
    views = []
    if s.explore:
        sets = slicer.slice_each(images, outputs="predicted")
        title = "Digits that an LSTM reads row by row"
        view = explore(sets, im, images, profile=slicer.profile, title=title)
        views = [ExperimentView(s.explore, view)]
    return ExperimentResult([], [figure], views=views)


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the contributions of `pixels`, gates and states over time, one row per image."""
    count = len(drawn["classes"])
    figure = Figure(figsize=(8.8, 2.2 * count + 0.4), layout="constrained")
    axes = figure.subplots(
        count, 1 + len(_OPERATIONS), squeeze=False, width_ratios=(1.6, 2, 2, 2, 2)
    )
    for i, row in enumerate(axes):
        plot_over_image(drawn["pixels"][i], drawn["images"][i], row[0])
        row[0].set_title(f"a {drawn['classes'][i]}", fontsize=9)
        for axis, (name, title) in zip(row[1:], _OPERATIONS.items(), strict=True):
            plot_over_time(drawn[name][i], title, axis)
            axis.set(xlabel="row of the image", ylabel="")
            axis.tick_params(labelsize=8)
        row[1].set_ylabel("unit")
    first = min(int(np.nonzero(states.any(axis=1))[0][0]) for states in drawn["lstm:h"])
    put_finding(
        figure,
        f"Contributions to the state of an LSTM begin with row {first} of the image "
        "(blue: for the class, red: against it)",
    )
    return figure
