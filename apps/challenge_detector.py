"""Attack your own detector with adaptive attacks, which know it: how much larger must a change be?

    python apps/challenge_detector.py --model model.keras --profile profile.npz
        --detector detector.npz --data "mnist:test[:50]" --normal "mnist:train[:1000]"

The detector is a file that `Detector.save` wrote; a `SliceDetector` also needs the profile of its
slicer. A detector of a class of your own is named by its module: `--kind my_detectors:MyDetector`.
For anything else with `decision_function(x)`, call `challenge` in Python, with this folder on the
path: `from reproduction.adaptive import challenge`.

An interrupted run continues from its working folder.
"""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "adaptive", ("challenge", "OwnSettings", "own:challenge_own"))
