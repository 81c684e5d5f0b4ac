"""Semantic slicing and maintenance of a model: the NeuSemSlice paper's experiments.

    python apps/maintain_model.py slicing mlp mnist      # figures 5 and 6, tables 1 to 4
    python apps/maintain_model.py restructure mlp mnist  # table 5
    python apps/maintain_model.py readapt mlp mnist      # table 6
    python apps/maintain_model.py develop mlp mnist      # table 7, or 8 with --scenario 2

Every command trains a model of the zoo for each repeat (a random seed), and keeps finished models
and repeats under `--work`, from where an interrupted command continues.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.neusemslice.settings import MaintenanceSettings

COMMANDS = {
    "slicing": ("slicing:slicing", "Compare slicing methods (figures 5 and 6, tables 1 to 4)."),
    "restructure": (
        "restructuring:restructure",
        "Compress whole and restructured models until the accuracy falls (table 5).",
    ),
    "readapt": ("readaptation:readapt", "Train critical neurons on adversarial samples (table 6)."),
    "develop": ("development:develop", "Learn new classes, task by task (tables 7 and 8)."),
}

app = application(__doc__)
for name, (run, text) in COMMANDS.items():
    run = f"nnslicer_tf.experiments.neusemslice.{run}"
    add_experiment(app, name, MaintenanceSettings, run, text)

if __name__ == "__main__":
    main(app)
