"""Prune for target classes: the NNSlicer paper's Figures 3 and 4.

    python apps/prune_targeted.py curves        # without fine-tuning, all sets of classes
    python apps/prune_targeted.py fine-tuned    # one epoch after pruning, large ratios
    python apps/prune_targeted.py ablation      # choices that the paper leaves open, our changes
    python apps/prune_targeted.py program       # Figure 3 by the procedure of the paper's program
    python apps/prune_targeted.py readings      # single choices of that procedure
    python apps/prune_targeted.py shrink        # actually smaller models for two classes (ours)

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "nnslicer",
    ("curves", "CurveSettings", "pruning:curves"),
    ("fine-tuned", "FineTuningSettings", "pruning:fine_tuned"),
    ("ablation", "AblationSettings", "pruning:ablation"),
    ("program", "ProgramSettings", "program:program"),
    ("readings", "ReadingSettings", "program:readings"),
    ("shrink", "ShrinkSettings", "shrinking:shrink"),
)

if __name__ == "__main__":
    main(app)
