"""Draw slices of a recurrent network: contributions over time."""

from reproduction.application import experiments

app = experiments(
    __name__, __doc__, "nnslicer", ("draw", "OverTimeSettings", "drawing:draw_over_time")
)
