"""Slices of a recurrent network: contributions over time."""

import numpy as np
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf.experiments.nnslicer.settings import OverTimeSettings
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image, plot_over_time
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
    for row, target in zip(axes, s.classes, strict=True):
        image = test.x[int(np.argmax(test.y == target))][None]
        one = slicer.slice(image, outputs=[target])
        plot_over_image(one.neurons[im.input_operation], image[0], row[0])
        row[0].set_title(f"a {target}, read row by row", fontsize=9)
        for axis, name in zip(row[1:], _OPERATIONS, strict=True):
            plot_over_time(one.neurons[name], name, axis)
    return ExperimentResult([], [ExperimentFigure("over-time", figure)])
