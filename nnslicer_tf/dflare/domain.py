"""Domains: the mutation operators for a kind of input, and the comparison of outputs.

To add a domain, subclass `Domain` with its operators and `check_seeds`, and, if the outputs are not
class probabilities, `check_outputs` and `judge`. A mutation is first drawn, then applied: `apply`
uses only the drawn parameters, such as a noise seed, so that a trace can be replayed.
"""

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields
from typing import Self

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.errors import InvalidArgumentError, NonFiniteActivationError

Parameters = dict[str, int | float]

_HALVINGS = 8  # bisection steps on the way back to a seed

LABEL_MARGIN = 1e-5
"""A top-1 label counts only if its probability leads by this much: more than the batch size changes
in a float32 probability (1e-6). A tie, common with 8-bit outputs, is no label."""


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

    original: np.ndarray  # the original's probabilities `(batch, classes) float32`
    compressed: np.ndarray  # likewise of the compressed model
    labels: np.ndarray  # top-1 labels `(batch, 2) int64`, original then compressed
    deviates: np.ndarray  # `(batch,) bool`
    distance: np.ndarray  # difference of the top-1 probabilities, `(batch,) float64`

    def part(self, start: int, stop: int) -> "Answers":
        """Return the answers for the inputs `start … stop - 1`."""
        return Answers(*(getattr(self, field.name)[start:stop] for field in fields(self)))

    @classmethod
    def joined(cls, parts: Sequence["Answers"]) -> "Answers":
        """Concatenate the answers for several batches."""
        fields_of = ([getattr(p, field.name) for p in parts] for field in fields(cls))
        return cls(*map(np.concatenate, fields_of))


class Domain(ABC):
    """The mutation operators of one kind of input, and the comparison of outputs.

    Args:
        operators: The pool, with distinct names.

    Raises:
        InvalidArgumentError: if the pool is empty or two operators have the same name.
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
        parameters = chosen.draw(rng, x)
        return self._within(chosen.apply(x, parameters), x), Mutation(operator, parameters)

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
            if mutation.operator not in self.operators:
                raise InvalidArgumentError(
                    f"Unknown operator '{mutation.operator}' in the trace. Expected one of: "
                    f"{', '.join(self.operators)}"
                )
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

    def check_outputs(self, outputs: np.ndarray, resolution: float, whose: str) -> None:
        """Reject outputs that are not probabilities of two or more classes.

        Args:
            outputs: One model's outputs, `(batch, classes)`, or `(batch, 1)` of a sigmoid.
            resolution: The step between two output values, see `Classifier`.
            whose: The argument that the model was passed as, for the message.

        Raises:
            InvalidArgumentError: if they have another shape, or are logits.
            NonFiniteActivationError: if they are NaN or infinite.
        """
        if outputs.ndim != 2 or not outputs.shape[1]:
            raise InvalidArgumentError(
                f"`{whose}` must return probabilities (batch, classes), or (batch, 1) of class 1. "
                f"Received outputs of shape {outputs.shape}."
            )
        if not np.isfinite(outputs).all():
            row = int(np.flatnonzero(~np.isfinite(outputs).all(axis=1))[0])
            raise NonFiniteActivationError(
                f"`{whose}` returns NaN or infinite outputs (row {row} of the batch: "
                f"{outputs[row]}). Check its weights and the preprocessing."
            )
        # Each value is rounded by half a step, and LiteRT's integer softmax errs by some more.
        classes, sums = outputs.shape[1], outputs.sum(axis=1, dtype=np.float64)
        tolerance = 1e-3 + resolution * (1 if classes == 1 else classes / 2 + 2)
        low, high = float(outputs.min()), float(outputs.max())
        are_shares = low >= -1e-6 and high <= 1 + tolerance
        if are_shares and (classes == 1 or np.abs(sums - 1).max() <= tolerance):
            return
        remedy = (
            "If they are logits, add a softmax or sigmoid: dflare.with_softmax(model). If they "
        )
        remedy += (
            "are numbers, as an autoencoder's, pass a Domain whose `judge` compares them: by a "
        )
        remedy += "distance, with a tolerance."
        if are_shares:
            remedy = "If they are independent labels, pass a Domain whose `judge` compares them."
        expected = "the probability of class 1" if classes == 1 else "probabilities of classes"
        raise InvalidArgumentError(
            f"`{whose}` returns values that are not {expected}: from {low:.4g} to {high:.4g}, with "
            f"sums {sums.min():.4g} … {sums.max():.4g}. {remedy}"
        )

    def judge(self, original: np.ndarray, compressed: np.ndarray) -> Answers:
        """Compare `(batch, classes)` probabilities, or `(batch, 1)` (paper, 3.1 and 3.3.2)."""
        original, compressed = class_probabilities(original), class_probabilities(compressed)
        labels, tops, leads = [], [], []
        for outputs in (original, compressed):
            second, first = np.partition(outputs, -2, axis=1)[:, -2:].astype(np.float64).T
            labels.append(outputs.argmax(axis=1))
            tops.append(first)
            leads.append(first - second)
        clear = (leads[0] > LABEL_MARGIN) & (leads[1] > LABEL_MARGIN)
        deviates, distance = (labels[0] != labels[1]) & clear, np.abs(tops[0] - tops[1])
        return Answers(original, compressed, np.stack(labels, axis=1), deviates, distance)

    def _within(self, mutant: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the valid input nearest to a mutant, within the limits of `near`."""
        mutant = self.valid(mutant, x)
        return mutant if self._limits is None else np.clip(mutant, *self._limits).astype(x.dtype)


def class_probabilities(outputs: np.ndarray) -> np.ndarray:
    """Return `(batch, classes)` probabilities; `(batch, 1)` sigmoids become two classes."""
    if outputs.shape[1] > 1:
        return outputs
    return np.concatenate([1 - outputs, outputs], axis=1)
