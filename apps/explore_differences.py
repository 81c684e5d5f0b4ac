"""Find inputs on which classifiers disagree: DeepXplore's experiments.

    python apps/explore_differences.py --models <folder>
    python apps/explore_differences.py --models <folder> --quick
    python apps/explore_differences.py sweep --models <folder>     # λ1, λ2 and the step
    python apps/explore_differences.py numbers --models <folder>   # coverage by number of inputs
    python apps/explore_differences.py sweep --dataset cifar10     # networks of the zoo

Differences found are kept in the working folder, from which an interrupted run continues.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "deepxplore",
    ("explore", "DifferenceSettings", "differences:explore"),
    ("sweep", "SweepSettings", "sweeps:sweep"),
    ("numbers", "NumberSettings", "sweeps:numbers"),
    first_by_default=True,
)

if __name__ == "__main__":
    main(app)
