"""Score words with copies of a model whose weights differ in their last bits.

python apps/round_weights.py
"""

from reproduction.application import add_experiment, application, main
from reproduction.sentences.settings import RoundingSettings

app = application(__doc__)
add_experiment(app, "rounding", RoundingSettings, "reproduction.sentences.rounding:rounding")

if __name__ == "__main__":
    main(app)
