"""Score words with copies of a model whose weights differ in their last bits."""

from reproduction.application import experiments, main

app = experiments(__doc__, "sentences", ("rounding", "RoundingSettings", "rounding:rounding"))

if __name__ == "__main__":
    main(app)
