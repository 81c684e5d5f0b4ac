"""Delete heads and synapses of a transformer, in the order of slices, gradients and others."""

from reproduction.application import experiments, main

app = experiments(__doc__, "sentences", ("parts", "PartSettings", "parts:parts"))

if __name__ == "__main__":
    main(app)
