"""Semantic slicing and maintenance of a model: the NeuSemSlice paper's experiments.

    python apps/maintain_model.py slicing mlp mnist      # figure 5, tables 1 to 4
    python apps/maintain_model.py restructure mlp mnist  # table 5
    python apps/maintain_model.py readapt mlp mnist      # table 6
    python apps/maintain_model.py develop mlp mnist      # table 7, or 8 with --scenario 2
    python apps/maintain_model.py intervals mlp mnist    # Algorithm 1's interval i
    python apps/maintain_model.py layers mlp mnist       # what slices take from each layer
    python apps/maintain_model.py times mlp mnist        # seconds of the metrics
    python apps/maintain_model.py case-study             # figure 6: MobileNetV3

The last two take the zoo's weights, and so do the others with `--weights zoo --repeats 1`; by
default they train a model of the zoo for each repeat (a random seed). Finished models and repeats
are kept under `--work`, from where an interrupted command continues. Repeats can also run side by
side, each with `--repeats 1 --first-seed N`: the command for all of them then reads their rows.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "neusemslice",
    (
        "slicing",
        "MaintenanceSettings",
        "slicing:slicing",
        "Compare slicing methods (figure 5, tables 1 to 4).",
    ),
    (
        "restructure",
        "MaintenanceSettings",
        "restructuring:restructure",
        "Compress whole and restructured models until the accuracy falls (table 5).",
    ),
    (
        "readapt",
        "MaintenanceSettings",
        "readaptation:readapt",
        "Train critical neurons on adversarial samples (table 6).",
    ),
    (
        "develop",
        "MaintenanceSettings",
        "development:develop",
        "Learn new classes, task by task (tables 7 and 8).",
    ),
    (
        "intervals",
        "MaintenanceSettings",
        "intervals:intervals",
        "Compare semantic slices by the interval i of Algorithm 1 (not in the paper).",
    ),
    (
        "layers",
        "MaintenanceSettings",
        "layers:layers",
        "Compare what slices of one size take from each layer (not in the paper).",
    ),
    (
        "times",
        "ScoringTimeSettings",
        "scoring_times:scoring_times",
        "Time the metrics (section 5.2).",
    ),
    (
        "case-study",
        "CaseStudySettings",
        "case_study:case_study",
        "Slice a trained model, and compress its slices (figure 6).",
    ),
)

if __name__ == "__main__":
    main(app)
