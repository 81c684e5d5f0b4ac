"""Decisive slices: the smallest slices found that keep a model's answer, with a certificate.

Units (synapses, neurons, channels or inputs) are removed in rounds: those with the least effect on
the answer first, which is then estimated again in the network that is left. The effect of a unit
is the derivative of the answer's log-odds (the logit of a sigmoid, or a number) with respect to its
mask. Only its size counts: selected by sign, a slice could be made to give any answer. What is left
out is ablated, by default to its mean.

A round costs one forward and one backward pass, about three forward passes; a sample takes some 60
to 70. Samples are worked on side by side, by threads.
"""

import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import available_cores
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._numerics import OutputClasses, sigmoid, softmax
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import CriterionError, InvalidArgumentError

if TYPE_CHECKING:
    import pandas as pd

    from nnslicer_tf.instrument import InstrumentedModel
    from nnslicer_tf.instrument.data import DataLike
    from nnslicer_tf.slicing.profile import Profile

ABLATIONS = ("mean", "zero", "resample")
_FORMAT = "nnslicer_tf decisive slices 1"
# The first steps are large: where much is left, effects need no new estimate.
_FIRST_SHARES = (0.4, 0.2)
_STEP = 0.8
_BISECTIONS = 4
_FAILURES = 2
_BATCH = 256
# Forward passes that a forward and a backward pass cost.
_ROUND = 3
_COLUMNS = (
    "answer",
    "probability",
    "answer with slice alone",
    "probability with slice alone",
    "answer with slice removed",
    "probability with slice removed",
    "divergence",
    "size",
    "share",
    "found",
    "other classes asked",
    "other classes given",
    "passes",
)


class DecisiveSlices(ShownAsTable):
    """The smallest slices found that keep a model's answers, with what was tested.

    Attributes:
        shapes: Name of a kernel (level "synapse") or operation → shape of its units.
        members: For each slice, the indices of its units, over all `shapes` in C order.
        certificate: Column → one value for each sample, all from runs of the model: "answer" (the
            class that is explained, or the number), its "probability", the same with the slice
            alone and with the slice removed, "divergence" (Kullback-Leibler, of the whole output
            with the slice alone from the model's), "size" and "share" of the slice, whether one
            was "found" below the bound, "other classes asked" of the same procedure, "other
            classes given" by it at this size, and the "passes" that it took, in forward passes.
        info: level, ablation, and the other arguments.
    """

    def __init__(
        self,
        shapes: Mapping[str, tuple[int, ...]],
        members: Sequence[np.ndarray],
        certificate: Mapping[str, np.ndarray],
        info: Mapping[str, Any],
    ) -> None:
        self.shapes = dict(shapes)
        self.members = list(members)
        self.certificate = dict(certificate)
        self.info = dict(info)

    def __len__(self) -> int:
        return len(self.certificate["answer"])

    def masks(self, index: int = 0) -> dict[str, np.ndarray]:
        """Return which units are in the slice of a sample: name → bool array.

        Raises:
            IndexError: if there is no such sample.
        """
        sizes = [int(np.prod(shape)) for shape in self.shapes.values()]
        mask = np.zeros(sum(sizes), bool)
        mask[self.members[0 if self.info["together"] else index]] = True
        parts = np.split(mask, np.cumsum(sizes)[:-1])
        return {
            name: part.reshape(shape)
            for part, (name, shape) in zip(parts, self.shapes.items(), strict=True)
        }

    def to_frame(self) -> "pd.DataFrame":
        """Return the certificate, with one row per sample."""
        import pandas as pd

        return pd.DataFrame(self.certificate).rename_axis("sample").reset_index()

    def summary(self, index: int = 0, classes: Sequence[str] = ()) -> str:
        """Return the certificate of a sample in words.

        Args:
            index: The sample.
            classes: Names of the classes, in order.

        Raises:
            IndexError: if there is no such sample.
        """
        row = {name: column[index] for name, column in self.certificate.items()}
        number = self.info["number"]

        def named(answer: Any) -> str:
            if number:
                return f"{answer:.4g}"
            return classes[int(answer)] if len(classes) else f"class {int(answer)}"

        def said(which: str) -> str:
            answer = row[f"answer with slice {which}"]
            if number:
                return f"{answer:.4g}"
            odds = 100 * row[f"probability with slice {which}"]
            return f"{named(row['answer'])} with {odds:.1f} %" + (
                "" if answer == row["answer"] else f" (it answers {named(answer)})"
            )

        units = f"{int(row['size']):,} {self.info['level']}s ({row['share']:.2%})".replace(
            "%", " %"
        )
        if not row["found"]:
            return (
                f"No slice of at most {100 * self.info['max_share']:.1f} % of the "
                f"{self.info['level']}s was found that keeps the answer {named(row['answer'])}. "
                f"The smallest that does has {units}."
            )
        verb = "gives" if number else "answers"
        base = {"mean": "its mean", "zero": "zero", "resample": "its value for another sample"}[
            self.info["ablation"]
        ]
        text = (
            f"With only the slice active, {units}, the model {verb} {said('alone')}; with the "
            f"slice removed, {said('removed')}. What is left out is set to {base}."
        )
        if row["other classes asked"]:
            text += (
                f" Asked for {int(row['other classes asked'])} other classes, the same procedure "
                f"gives {int(row['other classes given'])} of them at this size."
            )
        return text

    def save(self, path: str | os.PathLike) -> None:
        """Write the slices to an .npz file, replacing an older one only when it is complete."""
        header = {
            "shapes": {name: list(shape) for name, shape in self.shapes.items()},
            "info": self.info,
            "columns": list(self.certificate),
        }
        arrays = {f"column{i}": values for i, values in enumerate(self.certificate.values())}
        arrays["members"] = np.concatenate([np.zeros(0, np.int64), *self.members])
        arrays["ends"] = np.cumsum([len(m) for m in self.members])
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "DecisiveSlices":
        """Read slices.

        Raises:
            FileNotFoundError: if there is no such file.
            CorruptFileError: if the file is damaged, or holds something else.
        """
        with read_archive(path, _FORMAT, "decisive slices") as file:
            shapes = file.shapes("shapes")
            ends = file.array("ends", np.int64)
            members = np.split(file.array("members", np.int64), ends[:-1])
            # The probabilities of a number are NaN.
            certificate = {
                name: file.array(f"column{i}", np.generic, "samples", finite=False)
                for i, name in enumerate(file.names("columns"))
            }
            return cls(shapes, members, certificate, file.value("info", dict))

    def __repr__(self) -> str:
        found = int(self.certificate["found"].sum())
        share = float(np.median(self.certificate["share"])) if len(self) else 0.0
        return (
            f"DecisiveSlices({found} of {len(self)} found, median share {share:.2%} of the "
            f"{self.info['level']}s, ablation={self.info['ablation']!r})"
        )


@dataclass(frozen=True)
class Request:
    """What is asked of a search.

    Attributes:
        level: Kind of units.
        ablation: What takes the place of the other units' values.
        min_probability: Least probability of the answer with the slice alone.
        max_divergence: Largest divergence of the output with the slice alone.
        max_share: Largest share of the units of a slice that counts as found.
        tolerance: For a number: largest change with the slice alone, as a share of the change
            when all units are ablated.
        others: Number of other classes to ask for; None: all.
        together: Whether all samples get one slice.
    """

    level: str
    ablation: str
    min_probability: float | None
    max_divergence: float | None
    max_share: float
    tolerance: float
    others: int | None
    together: bool

    def check(self) -> None:
        """Check the arguments.

        Raises:
            InvalidArgumentError: if one is out of range.
        """
        from nnslicer_tf.slicing._masked import LEVELS

        check_name("level", self.level, LEVELS)
        check_name("ablation", self.ablation, ABLATIONS)
        for name, value, high in (
            ("min_probability", self.min_probability, 1.0),
            ("max_divergence", self.max_divergence, np.inf),
            ("max_share", self.max_share, 1.0),
            ("tolerance", self.tolerance, 1.0),
        ):
            if value is not None and not 0 < value <= high:
                raise InvalidArgumentError(
                    f"{name} must be above 0 and at most {high}. Received: {value!r}"
                )


class Answers:
    """What outputs say about a target: its answer and probability, and their divergences.

    Args:
        classes: What the output says about classes.
        full: The logits of the samples, `(samples, …)`.
    """

    def __init__(self, classes: OutputClasses, full: np.ndarray) -> None:
        self._classes = classes
        self.full = full.reshape(len(full), -1).astype(np.float64)

    @property
    def is_number(self) -> bool:
        """Whether the output is a number, not a class."""
        return self._classes.is_number

    def of(self, logits: np.ndarray) -> np.ndarray:
        """Return the answers, `(samples,)`: classes, or numbers."""
        if self.is_number:
            return logits.reshape(-1).astype(np.float64)
        return self._classes.from_logits(logits)

    def probabilities(self, logits: np.ndarray) -> np.ndarray:
        """Return the probability of each class, `(samples, classes)`; NaN for a number."""
        if self.is_number:
            return np.full((len(logits), 1), np.nan)
        scores = self._classes.scores(logits).reshape(len(logits), -1).astype(np.float64)
        if self._classes.is_binary:
            return np.concatenate([sigmoid(scores[:, :1]), sigmoid(scores[:, 1:])], axis=1)
        return sigmoid(scores) if self._classes.is_multi_label else softmax(scores)

    def divergence(self, logits: np.ndarray, rows: np.ndarray | slice = slice(None)) -> np.ndarray:
        """Return the divergence of outputs from the model's, `(samples,)`; for a number, |Δ|."""
        if self.is_number:
            return np.abs(logits.reshape(-1) - self.full[rows].reshape(-1))
        p, q = self.probabilities(self.full[rows]), self.probabilities(logits)
        if self._classes.is_multi_label:
            p, q = (np.concatenate([v, 1 - v], axis=1) for v in (p, q))
        tiny = 1e-30
        return (p * (np.log(p + tiny) - np.log(q + tiny))).sum(axis=1)


@dataclass
class _Search:
    """The search for slices of some samples, which share one mask."""

    model: Any
    answers: Answers
    request: Request
    x: list[Any]
    base: Mapping[str, Any]
    rows: np.ndarray
    passes: int = 0
    units: int = field(init=False)

    def __post_init__(self) -> None:
        self.units = sum(self.model.sizes)

    def logits(self, members: np.ndarray | None) -> np.ndarray:
        """Return the logits with only some units, given by their indices; None: without any."""
        mask = np.zeros(self.units, np.float32)
        mask[[] if members is None else members] = 1
        return self._run(mask)

    def without(self, members: np.ndarray) -> np.ndarray:
        """Return the logits with all units but some."""
        mask = np.ones(self.units, np.float32)
        mask[members] = 0
        return self._run(mask)

    def _run(self, mask: np.ndarray) -> np.ndarray:
        self.passes += 1
        return self.model.logits(self.x, self._split(mask), self.base)

    def _split(self, mask: np.ndarray) -> list[np.ndarray]:
        parts = np.split(mask, np.cumsum(self.model.sizes)[:-1])
        return [
            part.reshape(shape)
            for part, shape in zip(parts, self.model.shapes.values(), strict=True)
        ]

    def ranked(self, members: np.ndarray, neuron: int, sign: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits with some units, and these by their effects, the largest first."""
        mask = np.zeros(self.units, np.float32)
        mask[members] = 1
        self.passes += _ROUND
        logits, effects = self.model.effects(
            self.x, self._split(mask), self.base, np.int32(neuron), np.float32(sign)
        )
        sizes = np.abs(np.concatenate([e.ravel() for e in effects])[members])
        return logits, members[np.argsort(-sizes, kind="stable")]

    def smallest(self, neuron: int, sign: int, keeps: Callable[[np.ndarray], bool]) -> np.ndarray:
        """Return the units of the smallest slice found that keeps the answer.

        Args:
            neuron: Index of the logit of the target.
            sign: 1, or −1 if a smaller logit speaks for the target.
            keeps: Whether logits keep the answer.
        """
        best = ranking = following = np.arange(self.units)
        counts = _counts(self.units)
        failures = 0
        for count in [*counts, 0]:
            logits, order = self.ranked(following, neuron, sign)
            failures += 1
            if keeps(logits):
                best, ranking, failures = following, order, 0
            if failures == _FAILURES:  # an answer that was lost may come back, but seldom does
                break
            following = order[:count]
        low, high = max([count for count in counts if count < len(best)], default=0), len(best)
        for _ in range(_BISECTIONS):
            middle = int(np.sqrt(max(low, 1) * high))
            if not low < middle < high:
                break
            if keeps(self.logits(ranking[:middle])):
                best, high = ranking[:middle], middle
            else:
                low = middle
        return np.sort(best)

    def of_size(self, neuron: int, sign: int, size: int) -> np.ndarray:
        """Return the units that the procedure keeps for a target at a size."""
        members = np.arange(self.units)
        for count in _counts(self.units):
            _, order = self.ranked(members, neuron, sign)
            members = order[: max(count, size)]
            if count <= size:
                break
        return members


def _counts(units: int) -> list[int]:
    """Return the numbers of units that are left after each round."""
    shares = list(_FIRST_SHARES)
    while len(shares) < 2 or (shares[-1] * units >= 2 and shares[-1] > 1e-4):
        shares.append(shares[-1] * _STEP)
    return sorted({max(1, int(share * units)) for share in shares}, reverse=True)


def decisive_slices(
    im: "InstrumentedModel",
    profile: "Profile",
    data: "DataLike",
    outputs: Any,
    request: Request,
    rng: np.random.Generator,
    progress: bool,
) -> DecisiveSlices:
    """Return decisive slices; see `Slicer.decisive`."""
    # Imported here, because loading slices does not need Keras.
    from nnslicer_tf.instrument.inputs import arrays_of
    from nnslicer_tf.slicing._masked import MaskedModel

    output = None
    if isinstance(outputs, Mapping):
        if len(outputs) != 1:
            raise CriterionError(
                f"A decisive slice is of one output. Received: outputs for {list(outputs)}."
            )
        ((output, outputs),) = outputs.items()
    # Each sample is run many times, so all are kept.
    batches = [arrays_of(batch) for batch in im.samples(data).batches(_BATCH)]
    x = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
    name = im.logit_operation_of(output)
    full = _run(im, x, [name])[name]
    if full.ndim > 2:
        raise CriterionError(
            f"Decisive slices need an output vector. '{name}' has shape {full.shape[1:]}."
        )
    classes = im.classes_of(output)
    answers = Answers(classes, full)
    targets = _targets(outputs, answers, full, request.together)
    by_odds = classes.count > 1 and classes.final != "sigmoid"
    model = MaskedModel(im, name, request.level, by_odds)
    samples = len(full)
    if request.ablation == "resample" and samples < 2:
        raise InvalidArgumentError("ablation='resample' needs at least 2 samples. Received: 1")
    others = (np.arange(samples) + rng.integers(1, max(samples, 2), samples)) % samples

    def base_of(index: int) -> dict[str, np.ndarray]:
        if request.ablation == "resample":
            row = others[index : index + 1]
            return _run(im, [array[row] for array in x], model.bases)
        means = {n: profile.means[n][None].astype(np.float32) for n in model.bases}
        return means if request.ablation == "mean" else {n: 0 * m for n, m in means.items()}

    asked = [rng.permutation(classes.count) for _ in range(samples)]
    groups = [np.arange(samples)] if request.together else [np.array([i]) for i in range(samples)]

    def search(rows: np.ndarray) -> tuple[np.ndarray, dict[str, np.ndarray]]:
        inputs = [array[rows] for array in x]
        found = _Search(model, answers, request, inputs, base_of(int(rows[0])), rows)
        return _slice_of(found, classes, targets[rows], asked[int(rows[0])])

    results = []
    with (
        ThreadPoolExecutor(min(available_cores(), len(groups))) as pool,
        tqdm(
            total=samples, desc="Deciding", unit="sample", disable=not progress, leave=False
        ) as bar,
    ):
        for result in pool.map(search, groups):
            results.append(result)
            bar.update(len(result[1]["answer"]))
    certificate = {name: np.concatenate([rows[name] for _, rows in results]) for name in _COLUMNS}
    info = {
        "level": request.level,
        "ablation": request.ablation,
        "max_share": request.max_share,
        "min_probability": request.min_probability,
        "max_divergence": request.max_divergence,
        "together": request.together,
        "number": answers.is_number,
        "fingerprint": profile.fingerprint,
    }
    return DecisiveSlices(model.shapes, [members for members, _ in results], certificate, info)


def _run(
    im: "InstrumentedModel", x: Sequence[np.ndarray], names: Sequence[str]
) -> dict[str, np.ndarray]:
    """Return the values of operations for all samples."""
    from nnslicer_tf.instrument.inputs import Inputs

    parts: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for first in range(0, len(x[0]), _BATCH):
        given = [array[first : first + _BATCH] for array in x]
        named = zip(im.input_operations, given, strict=True)
        batch = given[0] if len(given) == 1 else Inputs(dict(named))
        for name, values in im.forward(batch, names, first).items():
            parts[name].append(values)
    return {name: np.concatenate(values) for name, values in parts.items()}


def _targets(outputs: Any, answers: Answers, full: np.ndarray, together: bool) -> np.ndarray:
    """Return the answer that each sample's slice has to keep."""
    given = answers.of(full)
    if isinstance(outputs, str) and outputs == "predicted":
        targets = given
    else:
        wanted = np.asarray(outputs)
        if answers.is_number or wanted.dtype.kind not in "iu" or wanted.size not in (1, len(full)):
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


def _slice_of(
    search: _Search, classes: OutputClasses, targets: np.ndarray, asked: np.ndarray
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Search the slice of some samples; return its units and the rows of the certificate."""
    answers, request, rows = search.answers, search.request, search.rows
    scale = 1.0
    if answers.is_number:
        neuron, sign = 0, 1
        scale = float(np.abs(answers.divergence(search.logits(None), rows)).max())
    else:
        neuron, sign = classes.neuron(int(targets[0]))

    def keeps(logits: np.ndarray) -> bool:
        divergence = answers.divergence(logits, rows)
        if answers.is_number:
            return bool(np.mean(divergence <= request.tolerance * scale) >= 0.95)
        same = answers.of(logits) == targets
        odds = answers.probabilities(logits)[np.arange(len(logits)), targets]
        if request.min_probability is not None:
            same &= odds >= request.min_probability
        if request.max_divergence is not None:
            same &= divergence <= request.max_divergence
        return bool(same.mean() >= 0.95)

    members = search.smallest(neuron, sign, keeps)
    alone, removed = search.logits(members), search.without(members)
    passes = search.passes
    share = len(members) / search.units
    wanted, given = [], 0
    if not answers.is_number and request.others != 0 and share < 1:
        wanted = [c for c in asked if c != targets[0]][: request.others]
        for other in wanted:
            kept = search.of_size(*classes.neuron(int(other)), len(members))
            given += int((answers.of(search.logits(kept)) == other).mean() > 0.5)
    full = answers.full[rows]

    def probability(logits: np.ndarray) -> np.ndarray:
        odds = answers.probabilities(logits)
        place = np.zeros(len(rows), int) if answers.is_number else targets
        return odds[np.arange(len(rows)), place]

    def all_rows(value: Any) -> np.ndarray:
        return np.full(len(rows), value)

    return members, {
        "answer": targets,
        "probability": probability(full),
        "answer with slice alone": answers.of(alone),
        "probability with slice alone": probability(alone),
        "answer with slice removed": answers.of(removed),
        "probability with slice removed": probability(removed),
        "divergence": answers.divergence(alone, rows),
        "size": all_rows(len(members)),
        "share": all_rows(share),
        "found": all_rows(share <= request.max_share),
        "other classes asked": all_rows(len(wanted)),
        "other classes given": all_rows(given),
        "passes": all_rows(passes),
    }
