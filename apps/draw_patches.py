"""Draw slices of a vision transformer: contributions over patches and heads."""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "nnslicer", ("draw", "PatchSettings", "drawing:draw_patches"))
