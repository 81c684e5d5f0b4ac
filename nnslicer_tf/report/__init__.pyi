from .attributions import plot_over_image, plot_over_time, plot_words
from .exact import plot_boundary, plot_line, plot_plane, plot_regions, plot_ticks
from .figures import save_figure
from .results import plot_bars, plot_coverage, plot_kept_synapses, plot_queries
from .slices import plot_neurons, plot_normal_and_adversarial, plot_slices

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
