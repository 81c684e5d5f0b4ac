"""Draw slices of a vision transformer: contributions over patches and heads.

python apps/draw_patches.py
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import PatchSettings

app = application(__doc__)
add_experiment(app, "draw", PatchSettings, "nnslicer_tf.experiments.nnslicer.patches:draw")

if __name__ == "__main__":
    main(app)
