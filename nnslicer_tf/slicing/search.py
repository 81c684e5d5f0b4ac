"""The search for decisive slices: the smallest that keep a model's answer.

Units (synapses, neurons, channels, heads or inputs) are ablated in rounds, those with the least
effect first; effects are then estimated again (`rounds_of_ablation`). The effect of a unit is the
absolute derivative of the answer's score with respect to its mask (see `Ablation.effects`). The
sign is ignored: a slice chosen by sign could be made to give any answer.

With `at_least`, donors are split into sets. Effects are estimated with new donors of the first set
in each round, which also show where the answer is lost; sizes around that one are tested on donors
of the last set, from large to small. A test stops as soon as it is decided (`looks_of`).

A round costs one forward and one backward pass, about three forward passes; a sample takes some 60
to 80, with several donors as many for each. Searches of several samples share passes.
"""

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._numerics import largest, lower_bound
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.slicing.answers import Answers
from nnslicer_tf.slicing.donors import DRAWN, MIN_KEPT, Trial, looks_of

if TYPE_CHECKING:
    from nnslicer_tf.slicing.deciding import Requirements

# The first steps are large if there are many units: effects need no new estimate then. Answers are
# lost between a fifth and a hundredth of the units, where the steps are small.
_ROUNDING = 1e-5  # of a number: no change is smaller
_MANY_UNITS = 1000
_FIRST_SHARES = (0.4, 0.2)
_STEP = 0.8
_SMALL_SHARE = 0.01
_LAST_STEP = 0.65
_MIN_SHARE = 1e-4
# The masks of units that a round is about to ablate, while it estimates effects again; and the
# weight of the effects remembered from the round before.
_FADED = 0.3
_MEMORY = 0.5
_BISECTIONS = 4
_SMALL_SLICE = 64  # in which units are tried alone without being asked for
_FEW_UNITS = 256  # of which single ones are left out of the whole network, too
# An answer that was lost may come back in the next round, but seldom does later.
_MAX_FAILURES = 2
_GROWTH = 0.25  # of a slice that is not needed yet
_BATCH = 256
_ROUND = 3  # forward passes that a forward and a backward pass cost
# With `at_least`: the mask of all units in the first estimate, as effects in the whole network rank
# badly (but not those of a class: at this mask, ResNet10's had no slice); how many units a round
# keeps; the share of a round's donors at which rounds end; and the sizes to test, as multiples of
# the last that kept the answer for all donors of its round, and those of slices of classes.
_FIRST_MASK = 0.7
_STEP_OF_DONORS = 0.5
_LOST = 0.75
_TESTED = (1.5, 1.0, 0.75, 0.6)
_TESTED_OF_CLASS = (4.0, 2.5, 1.5, 1.2, 1.0, 0.75, 0.6)


@dataclass
class Search:
    """The search for one slice, of one sample or of several that share a mask."""

    model: Ablation
    answers: Answers
    samples: np.ndarray  # the samples' indices
    targets: np.ndarray  # their answers, (samples,)
    required: "Requirements"
    data: Trial  # decides
    scope: Callable[[int], Trial] | None = None  # a sample with donors that no search has seen
    draw: Callable[[], Iterator[Trial]] | None = None  # new donors for each round
    test: Trial | None = None  # donors that test what was decided
    # Shares of the rows that have to keep the answer; and of rows of other samples, those after the
    # first `own`, that must not give it.
    shares: tuple[float, ...] = (MIN_KEPT,)
    own: int = sys.maxsize
    whole: Trial | None = None  # all own samples of a class
    passes: int = 0
    # The size of each mask that was run, and the answers, (rows,).
    met: list[tuple[int, np.ndarray]] = field(default_factory=list)
    # What `decide` finds: the slice, whether it keeps the answer, whether each of its units is
    # needed, the values with nothing active, and those of the test.
    members: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    kept: bool = False
    is_minimal: bool = False
    needs_any: bool = False  # nothing active misses what is asked of a class and others
    empty: np.ndarray = field(default_factory=lambda: np.zeros(0))
    tested: np.ndarray = field(default_factory=lambda: np.zeros(0))
    given: list[tuple[int, bool]] = field(default_factory=list)  # other answers asked, if given
    bounds: dict[str, Any] = field(default_factory=dict)  # of samples of a class, and others

    def values(
        self, members: np.ndarray, removed: bool = False, trial: Trial | None = None
    ) -> np.ndarray:
        """Return the values of each row with only some units active, or with them removed."""
        mask = np.full(self.model.units, float(removed), np.float32)
        mask[members] = not removed
        shown = self.data if trial is None else trial
        self.passes += len(shown.index)
        values = self.model.outputs(mask, shown.rows).reshape(len(shown.index), -1)
        if not removed and trial is None:
            self.met.append((len(members), self.answers.of(values)))
        return values

    def slopes(self, answer: Any, mask: np.ndarray, trial: Trial) -> tuple[np.ndarray, np.ndarray]:
        """Return the values with a mask, and the derivative of an answer's score by the mask."""
        self.passes += _ROUND * len(trial.index)
        return self.model.slopes(mask, trial.rows, *self.answers.score(answer))

    def rounds(self, answer: Any, counts: Sequence[int]) -> Iterator[tuple[np.ndarray, ...]]:
        """Yield the rounds of ablation, with the rows that keep the answer; see the function.

        With new donors in each round, effects are mean squares: they are opposite for many donors.
        """
        trials = None if self.draw is None else self.draw()

        def effects(mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
            if trials is None:
                values, slopes = self.slopes(answer, mask, self.data)
                return self.kept_by(values, self.data), slopes
            trial = next(trials)
            values, slopes = self.slopes(answer, np.tile(mask, (len(trial.index), 1)), trial)
            return self.kept_by(values, trial), np.square(slopes).mean(axis=0)

        first = 1.0 if trials is None or self.whole else _FIRST_MASK
        faded = _FADED if trials is None else 0.0
        return rounds_of_ablation(effects, self.model.units, counts, faded, first)

    def keeps(self, members: np.ndarray) -> bool:
        """Whether the units keep the answers as required, for as many rows as they have to."""
        return self.enough(self.values(members))

    def enough(self, values: np.ndarray) -> bool:
        """Whether values of the data keep as many answers as they have to."""
        groups = self.by_group(values, self.data)
        return all(kept.mean() >= share for kept, share in zip(groups, self.shares, strict=True))

    def kept_by(self, values: np.ndarray, trial: Trial, bounded: bool = True) -> np.ndarray:
        """Return of which rows that count the values keep the answer; if `bounded`, as required."""
        answers, required, rows = self.answers, self.required, self.samples[trial.index]
        divergence = answers.divergence(values, rows)
        if answers.is_number:
            # A sample's change with all units ablated, on average over its donors.
            index, counts = self.data.index, self.data.counts
            changes = answers.divergence(self.empty, self.samples[index])[counts]
            sums = np.bincount(index[counts], changes, len(self.samples))
            scale = sums / np.maximum(np.bincount(index[counts], minlength=len(sums)), 1)
            limits = required.tolerance * scale[trial.index]
            limits += _ROUNDING * np.abs(values).max(axis=-1)  # where nothing changes the number
            return (divergence <= limits)[trial.counts]
        goals = self.targets[trial.index]
        is_answer = answers.of(values) == goals
        same = is_answer.copy()
        if bounded and required.min_probability is not None:
            same &= answers.probability(values, goals) >= required.min_probability
        if bounded and required.max_divergence is not None:
            same &= divergence <= required.max_divergence
        return np.where(trial.index >= self.own, ~is_answer, same)[trial.counts]

    def decide(self) -> None:
        """Find the smallest slice that keeps the answers; all units if there is none."""
        if self.test is None:
            self.decide_at_reference()
        else:
            self.decide_by_tests(self.test)
        # Where even the whole model misses `min_probability`, perhaps no slice reaches it.
        whole = self.answers.full[self.samples[self.data.index]]
        self.kept = len(self.members) < self.model.units or self.enough(whole)
        # The certificate of a class is of its own samples.
        if self.whole is not None and self.test is not None:
            own, others = self.by_group(self.tested, self.test)
            self.needs_any = not self.enough(self.empty)
            of_all = len(self.members) == self.model.units
            self.bounds = {
                "unseen samples": len(own),
                "unseen kept": own.mean(),
                "unseen bound": 1.0 if of_all else self.required.at_least,
                "others": len(others),
                "others claimed": 1 - others.mean(),
                "claims bound": 0.0 if of_all else self.required.at_most,
            }
            self.samples, self.targets = self.samples[: self.own], self.targets[: self.own]
            self.data, self.draw, self.test, self.tested = self.whole, None, None, np.zeros(0)
            self.own, self.shares = sys.maxsize, (MIN_KEPT,)
            self.empty = self.values(np.zeros(0, int))

    def decide_at_reference(self) -> None:
        """Find a slice that keeps the answers at the reference."""
        units, required = self.model.units, self.required
        self.empty = self.values(np.zeros(0, int))
        # Rounds of ablation, until the answer is lost for good, judged by the faded masks between.
        counts = counts_left(units)
        found: list[tuple[np.ndarray, np.ndarray]] = []
        failures = 0
        for kept, members, sizes, _ in self.rounds(self.targets[0], counts):
            failures = 0 if kept.mean() >= self.shares[0] else failures + 1
            found.append((members, sizes))
            if failures == _MAX_FAILURES:
                break
        # The smallest that keeps the answer when the model is run; at worst, all units.
        while len(found) > 1 and not self.keeps(found[-1][0]):
            found.pop()
        ranked, sizes = found[-1]
        # Bisection between the smallest that keeps the answer and the next.
        least = max([count for count in counts if count < len(ranked)], default=0)
        size = smallest_count(
            least, len(ranked), lambda n: self.keeps(_largest(ranked, sizes, n)), steps=_BISECTIONS
        )
        best = _largest(ranked, sizes, size)
        # Leave out single units while the answer is kept: some may speak against it.
        if required.minimal or (units < _MANY_UNITS and len(best) <= _SMALL_SLICE):
            best = self.without_spares(best)
            if required.minimal and units <= _FEW_UNITS:
                best = min(best, self.without_spares(np.arange(units)), key=len)
            self.is_minimal = len(best) > 1 or not self.enough(self.empty)
        if required.needed:
            smaller, best = best, self.until_needed(best)
            self.is_minimal &= len(best) == len(smaller)
        self.members = best

    def decide_by_tests(self, test: Trial) -> None:
        """Find the smallest slice that passes a test on other samples; all units if none does.

        Sizes are tested in an order that was fixed before, from large to small, up to the first
        that fails (fixed-sequence testing: so the bound holds for the last that passes).
        """
        units, minimal, is_single = self.model.units, self.required.minimal, len(self.samples) == 1
        if is_single and not minimal:
            self.data = self.data.part(np.arange(min(DRAWN, len(self.data.index))))
        self.empty = self.values(np.zeros(0, int))
        # Rounds, until some donors lose the answer; not at the first mask, of a single estimate.
        # A round's effects also rank what it ablates, so slices of all sizes are nested.
        before, size, is_kept = np.arange(units), units, True
        found: list[tuple[np.ndarray, np.ndarray]] = []
        counts = counts_left(units, (), _STEP_OF_DONORS if is_single else _STEP)
        for place, (kept, members, _, effects) in enumerate(self.rounds(self.targets[0], counts)):
            if place > 1 and is_kept:
                is_kept = bool(kept.all()) if is_single else self.keeps(members)
            size = len(members) if is_kept else size
            found.append((before, effects))
            before = members
            if place > 1 and kept.mean() <= _LOST:
                break

        def largest_of(count: int) -> np.ndarray:
            return _largest(*next(pair for pair in found[::-1] if len(pair[0]) >= count), count)

        if not is_single and size < units:  # a class's next round is a small step
            least = max([count for count in counts if count < size], default=0)
            size = smallest_count(least, size, lambda n: self.keeps(largest_of(n)), steps=2)
        slices: list[np.ndarray] = [np.arange(units)]
        for factor in _TESTED_OF_CLASS if self.whole else _TESTED:
            count = max(1, min(int(factor * size), (size + units) // 2))
            if count < len(slices[-1]):
                slices.append(largest_of(count))
            if minimal and factor == 1:
                slices.append(self.without_spares(slices[-1]))
                break
        self.members, self.tested = slices[0], self.answers.full[self.samples[test.index]]
        for members in slices[1:]:
            passed = self.passed(members, test)
            if passed is None:
                break
            self.members, (self.test, self.tested) = members, passed
            self.is_minimal = minimal and members is slices[-1]

    def passed(self, members: np.ndarray, test: Trial) -> tuple[Trial, np.ndarray] | None:
        """Return the rows that were run until a test was passed, and their values, or None.

        Own samples and others have a test each, and both must be passed.
        """
        found, levels = [], (self.required.at_least or 0, 1 - self.required.at_most)
        for group, level in zip(range(len(self.shares)), levels, strict=False):
            rows = np.flatnonzero(test.counts & ((test.index >= self.own) == group))
            looks, start, failures = looks_of(len(rows), level), 0, 0
            if len(self.samples) > 1:  # the certificate is of all
                looks = dict([*looks.items()][-1:])
            for end, allowed in looks.items():
                part = test.part(rows[start:end])
                found.append((rows[start:end], self.values(members, trial=part)))
                failures += int((~self.kept_by(found[-1][1], part)).sum())
                start = end
                if failures <= allowed or failures > looks[len(rows)]:
                    break
            if not looks or failures > allowed:
                return None
        rows, values = map(np.concatenate, zip(*found, strict=True))
        return test.part(rows), values

    def by_group(self, values: np.ndarray, trial: Trial) -> list[np.ndarray]:
        """Return which rows are kept, of own samples, and of others if there are."""
        kept, group = self.kept_by(values, trial), (trial.index >= self.own)[trial.counts]
        return [kept[group == g] for g in range(len(self.shares))]

    def without_spares(self, members: np.ndarray) -> np.ndarray:
        """Leave out single units, those that are missed least first, until each is needed."""
        size = max(1, _BATCH // len(self.data.index))
        goals, rows = self.targets[self.data.index], self.samples[self.data.index]
        while len(members) > 1:
            # The slice without each of its units; how sure of the answer it is then.
            kept, sure = [], []
            for part in np.split(members, range(size, len(members), size)):
                masks = np.zeros((len(part), self.model.units), np.float32)
                masks[:, members] = 1
                masks[np.arange(len(part)), part] = 0
                self.passes += len(part) * len(rows)
                values = self.model.outputs(
                    np.repeat(masks, self.data.rows.samples, axis=0),
                    self.data.rows.times(len(part)),
                )
                for one in values.reshape(len(part), len(rows), -1):
                    kept.append(self.enough(one))
                    odds = np.log(self.answers.probability(one, goals) + 1e-300)
                    distance = self.answers.divergence(one, rows)
                    sure.append(-distance.mean() if self.answers.is_number else odds.mean())
            order = np.argsort(-np.array(sure), kind="stable")
            spare = members[order[np.array(kept)[order]]]
            if not len(spare):
                break
            # Of many, as many at once as the answer allows.
            is_small = self.model.units <= _FEW_UNITS or len(members) <= _SMALL_SLICE
            count = 1 if is_small else len(spare)
            while count > 1 and not self.keeps(np.setdiff1d(members, spare[:count])):
                count //= 2
            members = np.setdiff1d(members, spare[:count])
        return members

    def until_needed(self, members: np.ndarray) -> np.ndarray:
        """Add what speaks most for the answer in the rest, until the rest gives another one."""
        larger, added = members, np.zeros(0, int)
        while True:
            active = np.zeros(self.model.units, np.float32)
            active[larger] = 1
            values, slopes = self.slopes(self.targets[0], 1 - active, self.data)
            if self.is_lost(values):
                break
            # Nothing that speaks against it in the slice, which would then lose it.
            alone = self.slopes(self.targets[0], active, self.data)[1]
            rest = np.flatnonzero((active == 0) & (slopes > 0) & (alone >= 0))
            if not len(rest):
                return members
            ordered = rest[np.argsort(-slopes[rest], kind="stable")]
            added = ordered[: max(1, int(_GROWTH * len(larger)))]
            larger = np.union1d(larger, added)
        # No more of the last step than it takes.
        count = smallest_count(
            0,
            len(added),
            lambda count: self.is_lost(self.values(np.setdiff1d(larger, added[count:]), True)),
        )
        larger = np.setdiff1d(larger, added[count:])
        return larger if self.keeps(larger) else members

    def is_lost(self, values: np.ndarray) -> bool:
        """Whether values with a slice removed give other answers, for nearly all rows."""
        return bool(self.kept_by(values, self.data, bounded=False).mean() <= 1 - MIN_KEPT)

    def gives(self, answer: int) -> bool:
        """Whether a mask of at most the slice's size, met by a search, gives another answer."""
        size = len(self.members)
        if any((met == answer).mean() > 0.5 for count, met in self.met if count <= size):
            return True
        other = replace(self, passes=0, met=[])
        how = ((), _STEP_OF_DONORS) if self.draw else ()
        counts = [n for n in counts_left(self.model.units, *how) if n > size] + [size]
        *_, (_, members, _, _) = other.rounds(answer, counts)
        return bool((self.answers.of(other.values(members)) == answer).mean() > 0.5)

    def certificate(self) -> dict[str, np.ndarray]:
        """Run the model and return the certificate's columns, with one value for each sample.

        With several donors, answers are the most frequent, and numbers and probabilities means.
        """
        answers, samples = self.answers, len(self.samples)
        trial = self.data if self.test is None else self.test
        share = len(self.members) / self.model.units

        def each(values: np.ndarray, of: Trial) -> np.ndarray:  # means over the rows that count
            index = of.index[of.counts]
            return np.bincount(index, values, samples) / np.bincount(index, minlength=samples)

        def answer(values: np.ndarray, of: Trial) -> np.ndarray:
            found = answers.of(values)[of.counts]
            if answers.is_number:
                return each(found, of)
            return np.argmax([each(found == a, of) for a in range(answers.count)], axis=0)

        def probability(values: np.ndarray, labels: np.ndarray, of: Trial) -> np.ndarray:
            return each(answers.probability(values, labels[of.index])[of.counts], of)

        alone = self.tested if len(self.tested) else self.values(self.members)
        removed = self.values(self.members, removed=True)
        nothing, without = answer(self.empty, self.data), answer(removed, self.data)
        # All units are the whole model, whose answers are kept but for a bound that it misses.
        keeps = self.kept_by(alone, trial) if share < 1 else np.ones(trial.counts.sum(), bool)
        kept_share = each(keeps, trial)
        kept = (kept_share >= MIN_KEPT) & self.kept if self.test is None else self.kept
        needed = without != self.targets
        if answers.is_number:
            needed = each(~self.kept_by(removed, self.data), self.data) > 0.5
        enough = kept & (needed | (not self.required.needed))
        empty_share = each(self.kept_by(self.empty, self.data), self.data)
        divergence = answers.divergence(alone, self.samples[trial.index])
        columns: dict[str, Any] = {
            "answer": self.targets,
            "probability": answers.probability(answers.full[self.samples], self.targets),
            "answer with slice alone": answer(alone, trial),
            "probability with slice alone": probability(alone, self.targets, trial),
            "answer with slice removed": without,
            "probability with slice removed": probability(removed, self.targets, self.data),
            "empty answer": nothing,
            "probability of empty answer": probability(self.empty, nothing, self.data),
            "probability with nothing active": probability(self.empty, self.targets, self.data),
            "divergence": each(divergence[trial.counts], trial),
            "size": len(self.members),
            "share": share,
            "kept": kept,
            "needed": needed,
            "minimal": self.is_minimal,
            "empty kept": (empty_share >= MIN_KEPT) & (not self.needs_any),
            "found": enough & (share <= self.required.max_share) & (self.test is None or share < 1),
            "other classes asked": len(self.given),
            "other classes given": sum(is_given for _, is_given in self.given),
        }
        if len(self.data.index) > samples:
            columns["donors kept"] = kept_share
        # Of donors that nothing was decided on: those for which the answer is kept.
        rows = [keeps] * samples if self.test else []
        for unseen in map(self.scope, range(samples)) if self.scope else ():
            values = self.values(self.members, trial=unseen)
            rows.append(self.kept_by(values, unseen, bounded=False))
        if rows:
            columns["scope donors"] = np.array([len(row) for row in rows])
            columns["scope kept"] = np.array([row.mean() if len(row) else 0.0 for row in rows])
            bounds = [lower_bound(int(row.sum()), len(row)) for row in rows]
            # Tests of several sizes bound what was asked for; all units keep every answer.
            bound = 1.0 if share == 1 else self.required.at_least
            columns["scope bound"] = np.array(bounds) if self.test is None else bound
        columns |= {**self.bounds, "passes": self.passes}
        return {name: np.broadcast_to(v, (samples,)) for name, v in columns.items()}

    def contributions(self) -> np.ndarray:
        """Return what each member does with only the slice active: the score's derivative."""
        mask = np.zeros(self.model.units, np.float32)
        mask[self.members] = 1
        return self.slopes(self.targets[0], mask, self.data)[1][self.members]


def rounds_of_ablation(
    effects: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    units: int,
    counts: Sequence[int],
    faded: float = _FADED,
    first: float = 1.0,
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]]:
    """Ablate units in rounds, those with the smallest effects first.

    A round fades the units that it would ablate, estimates effects again, and only then decides:
    so it sees which of them nothing else can stand in for. A single estimate is noisy, so the
    estimates of all rounds are added up, with weights that halve from each round to the one before.

    Args:
        effects: Maps a mask `(units,)` to what it gives, such as logits, and the score's slopes.
        units: Number of units.
        counts: How many are left after each round, descending.
        faded: Mask of the units that the round would ablate, while effects are estimated.
        first: Mask of all units in the first estimate.

    Yields:
        What the round's mask gives, the units left, the sizes of their effects, and of the effects
        of all units that were left before; first for the whole model.
    """
    members, mask = np.arange(units), np.ones(units, np.float32)
    given, memory = effects(first * mask)
    yield given, members, np.abs(memory), np.abs(memory)
    for count in counts:
        mask[members] = faded
        mask[_largest(members, np.abs(memory[members]), count)] = 1
        given, estimate = effects(mask)
        memory = _MEMORY * memory + estimate
        mask[members] = 0
        before = np.abs(memory[members])
        members = _largest(members, before, count)
        mask[members] = 1
        yield given, members, np.abs(memory[members]), before


def smallest_count(
    low: int,
    high: int,
    is_enough: Callable[[int], bool],
    precision: float = 0.0,
    steps: int | None = None,
) -> int:
    """Return the smallest count that bisection finds to be enough.

    `low` is too small, `high` is enough; the result may be too large by a share `precision`. With
    `steps`, at most that many bisections are made, of the counts' magnitudes.
    """
    for _ in range(high if steps is None else steps):
        if high - low <= max(1, precision * high):
            break
        middle = (low + high) // 2
        if steps is not None:
            middle = max(low + 1, int(np.sqrt(max(low, 1) * high)))
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


def counts_left(
    units: int, first: Sequence[float] = _FIRST_SHARES, step: float = _STEP
) -> list[int]:
    """Return how many units are left after each round of a search, descending to almost none.

    Of many units, the `first` shares are taken in large steps.
    """
    shares = list(first if units >= _MANY_UNITS else ()) or [1.0]
    while shares[-1] * units >= 2 and shares[-1] > _MIN_SHARE:
        shares.append(shares[-1] * (step if shares[-1] > _SMALL_SHARE else _LAST_STEP))
    return sorted({max(1, int(share * units)) for share in shares} - {units}, reverse=True)


def _largest(members: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """Return the members with the `count` largest sizes, in their order; ties go to the first."""
    return members[largest(sizes, min(count, len(members)))]
