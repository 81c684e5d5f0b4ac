"""Charts of results: synapses that are kept, and layers' errors."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.figures import BLUE, RED, SKY, new_axes


def plot_kept_synapses(slices: Any, ax: Axes | None = None) -> Axes:
    """Draw the share of every kernel's synapses in a slice; of sets, mean ± standard deviation.

    `slices` are a `Slice`, a `SliceSet`, or several by name, all of the same model.

    Raises InvalidArgumentError if there are none, some without synapses, or of different models.
    """
    named = slices if isinstance(slices, Mapping) else {"kept": slices}
    for name, one in named.items():
        if not hasattr(one, "synapses") and not hasattr(one, "kept_share"):
            raise InvalidArgumentError(f"{name} must be a Slice or a SliceSet. Received: {one!r}")
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
    if not all(shares.values()):
        raise InvalidArgumentError("These slices hold no synapses: plot_neurons draws neurons.")
    means = pd.DataFrame({n: {k: s.mean() for k, s in v.items()} for n, v in shares.items()})
    spread = pd.DataFrame({n: {k: s.std() for k, s in v.items()} for n, v in shares.items()})
    ax = new_axes(ax, (max(5, 0.6 * len(means)), 3.6))
    errors = spread if spread.to_numpy().any() else None
    means.plot.bar(ax=ax, yerr=errors, width=0.8, rot=40, legend=len(named) > 1)
    ax.set(ylim=(0, 1), ylabel="share of synapses kept")
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
