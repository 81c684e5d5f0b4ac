"""Evaluate detectors as in NNSlicer's Table 4, and with a threshold-free measure.

For each attack, the detector sees the examples that mislead the model and their originals, so that
flagging everything has an F1 of 2/3. Each distinct input is scored only once.
"""

from collections.abc import Mapping

import numpy as np
import pandas as pd

from nnslicer_tf._files import digest
from nnslicer_tf.detection.calibration import threshold_at
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.errors import InvalidArgumentError


def evaluate(
    detector: Detector, attacks: Mapping[str, tuple[np.ndarray, np.ndarray]]
) -> pd.DataFrame:
    """Return one row for each attack.

    Args:
        detector: A fitted detector.
        attacks: Name → (originals, adversarial inputs), both (N, *input_shape) with N ≥ 1: only the
            successful examples.

    Returns:
        Columns `attack`, `examples` (N), `precision` (0 if nothing is flagged), `recall`, `f1`,
        `auroc`, `recall_at_5` (at the threshold of 5 % false positives among the detector's
        held-out normal inputs; 0 if a yes-or-no rule flags more of them) and `false_positives` (the
        measured rate among the originals).

    Raises:
        InvalidArgumentError: if an attack has no examples, or not as many as originals.
        NotFittedError: if the detector is not fitted.
    """
    from sklearn.metrics import roc_auc_score

    for name, (originals, adversarial) in attacks.items():
        if not len(originals) or len(originals) != len(adversarial):
            raise InvalidArgumentError(
                f"'{name}' has {len(adversarial)} adversarial inputs and {len(originals)} "
                "originals: pass at least one successful example, and the original of each."
            )
    rows = []
    cache: dict[str, float] = {}
    for name, (originals, adversarial) in attacks.items():
        # Score the inputs that no attack before had.
        x, count = np.concatenate([originals, adversarial]), len(originals)
        keys = [digest([sample]) for sample in x]
        new = {key: i for i, key in enumerate(keys) if key not in cache}
        if new:
            scores = detector.score_samples(x[list(new.values())])
            cache.update(zip(new, scores.tolist(), strict=True))
        scores = np.array([cache[key] for key in keys])
        flagged = scores > detector.threshold_
        false, true = int(flagged[:count].sum()), int(flagged[count:].sum())
        at_5 = threshold_at(detector.normal_scores_, 0.05)
        rows.append(
            {
                "attack": name,
                "examples": count,
                "precision": true / (true + false) if true + false else 0.0,
                "recall": true / count,
                "f1": 2 * true / (true + false + count),
                "auroc": float(roc_auc_score(np.repeat([0, 1], count), scores)),
                "recall_at_5": float(np.mean(scores[count:] > at_5)),
                "false_positives": false / count,
            }
        )
    return pd.DataFrame(rows)
