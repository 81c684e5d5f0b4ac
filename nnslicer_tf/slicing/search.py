"""The search for decisive slices: the smallest that keep a model's answer.

Units (synapses, neurons, channels, heads or inputs) are ablated in rounds, those with the least
effect first; effects are then estimated again (`rounds_of_ablation`). The effect of a unit is the
absolute derivative of the answer's score with respect to its mask (see `Ablation.effects`). The
sign is ignored: a slice chosen by sign could be made to give any answer.

A round costs one forward and one backward pass, about three forward passes; a sample takes some 60
to 80, with several donors as many for each. Threads search for several samples in parallel.
"""

import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_generator, check_count, check_name, check_number
from nnslicer_tf._environment import available_cores
from nnslicer_tf._numerics import largest
from nnslicer_tf.errors import CriterionError, InvalidArgumentError
from nnslicer_tf.instrument import Ablation, InstrumentedModel
from nnslicer_tf.instrument.ablation import LEVELS, Rows
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.references import as_reference, values_of
from nnslicer_tf.slicing._batches import warn_of_unusual
from nnslicer_tf.slicing.answers import BINARY, Answers, asked_answers
from nnslicer_tf.slicing.criterion import PREDICTED
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.profile import Profile

# The first steps are large if there are many units: effects need no new estimate then. Answers are
# lost between a fifth and a hundredth of the units, where the steps are small.
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
_SMALL_SLICE = 64
# An answer that was lost may come back in the next round, but seldom does later.
_MAX_FAILURES = 2
_MIN_KEPT = 0.95  # of samples that share a slice
_BATCH = 256
_ROUND = 3  # forward passes that a forward and a backward pass cost


@dataclass(frozen=True)
class Requirements:
    """What decisive slices have to keep, and of what they are: arguments of `Slicer.decisive`.

    Raises InvalidArgumentError for values out of range.
    """

    level: str
    min_probability: float | None
    max_divergence: float | None
    max_share: float
    tolerance: float
    together: bool

    def __post_init__(self) -> None:
        check_name("level", self.level, LEVELS)
        for name in ("min_probability", "max_divergence", "max_share", "tolerance"):
            value, interval = getattr(self, name), "(0, 1]"
            if name == "max_divergence":
                interval = "(0, inf]"
            if value is not None or name in ("max_share", "tolerance"):
                check_number(name, value, interval)
                object.__setattr__(self, name, float(value))  # NumPy's cannot be saved
        if not isinstance(self.together, (bool, np.bool_)):
            raise InvalidArgumentError(
                f"together must be True or False. Received: {self.together!r}"
            )


@dataclass
class _Search:
    """The search for one slice, of one sample or of several that share a mask."""

    model: Ablation
    data: Rows  # the samples, each with every donor
    answers: Answers
    samples: np.ndarray  # the samples' indices
    targets: np.ndarray  # their answers, (samples,)
    required: Requirements
    passes: int = 0
    # The size of each mask that was run, and the answers, (rows,).
    met: list[tuple[int, np.ndarray]] = field(default_factory=list)
    # What `decide` finds: the slice, whether it keeps the answer, the values with nothing active.
    members: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    kept: bool = False
    empty: np.ndarray = field(default_factory=lambda: np.zeros(0))
    given: list[tuple[int, bool]] = field(default_factory=list)  # other answers asked, if given

    @property
    def rows(self) -> np.ndarray:
        """Index of each row's sample."""
        return np.repeat(self.samples, self.data.donors)

    @property
    def goals(self) -> np.ndarray:
        """The answer to keep in each row."""
        return np.repeat(self.targets, self.data.donors)

    def values(self, members: np.ndarray, removed: bool = False) -> np.ndarray:
        """Return the values of each row with only some units active, or with them removed."""
        mask = np.full(self.model.units, float(removed), np.float32)
        mask[members] = not removed
        self.passes += self.data.donors
        values = self.model.outputs(mask, self.data).reshape(len(self.rows), -1)
        if not removed:
            self.met.append((len(members), self.answers.of(values)))
        return values

    def effects(self, answer: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the values with a mask, and the derivative of an answer's score by the mask."""
        self.passes += _ROUND * self.data.donors
        return self.model.slopes(mask, self.data, *self.answers.score(answer))

    def keeps(self, values: np.ndarray) -> bool:
        """Whether values keep the answers as required, for nearly all rows."""
        return bool(self.kept_by(values).mean() >= _MIN_KEPT)

    def kept_by(self, values: np.ndarray) -> np.ndarray:
        """Return which rows' answers values keep as required, bool `(rows,)`."""
        required, divergence = self.required, self.answers.divergence(values, self.rows)
        if self.answers.is_number:
            scale = float(self.answers.divergence(self.empty, self.rows).max())
            return divergence <= required.tolerance * scale
        same = self.answers.of(values) == self.goals
        if required.min_probability is not None:
            same &= self.answers.probability(values, self.goals) >= required.min_probability
        if required.max_divergence is not None:
            same &= divergence <= required.max_divergence
        return same

    def decide(self) -> None:
        """Find the smallest slice that keeps the answers; all units if there is none."""
        self.empty = self.values(np.zeros(0, int))
        # Rounds of ablation, until the answer is lost for good, judged by the faded masks between.
        counts = counts_left(self.model.units)
        found: list[tuple[np.ndarray, np.ndarray]] = []
        failures = 0
        effects = partial(self.effects, self.targets[0])
        for values, members, sizes in rounds_of_ablation(effects, self.model.units, counts):
            failures = 0 if self.keeps(values) else failures + 1
            found.append((members, sizes))
            if failures == _MAX_FAILURES:
                break
        # The smallest that keeps the answer when the model is run; at worst, all units.
        while len(found) > 1 and not self.keeps(self.values(found[-1][0])):
            found.pop()
        ranked, sizes = found[-1]
        best = ranked
        # Bisection between the smallest that keeps the answer and the next.
        low, high = max([count for count in counts if count < len(best)], default=0), len(best)
        for _ in range(_BISECTIONS):
            middle = max(low + 1, int(np.sqrt(max(low, 1) * high)))
            if middle == high:
                break
            members = _largest(ranked, sizes, middle)
            if self.keeps(self.values(members)):
                best, high = members, middle
            else:
                low = middle
        # If there are few units, leave out single ones while the answer is kept: some of those
        # left may speak against it.
        shrinks = self.model.units < _MANY_UNITS and len(best) <= _SMALL_SLICE
        by_size = ranked[np.argsort(sizes, kind="stable")]
        while shrinks:
            shrinks = False
            for unit in by_size[np.isin(by_size, best)]:
                without = best[best != unit]
                if len(without) and self.keeps(self.values(without)):
                    best, shrinks = without, True
        self.members = best
        # Where even the whole model misses `min_probability`, perhaps no slice reaches it.
        reached = self.required.min_probability is None or len(best) < self.model.units
        self.kept = reached or self.keeps(self.answers.full[self.rows])

    def gives(self, answer: int) -> bool:
        """Whether a mask of at most the slice's size, met by a search, gives another answer."""
        size = len(self.members)
        if any((met == answer).mean() > 0.5 for count, met in self.met if count <= size):
            return True
        other = replace(self, passes=0, met=[])
        counts = [count for count in counts_left(self.model.units) if count > size] + [size]
        effects = partial(other.effects, answer)
        *_, (_, members, _) = rounds_of_ablation(effects, self.model.units, counts)
        return bool((self.answers.of(other.values(members)) == answer).mean() > 0.5)

    def certificate(self) -> dict[str, np.ndarray]:
        """Run the model and return the certificate's columns, with one value for each sample.

        With several donors, answers are the most frequent, and numbers and probabilities means.
        """
        answers, goals, donors = self.answers, self.goals, self.data.donors

        def each(values: np.ndarray) -> np.ndarray:
            return values.reshape(-1, donors).mean(axis=1) if donors > 1 else values

        def answer(values: np.ndarray) -> np.ndarray:
            found = answers.of(values)
            if donors == 1 or answers.is_number:
                return each(found)
            rows = found.reshape(-1, donors)
            return np.array([np.bincount(row).argmax() for row in rows])

        alone, removed = self.values(self.members), self.values(self.members, removed=True)
        nothing = answer(self.empty)
        share = len(self.members) / self.model.units
        # All units are the whole model, whose answers are kept but for a bound that it misses.
        kept_rows = self.kept_by(alone) if share < 1 else np.ones(len(goals), bool)
        kept_share = each(kept_rows.astype(float))
        kept = (kept_share >= _MIN_KEPT) & self.kept
        columns: dict[str, Any] = {
            "answer": self.targets,
            "probability": each(answers.probability(answers.full[self.rows], goals)),
            "answer with slice alone": answer(alone),
            "probability with slice alone": each(answers.probability(alone, goals)),
            "answer with slice removed": answer(removed),
            "probability with slice removed": each(answers.probability(removed, goals)),
            "empty answer": nothing,
            "probability of empty answer": each(
                answers.probability(self.empty, np.repeat(nothing, donors))
            ),
            "divergence": each(answers.divergence(alone, self.rows)),
            "size": len(self.members),
            "share": share,
            "kept": kept,
            "found": kept & (share <= self.required.max_share),
            "donors kept": kept_share,
            "other classes asked": len(self.given),
            "other classes given": sum(is_given for _, is_given in self.given),
            "passes": self.passes,
        }
        if donors == 1:
            del columns["donors kept"]
        return {name: np.broadcast_to(v, (len(self.samples),)) for name, v in columns.items()}

    def contributions(self) -> np.ndarray:
        """Return what each member does with only the slice active: the score's derivative."""
        mask = np.zeros(self.model.units, np.float32)
        mask[self.members] = 1
        return self.effects(self.targets[0], mask)[1][self.members]


def rounds_of_ablation(
    effects: Callable[[np.ndarray], tuple[np.ndarray, np.ndarray]],
    units: int,
    counts: Sequence[int],
) -> Iterator[tuple[np.ndarray, np.ndarray, np.ndarray]]:
    """Ablate units in rounds, those with the smallest effects first.

    A round fades the units that it would ablate, estimates effects again, and only then decides:
    so it sees which of them nothing else can stand in for. A single estimate is noisy, so the
    estimates of all rounds are added up, with weights that halve from each round to the one before.

    Args:
        effects: Maps a mask `(units,)` to the logits and the score's derivative by the mask.
        units: Number of units.
        counts: How many are left after each round, descending.

    Yields:
        The logits of the round's mask, the units left, and the sizes of their effects; first for
        the whole model.
    """
    members, mask = np.arange(units), np.ones(units, np.float32)
    logits, memory = effects(mask)
    yield logits, members, np.abs(memory)
    for count in counts:
        mask[members] = _FADED
        mask[_largest(members, np.abs(memory[members]), count)] = 1
        logits, estimate = effects(mask)
        memory = _MEMORY * memory + estimate
        mask[members] = 0
        members = _largest(members, np.abs(memory[members]), count)
        mask[members] = 1
        yield logits, members, np.abs(memory[members])


def counts_left(units: int) -> list[int]:
    """Return how many units are left after each round of a search, descending to almost none."""
    shares = list(_FIRST_SHARES) if units >= _MANY_UNITS else [1.0]
    while shares[-1] * units >= 2 and shares[-1] > _MIN_SHARE:
        shares.append(shares[-1] * (_STEP if shares[-1] > _SMALL_SHARE else _LAST_STEP))
    counts = {max(1, int(share * units)) for share in shares}
    return sorted(counts - {units}, reverse=True)


def _largest(members: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """Return the members with the `count` largest sizes, in their order; ties go to the first."""
    return members[largest(sizes, min(count, len(members)))]


def decisive_slices(
    im: InstrumentedModel,
    profile: Profile,
    data: DataLike,
    outputs: Any,
    required: Requirements,
    reference: Any,
    others: int | None,
    rng: int | np.random.Generator,
    progress: bool,
) -> DecisiveSlices:
    """Return decisive slices; see `Slicer.decisive`."""
    generator = as_generator(rng)
    if others is not None:
        check_count("others", others, 0)
    reference = as_reference(reference, profile)
    answers, wanted = asked_answers(im, outputs)
    target = answers.target or {answers.operation: "all"}
    model = Ablation(im, reference, required.level, target=target)

    # The samples (each is run many times, so all are kept), and the answers to keep.
    checked = warn_of_unusual(im.samples(data).batches(_BATCH), profile)
    batches = [arrays_of(batch) for batch in checked]
    x = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    samples = len(x[0])
    full = values_of(im, model.as_batch(x), [answers.operation])[answers.operation]
    answers.full = full.reshape(samples, -1).astype(np.float64)
    targets = _targets(wanted, answers, required)

    # One search for each sample, or one for all of them.
    searches = []
    for rows in [np.arange(samples)] if required.together else np.arange(samples)[:, None]:
        own = model.unchecked([array[rows] for array in x])
        searches.append(_Search(model, own, answers, rows, targets[rows], required))

    # All slices, then the same search for other answers.
    asked = [generator.permutation(answers.count) for _ in range(samples)]
    bar = tqdm(
        total=len(searches), desc="Deciding", unit="slice", disable=not progress, leave=False
    )
    with ThreadPoolExecutor(available_cores()) as pool, bar:
        for _ in pool.map(_Search.decide, searches):
            bar.update()
        pairs = [
            (search, int(answer))
            for search in searches
            if not answers.is_number and len(search.members) < model.units
            for answer in [a for a in asked[search.samples[0]] if a != search.targets[0]][:others]
        ]
        bar.reset(len(pairs))
        bar.set_description("Other answers")
        for (search, answer), is_given in zip(
            pairs, pool.map(lambda pair: pair[0].gives(pair[1]), pairs), strict=True
        ):
            search.given.append((answer, is_given))
            bar.update()
        parts = list(pool.map(_Search.certificate, searches))
        contributions = list(pool.map(_Search.contributions, searches))

    certificate = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    info = {
        "level": required.level,
        "reference": reference.name,
        "inactive": reference.words,
        "max_share": required.max_share,
        "min_probability": required.min_probability,
        "max_divergence": required.max_divergence,
        "tolerance": required.tolerance,
        "together": bool(required.together),
        "kind": answers.kind,
        "names": answers.names,
        "labels": answers.kind != BINARY and answers.classes.is_multi_label,
        "donors": searches[0].data.donors,
        "number": answers.is_number,
        "others": [[list(pair) for pair in search.given] for search in searches],
        "fingerprint": profile.fingerprint,
    }
    members = [search.members for search in searches]
    return DecisiveSlices(model.shapes, members, contributions, certificate, info)


def _targets(wanted: Any, answers: Answers, required: Requirements) -> np.ndarray:
    """Return the answer that each sample's slice has to keep."""
    bounds = [required.min_probability, required.max_divergence]
    if answers.is_number and any(bound is not None for bound in bounds):
        raise InvalidArgumentError(
            "The model predicts a number, which has no probability: bound its change by tolerance, "
            "in place of min_probability and max_divergence."
        )
    predicted = targets = answers.of(answers.full)
    if wanted is not None and not (isinstance(wanted, str) and wanted == PREDICTED):
        labels = np.asarray(wanted)
        if labels.dtype.kind not in "iu" or labels.size not in (1, len(predicted)):
            raise CriterionError(
                "outputs must be 'predicted', a class, one class for each sample, or a target such "
                f"as a pixel or an inner neuron. Received: {wanted!r}"
            )
        targets = np.broadcast_to(labels.ravel(), predicted.shape)
        if (targets != predicted).any():
            index = int(np.argmax(targets != predicted))
            raise CriterionError(
                f"A decisive slice keeps the model's own answer. Sample {index} is classified as "
                f"{predicted[index]}. Received: outputs={targets[index]}. Pass 'predicted', or "
                "only samples that the model assigns to this class."
            )
    if required.together and not answers.is_number and len(np.unique(targets)) > 1:
        raise CriterionError(
            "One slice for all samples needs samples of one class. The model assigns these to "
            f"classes {np.unique(targets).tolist()}; pass those of one class, or together=False."
        )
    least = required.min_probability
    if least is not None and not answers.is_number:
        whole = answers.probability(answers.full, targets)
        below = np.flatnonzero(whole < least)
        if len(below):
            listed = ", ".join(f"{i} ({100 * whole[i]:.1f} %)" for i in below[:5])
            more = f" and {len(below) - 5} more" if len(below) > 5 else ""
            warnings.warn(
                f"The whole model gives its answer less than min_probability={least:g} for "
                f"{len(below)} of {len(predicted)} samples: {listed}{more}. A slice of them may "
                "not reach it either; lower min_probability.",
                stacklevel=4,
            )
    return targets
