"""Draw slices of normal and adversarial inputs: the NNSlicer paper's Figure 2."""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "nnslicer", ("draw", "DrawingSettings", "drawing:draw"))
