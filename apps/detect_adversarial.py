"""Detect adversarial inputs: the NNSlicer paper's Table 4, and how to interpret it.

An interrupted command continues from its working folder when it is given again.
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "nnslicer",
    ("detect", "DetectionSettings", "detection:detect"),
    ("challenge", "ChallengeSettings", "challenge:challenge_detectors"),
    ("evidence", "EvidenceSettings", "evidence:compare_evidence"),
    ("choose", "ChoiceSettings", "evidence:choose_evidence"),
    first_by_default=True,
)
