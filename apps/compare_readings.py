"""Compare the readings of the definitions on single slices: size, faithfulness, stability.

    python apps/compare_readings.py

An interrupted run continues from its working folder.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.nnslicer.settings import SliceReadingSettings

app = application(__doc__)
add_experiment(
    app,
    "readings",
    SliceReadingSettings,
    "nnslicer_tf.experiments.nnslicer.slice_readings:slice_readings",
)

if __name__ == "__main__":
    main(app)
