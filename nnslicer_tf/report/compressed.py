"""Pictures of compressed models: each layer's errors, and their effects."""

from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.palette import METHODS

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.figure import Figure

_MADE, _PASSED, _CAUSE = METHODS["Weight"], METHODS["NNSlicer (all)"], METHODS["NNSlicer"]


def errors_figure(frame: "pd.DataFrame") -> "Figure":
    """Draw, for each layer, the error made and passed on, and the deviation that it causes.

    Args:
        frame: A row for each layer, indexed by its name, from the input to the output; columns
            "made", "passed", "cause" and "mended alone", as shares of 1.

    Raises:
        InvalidArgumentError: if there is no layer.
    """
    from matplotlib.figure import Figure

    if frame.empty:
        raise InvalidArgumentError("There is nothing to draw: the table has no layers.")
    places = np.arange(len(frame))
    figure = Figure(figsize=(8, max(2.5, 0.22 * len(frame) + 1)), layout="constrained")
    errors, causes = figure.subplots(1, 2, sharey=True)
    errors.barh(places - 0.2, 100 * frame["passed"], 0.4, label="passed on", color=_PASSED)
    errors.barh(places + 0.2, 100 * frame["made"], 0.4, label="made here", color=_MADE)
    errors.set_ylim(-0.8, len(frame) - 0.2)
    errors.set_yticks(places, frame.index, fontsize=8)
    errors.invert_yaxis()
    errors.set_xlabel("error, % of the activations")
    errors.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    causes.barh(places, 100 * frame["cause"], 0.6, label="caused", color=_CAUSE)
    causes.plot(100 * frame["mended alone"], places, "k.", label="mended by this layer alone")
    causes.set_xlabel("% of the deviation, and of the samples")
    causes.legend(fontsize=8, loc="lower right", bbox_to_anchor=(1, 1), ncols=2, frameon=False)
    for axis in (errors, causes):
        axis.grid(axis="x", alpha=0.3)
    most = frame["cause"].idxmax()
    figure.suptitle(f"{most} causes {frame['cause'].max():.0%} of the deviation", fontsize=11)
    return figure
