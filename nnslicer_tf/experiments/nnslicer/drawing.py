"""Slices of normal and adversarial inputs, drawn: the paper's Figure 2.

For test images that the model classifies correctly and an attack changes, the figures show the
slices of both inputs as pixels, the contributions of the input's pixels, and the synapses kept.
A table gives the neurons of each operation that are in only one of the two slices.
"""

from collections.abc import Sequence

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection.attacks import ATTACKS, MNIST_ATTACKS, find_attack, generate
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.experiments.nnslicer.settings import DrawingSettings
from nnslicer_tf.experiments.nnslicer.views import view_of_pairs
from nnslicer_tf.experiments.result import ExperimentFigure, ExperimentResult, ExperimentTable
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import (
    plot_kept_synapses,
    plot_normal_and_adversarial,
    plot_over_image,
    plot_unrolled,
)
from nnslicer_tf.slicing import Profile, Slicer, SliceSet

Images = tuple[np.ndarray, np.ndarray]


def draw(s: DrawingSettings) -> ExperimentResult:
    """Slice pairs of inputs, draw the first pair, and measure where all differ (Figure 2)."""
    network = zoo.load(s.model, s.dataset)
    im = InstrumentedModel(network)
    inputs = _pairs(network, s)
    profile = Profile.from_data(im, datasets.load(s.dataset, f"train[:{s.train}]").x)
    slicer = Slicer(im, profile, theta=s.theta, workers=0)
    sets = [slicer.slice_each(x, outputs="predicted") for x in inputs]
    rectified = [o.name for o in im.operations if o.kind == "rectify"]
    head = {
        "model": f"{s.model} on {s.dataset}, profile of {s.train} training images",
        "pairs": f"{len(inputs[0])} of the first {s.images} test images, changed by {s.attack}",
        "theta": s.theta,
        "seed": s.seed,
    }
    title = "Neurons of one operation in the slices of normal and of adversarial inputs, means"
    name, images = f"{s.model}-{s.dataset}", (inputs[0][0], inputs[1][0])
    spatial = [operation for operation in rectified if len(im[operation].shape) == 3][-1]
    return ExperimentResult(
        [ExperimentTable(name, _differences(sets[0], sets[1], rectified), title, head)],
        [
            ExperimentFigure(name, _plot_pair(sets, rectified, images)),
            ExperimentFigure(f"{name}-parts", _plot_parts(sets, images, spatial, im)),
        ],
        views=view_of_pairs(s.explore, slicer, *inputs),
    )


def _pairs(network: keras.Model, s: DrawingSettings) -> Images:
    """Return normal inputs and their adversarial versions, where the attack succeeded."""
    data = datasets.load(s.dataset, f"test[:{s.images}]")
    spec = find_attack(s.attack, ATTACKS if s.dataset == "cifar10" else MNIST_ATTACKS)
    made = generate(network, spec, data.x, data.y, rng=s.seed)
    if not made.success.any():
        raise InvalidArgumentError(f"{s.attack} changes none of the first {s.images} images.")
    return data.x[made.success], made.x[made.success]


def _differences(
    normal: SliceSet, adversarial: SliceSet, operations: Sequence[str]
) -> pd.DataFrame:
    rows = []
    before, after = normal.neuron_matrix, adversarial.neuron_matrix
    assert before is not None and after is not None  # `slice_each` keeps neurons
    for name in operations:
        columns = normal.neuron_columns([name])
        kept = [matrix[:, columns].toarray() != 0 for matrix in (before, after)]
        both, either = kept[0] & kept[1], kept[0] | kept[1]
        rows.append(
            {
                "operation": name,
                "neurons": len(columns),
                "kept, normal": kept[0].sum(axis=1).mean(),
                "kept, adversarial": kept[1].sum(axis=1).mean(),
                "normal alone": (kept[0] & ~kept[1]).sum(axis=1).mean(),
                "adversarial alone": (kept[1] & ~kept[0]).sum(axis=1).mean(),
                "common share": both.sum() / max(either.sum(), 1),
            }
        )
    return pd.DataFrame(rows)


def _plot_pair(sets: list[SliceSet], operations: Sequence[str], images: Images) -> Figure:
    """Draw the first pair's neurons, operation by operation."""
    figure = plot_normal_and_adversarial(sets[0][0], sets[1][0], operations, images)
    for axis, of_inputs in zip(figure.axes, sets, strict=False):
        axis.set_title(f"{axis.get_title()}, taken for a {of_inputs.predicted[0]}")
    return figure


def _plot_parts(
    sets: list[SliceSet], images: Images, operation: str, im: InstrumentedModel
) -> Figure:
    """Draw one layer unrolled, the contributions of the pixels, and the synapses kept."""
    figure = Figure(figsize=(9, 9), layout=ConstrainedLayoutEngine(w_pad=0.15))
    axes = figure.subplots(3, 2)
    for column, title in enumerate(("normal", "adversarial")):
        one = sets[column][0]
        plot_unrolled(one.neurons[operation], 2, axes[0, column])
        axes[0, column].set_title(f"{title}: {operation} in two rows", fontsize=9)
        plot_over_image(one.neurons[im.input_operation], images[column], axes[1, column])
    wide = figure.add_subplot(axes[2, 0].get_gridspec()[2, :])
    for axis in axes[2]:
        axis.remove()
    named = dict(zip(("normal inputs", "adversarial inputs"), sets, strict=True))
    plot_kept_synapses(named, wide).set_title("mean and standard deviation", fontsize=9)
    return figure
