"""Inspect networks with DeepBase: which hypotheses units follow, and two applications.

The networks use the weights included in the library.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "deepbase",
    ("units", "UnitSettings", "units:units"),
    ("prune", "PruningSettings", "units:prune"),
    ("explore", "ExplorationSettings", "exploration:explore"),
    ("sql", "SqlSettings", "sql:inspect"),
    ("sql-train", "SqlTrainingSettings", "sql:train"),
)

if __name__ == "__main__":
    main(app)
