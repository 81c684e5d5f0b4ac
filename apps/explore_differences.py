"""Find inputs on which classifiers disagree: DeepXplore's experiments.

Differences found are kept in the working folder, from which an interrupted run continues.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "deepxplore",
    ("explore", "DifferenceSettings", "differences:explore"),
    ("sweep", "SweepSettings", "sweeps:sweep"),
    ("numbers", "NumberSettings", "sweeps:numbers"),
    first_by_default=True,
)
