"""Find inputs on which digit classifiers disagree: DeepXplore's experiments.

    python apps/explore_differences.py --models <folder>
    python apps/explore_differences.py --models <folder> --quick

Differences found are kept in the working folder, from which an interrupted run continues.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.deepxplore.settings import DifferenceSettings

EXPLORE = "nnslicer_tf.experiments.deepxplore.differences:explore"

app = application(__doc__)
add_experiment(app, "explore", DifferenceSettings, EXPLORE)

if __name__ == "__main__":
    main(app)
