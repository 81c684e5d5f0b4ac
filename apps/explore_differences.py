"""Find inputs on which classifiers disagree: DeepXplore's experiments.

    python apps/explore_differences.py --models <folder>
    python apps/explore_differences.py --models <folder> --quick
    python apps/explore_differences.py sweep --models <folder>     # λ1, λ2 and the step
    python apps/explore_differences.py numbers --models <folder>   # coverage by number of inputs
    python apps/explore_differences.py sweep --dataset cifar10     # networks of the zoo

Differences found are kept in the working folder, from which an interrupted run continues.
"""

from reproduction.application import add_experiment, application, main
from reproduction.deepxplore.settings import (
    DifferenceSettings,
    NumberSettings,
    SweepSettings,
)

HERE = "reproduction.deepxplore"

app = application(__doc__, first_by_default=True)
add_experiment(app, "explore", DifferenceSettings, f"{HERE}.differences:explore")
add_experiment(app, "sweep", SweepSettings, f"{HERE}.sweeps:sweep")
add_experiment(app, "numbers", NumberSettings, f"{HERE}.sweeps:numbers")

if __name__ == "__main__":
    main(app)
