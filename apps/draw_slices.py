"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2.

    python apps/draw_slices.py
    python apps/draw_slices.py --model resnet10 --dataset cifar10

Of the first test images that the model classifies rightly and an attack changes: the
slices of both inputs as pixels, what the pixels of the input contribute, and the synapses
kept. A table says how many neurons of each operation are in one of the two slices alone.
"""

from pathlib import Path
from typing import Annotated

import matplotlib
import numpy as np
import pandas as pd
import typer

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._files import check_writable, data_folder
from nnslicer_tf.detection.attacks import ATTACKS, MNIST_ATTACKS, find_attack, generate
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import (
    plot_kept_synapses,
    plot_normal_and_adversarial,
    plot_over_image,
    plot_unrolled,
    provenance,
    save_figure,
    write_table,
)

matplotlib.use("Agg")


def main(
    model: Annotated[str, typer.Option(help="Model of the zoo.")] = "lenet5",
    dataset: Annotated[str, typer.Option(help="Its data set, in 0 … 1.")] = "mnist",
    attack: Annotated[str, typer.Option(help="Name of the attack.")] = "FGSM_8",
    images: Annotated[int, typer.Option(help="Pairs to measure on.", min=1)] = 100,
    train: Annotated[int, typer.Option(help="Images of the profile.", min=1)] = 10_000,
    theta: Annotated[float, typer.Option(help="Threshold of the slices.", min=0)] = 0.3,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    results: Annotated[Path | None, typer.Option(help="Folder of table and pictures.")] = None,
    quick: Annotated[bool, typer.Option(help="Few images; a trial.")] = False,
) -> None:
    """Slice pairs of inputs; draw the first, and measure where all differ."""
    if quick:
        images, train = 10, 500
    folder = results or (Path("runs/slices") if quick else data_folder() / "results" / "slices")
    path = check_writable(folder / f"{model}-{dataset}.csv").with_suffix("")
    network = zoo.load(model, dataset)
    im = nns.InstrumentedModel(network)
    normal, adversarial = _pairs(network, dataset, attack, images, seed)
    profile = nns.Profile.from_data(im, datasets.load(dataset, f"train[:{train}]").x)
    slicer = nns.Slicer(im, profile, theta=theta, workers=0)
    sets = [slicer.slice_each(x, outputs="predicted") for x in (normal, adversarial)]

    rectified = [o.name for o in im.operations if o.kind == "rectify"]
    head = provenance(
        model=f"{model} on {dataset}, profile of {train} training images",
        pairs=f"{len(normal)} of the first {images} test images, changed by {attack}",
        theta=theta,
        seed=seed,
    )
    title = "Neurons of one operation in the slices of normal and of adversarial inputs, means"
    write_table(path, title, _differences(*sets, rectified), head)
    pair = [of_inputs[0] for of_inputs in sets]
    shown = plot_normal_and_adversarial(*pair, rectified, (normal[0], adversarial[0]))
    for axis, of_inputs in zip(shown.axes, sets, strict=False):
        axis.set_title(f"{axis.get_title()}, taken for a {of_inputs.predicted[0]}")
    save_figure(shown, f"{path}.png")
    layer = [name for name in rectified if len(im[name].shape) == 3][-1]
    _draw_parts(pair, sets, (normal[0], adversarial[0]), layer, im, f"{path}-parts.png")
    print(f"written: {path}.csv, .md, .png, {path.name}-parts.png")


def _pairs(
    network: object, dataset: str, attack: str, images: int, seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """Return normal inputs and what the attack made of them, of the pairs that succeeded."""
    data = datasets.load(dataset, f"test[:{images}]")
    spec = find_attack(attack, ATTACKS if dataset == "cifar10" else MNIST_ATTACKS)
    made = generate(network, spec, data.x, data.y, rng=seed)
    if not made.success.any():
        raise InvalidArgumentError(f"{attack} changes none of the first {images} images.")
    return data.x[made.success], made.x[made.success]


def _differences(
    normal: nns.SliceSet, adversarial: nns.SliceSet, operations: list[str]
) -> pd.DataFrame:
    rows = []
    for name in operations:
        columns = normal.neuron_columns([name])
        kept = [s.neuron_matrix[:, columns].toarray() != 0 for s in (normal, adversarial)]
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


def _draw_parts(
    pair: list[nns.Slice],
    sets: list[nns.SliceSet],
    images: tuple[np.ndarray, np.ndarray],
    operation: str,
    im: nns.InstrumentedModel,
    path: str,
) -> None:
    """Draw one layer unrolled, the contributions of the pixels, and the synapses kept."""
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(3, 2, figsize=(9, 9), layout="constrained")
    figure.get_layout_engine().set(w_pad=0.15)
    for column, title in enumerate(("normal", "adversarial")):
        one = pair[column]
        plot_unrolled(one.neurons[operation], 2, axes[0, column])
        axes[0, column].set_title(f"{title}: {operation} in two rows", fontsize=9)
        plot_over_image(one.neurons[im.input_operation], images[column], axes[1, column])
    wide = figure.add_subplot(axes[2, 0].get_gridspec()[2, :])
    for axis in axes[2]:
        axis.remove()
    named = dict(zip(("normal inputs", "adversarial inputs"), sets, strict=True))
    plot_kept_synapses(named, wide).set_title("mean and standard deviation", fontsize=9)
    save_figure(figure, path)


if __name__ == "__main__":
    typer.run(main)
