"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2."""

from reproduction.application import experiments, main

app = experiments(__doc__, "nnslicer", ("draw", "DrawingSettings", "drawing:draw"))

if __name__ == "__main__":
    main(app)
