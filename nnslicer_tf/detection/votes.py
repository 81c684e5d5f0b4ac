"""`Vote`, an anomaly score and its weight, and `VotingDetector`, which fuses several votes."""

from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_number
from nnslicer_tf._environment import track, waiting
from nnslicer_tf.detection.calibration import as_scores, surprise
from nnslicer_tf.detection.detector import Detector
from nnslicer_tf.detection.evidence import Evidence
from nnslicer_tf.detection.images import array_module
from nnslicer_tf.detection.scorers import Identity, Scorer

_REFERENCE = 0.25  # share of the training inputs that is reserved as reference of the p-values


@dataclass(eq=False, repr=False)
class Vote:
    """A scorer, the features that it reads from the evidence, and its weight among others.

    Args:
        name: Name of the vote, under which its state is saved.
        read: Evidence → features, (N, features), or (N,) for `Identity`; with `sizes`, a function
            of the evidence and of `columns`, the indices of those to return.
        scorer: Computes the anomaly score; by default it is the feature itself.
        sizes: Lengths of the blocks of a long vector, of which some columns are drawn at random.
        most: Number of columns drawn uniformly from longer blocks.
        group: Votes in a group are nearly redundant; their mean counts as one. None: its own.
        two_sided: Whether unusually low scores count as much as unusually high ones.

    Attributes:
        columns: The drawn columns, ascending; only with `sizes`.
    """

    name: str
    read: Callable[..., Any]
    scorer: Scorer = field(default_factory=Identity)
    _: KW_ONLY
    sizes: Sequence[int] = ()
    most: int = 0
    group: str | None = None
    two_sided: bool = False
    columns: np.ndarray = field(init=False)

    def features(self, evidence: Evidence) -> Any:
        """Return the features of the inputs."""
        return self.read(evidence, columns=self.columns) if self.sizes else self.read(evidence)

    def fit(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Draw the columns and fit the scorer on normal inputs."""
        parts, first = [np.empty(0, int)], 0
        for size in self.sizes:
            drawn = np.arange(size)
            if size > self.most:
                drawn = np.sort(rng.choice(size, self.most, replace=False))
            parts.append(first + drawn)
            first += size
        self.columns = np.concatenate(parts)
        if type(self.scorer).fit is not Scorer.fit:  # else nothing is learned from the features
            self.scorer.fit(self.features(evidence), evidence.predicted, evidence.logits.shape[1])

    def score(self, evidence: Evidence) -> Any:
        """Return the anomaly scores, (N,) float64; of tensors, which attacks use, as they are."""
        scores = self.scorer.score(self.features(evidence), evidence.predicted)
        if array_module(evidence.x) is not np:
            return scores
        source = f"Vote {self.name!r}: {type(self.scorer).__name__}.score"
        return as_scores(scores, len(evidence.x), source)

    def state(self) -> dict[str, np.ndarray]:
        """Return the drawn columns and the scorer's state, as arrays by name."""
        return ({"columns": self.columns} if self.sizes else {}) | self.scorer.state()

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        if self.sizes:
            columns = self.columns = state["columns"]
            steps = np.diff(columns, prepend=-1, append=sum(self.sizes))
            if columns.dtype.kind != "i" or (steps <= 0).any():
                raise ValueError(f"the columns of '{self.name}' do not rise within its features")
        self.scorer.restore(state)


@dataclass(eq=False, repr=False, kw_only=True)
class VotingDetector(Detector):
    """A detector that fuses votes; a subclass implements `votes`.

    A single vote's score is the detector's. Several scores become p-values among normal inputs not
    used for learning, whose logarithms are added (see `calibration.surprise`).

    Args:
        alpha: Penalty of the ridge regressions among the scorers.

    Attributes:
        votes_: The fitted votes.
        reference_: Vote → its scores of the normal inputs behind the p-values; empty for one vote.
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
        check_number("alpha", self.alpha, "(0, inf)")

    def learn(self, evidence: Evidence, rng: np.random.Generator) -> None:
        """Fit the votes."""
        self.votes_ = self.votes()
        self.reference_ = {}
        if len(self.votes_) == 1:
            with waiting("Fitting", self.shows_progress):
                self.votes_[0].fit(evidence, rng)
            return
        order = rng.permutation(len(evidence))
        cut = round(len(evidence) * (1 - _REFERENCE))
        training = evidence.rows(np.sort(order[:cut]))
        # One after the other: only the latest slices are kept in memory.
        for vote in track(self.votes_, "Fitting", len(self.votes_), self.shows_progress):
            vote.fit(training, rng)
        reference = evidence.rows(np.sort(order[cut:]))
        self.reference_ = {vote.name: vote.score(reference) for vote in self.votes_}

    @property
    def shows_progress(self) -> bool:
        """Whether `fit` shows a progress bar."""
        return True

    def anomaly_scores(self, evidence: Evidence) -> Any:
        """Return the joint score of the votes."""
        if len(self.votes_) == 1:
            return self.votes_[0].score(evidence)
        return self.fuse(evidence, self.votes_)

    def fuse(
        self, evidence: Evidence, votes: Iterable[Vote], surprise: Callable[..., Any] = surprise
    ) -> Any:
        """Return the joint surprise of votes, (N,): the sum over groups of their mean -log p."""
        groups: dict[str, list[Any]] = {}
        for vote in votes:
            value = surprise(vote.score(evidence), self.reference_[vote.name], vote.two_sided)
            groups.setdefault(vote.group or vote.name, []).append(value)
        return sum(sum(group) / len(group) for group in groups.values())

    def state(self) -> dict[str, np.ndarray]:
        """Return the votes' arrays."""
        if len(self.votes_) == 1:
            return self.votes_[0].state()
        arrays = {f"reference|{name}": scores for name, scores in self.reference_.items()}
        for vote in self.votes_:
            arrays |= {f"{vote.name}|{key}": array for key, array in vote.state().items()}
        return arrays

    def restore(self, state: dict[str, np.ndarray]) -> None:
        """Restore what `state` returned."""
        self.check_parameters()
        self.votes_ = self.votes()
        self.reference_ = {}
        if len(self.votes_) == 1:
            self.votes_[0].restore(state)
            return
        for vote in self.votes_:
            reference = state[f"reference|{vote.name}"]
            if reference.ndim != 1 or not len(reference):
                raise ValueError(f"'reference|{vote.name}' has shape {reference.shape}")
            self.reference_[vote.name] = reference
            start = f"{vote.name}|"
            own = {k.removeprefix(start): a for k, a in state.items() if k.startswith(start)}
            vote.restore(own)
