"""`Slicer`: forward and backward analysis of samples (NNSlicer, section 4).

The backward walk takes most of the time. Memory holds one batch of activations for this process
and two per worker, whatever the number of samples.
"""

import os
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import scipy.sparse as sp

from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf._files import digest
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf.engine import Store
from nnslicer_tf.engine.engines import ThreadEngine, make_engine
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.fingerprint import weights_checksum
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.kinds.kind import Layout
from nnslicer_tf.slicing import _results, _zero_walk
from nnslicer_tf.slicing._batches import Work
from nnslicer_tf.slicing._checkpoint import RowCheckpoint, SumCheckpoint
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._planner import check_rules, plan_walk
from nnslicer_tf.slicing._rounding import rounding_bounds
from nnslicer_tf.slicing._zero_walk import AmountWalk, CountWalk
from nnslicer_tf.slicing.criterion import PREDICTED, Criterion, Outputs
from nnslicer_tf.slicing.deciding import DecisiveSearch
from nnslicer_tf.slicing.explaining import EMPTY, Explainer
from nnslicer_tf.slicing.profile import Profile
from nnslicer_tf.slicing.slice import Slice
from nnslicer_tf.slicing.slice_set import SliceSet

# Size of a batch's activations, which are captured and sent to a worker as a whole.
_BATCH_BYTES = 96 << 20
LARGEST_BATCH = 1024
FEW_PRODUCTS = 1 << 28
"""Products of weights that the kernels form at θ = 0, in a second, before a slicer compiles."""

_DEFAULT_THETA = 0.3
_CHOICES = {
    "granularity": ("activation", "channel"),
    "relative_to": ("output", "sum"),
    "rectify": ("sign", "pass"),
    "product": ("value", "midpoint"),
    "contribution": ("count", "amount"),
}


class Slicer(DecisiveSearch, Explainer):
    """Computes slices of a model for samples.

    A slicer can be pickled if its model can; a copy has the same weights.

    Args:
        im: The model; a Keras model is instrumented.
        profile: The model's profile, or the path of a saved one.
        theta: Threshold θ ≥ 0 of the exclusion; larger values give smaller slices. By default 0.3,
            and 0 for amounts, which have no other.
        granularity: "activation" (every element of an operation's output is a neuron) or
            "channel" (a filter is one neuron, the paper's Equation 1; far cheaper).
        workers: 0: one thread in this process. N: that many Ray actors. None: one thread per
            core for short work, and one Ray actor per core for long work.
        ray_address: Address of a Ray cluster to use, unless this process is connected to one.
        progress: Show a progress bar.
        relative_to: Quantity that the exclusion is relative to: "output", θ·|y|, as in the
            paper, or "sum", θ·|sum of the local values|, as in the paper's program.
        rectify: How CONTRIB passes through operations with one input for each output (activations,
            normalisations): "sign", times the signs of the changes and 0 at inactive ReLUs (the
            paper's Table 2), or "pass", unchanged, as in the paper's program.
        product: Local values of a product a·b of activations: "value", Δa·b and a·Δb; or
            "midpoint", with the other factors' midpoints between value and mean, so that two
            factors' local values add up to a·b minus the product of the means.
        contribution: "count" (the paper's: a sum of signs) or "amount": how much a neuron or
            synapse raised the target above its value for the mean input, in the target's unit. The
            amounts at every cut through the network add up to the target's change, because nothing
            is excluded. `relative_to`, `rectify` and `product` have no effect on amounts.

    Raises InvalidArgumentError if an argument is out of range; ProfileMismatchError if the profile
    belongs to a different model; UnsupportedLayerError if an operation has no rule.
    """

    def __init__(
        self,
        im: ModelLike,
        profile: Profile | str | os.PathLike,
        theta: float | None = None,
        granularity: str = "activation",
        workers: int | None = None,
        ray_address: str | None = None,
        progress: bool = True,
        *,
        relative_to: str = "output",
        rectify: str = "sign",
        product: str = "value",
        contribution: str = "count",
    ) -> None:
        self.granularity, self.relative_to = granularity, relative_to
        self.rectify, self.product, self.contribution = rectify, product, contribution
        self.workers, self.ray_address, self.progress = workers, ray_address, progress
        self.theta = check_options(theta, workers=workers, **self._choices)
        if isinstance(profile, (str, os.PathLike)):
            profile = Profile.load(profile)
        im = instrumented(im, profile)
        if not isinstance(profile, Profile):
            raise InvalidArgumentError(
                "profile must be a Profile, from Profile.from_data(model, x_train), or the path of "
                f"a saved one. Received: {type(profile).__name__}"
            )
        self.profile = profile
        profile.check_model(im)
        if profile.columns and im.columns not in ((), profile.columns):
            im = im.with_columns(profile.columns)  # other slicers keep those of their profiles
        im.columns = profile.columns or im.columns
        self.im = im
        check_rules(im, granularity, contribution)
        self._weights = weights_checksum(im.model)
        # Kept, because planning and compiling a walk takes longer than slicing a few samples.
        self._plans: dict[tuple, Plan] = {}
        self._work: dict[tuple, Work] = {}
        self._walks: dict[tuple, CountWalk | AmountWalk] = {}
        weighted = [o for o in im.operations if o.kernels and o.kind != "lookup"]
        self._of_sample = sum(o.synapses * (o.size // o.shape[-1]) for o in weighted)
        self._walked = 0  # products of weights at θ = 0

    def __reduce__(self) -> tuple:
        """Pickle and copy the model, the profile and the settings, without what was compiled."""
        names = ("workers", "ray_address", "progress")
        settings = self._settings | {name: getattr(self, name) for name in names}
        return partial(type(self), **settings), (self.im, self.profile)

    def _like(self, **settings: Any) -> "Slicer":
        """Return a slicer of the same model with some other settings."""
        other = object.__new__(type(self))
        caches: dict[str, dict] = {name: {} for name in ("_plans", "_work", "_walks")}
        other.__dict__ = {**self.__dict__, **settings, **caches}
        return other

    def at_theta(self, theta: float) -> "Slicer":
        """Return a slicer with the same settings and this θ (the same object if θ is unchanged)."""
        if theta == self.theta:
            return self
        return self._like(theta=check_options(theta, contribution=self.contribution))

    @cached_property
    def by_amounts(self) -> "Slicer":
        """A slicer of the same model with contributions as amounts, at θ = 0 on one thread."""
        return self._like(theta=0.0, contribution="amount", workers=0, progress=False)

    @cached_property
    def _rounding(self) -> dict[str, np.ndarray]:
        return rounding_bounds(self.im, self.profile.means)

    def slice(
        self,
        x: DataLike,
        outputs: Outputs | Criterion = PREDICTED,
        checkpoint: str | os.PathLike | None = None,
    ) -> Slice:
        """Return the slice for all samples together.

        Args:
            x: Samples I, `(samples, *input_shape)`, in any form of `DataLike`.
            outputs: The neurons O: indices of outputs, "predicted", {operation: indices},
                or a `Criterion`. A single sigmoid has one neuron, whose logit speaks for class 1:
                amounts of samples predicted as class 0 are those of this logit, negative where
                they support class 0 (`explain` has them of the answer, with the other sign).
            checkpoint: Folder for partial sums, from which an interrupted run resumes.

        Raises CriterionError if the criterion does not fit the model; InputShapeError,
        NonFiniteActivationError or InvalidArgumentError for bad data; ProfileMismatchError if the
        checkpoint is of another run, or weights have changed; CorruptFileError if the checkpoint is
        damaged; WorkerError if a batch fails three times on a worker.
        """
        plan = self.plan(outputs)
        dtype = np.float64 if plan.is_amount else np.int64
        samples = self.im.samples(x)
        work = self._work_for(plan, _results.Sum(dtype), None if checkpoint else samples.count)
        sums = SumCheckpoint(self._store(checkpoint, plan, "sum", work))
        totals = work.collect(samples, sums, self.progress)
        shapes = _results.chosen_shapes(plan, None, None)
        synapses, neurons = (
            {name: found.get(name, np.zeros(shape, dtype)) for name, shape in every.items()}
            for found, every in zip((totals.synapses, totals.neurons), shapes, strict=True)
        )
        self._warn_if_empty(plan, list(synapses.values()))
        return Slice(neurons, synapses, {**self._info(outputs), "samples": totals.samples})

    def slice_each(
        self,
        x: DataLike,
        outputs: Outputs | Criterion = PREDICTED,
        kernels: Iterable[str] | None = None,
        operations: Iterable[str] | None = None,
        folder: str | os.PathLike | None = None,
    ) -> SliceSet:
        """Return one slice for each sample.

        Args:
            x: Samples, as for `slice`.
            outputs: The neurons O, as for `slice`.
            kernels: Names of the kernels whose synapses the slices have; all by default.
            operations: Names of the operations whose neurons the slices have; all by default. Pass
                `()` for large models, which have many neurons.
            folder: Folder for the rows, which remain there; an interrupted run resumes from it.

        Raises InvalidArgumentError for unknown kernels or operations; other errors as in `slice`.
        """
        plan = self.plan(outputs)
        shapes = _results.chosen_shapes(plan, kernels, operations)
        classes = self._classes_of(plan)
        layout = _results.EachRow(np.float32 if plan.is_amount else np.int32, *shapes, classes)
        samples = self.im.samples(x)
        work = self._work_for(plan, layout, None if folder else samples.count)
        store = self._store(folder, plan, [list(names) for names in shapes], work)
        rows = work.collect(samples, RowCheckpoint(layout, store), self.progress)
        if len(shapes[0]) == len(plan.kernels):
            self._warn_if_empty(plan, [rows.synapses])
        return SliceSet(rows.synapses, rows.neurons, *shapes, rows.predicted, self._info(outputs))

    def iterate(
        self,
        x: DataLike,
        outputs: Outputs | Criterion = PREDICTED,
        kernels: Iterable[str] | None = None,
        operations: Iterable[str] = (),
        reduce: _results.Reduction | None = None,
    ) -> Iterator[_results.Part]:
        """Yield the dense contributions of every sample as they are computed, keeping none.

        Memory is bounded by the batch size. Arguments and errors are those of `slice_each`, but no
        operations by default. `reduce` is applied to the synapses (see `Reduction`), such as a
        selection or sums by channel. At θ = 0 it runs on the backend, inside the compiled walk.
        Reuse the same function object: each one is compiled.

        Yields:
            `Part`s, in the order of the samples.
        """
        if not (reduce is None or callable(reduce)):
            raise InvalidArgumentError(f"reduce must be a function. Received: {reduce!r}")
        plan = self.plan(outputs)
        shapes = _results.chosen_shapes(plan, kernels, operations)
        dtype = np.float32 if plan.is_amount else np.int32
        parts = _results.EachPart(dtype, *shapes, self._classes_of(plan), reduce)
        work = self._work_for(plan, parts)
        for part in work.results(self.im.samples(x), self.progress):
            if reduce is None or part.reduced is not None:
                yield part
                continue
            convert = partial(keras.ops.convert_to_tensor, dtype="float32")
            tensors = {name: convert(values) for name, values in part.synapses.items()}
            reduced = keras.tree.map_structure(keras.ops.convert_to_numpy, reduce(tensors))
            yield _results.Part({}, part.neurons, part.predicted, reduced)

    @property
    def _settings(self) -> dict[str, Any]:
        """The settings that a plan depends on."""
        return {"theta": self.theta} | self._choices

    @property
    def _choices(self) -> dict[str, str]:
        return {name: getattr(self, name) for name in _CHOICES}

    def _check_weights(self) -> None:
        if weights_checksum(self.im.model) != self._weights:
            raise ProfileMismatchError(
                f"The weights of '{self.im.model.name}' have changed since this slicer was made. "
                "Profile the model again with Profile.from_data, and make a new Slicer."
            )

    def plan(self, outputs: Outputs | Criterion = PREDICTED) -> Plan:
        """Return the walk of a criterion.

        Raises CriterionError if it does not fit, ProfileMismatchError if the weights have changed.
        """
        self._check_weights()
        criterion = outputs if isinstance(outputs, Criterion) else Criterion(outputs)
        layout = Layout(self.granularity, self.profile.means)
        shapes = {o.name: layout.shape(o.shape) for o in self.im.operations}
        resolved = criterion.resolve(self.im, shapes)
        key = resolved.key()
        if key not in self._plans:
            if self.contribution == "count":
                layout = replace(layout, rounding=self._rounding)
            self._plans[key] = plan_walk(self.im, layout, resolved, **self._settings)
        return self._plans[key]

    def _classes_of(self, plan: Plan) -> OutputClasses | None:
        im = self.im
        outputs = (o for o in im.output_operations if im.logit_operation_of(o) == plan.logits)
        return next(map(im.classes_of, outputs), None)

    def _work_for(
        self, plan: Plan, collector: _results.Collector, samples: int | None = None
    ) -> Work:
        """Return the work for a walk, compiled once: at θ = 0 on the backend, else by exclusion.

        The first few `samples` of a slicer, if their number is known, are not worth compiling for.
        """
        values = sum(self.im[name].size for name in plan.captured)
        size = int(np.clip(_BATCH_BYTES // (4 * values), 1, LARGEST_BATCH))
        by_exclusion = not _zero_walk.applies(self.im, plan, size)
        are_few = False
        if samples and not by_exclusion and not plan.is_amount:
            self._walked += samples * self._of_sample
            are_few = self._walked <= FEW_PRODUCTS
        if isinstance(collector, _results.EachPart) or not by_exclusion:
            size = min(size, collector.batch_size)
        columns = tuple(collector.kernels), tuple(collector.operations)
        key = (id(plan), type(collector), columns, collector.reduce, size)
        if by_exclusion or are_few:
            workers = 0 if are_few else self.workers
            engine = make_engine(workers, None if are_few else self.ray_address)
            return Work(ExclusionWalk(plan, collector), engine, size, self.im.forward, self.profile)
        if key not in self._work:
            if isinstance(collector, _results.EachRow):
                collector = replace(collector, dense=True)
            walk = partial(AmountWalk, profile=self.profile) if plan.is_amount else CountWalk
            on_backend = walk(self.im, plan, collector)
            # Walks that differ only in the neurons at which they start share what is compiled.
            nodes = tuple(node.name for node in plan.expanded)
            alike = (plan.logits, plan.start.predicted, tuple(plan.start.neurons), nodes, *key[1:])
            if alike in self._walks:
                on_backend.share(self._walks[alike])
            self._walks[alike] = on_backend
            self._work[key] = Work(on_backend, ThreadEngine(), size, self.im.forward, self.profile)
        return self._work[key]

    def _warn_if_empty(self, plan: Plan, synapses: Sequence[Any]) -> None:
        names = (name for node in plan.expanded for name in node.members or (node.name,))
        is_full = (s.nnz if sp.issparse(s) else s[:1].any() or s.any() for s in synapses)
        if any(self.im[name].kernels for name in names) and not any(is_full):
            warnings.warn(
                f"{EMPTY}: no synapse contributes at θ = {self.theta:g}. Either the samples' "
                "values equal the profile's means, or a layer is dead, or θ is too large; "
                "slicer.explain(x[0]).finding says which.",
                stacklevel=3,
            )

    def _store(
        self, folder: str | os.PathLike | None, plan: Plan, kept: object, work: Work
    ) -> Store | None:
        """Return the store of a checkpoint, which only the same run may continue."""
        if folder is None:
            return None
        means = self.profile.means.items()
        identity = {
            "model": self.im.identity,
            "profile": digest(part for name, mean in means for part in (name.encode(), mean)),
            **self._settings,
            "criterion": {
                "predicted": plan.start.predicted,
                "neurons": {name: i.tolist() for name, i in plan.start.neurons.items()},
                "expanded": [node.name for node in plan.expanded],
            },
            "kept": kept,
            "batch size": work.batch_size,
        }
        if not plan.is_amount:  # folders of older versions do not have it
            del identity["contribution"]
        if (task := self.im.classes.task) != "multiclass":  # of which are those
            identity["task"] = task
        return Store(folder, identity, "checkpoint")

    def _info(self, outputs: Outputs | Criterion) -> dict[str, Any]:
        described = outputs.outputs if isinstance(outputs, Criterion) else outputs
        return {
            **self._settings,
            "fingerprint": self.profile.fingerprint,
            "own_code": self.profile.own_code,
            "outputs": described if isinstance(described, str) else repr(described),
            **({"columns": list(self.im.columns)} if self.im.columns else {}),
        }


def check_options(
    theta: float | None = None,
    granularity: str = "activation",
    workers: int | None = None,
    **choices: str,
) -> float:
    """Return θ, or its default; raise InvalidArgumentError if an argument is out of range."""
    for name, value in {"granularity": granularity, **choices}.items():
        check_name(name, value, _CHOICES[name])
    if workers is not None:
        check_count("workers", workers, 0)
    is_amount = choices.get("contribution") == "amount"
    if theta is None:
        return 0.0 if is_amount else _DEFAULT_THETA
    theta = check_number("theta", theta, "[0, inf)")
    if is_amount and theta > 0:
        raise InvalidArgumentError(
            "Amounts are defined at θ = 0 alone, where they add up to the target's change. Pass "
            f"theta=0, or contribution='count'. Received: theta={theta:g}"
        )
    return theta
