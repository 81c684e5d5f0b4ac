"""Detect adversarial inputs: the NNSlicer paper's Table 4, and how to interpret it.

python apps/detect_adversarial.py --quick
python apps/detect_adversarial.py --model lenet5 --dataset mnist
python apps/detect_adversarial.py --model resnet10 --dataset cifar10 --methods fused
python apps/detect_adversarial.py challenge   # adaptive attackers, who know the detector
python apps/detect_adversarial.py evidence    # which evidence detects what
python apps/detect_adversarial.py choose      # which evidence to fuse, on training images

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "nnslicer",
    ("detect", "DetectionSettings", "detection:detect"),
    ("challenge", "ChallengeSettings", "challenge:challenge_detectors"),
    ("evidence", "EvidenceSettings", "evidence:compare_evidence"),
    ("choose", "ChoiceSettings", "choosing:choose_evidence"),
    first_by_default=True,
)

if __name__ == "__main__":
    main(app)
