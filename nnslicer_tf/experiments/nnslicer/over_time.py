"""Slices of a recurrent network: contributions over time."""

import numpy as np
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf.experiments.nnslicer.settings import OverTimeSettings
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult, ExperimentView
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image, plot_over_time
from nnslicer_tf.report.explorer import explore
from nnslicer_tf.slicing import Profile, Slicer

_OPERATIONS = ("lstm:i", "lstm:f", "lstm:c", "lstm:h")


def draw(s: OverTimeSettings) -> ExperimentResult:
    """Slice images of an LSTM that reads them row by row; draw contributions over time."""
    train, test = datasets.load("mnist", f"train[:{s.train}]"), datasets.load("mnist", "test")
    im = InstrumentedModel(zoo.load("lstm_rows", "mnist"))
    slicer = Slicer(im, Profile.from_data(im, train.x), s.theta)
    figure = Figure(figsize=(13, 2.6 * len(s.classes)), layout="constrained")
    axes = figure.subplots(
        len(s.classes), 1 + len(_OPERATIONS), squeeze=False, width_ratios=(1.2, 2, 2, 2, 2)
    )
    images = np.stack([test.x[int(np.argmax(test.y == target))] for target in s.classes])
    for row, target, image in zip(axes, s.classes, images, strict=True):
        one = slicer.slice(image[None], outputs=[target])
        plot_over_image(one.neurons[im.input_operation], image, row[0])
        row[0].set_title(f"a {target}, read row by row", fontsize=9)
        for axis, name in zip(row[1:], _OPERATIONS, strict=True):
            plot_over_time(one.neurons[name], name, axis)
    return ExperimentResult(
        [], [ExperimentFigure("over-time", figure)], views=_views(s, slicer, images)
    )


def _views(s: OverTimeSettings, slicer: Slicer, images: np.ndarray) -> list[ExperimentView]:
    """Return a view of the slices of the drawn images."""
    if s.explore is None:
        return []
    slices = slicer.slice_each(images, outputs="predicted")
    title = "Digits that an LSTM reads row by row"
    view = explore(slices, slicer.im, images, profile=slicer.profile, title=title)
    return [ExperimentView(s.explore, view)]
