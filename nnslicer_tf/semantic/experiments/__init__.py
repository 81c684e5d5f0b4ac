"""The experiments of the NeuSemSlice paper: rows for one model, tables for many.

Each `…_rows` function measures one `Trial` (a trained model with its data); `tables` joins
the rows of many seeds beside the paper's figures. `apps/maintain_model.py` runs them.
"""

from nnslicer_tf.semantic.experiments.development import develop_rows
from nnslicer_tf.semantic.experiments.plots import plot_curves
from nnslicer_tf.semantic.experiments.readaptation import attacks, readapt_rows
from nnslicer_tf.semantic.experiments.restructuring import restructure_rows
from nnslicer_tf.semantic.experiments.slices import (
    PAPER_SETTINGS,
    SETTINGS,
    WAYS,
    SlicedModel,
    curve_rows,
    deeparc_row,
    masked_range_rows,
    slices_of_one_size,
)
from nnslicer_tf.semantic.experiments.tables import (
    area_tests,
    masked_range_tables,
    means_beside_the_paper,
    paired_tests,
    paper_table,
)
from nnslicer_tf.semantic.experiments.trial import Trial, first, of_classes, split_classes

__all__ = [
    "PAPER_SETTINGS",
    "SETTINGS",
    "WAYS",
    "SlicedModel",
    "Trial",
    "area_tests",
    "attacks",
    "curve_rows",
    "deeparc_row",
    "develop_rows",
    "first",
    "masked_range_rows",
    "masked_range_tables",
    "means_beside_the_paper",
    "of_classes",
    "paired_tests",
    "paper_table",
    "plot_curves",
    "readapt_rows",
    "restructure_rows",
    "slices_of_one_size",
    "split_classes",
]
