"""Prune for target classes: the NNSlicer paper's Figures 3 and 4.

    python apps/prune_targeted.py curves        # without fine-tuning, all sets of classes
    python apps/prune_targeted.py fine-tuned    # one epoch after pruning, large ratios
    python apps/prune_targeted.py ablation      # choices that the paper leaves open, our changes
    python apps/prune_targeted.py program       # Figure 3 by the procedure of the paper's program
    python apps/prune_targeted.py readings      # single choices of that procedure
    python apps/prune_targeted.py shrink        # actually smaller models for two classes (ours)

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import (
    AblationSettings,
    CurveSettings,
    FineTuningSettings,
    ProgramSettings,
    ReadingSettings,
    ShrinkSettings,
)

PRUNING = "reproduction.nnslicer.pruning"
PROGRAM = "reproduction.nnslicer.program"
SHRINKING = "reproduction.nnslicer.shrinking"

app = application(__doc__)
add_experiment(app, "curves", CurveSettings, f"{PRUNING}:curves")
add_experiment(app, "fine-tuned", FineTuningSettings, f"{PRUNING}:fine_tuned")
add_experiment(app, "ablation", AblationSettings, f"{PRUNING}:ablation")
add_experiment(app, "program", ProgramSettings, f"{PROGRAM}:program")
add_experiment(app, "readings", ReadingSettings, f"{PROGRAM}:readings")
add_experiment(app, "shrink", ShrinkSettings, f"{SHRINKING}:shrink")

if __name__ == "__main__":
    main(app)
