"""Inspect networks with DeepBase: which hypotheses units follow, and two applications.

    python apps/inspect_units.py units      # what the channels of a CIFAR-10 network follow
    python apps/inspect_units.py prune      # remove channels that follow no target class
    python apps/inspect_units.py explore    # seed DeepXplore with properties that no unit follows
    python apps/inspect_units.py sql        # what the units of a character LSTM on SQL follow
    python apps/inspect_units.py sql-train  # retrain that LSTM

The networks use the weights included in the library.
"""

from reproduction.application import add_experiment, application, main
from reproduction.deepbase.settings import (
    ExplorationSettings,
    PruningSettings,
    SqlSettings,
    SqlTrainingSettings,
    UnitSettings,
)

DEEPBASE = "reproduction.deepbase"

app = application(__doc__)
add_experiment(app, "units", UnitSettings, f"{DEEPBASE}.units:units")
add_experiment(app, "prune", PruningSettings, f"{DEEPBASE}.units:prune")
add_experiment(app, "explore", ExplorationSettings, f"{DEEPBASE}.exploration:explore")
add_experiment(app, "sql", SqlSettings, f"{DEEPBASE}.sql:inspect")
add_experiment(app, "sql-train", SqlTrainingSettings, f"{DEEPBASE}.sql:train")

if __name__ == "__main__":
    main(app)
