"""Contributions against background rows: the mean over rows that each stand for absent features.

The mean row of a table is seldom a row that could be: of one-hot columns it has a bit of each
category. Rows of the data are; what a feature adds is averaged over them, and each adds up.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_name, counted, is_int
from nnslicer_tf.attributions.methods import deeplift_by_row
from nnslicer_tf.attributions.problem import Problem, feature_operations
from nnslicer_tf.attributions.shapley import MAX_FEATURES, flat, scores_of, shapley_values
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import columns_of
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.target import Target

SHAPLEY = "Shapley values"
DEEPLIFT = "amounts"
_SPLITS = 20
_SHOWN = 5  # features that a summary names
_STABLE = 0.9
_FAR = 0.5  # distance of two scores, in standard deviations over the background
_MISSING = "missingindicator_"  # scikit-learn's prefix

Groups = Mapping[str, Sequence[str | int]]
"""Name of a feature → its columns, by name or index."""


def is_far(score: float, scores: np.ndarray) -> bool:
    """Whether a score is far from the mean of several rows' scores."""
    if len(scores) < 2:
        return False
    least = max(_FAR * float(scores.std()), 1e-3 * abs(float(scores.mean())))
    return abs(score - float(scores.mean())) > least


@dataclass(frozen=True, eq=False)
class Background:
    """What each feature of a sample adds to the target's score, against each background row.

    Attributes:
        rows: The rows, a checked batch.
        method: "Shapley values" of a table, "amounts" (DeepLIFT's) of anything else.
        names: Names of the features; empty unless the sample is a table's row.
        columns: Names of the inputs' entries; empty unless the sample is a table's row.
        entries: The sample's values, `(entries,)` of all inputs.
        features: Index of each entry's feature, `(entries,)`.
        by_row: `(rows, features)`, which add up to the sample's score less the row's.
        errors: Standard errors of their means over the rows that drawing orders of features
            causes, `(features,)`; 0 without it.
        score: The sample's score: the logit of a class, or the value of another target.
        mean_row_score: The score of the mean row; NaN without one.
    """

    rows: Any
    method: str
    names: tuple[str, ...]
    columns: tuple[str, ...]
    entries: np.ndarray
    features: np.ndarray
    by_row: np.ndarray
    errors: np.ndarray
    score: float
    mean_row_score: float

    @cached_property
    def values(self) -> np.ndarray:
        """Mean contributions over the rows, `(features,)`."""
        return self.by_row.mean(axis=0)

    @property
    def by_entry(self) -> np.ndarray:
        """Mean contributions of the inputs' entries, which share that of their feature equally."""
        return (self.values / np.bincount(self.features))[self.features]

    @property
    def scores(self) -> np.ndarray:
        """Scores of the rows, `(rows,)`; of words, read with the sample's padding."""
        return self.score - self.by_row.sum(axis=1)

    @property
    def spread(self) -> np.ndarray:
        """Standard errors of the contributions, if the rows are a sample, `(features,)`."""
        rows = len(self.by_row)
        return self.by_row.std(axis=0, ddof=min(1, rows - 1)) / np.sqrt(rows)

    @cached_property
    def stability(self) -> float:
        """Spearman's correlation of the sizes of contributions by two halves of the rows.

        Mean over 20 random splits; NaN of fewer than 4 rows, or features that are all equal.
        """
        from scipy.stats import spearmanr

        rows, random = len(self.by_row), np.random.default_rng(0)
        found = []
        for _ in range(_SPLITS if rows >= 4 else 0):
            order = random.permutation(rows)
            halves = [np.abs(self.by_row[part].mean(axis=0)) for part in np.array_split(order, 2)]
            if all(np.ptp(half) for half in halves):
                found.append(spearmanr(*halves)[0])
        return float(np.mean(found)) if found else np.nan

    @property
    def mean_row_is_far(self) -> bool:
        """Whether the mean row's score is no typical one: far from the rows' mean score."""
        return is_far(self.mean_row_score, self.scores)

    def summary(self) -> str:
        """Return what the contributions add up to, the largest ones, and how stable they are."""
        start, total = self.scores.mean(), self.values.sum()
        text = (
            f"Against {counted(len(self.by_row), 'background row')} the contributions "
            f"({self.method}) add up to {total:+.3g}: from the rows' mean score, {start:.3g}, to "
            f"{self.score:.3g}."
        )
        if self.names:
            first = self.to_frame().head(_SHOWN).itertuples(index=False)
            largest = ", ".join(f"{one[0]} = {one[1]} ({one[2]:+.3g})" for one in first)
            text += f" The largest: {largest}."
        if self.names and np.isfinite(self.stability):
            text += (
                f" Two halves of the rows order the features alike, with a rank correlation of "
                f"{self.stability:.2f}."
            )
            if self.stability < _STABLE:
                text += " Read near-equal features as equal, or pass more rows as `background`."
        if self.mean_row_is_far:
            text += (
                f" The mean of the profiled data has the score {self.mean_row_score:.3g}, far from "
                "the rows' mean score: it is no typical sample. Amounts are measured against it."
            )
        return text

    def to_frame(self) -> pd.DataFrame:
        """Return a table of the features, largest contribution first; the index is the feature's.

        The columns are feature, value, contribution, standard error (over the rows; what drawing
        orders of features causes is part of it).
        """
        values = []
        for index, name in enumerate(self.names or map(str, self.features)):
            members = np.flatnonzero(self.features == index)
            there = self.entries[members]
            on = members[there == 1] if len(members) > 1 else members[:0]
            flags = [i for i in members if len(members) > 1 and _MISSING in self.columns[i]]
            if self.entries[flags].any():
                values.append("missing")
            elif len(on) == 1 and np.count_nonzero(there) == 1 and not flags:  # one-hot columns
                column = self.columns[on[0]]
                values.append(column.removeprefix(name).lstrip("_=. ") or column)
            else:
                shown = self.entries[np.setdiff1d(members, flags)]
                values.append(", ".join(f"{value:.4g}" for value in shown))
        frame = pd.DataFrame(
            {
                "feature": self.names or self.features,
                "value": values,
                "contribution": self.values,
                "standard error": self.spread,
            }
        )
        return frame.iloc[np.argsort(-np.abs(self.values), kind="stable")]


def contributions_against(
    im: InstrumentedModel,
    x: Any,
    rows: Any,
    target: Target,
    means: Mapping[str, np.ndarray] | None = None,
    columns: Sequence[str] = (),
    groups: Groups | None = None,
) -> Background:
    """Return what each feature of a sample adds to a target's score, against background rows.

    Shapley values of a table's columns, or groups of columns; DeepLIFT's contributions of anything
    else, or of more than 512 columns. Rows of tokens are read with the sample's padding.

    Args:
        im: The model.
        x: The sample, a checked batch of one, as `im.check` returns it.
        rows: The background, a checked batch.
        target: Whose score is explained.
        means: The profile's means, for the score of the mean row.
        columns: Names of a table's columns.
        groups: Columns that are one feature, by its name; by default `column_groups`.

    Raises InvalidArgumentError if there are groups but no table, or a column is unknown or in two.
    """
    score = float(scores_of(im, flat(x), target)[0])
    mean_row_score = np.nan
    if means is not None:
        problem = Problem(im, x[0], means, target)
        at_mean = {name: value[None] for name, value in problem.baseline.items()}
        mean_row_score = float(problem.scores(at_mean)[0])
    entries, scores = flat(x)[0], (score, mean_row_score)
    if is_table(im):
        columns = entry_names(im, columns)
        everything = np.concatenate([flat(x), flat(rows)])
        found = column_groups(columns, everything) if groups is None else groups
        features, of_features = _features(found, columns)
        if len(of_features) <= MAX_FEATURES:
            by_row, errors = shapley_values(im, x, rows, target, features)
            of_table = of_features, tuple(columns), entries, features, by_row, errors
            return Background(rows, SHAPLEY, *of_table, *scores)
    if groups:
        raise InvalidArgumentError(
            f"groups are for tables of at most {MAX_FEATURES} features; '{im.model.name}' takes "
            f"samples of shape {', '.join(map(str, im.input_shapes.values()))}. Omit groups."
        )
    found = deeplift_by_row(im, x[0], rows, target)
    by_row = flat(Inputs(found) if isinstance(found, dict) else found)
    features = np.arange(by_row.shape[1])
    errors = np.zeros(len(features))
    return Background(rows, DEEPLIFT, (), (), entries, features, by_row, errors, *scores)


def is_table(im: InstrumentedModel) -> bool:
    """Whether samples are rows of numbers and categories, not sequences of tokens."""
    for name, shape in im.input_shapes.items():
        sources = feature_operations(im, name)
        are_tokens = all(isinstance(im[source].params, Lookup) for source in sources)
        if len(shape) > 1 or (are_tokens and np.prod(shape) > 1):
            return False
    return True


def entry_names(im: InstrumentedModel, columns: Sequence[str] = ()) -> tuple[str, ...]:
    """Return the names of all inputs' entries: a table's columns, or from the inputs' names."""
    sizes = {name: int(np.prod(shape)) for name, shape in im.input_shapes.items()}
    own = {name: columns_of(columns, name) for name in sizes}
    if not any(own.values()) and len(columns) == sum(sizes.values()):
        return tuple(map(str, columns))
    names: list[str] = []
    for name, size in sizes.items():
        several = [name] if size == 1 else [f"{name}[{i}]" for i in range(size)]
        places = several if len(sizes) > 1 else list(map(str, range(size)))
        known = [f"{name}: {column}" for column in own[name]]
        names += known if len(known) == size else places
    return tuple(names)


def column_groups(columns: Sequence[str], rows: np.ndarray) -> dict[str, list[int]]:
    """Return the columns that form one feature, by the feature's name.

    One-hot columns, as `pandas.get_dummies` makes them: neighbours with the same prefix, such as
    "city_Rome" and "city_Oslo", or of the same input, with values 0 or 1 and at most one 1 in each
    of the `rows` `(rows, columns)`. Also a column and its indicator, "missingindicator_age".
    """
    groups: dict[str, list[int]] = {}
    free = set(range(len(columns)))
    is_binary = [bool(np.isin(column, (0, 1)).all()) for column in rows.T]
    prefixes = {name[:i] for name in columns for i in range(1, len(name)) if name[i] in "_=.["}

    def begins(name: str, prefix: str) -> bool:
        return name.startswith(prefix) and name[len(prefix) :][:1] in tuple("_=.[")

    for prefix in sorted(prefixes, key=len):  # the shortest that fits
        members = [i for i in sorted(free) if is_binary[i] and begins(columns[i], prefix)]
        adjacent = len(members) == 1 + max(members, default=0) - min(members, default=0)
        if len(members) > 1 and adjacent and rows[:, members].sum(axis=1).max() <= 1:
            same = [p for p in prefixes if all(begins(columns[i], p) for i in members)]
            groups[max(same, key=len)] = members
            free -= set(members)
    for i in sorted(free):
        own = columns[i].replace(_MISSING, "", 1)
        if own != columns[i] and own in columns and columns.index(own) in free:
            groups[own] = [columns.index(own), i]
    return groups


def _features(groups: Groups, columns: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Return the index of each column's feature, and the features' names, in order of columns."""
    group_of: dict[int, str] = {}
    numbered = all(column.isdecimal() for column in columns)  # a number is a name then
    for name, members in groups.items():
        for member in (str(m) if numbered and is_int(m) else m for m in members):
            if not is_int(member):
                check_name("column", member, columns)
            index = columns.index(member) if isinstance(member, str) else int(member)
            is_twice = columns.count(member) > 1
            if not 0 <= index < len(columns) or index in group_of or is_twice:
                last = f"does not exist; the last is {len(columns) - 1}"
                what = "is in two groups" if index in group_of else last
                what = "occurs twice: pass indices" if is_twice else what
                raise InvalidArgumentError(f"groups: column {member!r} of '{name}' {what}.")
            group_of[index] = str(name)
    keys = [(-1, group_of[i]) if i in group_of else (i, name) for i, name in enumerate(columns)]
    if both := {n for i, n in keys if i >= 0}.intersection(group_of.values()):
        raise InvalidArgumentError(f"groups: {both.pop()!r} is a column that is in no group, too.")
    order = {key: place for place, key in enumerate(dict.fromkeys(keys))}
    return np.array([order[key] for key in keys]), tuple(name for _, name in order)
