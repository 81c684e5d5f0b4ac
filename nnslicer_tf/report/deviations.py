"""Deviations as pictures: the seed, the mutant, and the change."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_MAX_BARS = 12


def deviations_figure(
    seeds: np.ndarray,
    images: np.ndarray,
    rows: Sequence[Mapping[str, Any]],
    features: Sequence[str] = (),
    scale: np.ndarray | None = None,
) -> "Figure":
    """Return a figure with a row for each deviation: seed, mutant, change.

    Args:
        seeds: Images `(deviations, height, width, channels)` of values 0 … 255, signals
            `(deviations, steps, channels)`, or rows of a table `(deviations, columns)`.
        images: The mutants, of the same shape.
        rows: For each, the entries of `DeviationSet.to_frame`: original, compressed, confidence,
            L∞, L2 …
        features: Names of a table's columns.
        scale: The range of each column of a table, or step of a signal of one channel.
    """
    from matplotlib.figure import Figure

    columns = 3 if seeds.ndim == 4 else 1
    figure = Figure(figsize=(6.6, 2.3 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for line, seed, image, row in zip(axes, seeds, images, rows, strict=True):
        answers = [
            f"{who}: {row[who]}" + (f" ({row[sure]:.0%})" if sure in row else "")
            for who, sure in (("original", "confidence"), ("compressed", "compressed confidence"))
        ]
        true = f", a {row['true label']}" if "true label" in row else ""
        similarity = f", SSIM {row['SSIM']:.2f}" if not np.isnan(row.get("SSIM", np.nan)) else ""
        if columns == 3:
            left, middle, right = line
            _show(left, seed)
            _show(middle, image)
            change = image.astype(float).mean(axis=-1) - seed.astype(float).mean(axis=-1)
            most = np.abs(change).max() or 1
            right.imshow(change, cmap="RdBu", vmin=-most, vmax=most)
            left.set_title(f"seed {row['seed']}{true}", fontsize=9)
            middle.set_title("\n".join(answers), fontsize=8)
            right.set_title(f"L∞ {row['L∞']:.0f}, L2 {row['L2']:.0f}{similarity}", fontsize=8)
            for axis in line:
                axis.set_axis_off()
            continue
        line[0].set_title(f"seed {row['seed']}{true}; {', '.join(answers)}", fontsize=8)
        if scale is not None and len(scale) < 1000:
            _bars(line[0], seed, image, features, scale)
        else:
            line[0].plot(seed.reshape(len(seed), -1), color="0.6", linewidth=2)
            line[0].plot(image.reshape(len(image), -1), linewidth=0.8)
    caption = {
        4: "seed, mutant, change (blue: brighter, red: darker)",
        3: "grey: seed; coloured: mutant; over the steps",
        2: "changed values: difference from the seed, as a share of the range in all seeds",
    }[seeds.ndim]
    figure.supxlabel(caption, fontsize=9)
    return figure


def _bars(
    ax: "Axes", seed: np.ndarray, row: np.ndarray, features: Sequence[str], scale: np.ndarray
) -> None:
    """Draw the values of a table's row that changed most."""
    change = (row - seed) / np.where(scale > 0, scale, 1)
    columns = np.argsort(-np.abs(change), kind="stable")[:_MAX_BARS]
    columns = columns[change[columns] != 0][::-1]
    names = [features[c] if features else f"column {c}" for c in columns]
    labels = [f"{n}: {seed[c]:.4g} → {row[c]:.4g}" for n, c in zip(names, columns, strict=True)]
    ax.barh(labels, change[columns], color=np.where(change[columns] > 0, "C0", "C3"))
    ax.axvline(0, color="0.5", linewidth=0.8)
    ax.tick_params(labelsize=7)


def _show(ax: "Axes", image: np.ndarray) -> None:
    if image.shape[-1] == 1:
        ax.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255)
    else:
        ax.imshow(np.clip(image, 0, 255).astype(np.uint8))
