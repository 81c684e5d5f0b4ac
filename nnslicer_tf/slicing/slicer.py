"""`Slicer`: forward and backward analysis of samples (NNSlicer, section 4).

Time is spent in the backward walk; memory holds one batch of activations for this
process and two for each worker, whatever the number of samples.
"""

import hashlib
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._names import check_name
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, batches, check_array, count_samples
from nnslicer_tf.slicing.builder import GRANULARITIES, build_program, check_rules, neuron_shape
from nnslicer_tf.slicing.collectors import RowCollector, SumCollector, digest, open_checkpoint
from nnslicer_tf.slicing.criterion import PREDICTED, Criterion
from nnslicer_tf.slicing.dense import DenseRows, DenseSum, is_dense
from nnslicer_tf.slicing.engine import Engine, InProcessEngine, make_engine
from nnslicer_tf.slicing.jobs import RowsJob, SumJob
from nnslicer_tf.slicing.profile import Profile
from nnslicer_tf.slicing.program import Program
from nnslicer_tf.slicing.slice import Slice
from nnslicer_tf.slicing.slice_set import SliceSet

__all__ = ["Slicer"]

# Activations of the samples that are captured, and sent to a worker, together.
_BATCH_BYTES = 96 << 20
_LARGEST_BATCH = 256


@dataclass(frozen=True)
class _Executor:
    """How batches are worked off: prepared here, then given to the job on an engine."""

    batch_size: int
    prepare: Callable[[np.ndarray], Any]
    job: Callable[[Any], Any]
    engine: Engine


class Slicer:
    """Slices samples of a model.

    Args:
        im: The model.
        profile: Its profile.
        theta: Threshold θ ≥ 0 of the exclusion; larger values give smaller slices.
        granularity: "activation" (every element of an operation's output is a neuron) or
            "channel" (a filter is one neuron, the paper's Equation 1; far cheaper).
        workers: 0: one thread of this process. N: that many Ray actors. None: a thread a core
            for short work, then a Ray actor a core.
        ray_address: Address of a running Ray cluster to use.
        progress: Show a progress bar.

    Raises:
        InvalidArgumentError: if an argument is out of range.
        ProfileMismatchError: if the profile is of another model.
        UnsupportedLayerError: if an operation has no rule.
    """

    def __init__(
        self,
        im: InstrumentedModel,
        profile: Profile,
        theta: float = 0.3,
        granularity: str = "activation",
        workers: int | None = None,
        ray_address: str | None = None,
        progress: bool = True,
    ) -> None:
        _check_theta(theta)
        check_name("granularity", granularity, GRANULARITIES)
        if workers is not None and (not isinstance(workers, int) or workers < 0):
            raise InvalidArgumentError(
                f"workers must be None or a number of processes, 0 or more. Received: {workers!r}"
            )
        profile.check_model(im)
        check_rules(im, granularity)
        self.im = im
        self.profile = profile
        self.theta = float(theta)
        self.granularity = granularity
        self.workers = workers
        self.ray_address = ray_address
        self.progress = progress
        # Laying out a walk, and compiling it, costs more than slicing a few samples.
        self._programs: dict[tuple, Program] = {}
        self._dense: dict[tuple, DenseSum | DenseRows] = {}

    @property
    def neuron_shapes(self) -> dict[str, tuple[int, ...]]:
        """Operation name → shape of its neurons at this slicer's granularity."""
        return {o.name: neuron_shape(o.shape, self.granularity) for o in self.im.operations}

    def slice(
        self, x: Any, outputs: Any = PREDICTED, checkpoint: str | os.PathLike | None = None
    ) -> Slice:
        """Return the slice for all samples together.

        Args:
            x: Samples I, `(samples, *input_shape)`, an array or a `tf.data.Dataset`.
            outputs: The neurons O: indices of outputs, "predicted", {operation: indices},
                or a `Criterion`.
            checkpoint: Folder in which to save partial sums, and from which to resume.

        Raises:
            CriterionError: if the criterion does not fit the model.
            InputShapeError, NonFiniteActivationError, InvalidArgumentError: for bad data.
            ProfileMismatchError: if the checkpoint is of another run.
            CorruptFileError: if the checkpoint is damaged.
            WorkerError: if a batch fails three times on a worker.
        """
        program = self._program(outputs)
        x = self._checked(x)
        executor = self._executor(program, SumJob(program))
        collector = SumCollector(self._checkpoint(checkpoint, program, "sum", executor))
        self._run(executor, x, collector)
        totals = collector.totals
        shapes = self.neuron_shapes
        neurons = {
            name: totals.neurons.get(name, np.zeros(shape, np.int64))
            for name, shape in shapes.items()
        }
        synapses = {
            name: totals.synapses.get(name, np.zeros(kernel.shape, np.int64))
            for name, kernel in program.kernels.items()
        }
        return Slice(neurons, synapses, {**self._info(outputs), "samples": totals.samples})

    def slice_each(
        self,
        x: Any,
        outputs: Any = PREDICTED,
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
            folder: Folder in which the rows are written as they come, and held
                afterwards; a run that was interrupted resumes there.

        Raises:
            InvalidArgumentError: for unknown kernels or operations.
            CriterionError, InputShapeError, NonFiniteActivationError: as `slice` does.
            ProfileMismatchError, CorruptFileError, WorkerError: as `slice` does.
        """
        program = self._program(outputs)
        kernel_names = _chosen(kernels, program.kernels, "kernel")
        operation_names = _chosen(operations, program.nodes, "operation")
        x = self._checked(x)
        executor = self._executor(program, RowsJob(program, kernel_names, operation_names))
        kept = [kernel_names, operation_names]
        collector = RowCollector(self._checkpoint(folder, program, kept, executor))
        self._run(executor, x, collector)
        rows = collector.result()
        shapes = self.neuron_shapes
        return SliceSet(
            rows.synapses,
            rows.neurons,
            {name: program.kernels[name].shape for name in kernel_names},
            {name: shapes[name] for name in operation_names},
            rows.predicted,
            self._info(outputs),
        )

    def _program(self, outputs: Any) -> Program:
        criterion = outputs if isinstance(outputs, Criterion) else Criterion(outputs)
        resolved = criterion.resolve(self.im, self.neuron_shapes)
        key = resolved.key()
        if key not in self._programs:
            self._programs[key] = build_program(
                self.im, self.profile, resolved, self.theta, self.granularity
            )
        return self._programs[key]

    def _checked(self, x: Any) -> Any:
        """Refuse a bad array before the work starts; data sets are checked as they come."""
        is_array = isinstance(x, np.ndarray)
        x = check_array(x, self.im.input_shape) if is_array else x
        if is_array and len(x) == 0:
            raise InvalidArgumentError("The data set is empty: no samples were given.")
        return x

    def _executor(self, program: Program, job: SumJob | RowsJob) -> "_Executor":
        """Return how to run the job: densely on the backend, or by kernels on an engine."""
        size = self._batch_size(program)
        if is_dense(self.im, program, size):
            if isinstance(job, RowsJob):
                kept = sum(program.kernels[name].size for name in job.kernels)
                size = int(np.clip(_BATCH_BYTES // (4 * max(kept, 1)), 1, size))
            dense = self._dense_job(program, job)
            return _Executor(size, lambda batch: batch, dense, InProcessEngine())

        def capture(batch: np.ndarray) -> dict[str, np.ndarray]:
            return dict(self.im.capture(batch, size, of=program.captured))

        return _Executor(size, capture, job, make_engine(self.workers, self.ray_address))

    def _dense_job(self, program: Program, job: SumJob | RowsJob) -> DenseSum | DenseRows:
        rows = isinstance(job, RowsJob)
        kept = (tuple(job.kernels), tuple(job.operations)) if rows else None
        key = (id(program), kept)
        if key not in self._dense:
            self._dense[key] = (
                DenseRows(self.im, program, job) if rows else DenseSum(self.im, program)
            )
        return self._dense[key]

    def _run(self, executor: "_Executor", x: Any, collector: SumCollector | RowCollector) -> None:
        """Send the batches that are not done through the executor, into the collector."""
        digests: dict[int, str] = {}
        samples: dict[int, int] = {}
        with tqdm(
            total=count_samples(x),
            desc="Slicing",
            unit="sample",
            disable=not self.progress,
            leave=False,
        ) as bar:

            def pending() -> Iterator[tuple[int, Any]]:
                stream = batches(x, self.im.input_shape, executor.batch_size)
                for index, batch in enumerate(stream):
                    digests[index] = digest(batch)
                    samples[index] = len(batch)
                    if collector.is_done(index, digests[index]):
                        bar.update(len(batch))
                    else:
                        yield index, executor.prepare(batch)

            for index, result in executor.engine.map(executor.job, pending()):
                collector.add(index, digests[index], result)
                bar.update(samples[index])
        collector.save()

    def _batch_size(self, program: Program) -> int:
        values = sum(self.im[name].size for name in program.captured)
        return int(np.clip(_BATCH_BYTES // (4 * values), 1, _LARGEST_BATCH))

    def _checkpoint(
        self, folder: str | os.PathLike | None, program: Program, kept: Any, executor: "_Executor"
    ) -> Path | None:
        if folder is None:
            return None
        identity = {
            "model": self.profile.fingerprint,
            "profile": _profile_digest(self.profile),
            "theta": self.theta,
            "granularity": self.granularity,
            "criterion": _describe_start(program),
            "kept": kept,
            "batch size": executor.batch_size,
        }
        return open_checkpoint(folder, identity)

    def _info(self, outputs: Any) -> dict[str, Any]:
        described = outputs.outputs if isinstance(outputs, Criterion) else outputs
        return {
            "theta": self.theta,
            "granularity": self.granularity,
            "fingerprint": self.profile.fingerprint,
            "outputs": described if isinstance(described, str) else repr(described),
        }


def _check_theta(theta: float) -> None:
    try:
        valid = math.isfinite(theta) and theta >= 0
    except TypeError:
        valid = False
    if not valid:
        raise InvalidArgumentError(f"theta must be a finite number ≥ 0. Received: {theta!r}")


def _chosen(names: Iterable[str] | None, known: dict[str, Any], what: str) -> list[str]:
    """Return the names to keep, in topological order."""
    if names is None:
        return list(known)
    wanted = list(names)
    for name in wanted:
        check_name(what, name, known)
    return [name for name in known if name in wanted]


def _profile_digest(profile: Profile) -> str:
    total = hashlib.blake2b(digest_size=16)
    for name, mean in profile.means.items():
        total.update(name.encode())
        total.update(np.ascontiguousarray(mean))
    return total.hexdigest()


def _describe_start(program: Program) -> dict[str, Any]:
    neurons = {name: indices.tolist() for name, indices in program.start.neurons.items()}
    return {
        "predicted": program.start.predicted,
        "neurons": neurons,
        "expanded": list(program.expanded),
    }
