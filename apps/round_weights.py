"""Score words with copies of a model whose weights differ in their last bits."""

from reproduction.application import experiments

app = experiments(
    __name__, __doc__, "sentences", ("rounding", "RoundingSettings", "rounding:rounding")
)
