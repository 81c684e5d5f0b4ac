"""Reports: plots of the analyses' results, and `nnslicer_tf.explore`'s interactive view.

Plots take `ax=None` and return the axes, or return a figure if they need several panels.
"""

from nnslicer_tf.report.exact import plot_boundary, plot_line, plot_plane, plot_regions, plot_ticks
from nnslicer_tf.report.figures import save_figure
from nnslicer_tf.report.inputs import plot_over_image, plot_over_time, plot_words
from nnslicer_tf.report.results import plot_bars, plot_coverage, plot_kept_synapses, plot_queries
from nnslicer_tf.report.slices import plot_neurons, plot_normal_and_adversarial, plot_slices

__all__ = [
    "plot_bars",
    "plot_boundary",
    "plot_coverage",
    "plot_kept_synapses",
    "plot_line",
    "plot_neurons",
    "plot_normal_and_adversarial",
    "plot_over_image",
    "plot_over_time",
    "plot_plane",
    "plot_queries",
    "plot_regions",
    "plot_slices",
    "plot_ticks",
    "plot_words",
    "save_figure",
]
