"""Protect target classes: the NNSlicer paper's Figure 5.

    python apps/protect_model.py protect    # attackers who train all weights
    python apps/protect_model.py program    # by the procedure of the paper's program

An interrupted run continues from its working folder when the command is given again.
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import ProgramProtectionSettings, ProtectionSettings

app = application(__doc__)
add_experiment(app, "protect", ProtectionSettings, "reproduction.nnslicer.protection:protect")
add_experiment(
    app,
    "program",
    ProgramProtectionSettings,
    "reproduction.nnslicer.program_protection:protect_by_program",
)

if __name__ == "__main__":
    main(app)
