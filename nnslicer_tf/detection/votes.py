"""`Vote`, an anomaly score and its weight, and `VotingDetector`, which fuses several votes.

With a single vote, its anomaly score is the detector's. Several are fused: each score becomes a
p-value among normal inputs not used for learning, and the logarithms of the p-values are added
(see `calibration.fuse`).
"""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf.detection.calibration import fuse, p_values, smooth_surprise, two_sided
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.scorers import Scorer
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel

# Share of the normal training inputs that is reserved as the reference of the p-values.
_REFERENCE = 0.25


class Features:
    """The features that a scorer reads: a function of the evidence.

    Args:
        read: Evidence → (N, features), or (N,) for `Identity`.
        differentiable: Whether `read` also accepts evidence of tensors, and then returns tensors.
    """

    differentiable = True

    def __init__(self, read: Callable[[Evidence], Any], *, differentiable: bool = True) -> None:
        self._read = read
        self.differentiable = differentiable

    def __call__(self, evidence: Evidence) -> Any:
        """Return the features of the inputs."""
        return self._read(evidence)

    def check(self, evidence: Evidence) -> None:
        """Reject normal inputs that `read` is not meant for; none by default."""

    def draw(self, rng: np.random.Generator) -> None:
        """Make random choices before the first use; none by default."""

    def state(self) -> dict[str, np.ndarray]:
        """Return what was drawn, as arrays by name."""
        return {}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore what `state` returned."""


class DrawnColumns(Features):
    """A bounded number of columns of long vectors, drawn at random; a subclass implements `read`.

    Args:
        sizes: Lengths of the blocks that make up the vectors.
        most: Number of columns drawn uniformly from longer blocks.
    """

    columns: np.ndarray

    def __init__(self, sizes: Sequence[int], most: int) -> None:
        self._sizes, self._most = sizes, most

    def __call__(self, evidence: Evidence) -> Any:
        """Return the drawn columns; see `Features`."""
        return self.read(evidence, self.columns)

    @abstractmethod
    def read(self, evidence: Evidence, columns: np.ndarray) -> Any:
        """Return the given columns of the vectors, (N, columns) float32."""

    def draw(self, rng: np.random.Generator) -> None:
        """Draw the columns, in ascending order."""
        parts, first = [], 0
        for size in self._sizes:
            drawn = np.arange(size)
            if size > self._most:
                drawn = np.sort(rng.choice(size, self._most, replace=False))
            parts.append(first + drawn)
            first += size
        self.columns = np.concatenate(parts)

    def state(self) -> dict[str, np.ndarray]:
        """Return the indices of the columns."""
        return {"columns": self.columns}

    def restore(self, state: Mapping[str, np.ndarray]) -> None:
        """Restore the columns."""
        self.columns = state["columns"]


class SliceFeatures(DrawnColumns):
    """Slice vectors, of a bounded number of synapses per kernel.

    Args:
        im: The watched model.
        kernels: Names of the kernels.
        most: Number of synapses drawn from larger kernels.
        local: Whether to use the kernels' local slices; see `Evidence.slices`.
        view: A kind of view, over which the local slices are averaged; None: of the inputs.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        kernels: Sequence[str],
        most: int,
        *,
        local: bool = False,
        view: str | None = None,
    ) -> None:
        self.kernels = [name for name in im.kernels if name in kernels]
        self._local, self._view = local, view
        super().__init__([im.kernels[name].size for name in self.kernels], most)

    def read(self, evidence: Evidence, columns: np.ndarray) -> Any:
        """Return the slices' contributions; see `DrawnColumns.read`."""
        if self._view is not None:
            return evidence.view_slices(self.kernels, columns, self._view)
        return evidence.slices(self.kernels, columns, self._local)


@dataclass(frozen=True)
class Vote:
    """An anomaly score and its weight among others.

    Attributes:
        name: Name of the vote, under which its state is saved.
        features: What the scorer reads.
        scorer: Computes the anomaly score.
        group: Votes in a group are nearly redundant; their mean counts as one vote. None: a
            group of its own.
        two_sided: Whether unusually low scores count as much as unusually high ones.
    """

    name: str
    features: Features
    scorer: Scorer
    group: str | None = None
    two_sided: bool = False

    def fit(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Draw the features, and let the scorer learn from normal inputs."""
        self.features.check(evidence)
        self.features.draw(rng)
        if self.scorer.names:  # skip computing features that nothing is learned from
            classes = evidence.logits.shape[1]
            self.scorer.fit(self.features(evidence), evidence.predicted, classes)

    def score(self, evidence: Evidence) -> np.ndarray:
        """Return the anomaly scores, (N,) float64."""
        return self.scorer.score(self.features(evidence), evidence.predicted)

    @property
    def differentiable(self) -> bool:
        """Whether there is a `smooth_score`."""
        return self.features.differentiable and self.scorer.differentiable

    def smooth_score(self, evidence: Evidence) -> Any:
        """Return the anomaly scores as a tensor (N,) float32 with a gradient."""
        return self.scorer.smooth_score(self.features(evidence), evidence.predicted)

    def state(self) -> dict[str, np.ndarray]:
        """Return what was drawn and learned, as arrays by name."""
        return self.features.state() | self.scorer.state()

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        self.features.restore(state)
        self.scorer.restore(state)


@dataclass(eq=False, repr=False, kw_only=True)
class VotingDetector(Detector):
    """A detector that fuses votes; a subclass implements `votes`.

    Args:
        alpha: Penalty of the ridge regressions among the scorers.

    Attributes:
        votes_: The fitted votes.
        reference_: Vote → its scores of the normal inputs that serve as reference of the
            p-values; empty if there is only one vote.
    """

    alpha: float = 1e3

    votes_: list[Vote] = field(init=False)
    reference_: dict[str, np.ndarray] = field(init=False)

    @abstractmethod
    def votes(self) -> list[Vote]:
        """Return new, unfitted votes with distinct names."""

    @property
    def fixed_threshold(self) -> float | None:
        """The scorer's threshold, if there is only one vote and its scorer has one."""
        votes = self.votes()
        return votes[0].scorer.threshold if len(votes) == 1 else None

    def check_parameters(self) -> None:
        """Reject a penalty that is not positive."""
        if not self.alpha > 0:
            raise InvalidArgumentError(f"alpha must be above 0. Received: {self.alpha!r}")

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Fit the votes; see `Detector.learn`."""
        self.votes_ = self.votes()
        self.reference_ = {}
        if len(self.votes_) == 1:
            self.votes_[0].fit(evidence, rng)
            return
        order = rng.permutation(len(evidence))
        cut = round(len(evidence) * (1 - _REFERENCE))
        training = evidence.rows(np.sort(order[:cut]))
        for vote in self.votes_:  # one after the other: only the latest slices are kept in memory
            vote.fit(training, rng)
        reference = evidence.rows(np.sort(order[cut:]))
        self.reference_ = {vote.name: vote.score(reference) for vote in self.votes_}

    def anomaly_scores(self, evidence: Evidence) -> np.ndarray:
        """Return the joint score of the votes; see `Detector.anomaly_scores`."""
        if len(self.votes_) == 1:
            return self.votes_[0].score(evidence)
        groups: dict[str, list[np.ndarray]] = {}
        for vote in self.votes_:
            p = two_sided if vote.two_sided else p_values
            values = p(vote.score(evidence), self.reference_[vote.name])
            groups.setdefault(vote.group or vote.name, []).append(values)
        return fuse(list(groups.values()))

    @property
    def differentiable(self) -> bool:
        """Whether all votes are differentiable; see `Detector.differentiable`."""
        return all(vote.differentiable for vote in self.votes_)

    def smooth_scores(self, evidence: Evidence) -> Any:
        """Return the joint score of the votes as a tensor; see `Detector.smooth_scores`."""
        if len(self.votes_) == 1:
            return self.votes_[0].smooth_score(evidence)
        groups: dict[str, list[Any]] = {}
        for vote in self.votes_:
            reference, sides = self.reference_[vote.name], 2 if vote.two_sided else 1
            values = smooth_surprise(vote.smooth_score(evidence), reference, sides)
            groups.setdefault(vote.group or vote.name, []).append(values)
        means = [sum(group[1:], start=group[0]) / len(group) for group in groups.values()]
        return sum(means[1:], start=means[0])

    def state(self) -> dict[str, np.ndarray]:
        """Return the votes' arrays; see `Detector.state`."""
        if len(self.votes_) == 1:
            return self.votes_[0].state()
        arrays = {f"reference|{name}": scores for name, scores in self.reference_.items()}
        for vote in self.votes_:
            arrays |= {f"{vote.name}|{key}": array for key, array in vote.state().items()}
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned; see `Detector.restore`."""
        self.check_parameters()
        self.votes_ = self.votes()
        self.reference_ = {}
        if len(self.votes_) == 1:
            self.votes_[0].restore(state)
            return
        for vote in self.votes_:
            self.reference_[vote.name] = state[f"reference|{vote.name}"]
            start = f"{vote.name}|"
            own = {k.removeprefix(start): a for k, a in state.items() if k.startswith(start)}
            vote.restore(own)
