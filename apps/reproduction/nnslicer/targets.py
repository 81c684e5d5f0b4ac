"""Common parts of the experiments on target classes: data, rankings, stored rows, summaries."""

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import combinations
from pathlib import Path

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._environment import track
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._numerics import subset_figures
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning import ClassRanker, NNSlicerRanker
from nnslicer_tf.pruning.rankers import Scores
from nnslicer_tf.slicing import Profile
from reproduction.nnslicer.class_profiles import ClassProfiles
from reproduction.nnslicer.effective_path import EffectivePathRanker
from reproduction.nnslicer.settings import TargetSettings
from reproduction.rows import RowStore
from reproduction.samples import first, load_classifier

Targets = tuple[int, ...]

_FORMAT = "nnslicer_tf class scores 1"


class ClassScores(dict[int, Scores]):
    """The scores of each class: class → kernel name → array of the kernel's shape."""

    def total(self, classes: Iterable[int] | None = None) -> Scores:
        """Return the sum of the scores of a set of target classes.

        Args:
            classes: The target classes; all by default.

        Raises:
            InvalidArgumentError: if the set is empty, or contains a class without scores.
        """
        targets = list(self) if classes is None else sorted(set(classes))
        if not targets:
            raise InvalidArgumentError("The set of target classes is empty: name at least one.")
        for target in targets:
            if target not in self:
                raise InvalidArgumentError(
                    f"There are no scores for class {target!r}; there are some for "
                    f"{', '.join(map(str, self))}."
                )
        return {
            name: sum((self[c][name] for c in targets), np.zeros_like(score))
            for name, score in self[targets[0]].items()
        }

    def save(self, path: str | os.PathLike) -> None:
        """Write the scores to an .npz file; an older file is replaced only by a complete one."""
        kernels = list(next(iter(self.values()), {}))
        header = {"classes": [int(target) for target in self], "kernels": kernels}
        arrays = {f"{c}/{i}": self[c][name] for c in self for i, name in enumerate(kernels)}
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "ClassScores":
        """Read scores; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "file of class scores") as file:
            classes, kernels = file.value("classes", list), file.names("kernels")
            scores = {
                int(c): {n: file.array(f"{c}/{i}", np.number) for i, n in enumerate(kernels)}
                for c in classes
            }
            shapes = [[score.shape for score in of_class.values()] for of_class in scores.values()]
            file.check(shapes[1:] == shapes[:-1], "its classes have scores of different shapes")
            return cls(scores)


@dataclass(frozen=True, eq=False)
class Profiles:
    """The profiles that rankings may use: of all classes together, or of each."""

    whole: Profile
    im: InstrumentedModel
    x: np.ndarray  # the samples for ranking
    y: np.ndarray  # their classes

    @cached_property
    def by_class(self) -> ClassProfiles:
        """The profile of each class, from correctly classified samples for ranking."""
        return ClassProfiles.from_data(self.im, self.x, self.y)


Rankings = dict[str, Callable[[Profiles], ClassRanker]]

RANKINGS: Rankings = {
    "slices": lambda profiles: NNSlicerRanker(profile=profiles.whole),
    "magnitudes": lambda profiles: NNSlicerRanker(profile=profiles.whole, collect="magnitudes"),
    "paths": lambda profiles: EffectivePathRanker(),
}
"""Name → ranker for target classes: contributions as the paper sums them, magnitudes, paths."""

ABLATED: Rankings = {
    "slices": RANKINGS["slices"],
    "magnitudes": RANKINGS["magnitudes"],
    "theta0": lambda profiles: NNSlicerRanker(profile=profiles.whole, theta=0.0),
    "theta1": lambda profiles: NNSlicerRanker(profile=profiles.whole, theta=1.0),
    "channels": lambda profiles: NNSlicerRanker(profile=profiles.whole, granularity="channel"),
    "amounts": lambda profiles: NNSlicerRanker(
        profile=profiles.whole, theta=0.0, collect="magnitudes", contribution="amount"
    ),
    "all-samples": lambda profiles: NNSlicerRanker(profile=profiles.whole, correct_only=False),
}
"""Name → the paper's ranking, and variants in one choice that the paper leaves open."""


@dataclass(frozen=True, eq=False)
class TargetTask:
    """A classifier, its data, sets of target classes, and rankings of its synapses."""

    im: InstrumentedModel
    train: Dataset  # without the last tenth
    measured: Dataset  # the samples on which results are measured
    subsets: list[Targets]
    ranked: dict[str, ClassScores]
    folder: Path  # of its profile, rankings and finished rows

    @property
    def sets(self) -> str:
        """Size and number of the sets, for file names."""
        return f"{len(self.subsets[0])}x{len(self.subsets)}"

    @property
    def sets_in_words(self) -> str:
        """Size and number of the sets, for table heads."""
        return f"{len(self.subsets)} sets of {len(self.subsets[0])} target classes"


def load_task(
    s: TargetSettings, rankings: Rankings, split: str = "test", images: int | None = None
) -> TargetTask:
    """Load model and data, draw the sets, and rank the synapses by class, or load the rankings.

    Results are measured on the first `images` samples (by default all) of `split`.
    """
    im = InstrumentedModel(load_classifier(s.model, s.dataset))
    # The last tenth was held out from the zoo's training; our own settings were chosen on it.
    load = partial(datasets.load, s.dataset, normalise=s.normalise)
    train, measured = load("train[:90%]"), load(split)
    subsets = draw_subsets(measured.classes, s.size, s.subsets or None, s.seed)
    folder = s.work_folder(im.fingerprint)
    ranked = kept_rankings(im, train, s.samples, s.profiled, folder, rankings)
    return TargetTask(im, train, first(measured, images), subsets, ranked, folder)


def draw_subsets(classes: int, size: int, count: int | None, seed: int) -> list[Targets]:
    """Return sets of target classes in lexicographic order: all of a size, or random ones."""
    every = list(combinations(range(classes), size))
    if count is None or count >= len(every):
        return every
    indices = np.random.default_rng(seed).choice(len(every), count, replace=False)
    return [every[i] for i in sorted(indices)]


def kept_rankings(
    im: InstrumentedModel, train: Dataset, samples: int, profiled: int, folder: Path, by: Rankings
) -> dict[str, ClassScores]:
    """Return scores by class, cached in a folder."""
    chosen = np.concatenate([np.flatnonzero(train.y == c)[:samples] for c in range(train.classes)])
    x, y = train.x[chosen], train.y[chosen]
    profile_file = folder / "profile.npz"
    if not profile_file.exists():
        Profile.from_data(im, train.x[:profiled]).save(profile_file)
    profiles = Profiles(Profile.load(profile_file), im, x, y)
    scores = {}
    for name, ranker in by.items():
        path = folder / f"{name}.npz"
        if not path.exists():
            ClassScores(ranker(profiles).by_class(im, x, y)).save(path)
        scores[name] = ClassScores.load(path)
    return scores


def set_name(targets: Targets) -> str:
    """Return the name of a set of target classes in tables, such as "0-3-5"."""
    return "-".join(map(str, targets))


Case = tuple[dict[str, object], Callable[[Targets], np.ndarray], bool]
"""Names of a case, the logits of its model for target classes, and whether these do not matter."""


def measure(task: TargetTask, file: str, cases: Sequence[Case], what: str) -> pd.DataFrame:
    """Return a row of accuracies for each case and set; finished rows are kept in `file`."""
    store = RowStore(task.folder / file, [*cases[0][0], "targets_of"])
    names = []
    for case, logits_of, shared in track(cases, what):
        logits = None
        for targets in task.subsets:
            names.append({**case, "targets_of": set_name(targets)})
            if names[-1] not in store:
                if logits is None or not shared:
                    logits = logits_of(targets)
                store.add([names[-1] | subset_figures(logits, task.measured.y, targets)])
    return store.to_frame(names)


def summary(rows: pd.DataFrame, keys: Sequence[str], figures: Sequence[str]) -> pd.DataFrame:
    """Return means of metrics by some columns, with the deviation on target classes."""
    groups = rows.groupby(list(keys), sort=False)
    means = groups[list(figures)].mean()
    means["targets ±"] = groups["targets"].std(ddof=0)
    return means.reset_index()
