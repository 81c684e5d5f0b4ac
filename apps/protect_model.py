"""Protect target classes: the NNSlicer paper's Figure 5.

    python apps/protect_model.py protect    # attackers who train all weights
    python apps/protect_model.py program    # by the procedure of the paper's program

An interrupted run continues from its working folder when the command is given again.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import ProgramProtectionSettings, ProtectionSettings

app = application(__doc__)
add_experiment(
    app, "protect", ProtectionSettings, "nnslicer_tf.experiments.nnslicer.protection:protect"
)
add_experiment(
    app,
    "program",
    ProgramProtectionSettings,
    "nnslicer_tf.experiments.nnslicer.program_protection:protect_by_program",
)

if __name__ == "__main__":
    main(app)
