"""Integrated gradients averaged over a polygon of baselines, exactly and by sampling."""

from collections.abc import Mapping

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import Attributor, exact_plane, integrated_gradients
from nnslicer_tf.exactline.plane import rectangle
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.report import plot_over_image
from reproduction.exactline.measures import relative_error
from reproduction.exactline.settings import BaselineSettings
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable

COUNTS = (1, 10, 100)
"""Numbers of sampled baselines with which the exact mean is compared."""


def baselines(s: BaselineSettings) -> ExperimentResult:
    """Compare the exact mean over a polygon of baselines with sample means."""
    data = datasets.load("digits", f"test[:{s.images}]")
    im = InstrumentedModel(zoo.load("digits_cnn"))
    attributor = Attributor(im)
    rng = as_generator(s.seed)
    rows: list[dict[str, object]] = []
    drawn: dict[str, np.ndarray] = {}
    for i in track(range(len(data)), "Images", len(data)):
        x = np.asarray(data.x[i], np.float64)
        # The corners of the square of baselines of an image.
        noise = rng.normal(size=x.shape)
        noise -= (noise * x).sum() / (x * x).sum() * x
        noise *= np.linalg.norm(x) / np.linalg.norm(noise)
        corners = rectangle(x / 2, x / 2, noise / 2)
        target = int(im.logits(data.x[i : i + 1])[0].argmax())
        exact = integrated_gradients(im, x, corners, target)
        mean = exact_plane(im, corners).integrate()[target]
        change = attributor.walker.line(x, corners[0]).outputs[0, target] - mean
        row: dict[str, object] = {"image": i, "target": target}
        row["completeness_error"] = abs(exact.sum() - change)
        sides = corners[1] - corners[0], corners[3] - corners[0]
        places = rng.random((max(COUNTS), 2))
        points = [corners[0] + a * sides[0] + b * sides[1] for a, b in places]
        sampled = np.stack([attributor.exact(x, point, target) for point in points])
        for count in COUNTS:
            some = sampled[:count].mean(axis=0)
            row[f"error_percent_{count}"] = 100 * relative_error(some, exact)
        black = attributor.exact(x, np.zeros_like(x), target)
        row["error_percent_black"] = 100 * relative_error(black, exact)
        rows.append(row)
        drawn = drawn or {"image": x, "exact": exact, "black": black, "one": sampled[0]}
    table = pd.DataFrame(rows)
    title = "Integrated gradients averaged over a square of baselines"
    head = {"network": "digits_cnn", "images": s.images, "seed": s.seed}
    summary = table.drop(columns=["image", "target"]).agg(["mean", "max"]).reset_index(names="of")
    return ExperimentResult(
        [
            ExperimentTable("baselines_images", table),
            ExperimentTable("baselines", summary, title, head, _TEXT),
        ],
        [ExperimentFigure("baselines", plot(drawn), drawn=drawn)],
    )


_TEXT = (
    "The baselines fill a square in one plane with the image: from the image to black, and as far "
    "in a random direction, half to either side. The "
    "exact mean against means over 1, 10 and 100 random baselines of the square, each with exact "
    "integrated gradients, and against black alone; errors as in table 1 of ExactLine."
)


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw attributions for an image: `exact`, from `black`, and from `one` baseline."""
    figure = Figure(figsize=(9, 3.2), layout="constrained")
    titles = {
        "exact": "mean over the square, exact",
        "black": "one baseline: black",
        "one": "one baseline of the square",
    }
    for ax, (key, title) in zip(figure.subplots(1, 3), titles.items(), strict=True):
        plot_over_image(drawn[key], drawn["image"], ax)
        ax.set_title(title, fontsize=9)
    black, one = (
        float(np.corrcoef(drawn[key].ravel(), drawn["exact"].ravel())[0, 1])
        for key in ("black", "one")
    )
    put_finding(
        figure,
        f"Attributions from black correlate by {black:.2f} with the mean over a square of "
        f"baselines, from one of them by {one:.2f} (blue: for the class, red: against it)",
    )
    return figure
