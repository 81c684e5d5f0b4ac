"""Prune for target classes: the NNSlicer paper's Figures 3 and 4.

    python apps/prune_targeted.py curves        # without fine-tuning, all sets of classes
    python apps/prune_targeted.py fine-tuned    # one epoch after pruning, large ratios
    python apps/prune_targeted.py ablation      # choices that the paper leaves open, our changes

An interrupted command continues from its working folder when it is given again.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import (
    AblationSettings,
    CurveSettings,
    FineTuningSettings,
)

PRUNING = "nnslicer_tf.experiments.nnslicer.pruning"

app = application(__doc__)
add_experiment(app, "curves", CurveSettings, f"{PRUNING}:curves")
add_experiment(app, "fine-tuned", FineTuningSettings, f"{PRUNING}:fine_tuned")
add_experiment(app, "ablation", AblationSettings, f"{PRUNING}:ablation")

if __name__ == "__main__":
    main(app)
