"""How much words' scores depend on the last bits of a model's weights: slices and gradients.

python apps/round_weights.py
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.sentences.settings import RoundingSettings

app = application(__doc__)
add_experiment(
    app, "rounding", RoundingSettings, "nnslicer_tf.experiments.sentences.rounding:rounding"
)

if __name__ == "__main__":
    main(app)
