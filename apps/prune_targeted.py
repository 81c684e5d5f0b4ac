"""Prune for target classes: the NNSlicer paper's Figures 3 and 4.

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "nnslicer",
    ("curves", "CurveSettings", "pruning:curves"),
    ("fine-tuned", "FineTuningSettings", "pruning:fine_tuned"),
    ("ablation", "AblationSettings", "pruning:ablation"),
    ("program", "ProgramSettings", "program:program"),
    ("readings", "ReadingSettings", "program:readings"),
    ("shrink", "ShrinkSettings", "pruning:shrink"),
    ("shrink-maps", "MapSettings", "maps:shrink_maps"),
    ("attribute", "AttributeSettings", "attribute:attribute"),
)
