"""Compare the readings of the definitions on single slices: size, faithfulness, stability.

An interrupted run continues from its working folder.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "nnslicer",
    ("readings", "SliceReadingSettings", "slice_readings:slice_readings"),
    ("special-cases", "SpecialCaseSettings", "special_cases:special_cases"),
    first_by_default=True,
)

if __name__ == "__main__":
    main(app)
