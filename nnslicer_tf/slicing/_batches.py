"""Runs of walks over samples: batches are captured, and a job computes the result of each."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._files import digest
from nnslicer_tf.engine import Engine, in_order
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.slicing import _checkpoint
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk
from nnslicer_tf.slicing._input_range import InputRange
from nnslicer_tf.slicing._reference import AmountCapture
from nnslicer_tf.slicing._results import Part
from nnslicer_tf.slicing._zero_walk import AmountWalk, CountWalk
from nnslicer_tf.slicing.profile import Profile

Job = ExclusionWalk | CountWalk | AmountWalk


@dataclass(frozen=True)
class Work:
    """A job, the engine that runs it, and the number of samples in a batch.

    Attributes:
        capture: What captures the values that the job reads, if not the model's forward pass.
    """

    job: Job
    engine: Engine
    batch_size: int
    capture: AmountCapture | None = None


@dataclass(frozen=True)
class Batches:
    """The batches of samples, with the activations that a job reads.

    Attributes:
        im: The model.
        profile: Its profile, whose range of inputs the samples are compared with.
        samples: The samples.
    """

    im: InstrumentedModel
    profile: Profile
    samples: Samples

    def collect(self, work: Work, collector: _checkpoint.Collector, progress: bool) -> int:
        """Run the job on the unfinished batches; return the total number of batches."""
        digests: dict[int, str] = {}
        sizes: dict[int, int] = {}
        with tqdm(
            total=self.samples.count,
            desc="Compiling" if work.job.compiles_first else "Slicing",
            unit="sample",
            disable=not progress,
            leave=False,
        ) as bar:

            def pending() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
                for index, first, batch in self._numbered(work.batch_size):
                    digests[index] = digest(arrays_of(batch))
                    sizes[index] = len(batch)
                    if collector.is_done(index, digests[index]):
                        bar.update(len(batch))
                    else:
                        yield index, self._captured(work, batch, first)

            for index, result in work.engine.map(work.job, pending()):
                collector.add(index, digests[index], result)
                bar.set_description("Slicing", refresh=False)
                bar.update(sizes[index])
        collector.save()
        return len(digests)

    def parts(self, work: Work) -> Iterator[Part]:
        """Yield the job's result for each batch, in order."""
        captured: Iterator[tuple[int, Any]] = (
            (index, self._captured(work, batch, first))
            for index, first, batch in self._numbered(work.batch_size)
        )
        for _, part in in_order(work.engine.map(work.job, captured)):
            yield part

    def _captured(self, work: Work, batch: np.ndarray, first: int) -> dict[str, np.ndarray]:
        if work.capture is not None:
            return work.capture(batch, first)
        return self.im.forward(batch, work.job.captured, first)

    def _numbered(self, batch_size: int) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield each batch after its number and the number of its first sample."""
        first = 0
        for index, batch in enumerate(self._watched(batch_size)):
            yield index, first, batch
            first += len(batch)

    def _watched(self, batch_size: int) -> Iterator[np.ndarray]:
        """Yield the batches, and warn of inputs far from those of the profile."""
        batches = self.samples.batches(batch_size)
        if self.profile.input_range is None:
            return batches
        return InputRange(self.profile.input_range, self.profile.input_means).watched(batches)
