"""Compare the readings of the definitions on single slices: size, faithfulness, stability.

    python apps/compare_readings.py
    python apps/compare_readings.py special-cases    # of the exclusion in the paper's program

An interrupted run continues from its working folder.
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import SliceReadingSettings, SpecialCaseSettings

HERE = "reproduction.nnslicer"

app = application(__doc__, first_by_default=True)
add_experiment(app, "readings", SliceReadingSettings, f"{HERE}.slice_readings:slice_readings")
add_experiment(app, "special-cases", SpecialCaseSettings, f"{HERE}.special_cases:special_cases")

if __name__ == "__main__":
    main(app)
