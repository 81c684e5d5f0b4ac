"""Detect adversarial inputs: the NNSlicer paper's Table 4, and how to interpret it.

python apps/detect_adversarial.py --quick
python apps/detect_adversarial.py --model lenet5 --dataset mnist
python apps/detect_adversarial.py --model resnet10 --dataset cifar10 --methods fused
python apps/detect_adversarial.py challenge   # adaptive attackers, who know the detector
python apps/detect_adversarial.py evidence    # which evidence detects what
python apps/detect_adversarial.py choose      # which evidence to fuse, on training images

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import add_experiment, application, main
from reproduction.nnslicer.settings import (
    ChallengeSettings,
    ChoiceSettings,
    DetectionSettings,
    EvidenceSettings,
)

HERE = "reproduction.nnslicer"

app = application(__doc__, first_by_default=True)
add_experiment(app, "detect", DetectionSettings, f"{HERE}.detection:detect")
add_experiment(app, "challenge", ChallengeSettings, f"{HERE}.challenge:challenge_detectors")
add_experiment(app, "evidence", EvidenceSettings, f"{HERE}.evidence:compare_evidence")
add_experiment(app, "choose", ChoiceSettings, f"{HERE}.choosing:choose_evidence")

if __name__ == "__main__":
    main(app)
