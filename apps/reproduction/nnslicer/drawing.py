"""Draw slices: normal and adversarial inputs (the paper's Figure 2), time, patches and heads.

`draw`: for correctly classified test images that an attack changes, figures show the slices of both
inputs as pixels, the contributions of the input's pixels, and the synapses kept. A table gives the
neurons of each operation that are in only one of the two slices.
"""

from collections.abc import Mapping
from types import SimpleNamespace

import numpy as np
import pandas as pd
from matplotlib.container import BarContainer
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from nnslicer_tf import datasets, report
from nnslicer_tf.datasets.named import CLASSES
from nnslicer_tf.detection.attacks import generate
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report.figures import FIRST_ONLY, SECOND_ONLY
from nnslicer_tf.slicing import Profile, Slice, Slicer
from reproduction.nnslicer.detection import attacks_on, view_of_pairs
from reproduction.nnslicer.settings import DrawingSettings, OverTimeSettings, PatchSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.zoo.models import zoo


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
        parts = {"kept, normal": normal, "kept, adversarial": adversarial}
        parts |= {"normal alone": normal & ~adversarial, "adversarial alone": adversarial & ~normal}
        row = {"operation": name, "neurons": len(columns)}
        row |= {what: marks.sum(axis=1).mean() for what, marks in parts.items()}
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
    return ExperimentResult([table], figures, view=lambda: view_of_pairs(slicer, [inputs]))


def plot_pair(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the first pair's neurons, operation by operation."""
    operations = [name for name in drawn if name not in ("images", "predicted")]
    slices = [SimpleNamespace(neurons={o: drawn[o][i] for o in operations}) for i in (0, 1)]
    named, images = (
        dict(zip(("normal", "adversarial"), pair, strict=False))
        for pair in (slices, drawn["images"])
    )
    figure = report.plot_slices(named, operations, images, difference=True)
    for axis, predicted in zip(figure.axes, drawn["predicted"], strict=False):
        axis.set_title(f"{axis.get_title()}, taken for “{predicted}”")
    sizes = [sum(np.count_nonzero(one.neurons[o]) for o in operations) for one in slices]
    return put_finding(
        figure,
        f"The slice of the adversarial image has {sizes[1]:,} neurons, that of the normal one "
        f"{sizes[0]:,}",
    )


def plot_parts(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw one layer unrolled, the contributions of the pixels, and the synapses kept."""
    figure = Figure(figsize=(9, 9), layout=ConstrainedLayoutEngine(w_pad=0.15))
    axes = figure.subplots(3, 2)
    for column, title in enumerate(("normal", "adversarial")):
        rows = drawn["layer"][column].reshape(2, -1, 1)  # in C order, as in the paper
        report.plot_neurons(rows, axes[0, column]).set_aspect("auto")
        axes[0, column].set_title(f"{title}: {drawn['operation']} in two rows", fontsize=9)
        report.plot_over_image(drawn["pixels"][column], drawn["images"][column], axes[1, column])
    wide = figure.add_subplot(axes[2, 0].get_gridspec()[2, :])
    for axis in axes[2]:
        axis.remove()
    kept = {key.removeprefix("kept/"): drawn[key] for key in drawn if key.startswith("kept/")}
    named = {  # in place of sets of slices
        name: SimpleNamespace(kernels=kept, kept_share=lambda kernel, i=i: kept[kernel][i])
        for i, name in enumerate(("normal inputs", "adversarial inputs"))
    }
    report.plot_kept_synapses(named, wide).set_title("mean and standard deviation", fontsize=9)
    series = [c for c in wide.containers if isinstance(c, BarContainer)]
    for bars, colour in zip(series, (FIRST_ONLY, SECOND_ONLY), strict=True):
        for bar in bars:
            bar.set_facecolor(np.array(colour) / 255)
    wide.legend(fontsize=8)
    gap = {name: float(np.subtract(*shares.mean(axis=1))) for name, shares in kept.items()}
    most = max(gap, key=lambda name: abs(gap[name]))
    return put_finding(
        figure,
        f"Slices of normal and adversarial inputs differ most in {most}: "
        f"{kept[most][0].mean():.0%} and {kept[most][1].mean():.0%} of its synapses are kept",
    )


_OPERATIONS = {"lstm:i": "input gate", "lstm:f": "forget gate"}
_OPERATIONS |= {"lstm:c": "cell state", "lstm:h": "hidden state"}


def draw_over_time(s: OverTimeSettings) -> ExperimentResult:
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
    return ExperimentResult([], [ExperimentFigure("over-time", plot_states(drawn), drawn=drawn)])


def plot_states(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the contributions of `pixels`, gates and states over time, one row per image."""
    count = len(drawn["classes"])
    figure = Figure(figsize=(8.8, 2.2 * count + 0.4), layout="constrained")
    axes = figure.subplots(
        count, 1 + len(_OPERATIONS), squeeze=False, width_ratios=(1.6, 2, 2, 2, 2)
    )
    for i, row in enumerate(axes):
        report.plot_over_image(drawn["pixels"][i], drawn["images"][i], row[0])
        row[0].set_title(f"a {drawn['classes'][i]}", fontsize=9)
        for axis, (name, title) in zip(row[1:], _OPERATIONS.items(), strict=True):
            report.plot_over_time(drawn[name][i], title, axis)
            axis.set(xlabel="row of the image", ylabel="")
            axis.tick_params(labelsize=8)
        row[1].set_ylabel("unit")
    first = min(int(np.nonzero(states.any(axis=1))[0][0]) for states in drawn["lstm:h"])
    return put_finding(
        figure,
        f"Contributions to the state of an LSTM begin with row {first} of the image "
        "(blue: for the class, red: against it)",
    )


_CANDIDATES = 500  # test images, of which the first recognised one of each class is drawn


def draw_patches(s: PatchSettings) -> ExperimentResult:
    """Slice images of a vision transformer; draw_patches contributions of patches and of heads."""
    train, test = datasets.load("cifar10", f"train[:{s.train}]"), datasets.load("cifar10", "test")
    im = InstrumentedModel(zoo.load("vit", "cifar10"))
    slicer = Slicer(im, Profile.from_data(im, train.x), s.theta, product="midpoint")
    first = test.x[:_CANDIDATES]
    right = im.logits(first).argmax(axis=1) == test.y[:_CANDIDATES]
    chosen = [int(np.argmax(right & (test.y[:_CANDIDATES] == target))) for target in s.classes]
    images = first[chosen]
    slices = [slicer.slice(x[None], [target]) for x, target in zip(images, s.classes, strict=True)]
    drawn = {"theta": np.array(s.theta), "classes": np.array(s.classes), "images": images}
    drawn["patches"] = np.stack([over_pixels(one, im, images.shape[1:]) for one in slices])
    drawn["heads"] = np.stack([of_heads(one, im) for one in slices])
    return ExperimentResult([], [ExperimentFigure("patches", plot_patches(drawn), drawn=drawn)])


def plot_patches(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw images and the contributions of their patches and of the heads, one column per image."""
    count, heads = len(drawn["classes"]), drawn["heads"]
    largest = np.abs(heads).max()
    figure = Figure(figsize=(1.75 * count, 6), layout="constrained")
    axes = figure.subplots(3, count, squeeze=False)
    parts = (drawn[key] for key in ("classes", "images", "patches", "heads"))
    for (above, middle, below), target, image, patches, own in zip(axes.T, *parts, strict=True):
        above.imshow(image)
        above.set_title(CLASSES["cifar10"][target], fontsize=9)
        above.set_axis_off()
        report.plot_over_image(patches, image, middle)
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
    return put_finding(
        figure,
        f"A vision transformer's heads of block {sizes.argmax() + 1} have "
        f"{sizes.max() / sizes.sum():.0%} of the contributions (θ = {drawn['theta']:g}; blue: for "
        "the class, red: against it)",
    )


def over_pixels(one: Slice, im: InstrumentedModel, shape: tuple[int, ...]) -> np.ndarray:
    """Return each patch's total contribution at its pixels, of an image's `shape` (h, w, c)."""
    height, width = im["patches"].shape[:2]
    by_patch = one.neurons["sequence"].sum(axis=-1).reshape(height, width)
    return np.kron(by_patch, np.ones((shape[0] // height, shape[1] // width)))


def of_heads(one: Slice, im: InstrumentedModel) -> np.ndarray:
    """Return the contributions of the heads' outputs, summed over positions, (blocks, heads)."""
    contexts = [o.name for o in im.operations if o.name.endswith("/context")]
    return np.stack([one.neurons[name].sum(axis=(0, 2)) for name in contexts])
