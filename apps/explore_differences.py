"""Find inputs on which classifiers disagree: DeepXplore's experiments.

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
