"""What the experiments on target classes share: subsets, figures, and cells that are kept."""

import os
from collections.abc import Callable, Iterable, Mapping
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from nnslicer_tf._files import atomic_path
from nnslicer_tf._random import as_generator
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.class_scores import ClassScores
from nnslicer_tf.pruning.rankers import ClassRanker, EffectivePathRanker, NNSlicerRanker
from nnslicer_tf.slicing import Profile

__all__ = [
    "ABLATED",
    "RANKINGS",
    "Cells",
    "draw_subsets",
    "kept_rankings",
    "subset_figures",
]


def draw_subsets(
    classes: int, size: int, count: int | None = None, rng: int | np.random.Generator = 0
) -> list[tuple[int, ...]]:
    """Return sets of target classes in lexical order: all of a size, or some at random.

    Args:
        classes: Number of classes of the model.
        size: Classes in a set.
        count: How many sets to draw; all by default.
        rng: Draws them.

    Raises:
        InvalidArgumentError: if sets of this size do not exist.
    """
    if not 1 <= size <= classes:
        raise InvalidArgumentError(f"There are no sets of {size} among {classes} classes.")
    every = list(combinations(range(classes), size))
    if count is None or count >= len(every):
        return every
    chosen = as_generator(rng).choice(len(every), count, replace=False)
    return [every[i] for i in sorted(chosen)]


def subset_figures(logits: np.ndarray, y: np.ndarray, targets: Iterable[int]) -> dict[str, float]:
    """Return how well a model does on target classes, and on the others.

    Args:
        logits: `(samples, classes)`.
        y: The classes, `(samples,)` integers.
        targets: The target classes.

    Returns:
        "targets": accuracy on the samples of target classes; "others": on the other
        samples (NaN if there are none); "all": on all; "among_targets": on the samples of
        target classes, where only target classes may be predicted.
    """
    targets = sorted(targets)
    chosen = np.isin(y, targets)
    right = logits.argmax(axis=1) == y
    among = np.take(targets, logits[:, targets].argmax(axis=1)) == y
    return {
        "targets": float(right[chosen].mean()),
        "others": float(right[~chosen].mean()) if not chosen.all() else float("nan"),
        "all": float(right.mean()),
        "among_targets": float(among[chosen].mean()),
    }


class Cells:
    """Rows of a table that are kept on disk as they are found, so that a run can resume.

    Args:
        path: The CSV file.
        keys: Names of the columns that name a row.

    Raises:
        CorruptFileError: if the file is there, but is no such table.
    """

    def __init__(self, path: str | os.PathLike, keys: Iterable[str]) -> None:
        self._path = Path(path)
        self._keys = tuple(keys)
        self._rows: list[dict[str, Any]] = []
        if self._path.exists():
            self._rows = self._read()
        self._known = {self._key(row): row for row in self._rows}

    def __contains__(self, row: Mapping[str, Any]) -> bool:
        """Whether there is a row of this name."""
        return self._key(row) in self._known

    def add(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Keep rows, on disk too."""
        rows = [dict(row) for row in rows]
        self._rows += rows
        self._known.update((self._key(row), row) for row in rows)
        with atomic_path(self._path) as temporary:
            pd.DataFrame(self._rows).to_csv(temporary, index=False)

    def to_frame(self, names: Iterable[Mapping[str, Any]]) -> pd.DataFrame:
        """Return the table of the rows of these names; earlier runs may have left more."""
        return pd.DataFrame([self._known[self._key(name)] for name in names])

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        return f"Cells({len(self)} rows in '{self._path}')"

    def _read(self) -> list[dict[str, Any]]:
        try:
            table = pd.read_csv(self._path, dtype=dict.fromkeys(self._keys, str))
            if not set(self._keys) <= set(table.columns):
                raise ValueError(f"it has no columns {', '.join(self._keys)}")
        except (ValueError, OSError) as error:
            raise CorruptFileError(
                f"'{self._path}' does not hold the cells of an unfinished run: {error}. Remove it."
            ) from error
        return table.to_dict("records")

    def _key(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self._keys)


def kept_scores(path: str | os.PathLike, make: Callable[[], ClassScores]) -> ClassScores:
    """Return the class scores in a file; make and keep them if it is not there."""
    path = Path(path)
    if not path.exists():
        make().save(path)
    return ClassScores.load(path)


Rankings = dict[str, Callable[[Profile], ClassRanker]]

RANKINGS: Rankings = {
    "slices": lambda profile: NNSlicerRanker(profile=profile),
    "magnitudes": lambda profile: NNSlicerRanker(profile=profile, per_sample=True),
    "paths": lambda profile: EffectivePathRanker(),
}
"""Name → how target classes rank synapses: contributions as the paper sums them, those of each
sample without their signs, effective paths."""

ABLATED: Rankings = {
    "slices": RANKINGS["slices"],
    "magnitudes": RANKINGS["magnitudes"],
    "theta0": lambda profile: NNSlicerRanker(profile=profile, theta=0.0),
    "theta1": lambda profile: NNSlicerRanker(profile=profile, theta=1.0),
    "channels": lambda profile: NNSlicerRanker(profile=profile, granularity="channel"),
    "all-samples": lambda profile: NNSlicerRanker(profile=profile, correct_only=False),
}
"""Name → the paper's ranking, and with one thing changed that the paper leaves open."""


def kept_rankings(
    im: InstrumentedModel,
    train: Dataset,
    samples: int,
    profiled: int,
    folder: str | os.PathLike,
    rankings: Rankings = RANKINGS,
) -> dict[str, ClassScores]:
    """Return scores by class, kept in a folder.

    Args:
        im: The classifier.
        train: Samples, the first ones of which are used.
        samples: How many of each class to slice.
        profiled: How many to profile.
        folder: Where profile and scores are kept, or found.
        rankings: Name → ranker, given the profile.
    """
    folder = Path(folder)
    chosen = np.concatenate([np.flatnonzero(train.y == c)[:samples] for c in range(train.classes)])
    x, y = train.x[chosen], train.y[chosen]
    profile_file = folder / "profile.npz"
    if not profile_file.exists():
        Profile.from_data(im, train.x[:profiled]).save(profile_file)
    profile = Profile.load(profile_file)
    return {
        name: kept_scores(
            folder / f"{name}.npz", lambda ranker=ranker: ranker(profile).by_class(im, x, y)
        )
        for name, ranker in rankings.items()
    }
