"""Protect target classes: the NNSlicer paper's Figure 5.

    python apps/protect_model.py

An interrupted run continues from its working folder when the command is given again.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import ProtectionSettings

app = application(__doc__)
add_experiment(
    app, "protect", ProtectionSettings, "nnslicer_tf.experiments.nnslicer.protection:protect"
)

if __name__ == "__main__":
    main(app)
