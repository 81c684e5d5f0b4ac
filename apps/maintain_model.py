"""Semantic slicing and maintenance of a model: the NeuSemSlice paper's experiments.

`times` and `case-study` take the zoo's weights, and so do the others with `--weights zoo
--repeats 1`; by default they train a model of the zoo for each repeat (a random seed). Finished
models and repeats are kept under `--work`, from where an interrupted command continues. Repeats
can also run side by side, each with `--repeats 1 --first-seed N`: the command for all of them
then reads their rows.
"""

from reproduction.application import experiments

_REPEATED = (
    ("slicing", "slicing", "Compare slicing methods (figure 5, tables 1 to 4)."),
    ("restructure", "maintenance", "Compress models until the accuracy falls (table 5)."),
    ("readapt", "maintenance", "Train critical neurons on adversarial samples (table 6)."),
    ("develop", "maintenance", "Learn new classes, task by task (tables 7 and 8)."),
    ("intervals", "slicing", "Compare slices by Algorithm 1's interval i (not in the paper)."),
    ("layers", "slicing", "Compare what slices take from each layer (not in the paper)."),
)

app = experiments(
    __name__,
    __doc__,
    "neusemslice",
    *((name, "MaintenanceSettings", f"{file}:{name}", text) for name, file, text in _REPEATED),
    (
        "costs",
        "MaintenanceSettings",
        "costs:costs",
        "Time re-adaptation and development; what is kept for them (sections 5.4 and 5.5).",
    ),
    ("times", "ScoringTimeSettings", "case_study:scoring_times"),
    ("case-study", "CaseStudySettings", "case_study:case_study"),
)
