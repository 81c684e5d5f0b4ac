"""The search for decisive slices: the smallest that keep a model's answer.

Units (synapses, neurons, channels or inputs) are ablated in rounds, those with the least effect
first; effects are then estimated again (`rounds_of_ablation`). The effect of a unit is the absolute
derivative of a score with respect to its mask: of the answer's logit less ¾ of its rivals' weighted
mean (see `MaskedUnits`), without a softmax of the logit alone. The sign is ignored: a slice chosen
by sign could be made to give any answer.

A round costs one forward and one backward pass, about three forward passes; a sample takes some 60
to 80. Threads search for several samples in parallel.
"""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._checks import as_generator, check_count, check_name, check_number
from nnslicer_tf._environment import available_cores
from nnslicer_tf._numerics import largest, sigmoid, softmax
from nnslicer_tf.errors import CriterionError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.slicing._batches import warn_of_unusual
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.masked import LEVELS, MaskedUnits
from nnslicer_tf.slicing.profile import Profile

ABLATIONS = ("mean", "zero", "resample")
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
_OF_SOFTMAX = ("", "softmax", "log_softmax")
_ROUND = 3  # forward passes that a forward and a backward pass cost


class Answers:
    """Answers of an output, their probabilities, and their divergences from the whole model's."""

    def __init__(self, im: InstrumentedModel, output: str | None, full: np.ndarray) -> None:
        self.classes = classes = im.classes_of(output)
        self._outputs = partial(im.outputs_from, output=output)
        # Whether logits become probabilities by a softmax, or by a sigmoid; else by the model.
        self.by_softmax = classes.task == "multiclass" and classes.final in _OF_SOFTMAX
        self._by_sigmoid = classes.task != "multiclass" and classes.final in ("", "sigmoid")
        # The whole model's logits, (samples, logits).
        self.full = full.reshape(len(full), -1).astype(np.float64)

    @property
    def is_number(self) -> bool:
        """Whether the output is a number, not a class."""
        return self.classes.is_number

    def neuron(self, label: Any) -> tuple[int, int]:
        """Return the index of a class's logit, and −1 if a smaller logit speaks for it, else 1."""
        return (0, 1) if self.is_number else self.classes.neuron(int(label))

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Return the answers, `(samples,)`: classes, or numbers."""
        if self.is_number:
            return self._outputs(logits.astype(np.float32)).reshape(-1).astype(np.float64)
        return self.classes.from_logits(logits)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each class, `(samples, classes)`; NaN for a number."""
        if self.is_number:
            return np.full((len(logits), 1), np.nan)
        scores = self.classes.scores(logits).reshape(len(logits), -1).astype(np.float64)
        if self.by_softmax:
            return softmax(scores)
        if self._by_sigmoid:
            return sigmoid(scores)
        return self.classes.probabilities(self._outputs(logits)).reshape(len(logits), -1)

    def probability(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the probability of each sample's target, `(samples,)`; NaN for a number."""
        columns = np.zeros(len(logits), int) if self.is_number else targets
        return self.probabilities(logits)[np.arange(len(logits)), columns]

    def divergence(self, logits: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the KL divergence of outputs from the model's, `(samples,)`; for a number, |Δ|."""
        if self.is_number:
            return np.abs(self.of(logits) - self.of(self.full[rows]))
        p, q = self.probabilities(self.full[rows]), self.probabilities(logits)
        if self.classes.is_multi_label:
            p, q = (np.concatenate([v, 1 - v], axis=1) for v in (p, q))
        tiny = 1e-30
        return (p * (np.log(p + tiny) - np.log(q + tiny))).sum(axis=1)


@dataclass(frozen=True)
class Requirements:
    """What decisive slices have to keep, and of what they are: arguments of `Slicer.decisive`.

    Raises InvalidArgumentError for values out of range.
    """

    level: str
    ablation: str
    min_probability: float | None
    max_divergence: float | None
    max_share: float
    tolerance: float
    together: bool

    def __post_init__(self) -> None:
        check_name("level", self.level, LEVELS)
        check_name("ablation", self.ablation, ABLATIONS)
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

    model: MaskedUnits
    x: list[np.ndarray]
    base: Mapping[str, Any]
    answers: Answers
    rows: np.ndarray  # the samples' indices
    targets: np.ndarray  # their answers, (samples,)
    required: Requirements
    passes: int = 0
    # The size of each mask that was run, and the answers, (samples,).
    met: list[tuple[int, np.ndarray]] = field(default_factory=list)
    # What `decide` finds: the slice, whether it keeps the answer, the logits with nothing active.
    members: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    kept: bool = False
    empty: np.ndarray = field(default_factory=lambda: np.zeros(0))
    given: list[tuple[int, bool]] = field(default_factory=list)  # other classes asked, if given

    def logits(self, members: np.ndarray, removed: bool = False) -> np.ndarray:
        """Return the logits with only the units `members` active, or with them removed."""
        mask = np.full(self.model.units, float(removed), np.float32)
        mask[members] = not removed
        self.passes += 1
        logits = self.model.logits(self.x, mask, self.base)
        if not removed:
            self.met.append((len(members), self.answers.of(logits)))
        return logits

    def effects(self, label: Any, mask: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits with a mask, and the derivative of a label's score by the mask."""
        self.passes += _ROUND
        return self.model.effects(self.x, mask, self.base, *self.answers.neuron(label))

    def keeps(self, logits: np.ndarray) -> bool:
        """Whether logits keep the answers as required, for nearly all samples."""
        return bool(self.kept_by(logits).mean() >= _MIN_KEPT)

    def kept_by(self, logits: np.ndarray) -> np.ndarray:
        """Return which samples' answers logits keep as required, bool `(samples,)`."""
        required, divergence = self.required, self.answers.divergence(logits, self.rows)
        if self.answers.is_number:
            scale = float(self.answers.divergence(self.empty, self.rows).max())
            return divergence <= required.tolerance * scale
        same = self.answers.of(logits) == self.targets
        if required.min_probability is not None:
            same &= self.answers.probability(logits, self.targets) >= required.min_probability
        if required.max_divergence is not None:
            same &= divergence <= required.max_divergence
        return same

    def decide(self) -> None:
        """Find the smallest slice that keeps the answers; all units if there is none."""
        self.empty = self.logits(np.zeros(0, int))
        # Rounds of ablation, until the answer is lost for good, judged by the faded masks between.
        counts = counts_left(self.model.units)
        found: list[tuple[np.ndarray, np.ndarray]] = []
        failures = 0
        effects = partial(self.effects, self.targets[0])
        for logits, members, sizes in rounds_of_ablation(effects, self.model.units, counts):
            failures = 0 if self.keeps(logits) else failures + 1
            found.append((members, sizes))
            if failures == _MAX_FAILURES:
                break
        # The smallest that keeps the answer when the model is run; at worst, all units.
        while len(found) > 1 and not self.keeps(self.logits(found[-1][0])):
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
            if self.keeps(self.logits(members)):
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
                if len(without) and self.keeps(self.logits(without)):
                    best, shrinks = without, True
        self.members = best
        # Where even the whole model misses `min_probability`, perhaps no slice reaches it.
        reached = self.required.min_probability is None or len(best) < self.model.units
        self.kept = reached or self.keeps(self.answers.full[self.rows])

    def gives(self, label: int) -> bool:
        """Whether a mask of at most the slice's size, met by a search, gives another class."""
        size = len(self.members)
        if any((met == label).mean() > 0.5 for count, met in self.met if count <= size):
            return True
        other = replace(self, passes=0, met=[])
        counts = [count for count in counts_left(self.model.units) if count > size] + [size]
        effects = partial(other.effects, label)
        *_, (_, members, _) = rounds_of_ablation(effects, self.model.units, counts)
        return bool((self.answers.of(other.logits(members)) == label).mean() > 0.5)

    def certificate(self) -> dict[str, np.ndarray]:
        """Return what running the model says of the slice, column → one value for each sample."""
        answers, targets = self.answers, self.targets
        alone = self.logits(self.members)
        removed = self.logits(self.members, removed=True)
        nothing = answers.of(self.empty)
        share = len(self.members) / self.model.units
        # All units are the whole model, whose answers are kept but for a bound that it misses.
        kept = self.kept_by(alone) if share < 1 else np.ones(len(targets), bool)
        kept &= self.kept
        columns: dict[str, Any] = {
            "answer": targets,
            "probability": answers.probability(answers.full[self.rows], targets),
            "answer with slice alone": answers.of(alone),
            "probability with slice alone": answers.probability(alone, targets),
            "answer with slice removed": answers.of(removed),
            "probability with slice removed": answers.probability(removed, targets),
            "empty answer": nothing,
            "probability of empty answer": answers.probability(self.empty, nothing),
            "divergence": answers.divergence(alone, self.rows),
            "size": len(self.members),
            "share": share,
            "kept": kept,
            "found": kept & (share <= self.required.max_share),
            "other classes asked": len(self.given),
            "other classes given": sum(is_given for _, is_given in self.given),
            "passes": self.passes,
        }
        return {name: np.broadcast_to(v, (len(self.rows),)) for name, v in columns.items()}


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
    others: int | None,
    rng: int | np.random.Generator,
    progress: bool,
) -> DecisiveSlices:
    """Return decisive slices; see `Slicer.decisive`."""
    generator = as_generator(rng)
    if others is not None:
        check_count("others", others, 0)
    output = None
    if isinstance(outputs, Mapping):
        if len(outputs) != 1:
            raise CriterionError(
                f"A decisive slice keeps one output. Received: outputs for {list(outputs)}."
            )
        ((output, outputs),) = outputs.items()
    elif len(im.output_operations) > 1:
        raise CriterionError(
            f"A decisive slice keeps one output; '{im.model.name}' has {', '.join(im.outputs)}. "
            f"Name one: {{'{next(iter(im.outputs))}': 'predicted'}}."
        )

    # The samples (each is run many times, so all are kept), and the answers to keep.
    known = warn_of_unusual(im.samples(data).batches(_BATCH), profile)
    batches = [arrays_of(batch) for batch in known]
    x = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    name = im.logit_operation_of(output)
    full = _values(im, x, [name])[name]
    samples = len(full)
    if full.ndim > 2:
        raise CriterionError(
            f"Decisive slices need an output vector. '{name}' has shape {full.shape[1:]}."
        )
    if required.ablation == "resample" and samples < 2:
        raise InvalidArgumentError("ablation='resample' needs at least 2 samples. Received: 1")
    answers = Answers(im, output, full)
    targets = _targets(outputs, answers, required)
    key = "masked units", name, required.level, answers.by_softmax
    model = im.prepared(key, lambda: MaskedUnits(im, name, required.level, answers.by_softmax))

    # One search for each sample, or one for all of them.
    donors = (np.arange(samples) + generator.integers(1, max(samples, 2), samples)) % samples
    asked = [generator.permutation(answers.classes.count) for _ in range(samples)]
    base = {n: profile.means[n][None].astype(np.float32) for n in model.bases}
    if required.ablation == "zero":
        base = {n: 0 * mean for n, mean in base.items()}
    shared = model.base(base)
    searches = []
    for rows in [np.arange(samples)] if required.together else np.arange(samples)[:, None]:
        if required.ablation == "resample":
            donor = donors[rows[:1]]
            shared = model.base(_values(im, [array[donor] for array in x], model.bases))
        own = [array[rows] for array in x]
        searches.append(_Search(model, own, shared, answers, rows, targets[rows], required))

    # All slices, then the same search for other classes.
    bar = tqdm(
        total=len(searches), desc="Deciding", unit="slice", disable=not progress, leave=False
    )
    with ThreadPoolExecutor(available_cores()) as pool, bar:
        for _ in pool.map(_Search.decide, searches):
            bar.update()
        pairs = [
            (search, int(label))
            for search in searches
            if not answers.is_number and len(search.members) < model.units
            for label in [c for c in asked[search.rows[0]] if c != search.targets[0]][:others]
        ]
        bar.reset(len(pairs))
        bar.set_description("Other classes")
        for (search, label), given in zip(
            pairs, pool.map(lambda pair: pair[0].gives(pair[1]), pairs), strict=True
        ):
            search.given.append((label, given))
            bar.update()
        parts = list(pool.map(_Search.certificate, searches))

    certificate = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    info = {
        "level": required.level,
        "ablation": required.ablation,
        "max_share": required.max_share,
        "min_probability": required.min_probability,
        "max_divergence": required.max_divergence,
        "tolerance": required.tolerance,
        "together": bool(required.together),
        "labels": answers.classes.is_multi_label,
        "donors": donors.tolist() if required.ablation == "resample" else [],
        "number": answers.is_number,
        "others": [[list(pair) for pair in search.given] for search in searches],
        "fingerprint": profile.fingerprint,
    }
    return DecisiveSlices(model.shapes, [s.members for s in searches], certificate, info)


def _values(
    im: InstrumentedModel, x: Sequence[np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the values of operations for all samples."""
    parts = []
    for first in range(0, len(x[0]), _BATCH):
        arrays = [array[first : first + _BATCH] for array in x]
        inputs = Inputs(dict(zip(im.input_operations, arrays, strict=True)))
        parts.append(im.forward(arrays[0] if len(arrays) == 1 else inputs, names, first))
    return {name: np.concatenate([part[name] for part in parts]) for name in names}


def _targets(outputs: Any, answers: Answers, required: Requirements) -> np.ndarray:
    """Return the answer that each sample's slice has to keep."""
    if answers.is_number and answers.classes.count > 1:
        raise CriterionError(
            f"A decisive slice keeps a class or one number; the output has {answers.classes.count} "
            f"numbers. Make a model that returns one of them. {answers.classes.remark}"
        )
    bounds = [required.min_probability, required.max_divergence]
    if answers.is_number and any(bound is not None for bound in bounds):
        raise InvalidArgumentError(
            "The model predicts a number, which has no probability: bound its change by tolerance, "
            "in place of min_probability and max_divergence."
        )
    given = targets = answers.of(answers.full)
    if not isinstance(outputs, str) or outputs != "predicted":
        wanted = np.asarray(outputs)
        sizes = 1, len(given)
        if answers.is_number or wanted.dtype.kind not in "iu" or wanted.size not in sizes:
            raise CriterionError(
                "outputs must be 'predicted', a class, or one class for each sample. "
                f"Received: {outputs!r}"
            )
        targets = np.broadcast_to(wanted.ravel(), given.shape)
        if (targets != given).any():
            index = int(np.argmax(targets != given))
            raise CriterionError(
                f"A decisive slice keeps the model's own answer. Sample {index} is classified as "
                f"{given[index]}. Received: outputs={targets[index]}. Pass 'predicted', or only "
                "samples that the model assigns to this class."
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
                f"{len(below)} of {len(given)} samples: {listed}{more}. A slice of them may not "
                "reach it either; lower min_probability.",
                stacklevel=4,
            )
    return targets
