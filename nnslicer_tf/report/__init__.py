"""Reports: pictures of slices, and tables of results."""

from nnslicer_tf.report.slices import neuron_picture, plot_slices
from nnslicer_tf.report.tables import markdown_table, provenance, write_table

__all__ = ["markdown_table", "neuron_picture", "plot_slices", "provenance", "write_table"]
