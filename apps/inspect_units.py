"""Inspect networks: which units follow what, and what follows from it.

    python apps/inspect_units.py units      # channels of a CIFAR-10 network
    python apps/inspect_units.py prune      # remove those that follow no target class
    python apps/inspect_units.py explore    # differences from what digit networks miss

Every command has --quick. The networks are the zoo's, with the weights that come with it.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.deepbase.settings import (
    ExplorationSettings,
    PruningSettings,
    UnitSettings,
)

DEEPBASE = "nnslicer_tf.experiments.deepbase"

app = application(__doc__)
add_experiment(app, "units", UnitSettings, f"{DEEPBASE}.units:units")
add_experiment(app, "prune", PruningSettings, f"{DEEPBASE}.units:prune")
add_experiment(app, "explore", ExplorationSettings, f"{DEEPBASE}.exploration:explore")

if __name__ == "__main__":
    main(app)
