"""Draw slices of normal and adversarial inputs: the paper's Figure 2.

For correctly classified test images that an attack changes, the figures show the
slices of both inputs as pixels, the contributions of the input's pixels, and the synapses kept.
A table gives the neurons of each operation that are in only one of the two slices.
"""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection.attacks import generate
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import (
    plot_kept_synapses,
    plot_neurons,
    plot_normal_and_adversarial,
    plot_over_image,
)
from nnslicer_tf.report.figures import FIRST_ONLY, SECOND_ONLY
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.nnslicer.adversarial import attacks_on
from reproduction.nnslicer.settings import DrawingSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.views import view_of_pairs


def draw(s: DrawingSettings) -> ExperimentResult:
    """Slice pairs of inputs, draw the first pair, and measure where all differ (Figure 2)."""
    network = zoo.load(s.model, s.dataset)
    im = InstrumentedModel(network)
    # Normal inputs and their adversarial versions, for successful attacks.
    data = datasets.load(s.dataset, f"test[:{s.images}]")
    (spec,) = attacks_on(s.dataset, s.attack)
    made = generate(network, spec, data.x, data.y, rng=s.seed)
    if not made.success.any():
        raise InvalidArgumentError(f"{s.attack} changes none of the first {s.images} images.")
    inputs = data.x[made.success], made.x[made.success]
    profile = Profile.from_data(im, datasets.load(s.dataset, f"train[:{s.train}]").x)
    slicer = Slicer(im, profile, theta=s.theta, workers=0)
    sets = [slicer.slice_each(x, outputs="predicted") for x in inputs]
    rectified = [o.name for o in im.operations if o.kind == "rectify"]

    # Where the slices of the pairs differ.
    rows = []
    for name in rectified:
        columns = sets[0].neuron_columns([name])
        normal, adversarial = (found.neuron_matrix[:, columns].toarray() != 0 for found in sets)
        row = {
            "operation": name,
            "neurons": len(columns),
            "kept, normal": normal.sum(axis=1).mean(),
            "kept, adversarial": adversarial.sum(axis=1).mean(),
            "normal alone": (normal & ~adversarial).sum(axis=1).mean(),
            "adversarial alone": (adversarial & ~normal).sum(axis=1).mean(),
        }
        common = (normal & adversarial).sum() / max((normal | adversarial).sum(), 1)
        rows.append(row | {"common share": common})
    head = {
        "model": f"{s.model} on {s.dataset}, profile of {s.train} training images",
        "pairs": f"{len(inputs[0])} of the first {s.images} test images, changed by {s.attack}",
        "theta": s.theta,
        "seed": s.seed,
    }
    title = "Neurons of one operation in the slices of normal and of adversarial inputs, means"
    table = ExperimentTable(f"{s.model}-{s.dataset}", pd.DataFrame(rows), title, head)

    # What is drawn of the first pair: contributions of all layers; of one layer and the pixels,
    # and the shares of synapses that all slices keep.
    def of_first(operation: str) -> np.ndarray:
        return np.stack([found[0].neurons[operation] for found in sets])

    images = {"images": np.stack([x[0] for x in inputs])}
    names = datasets.load(s.dataset, "test[:1]").class_names
    predicted = np.array([names[found.predicted[0]] for found in sets])
    pair = images | {"predicted": predicted} | {name: of_first(name) for name in rectified}
    spatial = [name for name in rectified if len(im[name].shape) == 3][-1]
    parts = images | {"operation": np.array(spatial)}
    parts |= {"layer": of_first(spatial), "pixels": of_first(im.input_operation)}
    for kernel in sets[0].kernels:
        parts[f"kept/{kernel}"] = np.stack([found.kept_share(kernel) for found in sets])
    figures = [
        ExperimentFigure(table.name, plot_pair(pair), drawn=pair),
        ExperimentFigure(f"{table.name}-parts", plot_parts(parts), drawn=parts),
    ]
    return ExperimentResult([table], figures, views=view_of_pairs(s.explore, slicer, *inputs))


def plot_pair(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the first pair's neurons, operation by operation."""
    operations = [name for name in drawn if name not in ("images", "predicted")]
    slices = [SimpleNamespace(neurons={o: drawn[o][i] for o in operations}) for i in (0, 1)]
    images = drawn["images"][0], drawn["images"][1]
    figure = plot_normal_and_adversarial(slices[0], slices[1], operations, images)
    for axis, predicted in zip(figure.axes, drawn["predicted"], strict=False):
        axis.set_title(f"{axis.get_title()}, taken for “{predicted}”")
    sizes = [sum(np.count_nonzero(one.neurons[o]) for o in operations) for one in slices]
    put_finding(
        figure,
        f"The slice of the adversarial image has {sizes[1]:,} neurons, that of the normal one "
        f"{sizes[0]:,}",
    )
    return figure


def plot_parts(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw one layer unrolled, the contributions of the pixels, and the synapses kept."""
    figure = Figure(figsize=(9, 9), layout=ConstrainedLayoutEngine(w_pad=0.15))
    axes = figure.subplots(3, 2)
    for column, title in enumerate(("normal", "adversarial")):
        plot_neurons(drawn["layer"][column], 2, axes[0, column])
        axes[0, column].set_title(f"{title}: {drawn['operation']} in two rows", fontsize=9)
        plot_over_image(drawn["pixels"][column], drawn["images"][column], axes[1, column])
    wide = figure.add_subplot(axes[2, 0].get_gridspec()[2, :])
    for axis in axes[2]:
        axis.remove()
    kept = {key.removeprefix("kept/"): drawn[key] for key in drawn if key.startswith("kept/")}
    named = {  # in place of sets of slices
        name: SimpleNamespace(kernels=kept, kept_share=lambda kernel, i=i: kept[kernel][i])
        for i, name in enumerate(("normal inputs", "adversarial inputs"))
    }
    plot_kept_synapses(named, wide).set_title("mean and standard deviation", fontsize=9)
    series = [c for c in wide.containers if isinstance(c, BarContainer)]
    for bars, colour in zip(series, (FIRST_ONLY, SECOND_ONLY), strict=True):
        for bar in bars:
            bar.set_facecolor(np.array(colour) / 255)
    wide.legend(fontsize=8)
    gap = {name: float(np.subtract(*shares.mean(axis=1))) for name, shares in kept.items()}
    most = max(gap, key=lambda name: abs(gap[name]))
    put_finding(
        figure,
        f"Slices of normal and adversarial inputs differ most in {most}: "
        f"{kept[most][0].mean():.0%} and {kept[most][1].mean():.0%} of its synapses are kept",
    )
    return figure
