"""Inspect networks with DeepBase: which hypotheses units follow, and two applications.

The networks use the weights included in the library.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "deepbase",
    ("units", "UnitSettings", "units:units"),
    ("prune", "PruningSettings", "units:prune"),
    ("explore", "ExplorationSettings", "units:explore"),
    ("sql", "SqlSettings", "sql:inspect"),
    ("sql-train", "SqlTrainingSettings", "sql:train"),
)
