"""Domains: the mutation operators for a kind of input; and the comparison of outputs, `judge`.

To add a domain, subclass `Domain` with its operators and `check_seeds`. A mutation is first drawn,
then applied: `apply` uses only the drawn parameters, such as a seed, so a trace can be replayed.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from nnslicer_tf._checks import check_name, of_user
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError

Parameters = dict[str, int | float]

_HALVINGS = 8  # bisection steps on the way back to a seed

LABEL_MARGIN = 1e-5
"""A top-1 label counts only if its probability leads by this much: more than the batch size changes
in a float32 probability (1e-6). A tie, common with 8-bit outputs, is no label."""

NO_LABEL = -1
"""The label of maps, independent labels and numbers, which do not have a single one."""


@dataclass(frozen=True)
class Mutation:
    """One applied operator, repeatable exactly."""

    operator: str
    parameters: Parameters
    share: float = 1.0  # position of the result between the old input (0) and the mutant (1)


@dataclass(frozen=True)
class MutationOperator:
    """A way to change an input slightly.

    Attributes:
        name: The operator's name in traces and tables.
        draw: `draw(rng, x)` draws the parameters of one mutation of `x`.
        apply: `apply(x, parameters)` returns a valid mutant of the same shape and dtype.
    """

    name: str
    draw: Callable[[np.random.Generator, np.ndarray], Parameters]
    apply: Callable[[np.ndarray, Parameters], np.ndarray]


@dataclass(frozen=True)
class Answers:
    """The outputs of the two models for a batch, and their comparison."""

    original: np.ndarray  # the original's probabilities `(batch, …, classes)`, or numbers, float32
    compressed: np.ndarray  # likewise of the compressed model
    labels: np.ndarray  # top-1 labels `(batch, 2) int64`, original then compressed; or `NO_LABEL`
    deviates: np.ndarray  # `(batch,) bool`
    distance: np.ndarray  # mean difference of the top-1 probabilities, or as `apart`, `(batch,)`
    apart: np.ndarray | None = None  # see `OutputClasses.distances`, `(batch,) float64`; no ties
    are_numbers: bool = False

    def part(self, start: int, stop: int) -> "Answers":
        """Return the answers for the inputs `start … stop - 1`."""
        return replace(self, **{name: array[start:stop] for name, array in self._arrays().items()})

    @classmethod
    def joined(cls, parts: Sequence["Answers"]) -> "Answers":
        """Concatenate the answers for several batches."""
        arrays: Any = {n: np.concatenate([vars(p)[n] for p in parts]) for n in parts[0]._arrays()}
        return replace(parts[0], **arrays)

    @property
    def kind(self) -> OutputClasses:
        """The meaning of `original` and `compressed`."""
        task = "regression" if self.are_numbers else "multiclass"
        return OutputClasses("distribution", self.original.shape[1:], task=task)

    def _arrays(self) -> dict[str, Any]:
        return {name: v for name, v in vars(self).items() if isinstance(v, np.ndarray)}


class Domain(ABC):
    """The mutation operators of one kind of input.

    Args:
        operators: The pool, with distinct names.

    Raises InvalidArgumentError if the pool is empty or two operators have the same name.
    """

    def __init__(self, operators: Sequence[MutationOperator]) -> None:
        self.operators = {operator.name: operator for operator in operators}
        if not len(operators) or len(self.operators) != len(operators):
            names = [operator.name for operator in operators]
            raise InvalidArgumentError(f"Operators must have unique names. Received: {names}")
        self._limits: tuple[np.ndarray, np.ndarray] | None = None

    @abstractmethod
    def check_seeds(self, seeds: np.ndarray) -> None:
        """Raise `InputShapeError` if `seeds` is not a batch of valid inputs."""

    def near(self, seed: np.ndarray, max_distance: float | None) -> Self:
        """Return a copy that clips mutants to within `max_distance` of the seed, value by value."""
        if max_distance is None:
            return self
        if seed.dtype.kind in "iu":
            max_distance = np.floor(max_distance)
        bounded, center = copy.copy(self), seed.astype(np.float64)
        bounded._limits = center - max_distance, center + max_distance
        return bounded

    def valid(self, mutant: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the valid input nearest to a mutant of `x`; by default all are valid."""
        return mutant

    def mutate(
        self, x: np.ndarray, operator: str, rng: np.random.Generator
    ) -> tuple[np.ndarray, Mutation]:
        """Return a mutant of `x` by the named operator, and the mutation for the trace."""
        check_name("operator", operator, self.operators)
        chosen = self.operators[operator]
        with of_user(f"operators[{operator!r}]"):
            parameters = chosen.draw(rng, x)
            mutant = chosen.apply(x.copy(), parameters)
        return self._within(mutant, x), Mutation(operator, parameters)

    def blend(self, x: np.ndarray, mutant: np.ndarray, share: float) -> np.ndarray:
        """Interpolate between `x` (share 0) and `mutant` (1); override it for non-convex inputs."""
        mutant = self._within(mutant, x)
        if share == 1:
            return mutant
        blended = x + share * (mutant.astype(np.float64) - x)
        rounded = np.rint(blended) if x.dtype.kind in "iu" else blended
        return self.valid(rounded.astype(x.dtype), x)

    def as_inputs(self, batch: np.ndarray) -> np.ndarray:
        """Return the inputs of models without preprocessing: the values as float32."""
        return batch.astype(np.float32)

    def replay(self, seed: np.ndarray, trace: Iterable[Mutation]) -> np.ndarray:
        """Apply a trace to its seed; raise InvalidArgumentError for operators that are not here.

        For a search with `max_distance`, call it on `domain.near(seed, max_distance)`.
        """
        x = seed
        for mutation in trace:
            check_name("operator of the trace", mutation.operator, self.operators)
            mutant = self.operators[mutation.operator].apply(x, mutation.parameters)
            x = self.blend(x, mutant, mutation.share)
        return x

    def smaller(
        self, seed: np.ndarray, x: np.ndarray, deviates: Callable[[np.ndarray], bool]
    ) -> np.ndarray:
        """Return an input nearer to the seed than `x` for which `deviates` is still true.

        Bisects between the two, then resets `blocks` to the seed one by one, and bisects again.
        """

        def bisected(x: np.ndarray) -> np.ndarray:
            low, high = 0.0, 1.0
            for _ in range(_HALVINGS):
                share = (low + high) / 2
                if deviates(self.blend(seed, x, share)):
                    high = share
                else:
                    low = share
            return x if high == 1 else self.blend(seed, x, high)

        x = bisected(x)
        blocks = list(self.blocks(seed.shape))
        for block in blocks:
            if not np.array_equal(x[block], seed[block]):
                restored = x.copy()
                restored[block] = seed[block]
                if deviates(restored):
                    x = restored
        return bisected(x) if blocks else x

    def blocks(self, shape: tuple[int, ...]) -> Iterable[tuple[slice, ...]]:
        """Return the parts of an input that `smaller` resets; none by default."""
        return ()

    def _within(self, mutant: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the valid input nearest to a mutant, within the limits of `near`."""
        mutant = self.valid(mutant, x)
        return mutant if self._limits is None else np.clip(mutant, *self._limits).astype(x.dtype)


def kind_of(
    outputs: np.ndarray,
    resolution: float,
    task: str | None,
    tolerance: float | None,
    of_loss: str = "",
) -> OutputClasses:
    """Return the kind of a model's outputs `(batch, …)`, by their task or else their values.

    Several values that add up to 1 are probabilities of classes. Others are independent labels if
    `of_loss` is their task; numbers with a tolerance, or as maps of a loss for numbers; else they
    ought to be probabilities. Labels become a map with two classes for each. Others: `ModelPair`.

    Raises InvalidArgumentError if the outputs have no axis of values, or another than the task's.
    """
    shape = outputs.shape[1:]
    if not shape or not outputs.size or (task == "binary" and shape[-1] != 1):
        raise InvalidArgumentError(
            "A model must return outputs (batch, …), such as probabilities (batch, classes), with "
            f"one value at the end for two classes. Received outputs of shape {outputs.shape}."
        )
    if task is None:
        by_loss = of_loss == "regression" and len(shape) > 1
        numbers = by_loss or (tolerance is not None and of_loss in ("", "regression"))
        task = "binary" if shape[-1] == 1 else "multiclass"
        if not _are_shares(outputs, resolution):
            labels = of_loss == "multilabel" and len(shape) == 1 < shape[-1]
            task = "regression" if numbers else of_loss if labels else task
    if task == "multilabel":
        return OutputClasses("distribution", (*shape, 1), task="binary")
    return OutputClasses("distribution", shape, task=task)


def _are_shares(outputs: np.ndarray, resolution: float) -> bool:
    """Whether the values at the end are several probabilities that add up to 1."""
    # Each value is rounded by half a step, and LiteRT's integer softmax errs by some more. A
    # function may run a file of 8 bits, too, but several labels that are 1 are no rounding.
    steps, are_bytes = outputs.shape[-1] / 2 + 2, (256 * outputs % 1 == 0).all()
    tolerance = 1e-3 + max(resolution * steps, are_bytes * min(steps, 16) / 256)
    sums = outputs.sum(axis=-1, dtype=np.float64)
    within = outputs.min() >= -1e-6 and outputs.max() <= 1 + tolerance
    return bool(outputs.shape[-1] > 1 and within and np.abs(sums - 1).max() <= tolerance)


def check_outputs(
    outputs: np.ndarray, kind: OutputClasses, resolution: float, whose: str, tolerance: float | None
) -> None:
    """Raise an error for outputs that do not fit their kind.

    Args:
        outputs: One model's outputs, `(batch, …)`.
        kind: What they are.
        resolution: The step between two output values, see `Classifier`.
        whose: The argument that the model was passed as, for the message.
        tolerance: That of `ModelPair`, which numbers need.

    Raises InvalidArgumentError if they are no probabilities, or numbers have no tolerance;
    NonFiniteActivationError if they are NaN or infinite.
    """
    flat = outputs.reshape(len(outputs), -1)
    if not np.isfinite(flat).all():
        row = int(np.flatnonzero(~np.isfinite(flat).all(axis=1))[0])
        raise NonFiniteActivationError(
            f"`{whose}` returns NaN or infinite outputs (row {row} of the batch: "
            f"{str(outputs[row])[:200]}). Check its weights and the preprocessing."
        )
    if tolerance is not None or kind.is_number:
        kind.tolerance(tolerance)
    if kind.is_number:
        return
    low, high = float(outputs.min()), float(outputs.max())
    within = low >= -1e-6 and high <= 1 + 1e-3 + resolution
    if _are_shares(outputs, resolution) or (kind.is_binary and within):
        return
    sums = outputs.sum(axis=-1, dtype=np.float64)
    remedy = (
        "If they are logits, add a softmax or sigmoid: dflare.with_softmax(model). If they are "
        "numbers, as an autoencoder's, pass ModelPair(…, tolerance=) or --tolerance, the root mean "
        "square by which two answers may differ and agree."
    )
    if within:
        remedy = "If they are independent labels, pass ModelPair(…, task='multilabel')."
    expected = "the probability of class 1" if kind.is_binary else "probabilities of classes"
    raise InvalidArgumentError(
        f"`{whose}` returns values that are not {expected}: from {low:.4g} to {high:.4g}, with "
        f"sums {sums.min():.4g} … {sums.max():.4g}. {remedy}"
    )


def judge(
    original: np.ndarray, compressed: np.ndarray, kind: OutputClasses, tolerance: float | None
) -> Answers:
    """Compare two models' outputs `(batch, …)` (paper, 3.1 and 3.3.2; maps and numbers are ours).

    Two answers deviate if they are farther apart than the tolerance, without one at all: by the
    share of their positions whose classes differ, or the root mean square difference of numbers.
    """
    if kind.is_number:
        apart = kind.distances(original, compressed)
        none, deviates = np.full((len(apart), 2), NO_LABEL), apart > (tolerance or 0.0)
        return Answers(original, compressed, none, deviates, apart, apart, are_numbers=True)
    # Values with their classes last, those of one sigmoid as two.
    first, second = (
        class_probabilities(values.reshape(len(values), *kind.shape))
        for values in (original, compressed)
    )
    shares = np.stack([first, second]).reshape(2, len(first), -1, first.shape[-1])
    runner_up, best = np.moveaxis(np.partition(shares, -2, axis=-1)[..., -2:], -1, 0)
    labels, tops = shares.argmax(axis=-1), best.astype(np.float64)
    clear = (tops - runner_up > LABEL_MARGIN).all(axis=0)
    apart = ((labels[0] != labels[1]) & clear).mean(axis=1)
    distance = np.abs(tops[0] - tops[1]).mean(axis=1)
    both = np.full((len(first), 2), NO_LABEL) if kind.is_map else labels[..., 0].T.copy()
    return Answers(first, second, both, apart > (tolerance or 0.0), distance, apart)


def class_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return `(batch, …, classes)` probabilities; `(batch, …, 1)` sigmoids become two classes."""
    if outputs.shape[-1] > 1:
        return outputs
    return np.concatenate([1 - outputs, outputs], axis=-1)
