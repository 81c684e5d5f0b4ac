"""Detect adversarial inputs by the rule of the NNSlicer paper's program (Table 4).

Adversarial examples are kept in the working folder.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "nnslicer",
    ("detect", "ProgramDetectionSettings", "program_detection:detect_by_program"),
)
