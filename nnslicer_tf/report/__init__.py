"""Reports: plots of the analyses' results, tables, and pages of both.

Plots take `ax=None` and return the axes, or return a figure if they need several
panels. `pages` puts tables and pictures on one page; `explorer` is an interactive view.
"""

from nnslicer_tf.report.bars import plot_bars, plot_coverage, plot_kept_synapses
from nnslicer_tf.report.curves import SPREADS, plot_curves, plot_queries
from nnslicer_tf.report.figures import save_figure
from nnslicer_tf.report.lines import plot_line, plot_regions, plot_ticks
from nnslicer_tf.report.over_time import plot_over_time
from nnslicer_tf.report.overlays import overlay, plot_over_image
from nnslicer_tf.report.pages import Code, Fold, Heading, Link, Page, Picture, Table, Text
from nnslicer_tf.report.planes import plot_boundary, plot_plane
from nnslicer_tf.report.slices import (
    difference_picture,
    neuron_picture,
    plot_neurons,
    plot_normal_and_adversarial,
    plot_slices,
    plot_unrolled,
    unrolled_picture,
)
from nnslicer_tf.report.tables import markdown_table, provenance, write_table

__all__ = [
    "SPREADS",
    "Code",
    "Fold",
    "Heading",
    "Link",
    "Page",
    "Picture",
    "Table",
    "Text",
    "difference_picture",
    "markdown_table",
    "neuron_picture",
    "overlay",
    "plot_bars",
    "plot_boundary",
    "plot_coverage",
    "plot_curves",
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
    "plot_unrolled",
    "provenance",
    "save_figure",
    "unrolled_picture",
    "write_table",
]
