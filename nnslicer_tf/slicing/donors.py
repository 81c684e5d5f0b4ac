"""Other samples, the *donors*, whose values inactive parts of a decisive slice take.

Donors that no search sees test a slice (its scope). With `at_least` a background is split into
three sets: of the first, each round of the search draws new donors; the second judges single units
(`minimal`) and the certificate; the third tests sizes. Memory: the values of all donors.
"""

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
from keras import ops

from nnslicer_tf._checks import check_count
from nnslicer_tf._numerics import CONFIDENCE
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.instrument.ablation import Base, Rows
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.references import Reference, Samples
from nnslicer_tf.slicing.profile import Profile

MIN_KEPT = 0.95
"""Share of the samples of one slice, or of its donors, for which it keeps the answer."""
DRAWN = 8
"""Donors of a round."""
_SEARCHED, _CHOSEN = 0.35, 0.15  # shares of a background; the rest is for tests


@dataclass(frozen=True)
class Trial:
    """Rows to be run under many masks: samples, each with means or a donor in inactive units."""

    rows: Rows
    index: np.ndarray  # of each row's sample in its search
    counts: np.ndarray  # whether a row's donor is another sample

    def part(self, chosen: np.ndarray) -> "Trial":
        """Return the chosen rows."""
        return Trial(self.rows.part(chosen), self.index[chosen], self.counts[chosen])


def _differ(x: Any, i: np.ndarray, others: Any, j: np.ndarray) -> np.ndarray:
    """Return of which pairs of a sample, by index i, and another, by index j, the two differ."""
    pairs = zip(x, others, strict=True)
    return np.any([(a[i] != b[j]).reshape(len(j), -1).any(axis=1) for a, b in pairs], axis=0)


@dataclass(frozen=True)
class Donors:
    """Samples whose values inactive units take."""

    inputs: Sequence[np.ndarray]
    base: Base

    @classmethod
    def of(cls, model: Ablation, x: Any) -> "Donors":
        """Compute the donors' values; `x` was checked."""
        return cls(arrays_of(x), model.base(Samples(x)))

    def trial(
        self, model: Ablation, x: Sequence[np.ndarray], rng: np.random.Generator, few: bool = False
    ) -> Trial:
        """Return pairs of a sample and a donor, as many as there are of the more numerous.

        If `few`, there are as many as donors, so that some samples may be in none.
        """
        samples, donors = len(x[0]), self.base[2]
        rows, base = donors if few else max(samples, donors), self.base
        index, own = np.resize(rng.permutation(samples), rows), np.arange(rows) % donors
        if rows > donors:
            of_rows = [{n: ops.take(v, own, axis=0) for n, v in p.items()} for p in base[:2]]
            base = of_rows[0], of_rows[1], rows
        chosen = model.unchecked([array[index] for array in x], base, paired=True)
        return Trial(chosen, index, _differ(x, index, self.inputs, own))


@dataclass(frozen=True)
class DonorSets:
    """The donors that test slices; for `at_least` also those of rounds and to choose a size."""

    tests: Donors | None = None
    missing: str = ""  # why there are none
    rounds: Sequence[Donors] = ()
    choice: Donors | None = None

    def trials(self, model: Ablation, x: Sequence[np.ndarray], seed: int) -> dict[str, Any]:
        """Return what a search for samples `x` runs: data, and draw and test, or scope."""
        tests, rng = self.tests, np.random.default_rng(seed)

        def draw() -> Iterator[Trial]:
            rng = np.random.default_rng(seed)
            while True:
                for place in rng.permutation(len(self.rounds)):
                    yield self.rounds[place].trial(model, x, rng, few=True)

        if self.choice is not None and tests is not None:
            data, test = (donors.trial(model, x, rng) for donors in (self.choice, tests))
            if not data.counts.any() or not test.counts.any():
                raise InvalidArgumentError("All other samples are equal to the one to slice.")
            return {"data": data, "test": test, "draw": draw}
        rows = model.unchecked(x)
        index = np.repeat(np.arange(len(x[0])), rows.donors)
        counts = np.ones(len(index), bool)
        if isinstance(model.reference, Samples):  # a sample's values for itself say nothing
            own = np.tile(np.arange(rows.donors), len(x[0]))
            counts = _differ(x, index, arrays_of(model.reference.x), own)
            if not np.bincount(index[counts], minlength=len(x[0])).all():
                raise InvalidArgumentError("The only sample of the reference is the one to slice.")
        data = Trial(rows, index, counts)
        if tests is None:
            return {"data": data}

        def scope(place: int) -> Trial:
            found = tests.trial(model, [array[place : place + 1] for array in x], rng)
            return replace(found, index=np.full_like(found.index, place))

        return {"data": data, "scope": scope}


def donor_sets(
    model: Ablation,
    profile: Profile,
    reference: Reference,
    scope: Any,
    at_least: float | None,
    rng: np.random.Generator,
) -> DonorSets:
    """Return the donors of a search; see `Slicer.decisive`."""
    im, count = model.im, 0 if scope is None else scope
    is_count = isinstance(count, (int, np.integer))
    if is_count:
        check_count("scope", count, 0)
    given = None if is_count else im.check(scope)
    if model.network.by_weight:
        if given is not None:
            raise InvalidArgumentError("Replaced weights take no samples' values: omit scope.")
        return DonorSets(missing="" if reference.paired else "inactive weights are zero for all")
    if at_least is not None:
        background = im.check(reference.x) if isinstance(reference, Samples) else ()
        first, second, last = _split(len(background), rng)
        count = len(last if given is None else given)
        if not looks_of(count, at_least) or len(first) < DRAWN:
            trials, fewest = _fewest(at_least)
            where = "half of the background: pass"
            if given is not None:
                where, fewest = f"and scope has {count}: pass that many, and", _fewest()[1]
            raise InvalidArgumentError(
                f"at_least={at_least:g} is tested on at least {trials} other samples, {where} "
                f"reference=Samples(x) with {fewest} samples or more. Received: reference "
                f"{reference.name!r} with {len(background)}."
            )
        splits = range(DRAWN, len(first) - DRAWN + 1, DRAWN)
        return DonorSets(
            # In random order: a test may end early.
            Donors.of(model, background[last] if given is None else given[rng.permutation(count)]),
            rounds=[Donors.of(model, background[part]) for part in np.split(first, splits)],
            choice=Donors.of(model, background[second]),
        )
    if given is not None:
        return DonorSets(Donors.of(model, given))
    if not count or reference.paired:
        return DonorSets()
    if not profile.rows:
        return DonorSets(missing="the profile keeps no samples; pass scope=x with other samples")
    # Of the profile's samples, those that are not donors of the search.
    rows = im.check(profile.rows)
    own = arrays_of(im.check(reference.x)) if isinstance(reference, Samples) else ()
    seen = {tuple(one.tobytes() for one in row) for row in zip(*own, strict=True)}
    keys = [tuple(one.tobytes() for one in row) for row in zip(*arrays_of(rows), strict=True)]
    index = rng.permutation([i for i, key in enumerate(keys) if key not in seen])[:count]
    if not len(index):
        return DonorSets(missing="all samples of the profile are donors; pass scope=x with others")
    return DonorSets(Donors.of(model, rows[np.sort(index)]))


def class_trials(
    model: Ablation,
    x: Sequence[np.ndarray],
    own: int,
    levels: tuple[float, float],
    rng: np.random.Generator,
) -> dict[str, Any]:
    """Return what a search for a class runs; the first `own` samples are of it, the rest are not.

    Both are split in three, as donors are. `levels`: shares of own kept, of others not claimed.
    """
    counts = own, len(x[0]) - own
    sets = [_split(count, rng) for count in counts]
    looks = [looks_of(len(parts[2]), level) for parts, level in zip(sets, levels, strict=True)]
    if not all(looks) or min(len(parts[0]) for parts in sets) < DRAWN:
        (_, own_fewest), (_, fewest) = map(_fewest, levels)
        raise InvalidArgumentError(
            f"Bounds of {levels[0]:g} kept and {1 - levels[1]:g} claimed need at least "
            f"{own_fewest} samples of the class and {fewest} others, which the model "
            f"assigns to other classes. Received: {counts[0]} and {counts[1]}."
        )
    (first, second, last), others = sets[0], [part + own for part in sets[1]]

    def trial(*parts: np.ndarray) -> Trial:
        index = np.concatenate(parts)
        rows = model.unchecked([array[index] for array in x])
        return Trial(rows, index, np.ones(len(index), bool))

    def draw() -> Iterator[Trial]:
        while True:
            yield trial(rng.choice(first, DRAWN), rng.choice(others[0], DRAWN))

    return {
        "data": trial(second, others[1]),
        "test": trial(last, others[2]),
        "whole": trial(np.arange(own)),
        "draw": draw,
        "shares": (MIN_KEPT, MIN_KEPT),
        "own": own,
    }


def _split(count: int, rng: np.random.Generator) -> list[np.ndarray]:
    """Return three random sets of indices: for rounds, to choose a size, for its test."""
    cuts = (np.array([_SEARCHED, _SEARCHED + _CHOSEN]) * count).astype(int)
    return np.split(rng.permutation(count), cuts)


def _fewest(level: float | None = None) -> tuple[int, int]:
    """Return the trials that a test of a level needs, and how many samples to split for them."""
    trials = 0 if level is None else int(np.ceil(np.log(1 - CONFIDENCE) / np.log(level)))
    before = _SEARCHED + _CHOSEN
    return trials, next(
        number
        for number in itertools.count()
        if int(_SEARCHED * number) >= DRAWN and number - int(before * number) >= trials
    )


@lru_cache
def looks_of(trials: int, level: float) -> dict[int, int]:
    """Return when a test of at most so many trials shows that a share is at least `level`.

    After how many trials → the failures with which it is passed then; empty if it cannot be. For
    any smaller share it is passed with a probability of at most 5 % (exactly, over all looks).
    After all trials it is passed where the lower bound of Clopper and Pearson reaches `level`. As
    counts are whole numbers, this leaves some of the 5 %: looks before use up to half of the rest.
    """
    from scipy.stats import binom

    rate, counts = 1 - level, np.arange(trials + 1)
    chances = binom.cdf(counts, trials, rate)
    allowed = int((chances <= 1 - CONFIDENCE).sum()) - 1
    if allowed < 0:
        return {}
    looks: dict[int, int] = {}
    rest = 1 - CONFIDENCE - chances[allowed]
    states = np.eye(1, allowed + 1)[0]  # chances of so many failures in a test that goes on
    for done in range(1, trials):
        states = states * level + np.append(0, states[:-1]) * rate
        now = len(looks)
        # To pass now is an error more only where the test would fail in the end.
        error = states[: now + 1] @ binom.sf(allowed - counts[: now + 1], trials - done, rate)
        if now < allowed and error <= rest / 2:
            looks[done], rest = now, rest - error
            states[: now + 1] = 0
    return looks | {trials: allowed}
