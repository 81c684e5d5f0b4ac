"""Charts of results: bars, ticks of exact lines, layers' errors, deviations."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import BLUE, RED, SKY, new_axes

MAX_CHANGES = 12  # Number of changed values of a table's row that are drawn


def plot_bars(
    table: pd.DataFrame, ax: Axes | None = None, spread: pd.DataFrame | None = None
) -> Axes:
    """Draw vertical bars, with a group for each row and a bar for each column.

    Args:
        table: Heights; the index names the groups, the columns the series.
        ax: Where to draw.
        spread: Half the length of every bar's error bar, of the table's shape.

    Raises:
        InvalidArgumentError: if the table is empty, or the spread has a different shape.
    """
    if table.empty:
        raise InvalidArgumentError("There is nothing to draw: the table is empty.")
    if spread is not None and spread.shape != table.shape:
        raise InvalidArgumentError(
            f"The spread must be of the table's shape {table.shape}. Received: {spread.shape}"
        )
    ax = new_axes(ax, (max(5, 0.6 * len(table)), 3.6))
    width = 0.8 / table.shape[1]
    for i, name in enumerate(table.columns):
        places = np.arange(len(table)) + i * width
        errors = None if spread is None else spread.iloc[:, i]
        ax.bar(places, table.iloc[:, i], width, label=name, yerr=errors)
    middle = (table.shape[1] - 1) * width / 2
    ax.set_xticks(np.arange(len(table)) + middle, table.index, rotation=40, ha="right")
    if table.shape[1] > 1:
        ax.legend(fontsize=8)
    return ax


def plot_kept_synapses(slices: Any, ax: Axes | None = None) -> Axes:
    """Draw the share of every kernel's synapses in a slice; of sets, mean ± standard deviation.

    Args:
        slices: A `Slice`, a `SliceSet`, or several by name, all of the same model.
        ax: Where to draw.

    Raises:
        InvalidArgumentError: if there are none, or they belong to different models.
    """
    named = slices if isinstance(slices, Mapping) else {"kept": slices}
    shares = {
        name: {kernel: np.array([np.mean(s != 0)]) for kernel, s in one.synapses.items()}
        if hasattr(one, "synapses")
        else {kernel: one.kept_share(kernel) for kernel in one.kernels}
        for name, one in named.items()
    }
    if len({tuple(of_kernels) for of_kernels in shares.values()}) != 1:
        raise InvalidArgumentError(
            "Give one slice or more, all of the same model: their kernels differ. "
            f"Received: {', '.join(shares) or 'none'}"
        )
    means = pd.DataFrame({n: {k: s.mean() for k, s in v.items()} for n, v in shares.items()})
    spread = pd.DataFrame({n: {k: s.std() for k, s in v.items()} for n, v in shares.items()})
    ax = plot_bars(means, ax, spread if spread.to_numpy().any() else None)
    ax.set(ylim=(0, 1), ylabel="share of synapses kept")
    return ax


def plot_ticks(lines: Mapping[str, Any], ax: Axes | None = None) -> Axes:
    """Draw lines below each other, to scale, each with a tick at every end of a part.

    Args:
        lines: Name → `LinearPartition`, starting at an image; at least one.
        ax: Where to draw.
    """
    if not lines:
        raise InvalidArgumentError("plot_ticks needs at least one line.")
    ax = new_axes(ax, (9, 0.7 + 0.4 * len(lines)))
    for row, line in enumerate(lines.values()):
        ax.hlines(-row, 0, line.length, color="#bdbdbd", linewidth=1)
        places = line.ratios * line.length
        ax.vlines(places, -row - 0.3, -row + 0.3, color="#08519c", linewidth=0.6)
    ax.set_yticks(-np.arange(len(lines)), [f"{k}: {len(v)} parts" for k, v in lines.items()])
    ax.set_xlabel("distance from the image (Euclidean)")
    for side in ("top", "right", "left"):
        ax.spines[side].set_visible(False)
    return ax


def errors_figure(frame: pd.DataFrame) -> Figure:
    """Draw, for each layer, the error made and passed on, and the deviation that it causes.

    `frame` has a row for each layer, from the input to the output, and columns "made", "passed",
    "cause" and "mended alone", as shares of 1. Raises InvalidArgumentError if it is empty.
    """
    if frame.empty:
        raise InvalidArgumentError("There is nothing to draw: the table has no layers.")
    places = np.arange(len(frame))
    figure = Figure(figsize=(8, max(2.5, 0.22 * len(frame) + 1)), layout="constrained")
    errors, causes = figure.subplots(1, 2, sharey=True)
    errors.barh(places - 0.2, 100 * frame["passed"], 0.4, label="passed on", color=SKY)
    errors.barh(places + 0.2, 100 * frame["made"], 0.4, label="made here", color=RED)
    errors.set_ylim(-0.8, len(frame) - 0.2)
    errors.set_yticks(places, frame.index, fontsize=8)
    errors.invert_yaxis()
    errors.set_xlabel("error, % of the activations")
    causes.barh(places, 100 * frame["cause"], 0.6, label="caused", color=BLUE)
    causes.plot(100 * frame["mended alone"], places, "k.", label="mended by this layer alone")
    causes.set_xlabel("% of the deviation, and of the samples")
    for axis in (errors, causes):
        axis.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
        axis.grid(axis="x", alpha=0.3)
    most = frame["cause"].idxmax()
    figure.suptitle(f"{most} causes {frame['cause'].max():.0%} of the deviation", fontsize=11)
    return figure


def deviations_figure(
    seeds: np.ndarray,
    images: np.ndarray,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[str] = (),
    scale: np.ndarray | None = None,
) -> Figure:
    """Return a figure with a row for each deviation: seed, mutant, change.

    Seeds and mutants (`images`) are images `(deviations, height, width, channels)` of values 0 …
    255, signals `(deviations, steps, channels)`, or rows of a table `(deviations, columns)` with
    names `features`. `rows` are those of `DeviationSet.to_frame`. `scale` is the range of each
    column of a table, or step of a signal of one channel.
    """
    are_images = seeds.ndim == 4
    figure = Figure(figsize=(6.6, 2.3 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 3 if are_images else 1, squeeze=False)
    for line, seed, image, row in zip(axes, seeds, images, rows, strict=True):
        answers = [
            f"{who}: {row[who]}" + (f" ({row[sure]:.0%})" if sure in row else "")
            for who, sure in (("original", "confidence"), ("compressed", "compressed confidence"))
        ]
        true = f", a {row['true label']}" if "true label" in row else ""
        if are_images:
            for axis, picture in zip(line, (seed, image), strict=False):
                if picture.shape[-1] == 1:
                    axis.imshow(picture[..., 0], cmap="gray", vmin=0, vmax=255)
                else:
                    axis.imshow(np.clip(picture, 0, 255).astype(np.uint8))
            change = image.astype(float).mean(axis=-1) - seed.astype(float).mean(axis=-1)
            most = np.abs(change).max() or 1
            line[2].imshow(change, cmap="RdBu", vmin=-most, vmax=most)
            distances = f"L∞ {row['L∞']:.0f}, L2 {row['L2']:.0f}"
            if not np.isnan(row.get("SSIM", np.nan)):
                distances += f", SSIM {row['SSIM']:.2f}"
            line[0].set_title(f"seed {row['seed']}{true}", fontsize=9)
            line[1].set_title("\n".join(answers), fontsize=8)
            line[2].set_title(distances, fontsize=8)
            for axis in line:
                axis.set_axis_off()
            continue
        ax = line[0]
        ax.set_title(f"seed {row['seed']}{true}; {', '.join(answers)}", fontsize=8)
        if scale is None or len(scale) >= 1000:
            ax.plot(seed.reshape(len(seed), -1), color="0.6", linewidth=2)
            ax.plot(image.reshape(len(image), -1), linewidth=0.8)
            continue
        # Bars of the values that changed most, relative to their ranges.
        change = (image - seed) / np.where(scale > 0, scale, 1)
        columns = np.argsort(-np.abs(change), kind="stable")[:MAX_CHANGES]
        columns = columns[change[columns] != 0][::-1]
        names = [features[c] if features else f"column {c}" for c in columns]
        labels = [
            f"{n}: {seed[c]:.4g} → {image[c]:.4g}" for n, c in zip(names, columns, strict=True)
        ]
        ax.barh(labels, change[columns], color=np.where(change[columns] > 0, "C0", "C3"))
        ax.axvline(0, color="0.5", linewidth=0.8)
        ax.tick_params(labelsize=7)
    caption = {
        4: "seed, mutant, change (blue: brighter, red: darker)",
        3: "grey: seed; coloured: mutant; over the steps",
        2: "changed values: difference from the seed, as a share of the range in all seeds",
    }[seeds.ndim]
    figure.supxlabel(caption, fontsize=9)
    return figure
