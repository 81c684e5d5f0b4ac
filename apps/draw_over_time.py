"""Draw slices of a recurrent network: contributions over time.

python apps/draw_over_time.py
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import OverTimeSettings

app = application(__doc__)
add_experiment(app, "draw", OverTimeSettings, "nnslicer_tf.experiments.nnslicer.over_time:draw")

if __name__ == "__main__":
    main(app)
