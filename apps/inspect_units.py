"""Inspect networks with DeepBase: which hypotheses units follow, and two applications.

    python apps/inspect_units.py units      # what the channels of a CIFAR-10 network follow
    python apps/inspect_units.py prune      # remove channels that follow no target class
    python apps/inspect_units.py explore    # seed DeepXplore with properties that no unit follows
    python apps/inspect_units.py sql        # what the units of a character LSTM on SQL follow
    python apps/inspect_units.py sql-train  # retrain that LSTM

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
