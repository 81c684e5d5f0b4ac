"""The smallest changes that challenges find, beside those of linear models in closed form."""

from dataclasses import dataclass

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.detection import (
    LogitMargin,
    Vote,
    VotingDetector,
)
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.adaptive import challenge


@pytest.fixture(scope="module")
def linear():
    """A linear model, whose smallest misleading changes have a closed form, and inputs."""
    rng = np.random.default_rng(0)
    weights = rng.normal(size=(20, 3)).astype(np.float32)
    weights -= weights.mean(axis=0)  # all classes are met with
    model = keras.Sequential([keras.Input((20,)), keras.layers.Dense(3, use_bias=False)])
    model.set_weights([weights])
    x = rng.uniform(0.4, 0.6, (30, 20)).astype(np.float32)
    return nns.InstrumentedModel(model, bounds=(0, 1)), weights, x


@pytest.mark.parametrize(("norm", "dual"), [("linf", 1), ("l2", 2)])
@pytest.mark.parametrize("name", ["minimum", "approach"])
def test_the_smallest_change_of_a_linear_model(name, norm, dual, linear):
    im, weights, x = linear
    logits = x @ weights
    y = logits.argmax(axis=1)
    expected = np.full(len(x), np.inf)
    for other in range(3):
        rows = y != other
        gap = logits[rows, y[rows]] - logits[rows, other]
        size = np.linalg.norm(weights[:, y[rows]] - weights[:, [other]], dual, axis=0)
        expected[rows] = np.minimum(expected[rows], gap / size)
    normal = np.random.default_rng(1).uniform(0, 1, (200, 20)).astype(np.float32)
    detector = LogitMargin(im).fit(normal)
    detector.threshold_ = 1e6  # it never flags
    few = {"norms": [norm], "attacks": [name], "steps": 60, "rounds": 3}
    result = challenge(detector, im, x, y, normal=normal, progress=False, **few)
    outcome = result.norms[norm]
    for reached in (outcome.undefended, outcome.pair):
        assert (reached >= expected * (1 - 1e-4)).all()
        assert np.median(reached / expected) < 1.03
        assert np.quantile(reached / expected, 0.9) < 1.3


@dataclass(eq=False, repr=False)
class Slope(VotingDetector):
    """A weighted sum of the inputs."""

    im: InstrumentedModel
    way: np.ndarray

    def votes(self):
        def read(evidence):
            total = np.sum if isinstance(evidence.x, np.ndarray) else keras.ops.sum
            return total(evidence.x * self.way, axis=1)

        return [Vote("slope", read)]


def test_the_detector_takes_its_share_of_the_smallest_change(linear):
    """With a detector that is linear too, the least change is that of a linear programme."""
    from scipy.optimize import linprog

    im, weights, x = linear
    x = x[:8]
    y = im.logits(x).argmax(axis=1)
    rng = np.random.default_rng(2)
    way = rng.normal(size=20).astype(np.float32)
    normal = rng.uniform(0.2, 0.8, (400, 20)).astype(np.float32)
    detector = Slope(im, way).fit(normal)
    detector.threshold_ = limit = float(np.max(x @ way))
    few = {"norms": ["linf"], "attacks": ["minimum"], "steps": 60, "rounds": 3}
    result = challenge(detector, im, x, y, normal=normal, progress=False, **few)
    least = np.full(len(x), np.inf)
    for i, image in enumerate(x):
        for other in set(range(3)) - {y[i]}:
            gap = weights[:, y[i]] - weights[:, other]
            # Variables: the change and its size; |change| ≤ size.
            eye, ones = np.eye(20), np.ones((20, 1))
            rows = np.block([[eye, -ones], [-eye, -ones], [gap, 0], [way, 0]])
            limits = np.r_[np.zeros(40), -gap @ image, limit - way @ image]
            bounds = [(-v, 1 - v) for v in image] + [(0, None)]
            found = linprog(np.r_[np.zeros(20), 1], rows, limits, bounds=bounds)
            if found.status == 0:
                least[i] = min(least[i], found.fun)
    reached = result.norms["linf"].pair
    assert (reached >= least * (1 - 1e-3)).all()
    assert np.median(reached / least) < 1.2
