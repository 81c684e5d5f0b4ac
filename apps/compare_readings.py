"""Compare the readings of the definitions on single slices: size, faithfulness, stability.

An interrupted run continues from its working folder.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "nnslicer",
    ("readings", "SliceReadingSettings", "slice_readings:slice_readings"),
    ("special-cases", "SpecialCaseSettings", "slice_readings:special_cases"),
    first_by_default=True,
)
