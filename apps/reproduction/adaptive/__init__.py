"""Adaptive attacks on a model and its detector, with sanity checks of the attacks.

`challenge` attacks any detector, from Python; `apps/challenge_detector.py` one in a file.
"""

import lazy_loader

# Lazy: the settings of the command need no TensorFlow.
__getattr__, __dir__, __all__ = lazy_loader.attach(
    __name__,
    submod_attrs={
        "challenge": ["challenge"],
        "result": ["ChallengeResult"],
        "table": ["ADAPTIVE_ATTACKS"],
    },
)
