from .attributions import plot_over_image, plot_over_time, plot_words
from .figures import save_figure
from .results import plot_kept_synapses
from .slices import plot_neurons, plot_slices

__all__ = [
    "plot_kept_synapses",
    "plot_neurons",
    "plot_over_image",
    "plot_over_time",
    "plot_slices",
    "plot_words",
    "save_figure",
]
