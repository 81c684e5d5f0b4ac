"""`Slicer`: forward and backward analysis of samples (NNSlicer, section 4).

Most of the time is spent in the backward walk. Memory holds one batch of activations for this
process and two per worker, whatever the number of samples.
"""

import math
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.attributions import TargetLike
from nnslicer_tf.engine import InProcessEngine, Store, make_engine
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import instrumented
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.fingerprint import weights_checksum
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.kinds import Layout, compile_rules
from nnslicer_tf.slicing import _zero_walk
from nnslicer_tf.slicing._batches import Batches, Work
from nnslicer_tf.slicing._checkpoint import (
    RowCollector,
    SumCollector,
    described_start,
    digest_of_means,
)
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk
from nnslicer_tf.slicing._plan import Plan
from nnslicer_tf.slicing._planner import (
    CONTRIBUTION,
    GRANULARITIES,
    PRODUCT,
    RECTIFY,
    RELATIVE_TO,
    check_rules,
    plan_walk,
)
from nnslicer_tf.slicing._reference import AmountCapture
from nnslicer_tf.slicing._results import (
    Collector,
    EachPart,
    EachRow,
    Part,
    Reduction,
    Sum,
    chosen_shapes,
    reduced,
)
from nnslicer_tf.slicing._zero_walk import AmountWalk, CountWalk
from nnslicer_tf.slicing.criterion import PREDICTED, Criterion, Outputs
from nnslicer_tf.slicing.decisive import DecisiveSlices, Request, decisive_slices
from nnslicer_tf.slicing.explanation import SAMPLED, Explanation, explain
from nnslicer_tf.slicing.profile import Profile
from nnslicer_tf.slicing.slice import Slice
from nnslicer_tf.slicing.slice_set import SliceSet

# Size of a batch's activations, which are captured and sent to a worker as a whole.
_BATCH_BYTES = 96 << 20
LARGEST_BATCH = 1024


class Slicer:
    """Computes slices of a model for samples.

    Args:
        im: The model; a Keras model is instrumented.
        profile: The model's profile.
        theta: Threshold θ ≥ 0 of the exclusion; larger values give smaller slices.
        granularity: "activation" (every element of an operation's output is a neuron) or
            "channel" (a filter is one neuron, the paper's Equation 1; far cheaper).
        workers: 0: one thread in this process. N: that many Ray actors. None: one thread per
            core for short work, and one Ray actor per core for long work.
        ray_address: Address of a running Ray cluster to use.
        progress: Show a progress bar.
        relative_to: Quantity that the exclusion is relative to: "output", θ·|y|, as in the
            paper, or "sum", θ·|sum of the local values|, as in the paper's program.
        rectify: Propagation of CONTRIB through operations with one input for each output (ReLU
            and other activations, normalisations): "sign", multiplied by the signs of the
            changes and 0 at inactive ReLUs (the paper's Table 2), or "pass", unchanged, as in
            the paper's program.
        product: Local values of a product a·b of activations: "value", Δa·b and a·Δb; or
            "midpoint", which replaces the other factor's value by the midpoint between value and
            mean, so that the two add up to a·b minus the product of the means. With more than two
            factors, the midpoints of all others are multiplied.
        contribution: "count" (the paper's: a sum of signs) or "amount": a real number, in the
            unit of the target, which says how much a neuron or synapse raised the target above its
            value for the mean input. At θ = 0, the amounts at every cut through the network add up
            to the target's change. θ > 0 excludes the same inputs as with counts. `rectify` does
            not matter then.

    Raises:
        InvalidArgumentError: if an argument is out of range.
        ProfileMismatchError: if the profile belongs to a different model.
        UnsupportedLayerError: if an operation has no rule.
    """

    def __init__(
        self,
        im: ModelLike,
        profile: Profile,
        theta: float = 0.3,
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
        check_options(theta, granularity, workers, relative_to, rectify)
        check_name("product", product, PRODUCT)
        check_name("contribution", contribution, CONTRIBUTION)
        im = instrumented(im)
        profile.check_model(im)
        check_rules(im, granularity)
        if theta > 0:
            compile_rules(im.operations)
        self.im = im
        self._weights = weights_checksum(im.model)
        self.profile = profile
        self.theta = float(theta)
        self.granularity = granularity
        self.relative_to = relative_to
        self.rectify = rectify
        self.product = product
        self.contribution = contribution
        self.workers = workers
        self.ray_address = ray_address
        self.progress = progress
        # Kept, because planning and compiling a walk takes longer than slicing a few samples.
        self._plans: dict[tuple, Plan] = {}
        self._work: dict[tuple, Work] = {}
        self._captures: dict[int, AmountCapture] = {}

    def at_theta(self, theta: float) -> "Slicer":
        """Return a slicer with the same settings and this θ (the same object if θ is unchanged).

        Raises:
            InvalidArgumentError: if theta is out of range.
        """
        if theta == self.theta:
            return self
        return Slicer(
            self.im,
            self.profile,
            theta,
            self.granularity,
            self.workers,
            self.ray_address,
            self.progress,
            relative_to=self.relative_to,
            rectify=self.rectify,
            product=self.product,
            contribution=self.contribution,
        )

    @property
    def neuron_shapes(self) -> dict[str, tuple[int, ...]]:
        """Operation name → shape of its neurons at this slicer's granularity."""
        layout = Layout(self.granularity, self.profile.means)
        return {o.name: layout.shape(o.shape) for o in self.im.operations}

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
                or a `Criterion`.
            checkpoint: Folder for partial sums, from which an interrupted run resumes.

        Raises:
            CriterionError: if the criterion does not fit the model.
            InputShapeError, NonFiniteActivationError, InvalidArgumentError: for bad data.
            ProfileMismatchError: if the checkpoint is from another run or from more data, or the
                model's weights have changed.
            CorruptFileError: if the checkpoint is damaged.
            WorkerError: if a batch fails three times on a worker.
        """
        plan = self._checked_plan(outputs)
        batches = Batches(self.im, self.profile, self.im.samples(x))
        dtype = np.float64 if plan.is_amount else np.int64
        work = self._work_for(plan, Sum(dtype))
        collector = SumCollector(self._checkpoint(checkpoint, plan, "sum", work))
        totals = collector.result(batches.collect(work, collector, self.progress))
        neurons = {
            name: totals.neurons.get(name, np.zeros(shape, dtype))
            for name, shape in plan.shapes.items()
        }
        synapses = {
            name: totals.synapses.get(name, np.zeros(kernel.shape, dtype))
            for name, kernel in plan.kernels.items()
        }
        return Slice(neurons, synapses, {**self._info(outputs), "samples": totals.samples})

    def decisive(
        self,
        x: DataLike,
        outputs: Outputs = PREDICTED,
        level: str = "synapse",
        *,
        ablation: str = "mean",
        min_probability: float | None = None,
        max_divergence: float | None = None,
        max_share: float = 0.2,
        tolerance: float = 0.1,
        others: int | None = 3,
        together: bool = False,
        rng: int | np.random.Generator = 0,
    ) -> DecisiveSlices:
        """Return for each sample the smallest slice found that keeps the model's answer.

        Units with the least effect on the answer are ablated in rounds, with effects estimated
        again after each, until the answer is lost; a bisection follows. θ, granularity and
        contribution of this slicer do not matter. The result's certificate was obtained by running
        the model. A sample takes some 70 forward passes, and as many for each other class.

        Args:
            x: Samples, as for `slice`.
            outputs: "predicted", or the class that the model assigns to all samples, or one for
                each; for another output than the first, {its name: one of these}.
            level: Kind of units: "synapse", "neuron" (an element of a weighted sum's output),
                "channel" (also a unit of a recurrent layer) or "input" (a position of the input,
                such as a pixel or a word).
            ablation: What takes the place of the values of other units: "mean" (the profile's),
                "zero" or "resample" (those of another sample in `x`).
            min_probability: Least probability of the answer with the slice alone; by default, it
                only has to be the most probable.
            max_divergence: Largest Kullback-Leibler divergence of the output with the slice alone
                from the model's, in nats; by default, none is required.
            max_share: Largest share of the units with which a slice counts as found.
            tolerance: For a model that predicts a number: how far it may change with the slice
                alone, as a share of its change when all units are ablated.
            others: For how many other classes, drawn by `rng`, the same procedure is asked at the
                size found; None for all.
            together: Return one slice for all samples, which must be of one class. It keeps the
                answer for at least 95 % of them.
            rng: Seed or generator, for `others` and for "resample".

        Raises:
            InvalidArgumentError: if an argument is out of range.
            CriterionError: if the output is no vector, or `outputs` is not what the model answers.
            UnsupportedLayerError: if the model has no units at this level, or, for synapses, a
                recurrent layer.
            InputShapeError, NonFiniteActivationError: for bad data.
        """
        request = Request(
            level,
            ablation,
            min_probability,
            max_divergence,
            max_share,
            tolerance,
            others,
            together,
        )
        request.check()
        self._check_weights()
        generator = np.random.default_rng(rng)
        return decisive_slices(self.im, self.profile, x, outputs, request, generator, self.progress)

    def explain(
        self,
        x: DataLike,
        target: TargetLike | Criterion | None = None,
        *,
        classes: Sequence[str] = (),
        columns: Sequence[str] = (),
        words: Sequence[str] = (),
        usual: DataLike | None = None,
        compare: bool | Iterable[str] = (SAMPLED,),
        decisive: bool = True,
    ) -> Explanation:
        """Explain why the model gave one sample its answer.

        Args:
            x: The sample, of the model's input shape; a row of a DataFrame; for several inputs, a
                dict or list.
            target: The class to explain; by default, the predicted one. Or any other neurons, as
                in `attributions.TargetLike`: a pixel or region of a map, neurons of an output
                or of an inner operation by name. A model of one value needs none.
            classes: Names of the classes, in order.
            columns: Names of a table's columns; by default those of a DataFrame.
            words: The words of a text, one for each token.
            usual: Samples of the class. If given, the explanation says how the slice differs from
                theirs; a few hundred are enough.
            compare: Other methods to judge on this sample beside the contributions, by hiding and
                showing features: some of `attributions.ATTRIBUTIONS` by name, True for all (exact
                integrated gradients, which can take minutes, only by name), False for none.
                Methods that do not apply to the model are left out, with the reason.
            decisive: Whether to look for the smallest slice that keeps the answer; it takes some 70
                forward passes, and as many for each of three other classes.

        Raises:
            InvalidArgumentError: if `x` is not one sample, there is no such target, or a name is
                unknown.
            UnsupportedLayerError: if a kernel is in a nested model.
            InputShapeError, NonFiniteActivationError: for bad data.
        """
        return explain(
            self,
            x,
            target,
            classes=classes,
            columns=columns,
            words=words,
            usual=usual,
            compare=compare,
            decisive=decisive,
        )

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
            kernels: Names of the kernels whose synapses are kept; all by default.
            operations: Names of the operations whose neurons are kept; all by default.
                Large models have many neurons: `operations=()` keeps none.
            folder: Folder to which the rows are written as they are computed, and where they
                remain; an interrupted run resumes from it.

        Raises:
            InvalidArgumentError: for unknown kernels or operations.
            CriterionError, InputShapeError, NonFiniteActivationError: as in `slice`.
            ProfileMismatchError, CorruptFileError, WorkerError: as in `slice`.
        """
        plan = self._checked_plan(outputs)
        shapes = chosen_shapes(plan, kernels, operations)
        batches = Batches(self.im, self.profile, self.im.samples(x))
        layout = EachRow(*shapes, np.float32 if plan.is_amount else np.int32)
        work = self._work_for(plan, layout)
        kept = [list(names) for names in shapes]
        store = self._checkpoint(folder, plan, kept, work)
        collector = RowCollector(layout, store)
        rows = collector.result(batches.collect(work, collector, self.progress))
        return SliceSet(
            rows.synapses,
            rows.neurons,
            *shapes,
            rows.predicted,
            self._info(outputs),
        )

    def iterate(
        self,
        x: DataLike,
        outputs: Outputs | Criterion = PREDICTED,
        kernels: Iterable[str] | None = None,
        operations: Iterable[str] = (),
        reduce: Reduction | None = None,
    ) -> Iterator[Part]:
        """Yield the dense contributions of every sample as they are computed, keeping none.

        For code that needs some values of each slice, but not the slices themselves. Memory is
        bounded by the batch size.

        Args:
            x: Samples, as for `slice`.
            outputs: The neurons O, as for `slice`.
            kernels: Names of the kernels whose synapses are yielded; all by default.
            operations: Names of the operations whose neurons are yielded; none by default.
            reduce: Function applied to the synapses (see `Reduction`), such as a selection, sums
                by channel or a projection. At θ = 0 it runs on the backend, inside the compiled
                walk, so that only its result leaves a GPU. Reuse the same function object: each
                one is compiled.

        Yields:
            `Part`s, in the order of the samples.

        Raises:
            InvalidArgumentError: for unknown kernels or operations.
            CriterionError, InputShapeError, NonFiniteActivationError: as in `slice`.
            WorkerError: if a batch fails three times on a worker.
        """
        plan = self._checked_plan(outputs)
        shapes = chosen_shapes(plan, kernels, operations)
        batches = Batches(self.im, self.profile, self.im.samples(x))
        dtype = np.float32 if plan.is_amount else np.int32
        work = self._work_for(plan, EachPart(*shapes, dtype, reduce))
        by_exclusion = isinstance(work.job, ExclusionWalk)
        for part in batches.parts(work):
            yield reduced(part, reduce) if by_exclusion and reduce is not None else part

    def _checked_plan(self, outputs: Any) -> Plan:
        """Return the plan of a walk, after checking that the weights have not changed."""
        self._check_weights()
        return self._plan(outputs)

    def _check_weights(self) -> None:
        if weights_checksum(self.im.model) != self._weights:
            raise ProfileMismatchError(
                f"The weights of '{self.im.model.name}' have changed since this slicer was made. "
                "Profile the model again with Profile.from_data, and make a new Slicer."
            )

    def _plan(self, outputs: Any) -> Plan:
        criterion = outputs if isinstance(outputs, Criterion) else Criterion(outputs)
        resolved = criterion.resolve(self.im, self.neuron_shapes)
        key = resolved.key()
        if key not in self._plans:
            self._plans[key] = plan_walk(
                self.im,
                self.profile,
                resolved,
                self.theta,
                self.granularity,
                self.relative_to,
                self.rectify,
                self.product,
                self.contribution,
            )
        return self._plans[key]

    def _work_for(self, plan: Plan, collector: Collector) -> Work:
        """Return the work for a walk: at θ = 0 on the backend, otherwise by exclusion."""
        size = self._batch_size(plan)
        dense = getattr(collector, "batch_size", size)
        if not _zero_walk.applies(self.im, plan, size):
            if isinstance(collector, EachPart):
                size = min(size, dense)
            if plan.amounts is not None and id(plan) not in self._captures:
                self._captures[id(plan)] = AmountCapture(self.im, self.profile, plan)
            engine = make_engine(self.workers, self.ray_address)
            return Work(ExclusionWalk(plan, collector), engine, size, self._captures.get(id(plan)))
        # Compiled walks are kept for reuse.
        kept = (tuple(collector.kernels), tuple(collector.operations), collector.reduce)
        key = (id(plan), type(collector), kept)
        if key not in self._work:
            if isinstance(collector, EachRow):
                collector = replace(collector, dense=True)
            walk = AmountWalk if plan.is_amount else CountWalk
            given = [self.profile] if plan.is_amount else []
            job = walk(self.im, plan, collector, *given)
            self._work[key] = Work(job, InProcessEngine(), min(size, dense))
        return self._work[key]

    def _batch_size(self, plan: Plan) -> int:
        values = sum(self.im[name].size for name in plan.captured)
        values *= 1 if plan.amounts is None else 2  # with the reference
        return int(np.clip(_BATCH_BYTES // (4 * values), 1, LARGEST_BATCH))

    def _checkpoint(
        self, folder: str | os.PathLike | None, plan: Plan, kept: object, work: Work
    ) -> Store | None:
        if folder is None:
            return None
        identity = {
            "model": self.profile.fingerprint,
            "profile": digest_of_means(self.profile.means),
            "theta": self.theta,
            "granularity": self.granularity,
            "relative_to": self.relative_to,
            "rectify": self.rectify,
            "product": self.product,
            "criterion": described_start(plan),
            "kept": kept,
            "batch size": work.batch_size,
        }
        if plan.is_amount:  # folders of older versions do not have it
            identity["contribution"] = plan.contribution
        return Store(folder, identity, "checkpoint")

    def _info(self, outputs: Outputs | Criterion) -> dict[str, Any]:
        described = outputs.outputs if isinstance(outputs, Criterion) else outputs
        return {
            "theta": self.theta,
            "granularity": self.granularity,
            "relative_to": self.relative_to,
            "rectify": self.rectify,
            "product": self.product,
            "contribution": self.contribution,
            "fingerprint": self.profile.fingerprint,
            "outputs": described if isinstance(described, str) else repr(described),
        }


def check_options(
    theta: float, granularity: str, workers: int | None, relative_to: str, rectify: str
) -> None:
    """Check arguments of `Slicer`, for callers that profile before they create one.

    Raises:
        InvalidArgumentError: if one is out of range.
    """
    _check_theta(theta)
    check_name("granularity", granularity, GRANULARITIES)
    check_name("relative_to", relative_to, RELATIVE_TO)
    check_name("rectify", rectify, RECTIFY)
    if workers is not None and (not isinstance(workers, int) or workers < 0):
        raise InvalidArgumentError(
            f"workers must be None or a number of processes, 0 or more. Received: {workers!r}"
        )


def _check_theta(theta: float) -> None:
    try:
        valid = math.isfinite(theta) and theta >= 0
    except TypeError:
        valid = False
    if not valid:
        raise InvalidArgumentError(f"theta must be a finite number ≥ 0. Received: {theta!r}")
