"""Deviations as pictures: the seed, the mutant, and the change."""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def deviations_figure(
    seeds: np.ndarray, images: np.ndarray, rows: Sequence[Mapping[str, Any]]
) -> "Figure":
    """Return a figure with a row for each deviation: seed, mutant, change.

    Args:
        seeds: `(deviations, height, width, channels)`, values 0 … 255.
        images: The mutants, of the same shape.
        rows: For each, the entries of `DeviationSet.to_frame`: original, compressed, confidence,
            L∞, SSIM …
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6.6, 2.3 * len(rows)), layout="constrained")
    axes = figure.subplots(len(rows), 3, squeeze=False)
    for (left, middle, right), seed, image, row in zip(axes, seeds, images, rows, strict=True):
        _show(left, seed)
        true = f", a {row['true label']}" if "true label" in row else ""
        left.set_title(f"seed {row['seed']}{true}", fontsize=9)
        _show(middle, image)
        middle.set_title(_answers(row), fontsize=8)
        change = image.astype(float).mean(axis=-1) - seed.astype(float).mean(axis=-1)
        most = np.abs(change).max() or 1
        right.imshow(change, cmap="RdBu", vmin=-most, vmax=most)
        right.set_title(_distances(row), fontsize=8)
        for axis in (left, middle, right):
            axis.set_axis_off()
    figure.supxlabel("seed, mutant, change (blue: brighter, red: darker)", fontsize=9)
    return figure


def _distances(row: Mapping[str, Any]) -> str:
    similarity = "" if np.isnan(row["SSIM"]) else f", SSIM {row['SSIM']:.2f}"
    return f"L∞ {row['L∞']:.0f}, L2 {row['L2']:.0f}{similarity}"


def _answers(row: Mapping[str, Any]) -> str:
    of = (("original", "original", "confidence"), ("compressed",) * 2 + ("compressed confidence",))
    lines = []
    for title, label, confidence in of:
        sure = f" ({row[confidence]:.0%})" if confidence in row else ""
        lines.append(f"{title}: {row[label]}{sure}")
    return "\n".join(lines)


def _show(ax: "Axes", image: np.ndarray) -> None:
    if image.shape[-1] == 1:
        ax.imshow(image[..., 0], cmap="gray", vmin=0, vmax=255)
    else:
        ax.imshow(np.clip(image, 0, 255).astype(np.uint8))
