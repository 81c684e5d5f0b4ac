"""The search for decisive slices: the smallest that keep a model's answer.

Units (synapses, neurons, channels or inputs) are ablated in rounds, those with the least effect
first; effects are then estimated again. The effect of a unit is the absolute derivative of the
answer's log-odds (without a softmax, of the logit) with respect to its mask. The sign is ignored: a
slice selected by sign could be made to give any answer.

A round costs one forward and one backward pass, about three forward passes; a sample takes some 60
to 70. Threads search for several samples in parallel.
"""

import warnings
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import available_cores
from nnslicer_tf._numerics import sigmoid, softmax
from nnslicer_tf.errors import CriterionError, InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.inputs import Inputs, arrays_of
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.masked import LEVELS, MaskedUnits
from nnslicer_tf.slicing.profile import Profile

ABLATIONS = ("mean", "zero", "resample")
# The first steps are large: where much is left, effects need no new estimate.
_FIRST_SHARES = (0.4, 0.2)
_STEP = 0.8
_MIN_SHARE = 1e-4
_BISECTIONS = 4
# An answer that was lost may come back in the next round, but seldom does later.
_MAX_FAILURES = 2
_MIN_KEPT = 0.95  # of samples that share a slice
_BATCH = 256
_OF_SOFTMAX = ("", "softmax", "log_softmax")
_ROUND = 3  # forward passes that a forward and a backward pass cost


class Answers:
    """Answers of an output, their probabilities, and their divergences from the whole model's."""

    def __init__(self, im: InstrumentedModel, output: str | None, full: np.ndarray) -> None:
        self._classes = classes = im.classes_of(output)
        self._outputs = partial(im.outputs_from, output=output)
        # Whether logits become probabilities by a softmax, or by a sigmoid; else by the model.
        self.by_softmax = classes.task == "multiclass" and classes.final in _OF_SOFTMAX
        self._by_sigmoid = classes.task != "multiclass" and classes.final in ("", "sigmoid")
        # The whole model's logits, (samples, logits).
        self.full = full.reshape(len(full), -1).astype(np.float64)

    @property
    def is_number(self) -> bool:
        """Whether the output is a number, not a class."""
        return self._classes.is_number

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Return the answers, `(samples,)`: classes, or numbers."""
        if self.is_number:
            return self._outputs(logits.astype(np.float32)).reshape(-1).astype(np.float64)
        return self._classes.from_logits(logits)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each class, `(samples, classes)`; NaN for a number."""
        if self.is_number:
            return np.full((len(logits), 1), np.nan)
        scores = self._classes.scores(logits).reshape(len(logits), -1).astype(np.float64)
        if self.by_softmax:
            return softmax(scores)
        if self._by_sigmoid:
            return sigmoid(scores)
        return self._classes.probabilities(self._outputs(logits)).reshape(len(logits), -1)

    def probability(self, logits: np.ndarray, targets: np.ndarray) -> np.ndarray:
        """Return the probability of each sample's target, `(samples,)`; NaN for a number."""
        columns = np.zeros(len(logits), int) if self.is_number else targets
        return self.probabilities(logits)[np.arange(len(logits)), columns]

    def divergence(self, logits: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the KL divergence of outputs from the model's, `(samples,)`; for a number, |Δ|."""
        if self.is_number:
            return np.abs(self.of(logits) - self.of(self.full[rows]))
        p, q = self.probabilities(self.full[rows]), self.probabilities(logits)
        if self._classes.is_multi_label:
            p, q = (np.concatenate([v, 1 - v], axis=1) for v in (p, q))
        tiny = 1e-30
        return (p * (np.log(p + tiny) - np.log(q + tiny))).sum(axis=1)


@dataclass
class _Search:
    """The search for one slice, of one sample or of several that share a mask."""

    model: MaskedUnits
    x: list[np.ndarray]
    base: Mapping[str, Any]
    answers: Answers
    passes: int = 0
    # The size of each mask that was run, and the answers, (samples,).
    met: list[tuple[int, np.ndarray]] = field(default_factory=list)

    def logits(self, members: np.ndarray, removed: bool = False) -> np.ndarray:
        """Return the logits with only the units `members` active, or with them removed."""
        mask = np.full(self.model.units, float(removed), np.float32)
        mask[members] = not removed
        self.passes += 1
        logits = self.model.logits(self.x, mask, self.base)
        if not removed:
            self.met.append((len(members), self.answers.of(logits)))
        return logits

    def effects(
        self, members: np.ndarray, target: tuple[int, int]
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits with only the units `members` active, and their effects' sizes."""
        mask = np.zeros(self.model.units, np.float32)
        mask[members] = 1
        self.passes += _ROUND
        logits, effects = self.model.effects(self.x, mask, self.base, *target)
        self.met.append((len(members), self.answers.of(logits)))
        return logits, np.abs(effects[members])

    def smallest(self, target: tuple[int, int], keeps: Callable[[np.ndarray], bool]) -> np.ndarray:
        """Return the units of the smallest slice found whose logits satisfy `keeps`, else all.

        `target` is the index of its logit, and −1 if a smaller logit speaks for it, else 1.
        """
        members = best = np.arange(self.model.units)
        sizes_of_best = np.zeros(len(best))
        counts = _counts(self.model.units)
        failures = 0
        for count in [*counts, 0]:
            logits, sizes = self.effects(members, target)
            failures += 1
            if keeps(logits):
                best, sizes_of_best, failures = members, sizes, 0
            if failures == _MAX_FAILURES:
                break
            members = _largest(members, sizes, count)
        low, high = max([count for count in counts if count < len(best)], default=0), len(best)
        ranked, sizes = best, sizes_of_best
        for _ in range(_BISECTIONS):
            middle = int(np.sqrt(max(low, 1) * high))
            if not low < middle < high:
                break
            members = _largest(ranked, sizes, middle)
            if keeps(self.logits(members)):
                best, high = members, middle
            else:
                low = middle
        return best

    def of_size(self, target: tuple[int, int], size: int) -> np.ndarray:
        """Return the units that rounds of ablation leave for a target at a size."""
        members = np.arange(self.model.units)
        for count in _counts(self.model.units):
            _, sizes = self.effects(members, target)
            members = _largest(members, sizes, max(count, size))
            if count <= size:
                break
        return members


def _counts(units: int) -> list[int]:
    """Return the number of remaining units after each round, in descending order."""
    shares = list(_FIRST_SHARES)
    while len(shares) < 2 or (shares[-1] * units >= 2 and shares[-1] > _MIN_SHARE):
        shares.append(shares[-1] * _STEP)
    return sorted({max(1, int(share * units)) for share in shares}, reverse=True)


def _largest(members: np.ndarray, sizes: np.ndarray, count: int) -> np.ndarray:
    """Return the members with the `count` largest sizes, in their order; ties go to the first."""
    if count >= len(members) or not count:
        return members[:count]
    bound = np.partition(sizes, len(sizes) - count)[len(sizes) - count]
    chosen = sizes > bound
    chosen[np.flatnonzero(sizes == bound)[: count - int(chosen.sum())]] = True
    return members[chosen]


def decisive_slices(
    im: InstrumentedModel,
    profile: Profile,
    data: DataLike,
    outputs: Any,
    level: str,
    *,
    ablation: str,
    min_probability: float | None,
    max_divergence: float | None,
    max_share: float,
    tolerance: float,
    others: int | None,
    together: bool,
    rng: int | np.random.Generator,
    progress: bool,
) -> DecisiveSlices:
    """Return decisive slices; see `Slicer.decisive`."""
    check_name("level", level, LEVELS)
    check_name("ablation", ablation, ABLATIONS)
    for name, value, high in (
        ("min_probability", min_probability, 1.0),
        ("max_divergence", max_divergence, np.inf),
        ("max_share", max_share, 1.0),
        ("tolerance", tolerance, 1.0),
    ):
        if value is not None and not 0 < value <= high:
            raise InvalidArgumentError(
                f"{name} must be above 0 and at most {high}. Received: {value!r}"
            )
    generator = np.random.default_rng(rng)
    output = None
    if isinstance(outputs, Mapping):
        if len(outputs) != 1:
            raise CriterionError(
                f"A decisive slice is of one output. Received: outputs for {list(outputs)}."
            )
        ((output, outputs),) = outputs.items()

    # The samples (each is run many times, so all are kept), and the answers to keep.
    batches = [arrays_of(batch) for batch in im.samples(data).batches(_BATCH)]
    x = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    name = im.logit_operation_of(output)
    full = _values(im, x, [name])[name]
    samples = len(full)
    if full.ndim > 2:
        raise CriterionError(
            f"Decisive slices need an output vector. '{name}' has shape {full.shape[1:]}."
        )
    if ablation == "resample" and samples < 2:
        raise InvalidArgumentError("ablation='resample' needs at least 2 samples. Received: 1")
    classes = im.classes_of(output)
    answers = Answers(im, output, full)
    if answers.is_number and classes.count > 1:
        raise CriterionError(
            f"A decisive slice keeps a class or one number; '{name}' has {classes.count} numbers. "
            f"{classes.remark}"
        )
    targets = _targets(outputs, answers, together)
    key = "masked units", name, level, answers.by_softmax
    model = im.prepared(key, lambda: MaskedUnits(im, name, level, answers.by_softmax))

    # One search for each sample, or one for all of them.
    donors = (np.arange(samples) + generator.integers(1, max(samples, 2), samples)) % samples
    asked = [generator.permutation(classes.count) for _ in range(samples)]
    base = {n: profile.means[n][None].astype(np.float32) for n in model.bases}
    if ablation == "zero":
        base = {n: 0 * mean for n, mean in base.items()}
    shared = model.base(base)
    groups = [np.arange(samples)] if together else [np.array([i]) for i in range(samples)]
    searches = []
    for rows in groups:
        if ablation == "resample":
            donor = donors[rows[:1]]
            shared = model.base(_values(im, [array[donor] for array in x], model.bases))
        searches.append(_Search(model, [array[rows] for array in x], shared, answers))

    def target(label: Any) -> tuple[int, int]:
        return (0, 1) if answers.is_number else classes.neuron(int(label))

    empty: dict[int, np.ndarray] = {}  # logits with nothing active, for each search
    kept: set[int] = set()  # the searches with a slice that keeps the answer
    if min_probability is not None and not answers.is_number:
        whole = answers.probability(full, targets)
        below = np.flatnonzero(whole < min_probability)
        if len(below):
            listed = ", ".join(f"{i} ({100 * whole[i]:.1f} %)" for i in below[:5])
            more = f" and {len(below) - 5} more" if len(below) > 5 else ""
            warnings.warn(
                f"The whole model gives its answer less than min_probability={min_probability:g} "
                f"for {len(below)} of {samples} samples: {listed}{more}. A slice of them may not "
                "reach it either; lower min_probability.",
                stacklevel=3,
            )

    def smallest(index: int) -> np.ndarray:
        search, rows = searches[index], groups[index]
        empty[index] = search.logits(np.zeros(0, int))
        scale = float(answers.divergence(empty[index], rows).max()) if answers.is_number else 1.0

        def keeps(logits: np.ndarray) -> bool:
            divergence = answers.divergence(logits, rows)
            if answers.is_number:
                return bool(np.mean(divergence <= tolerance * scale) >= _MIN_KEPT)
            same = answers.of(logits) == targets[rows]
            if min_probability is not None:
                same &= answers.probability(logits, targets[rows]) >= min_probability
            if max_divergence is not None:
                same &= divergence <= max_divergence
            return bool(same.mean() >= _MIN_KEPT)

        one = search.smallest(target(targets[rows[0]]), keeps)
        # Where even the whole model misses `min_probability`, perhaps no slice reaches it.
        if min_probability is None or len(one) < model.units or keeps(full[rows]):
            kept.add(index)
        return one

    def is_given(index_and_label: tuple[int, int]) -> bool:
        """Return whether a mask of at most this size, met by a search, gives another class."""
        index, label = index_and_label
        search, size = searches[index], len(members[index])

        if any((met == label).mean() > 0.5 for count, met in search.met if count <= size):
            return True
        other = _Search(model, search.x, search.base, answers)
        logits = other.logits(other.of_size(target(label), size))
        return bool((answers.of(logits) == label).mean() > 0.5)

    bar = tqdm(total=len(groups), desc="Deciding", unit="slice", disable=not progress, leave=False)
    with ThreadPoolExecutor(available_cores()) as pool, bar:
        members = []
        for one in pool.map(smallest, range(len(groups))):
            members.append(one)
            bar.update()
        pairs = []
        for index, rows in enumerate(groups):
            if not answers.is_number and len(members[index]) < model.units:
                labels = asked[rows[0]]
                wanted = labels[labels != targets[rows[0]]][:others]
                pairs += [(index, int(label)) for label in wanted]
        bar.reset(len(pairs))
        bar.set_description("Other classes")
        given = []
        for is_one_given in pool.map(is_given, pairs):
            given.append(is_one_given)
            bar.update()

    # The certificate.
    parts = []
    owners = np.array([index for index, _ in pairs], int)
    for index, (search, rows) in enumerate(zip(searches, groups, strict=True)):
        alone = search.logits(members[index])
        removed = search.logits(members[index], removed=True)
        share = len(members[index]) / model.units
        here = owners == index
        nothing = answers.of(empty[index])
        likelihoods = answers.probability(empty[index], nothing)
        columns = {
            "answer": targets[rows],
            "probability": answers.probability(answers.full[rows], targets[rows]),
            "answer with slice alone": answers.of(alone),
            "probability with slice alone": answers.probability(alone, targets[rows]),
            "answer with slice removed": answers.of(removed),
            "probability with slice removed": answers.probability(removed, targets[rows]),
            "empty answer": nothing,
            "probability of empty answer": likelihoods,
            "divergence": answers.divergence(alone, rows),
            "size": len(members[index]),
            "share": share,
            "kept": index in kept,
            "found": share <= max_share and index in kept,
            "other classes asked": int(here.sum()),
            "other classes given": int(np.array(given, bool)[here].sum()),
            "passes": search.passes,
        }
        parts.append({name: np.broadcast_to(v, (len(rows),)) for name, v in columns.items()})
    certificate = {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}
    info = {
        "level": level,
        "ablation": ablation,
        "max_share": max_share,
        "min_probability": min_probability,
        "max_divergence": max_divergence,
        "together": together,
        "number": answers.is_number,
        "others": [
            [[label, one] for (owner, label), one in zip(pairs, given, strict=True) if owner == i]
            for i in range(len(groups))
        ],
        "fingerprint": profile.fingerprint,
    }
    return DecisiveSlices(model.shapes, members, certificate, info)


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


def _targets(outputs: Any, answers: Answers, together: bool) -> np.ndarray:
    """Return the answer that each sample's slice has to keep."""
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
    if together and not answers.is_number and len(np.unique(targets)) > 1:
        raise CriterionError(
            "One slice for all samples needs samples of one class. The model assigns these to "
            f"classes {np.unique(targets).tolist()}; pass those of one class, or together=False."
        )
    return targets
