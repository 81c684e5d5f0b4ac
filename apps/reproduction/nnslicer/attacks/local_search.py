"""The greedy local-search attack (Narodytska and Kasiviswanathan, CVPR Workshops 2017, alg. 1).

In every round each candidate pixel is strongly perturbed on its own. The pixels that lower the
label's probability most are changed permanently, wrapping around at the bounds; the next candidates
are the pixels around them. Unlike in the paper, each pixel changes only once, since repeated
changes would restore its original value.
"""

from dataclasses import dataclass

import numpy as np
from foolbox.distances import l0
from scipy.special import log_softmax

from nnslicer_tf._checks import as_generator
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.nnslicer.attacks.array_attack import ArrayAttack, Query


@dataclass(eq=False)
class LocalSearchAttack(ArrayAttack):
    """LocSearchAdv; comments give the paper's names of the parameters."""

    rounds: int = 30  # R: largest number of rounds
    candidates: int = 64  # largest number of pixels tried in a round
    pixels_a_round: int = 5  # t: number of pixels changed in a round
    strength: float = 10.0  # p: factor of the trial perturbation
    factor: float = 1.5  # r: factor of the permanent perturbation, between 1 and 2
    radius: int = 5  # d: half width of the square of new candidates around a pixel
    rng: int | np.random.Generator = 0
    distance = l0

    def __post_init__(self) -> None:
        counts = self.rounds, self.candidates, self.pixels_a_round, self.radius
        if min(counts) < 1 or not 1 <= self.factor <= 2:
            raise InvalidArgumentError(
                "LocalSearch needs rounds, candidates, pixels_a_round and radius ≥ 1 and "
                f"1 ≤ factor ≤ 2. Received: {', '.join(map(str, (*counts, self.factor)))}"
            )

    def perturb(self, query: Query, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        """Return the attacked images."""
        generator = as_generator(self.rng)
        _, height, width, _ = x.shape
        middle, scale = (query.low + query.high) / 2, query.high - query.low
        untouched = np.ones((len(x), height, width), bool)
        near = np.ones((len(x), height, width), bool)
        active = np.flatnonzero(query.predict(x) == labels)
        for _ in range(self.rounds):
            if not len(active):
                break
            for i in active:
                pool = np.flatnonzero(near[i] & untouched[i])
                if not len(pool):
                    pool = np.flatnonzero(untouched[i])
                pixels = generator.choice(pool, min(self.candidates, len(pool)), replace=False)
                # The label's log probability with each pixel perturbed. The trials may leave the
                # bounds, as in the paper: they are never an output.
                rows, columns = np.divmod(pixels, width)
                tried = np.repeat(x[i : i + 1], len(pixels), axis=0)
                probe = self.strength * scale * np.sign(x[i, rows, columns] - middle)
                tried[np.arange(len(pixels)), rows, columns] = middle + probe
                scores = log_softmax(query.logits(tried), axis=1)[:, labels[i]]
                chosen = pixels[np.argsort(scores)[: self.pixels_a_round]]
                rows, columns = np.divmod(chosen, width)
                # The values, centred on the middle, times the factor, wrapped at the bounds.
                stretched = self.factor * (x[i, rows, columns] - middle)
                wrapped = (stretched + scale / 2) % scale - scale / 2
                inside = np.abs(stretched) <= scale / 2
                x[i, rows, columns] = np.where(inside, stretched, wrapped) + middle
                untouched[i, rows, columns] = False
                # The next candidates: the squares around these pixels.
                near[i] = False
                for row, column in zip(rows, columns, strict=True):
                    top, left = max(row - self.radius, 0), max(column - self.radius, 0)
                    near[i, top : row + self.radius + 1, left : column + self.radius + 1] = True
            active = active[query.predict(x[active]) == labels[active]]
            active = active[untouched[active].any(axis=(1, 2))]
        return x
