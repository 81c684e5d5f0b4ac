"""Slice sentences to find decisive words, compared with gradients and attention."""

from reproduction.application import experiments, main

app = experiments(__doc__, "sentences", ("words", "WordSettings", "words:words"))

if __name__ == "__main__":
    main(app)
