"""Draw slices of a vision transformer: contributions over patches and heads."""

from reproduction.application import experiments, main

app = experiments(__doc__, "nnslicer", ("draw", "PatchSettings", "patches:draw"))

if __name__ == "__main__":
    main(app)
