"""Pictures of results (matplotlib)."""

from nnslicer_tf.report.slices import neuron_picture, plot_slices

__all__ = ["neuron_picture", "plot_slices"]
