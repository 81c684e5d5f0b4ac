"""Protect target classes: the NNSlicer paper's Figure 5.

An interrupted run continues from its working folder when the command is given again.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "nnslicer",
    ("protect", "ProtectionSettings", "protection:protect"),
    ("program", "ProgramProtectionSettings", "program_protection:protect_by_program"),
    first_by_default=True,
)
