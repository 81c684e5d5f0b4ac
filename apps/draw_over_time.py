"""Draw slices of a recurrent network: contributions over time."""

from reproduction.application import experiments, main

app = experiments(__doc__, "nnslicer", ("draw", "OverTimeSettings", "over_time:draw"))

if __name__ == "__main__":
    main(app)
