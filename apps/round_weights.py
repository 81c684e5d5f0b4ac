"""Score words with copies of a model whose weights differ in their last bits.

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
