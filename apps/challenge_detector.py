"""Attack your own detector with adaptive attacks: how much larger must a change be to evade it?

    python apps/challenge_detector.py --model model.keras --profile profile.npz
        --detector detector.npz --data "mnist:test[:50]" --normal "mnist:train[:1000]"

The detector is a file that `Detector.save` wrote; a `SliceDetector` also needs the profile of its
slicer. For a detector class of your own, name its module: `--kind my_detectors:MyDetector`.
For anything else with `decision_function(x)`, call `challenge` in Python, with this folder on the
path: `from reproduction.adaptive import challenge`.

An interrupted run continues from its working folder.
"""

from reproduction.application import experiments

app = experiments(__name__, __doc__, "adaptive", ("challenge", "OwnSettings", "own:challenge_own"))
