"""`Work`: captures the batches of samples and runs a walk on them; a warning for unusual ones."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from nnslicer_tf._environment import progress_bar
from nnslicer_tf._files import digest
from nnslicer_tf.engine import Engine
from nnslicer_tf.engine.engines import in_order
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.plausibility import warn_of_range
from nnslicer_tf.slicing._checkpoint import Checkpoint
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk
from nnslicer_tf.slicing._zero_walk import FIRST, AmountWalk, CountWalk
from nnslicer_tf.slicing.profile import Profile


@dataclass(frozen=True)
class Work:
    """A job with the engine that runs it and the samples' batches that it reads."""

    job: ExclusionWalk | CountWalk | AmountWalk
    engine: Engine
    batch_size: int
    # (batch, operation names, number of the first sample) → the values that the job reads
    capture: Callable[..., dict[str, np.ndarray]]
    profile: Profile  # warns of samples outside its range of inputs

    def collect(self, samples: Samples, checkpoint: Checkpoint, progress: bool) -> Any:
        """Return the result of all batches, running only those that the checkpoint lacks."""
        digests: dict[int, str] = {}
        with self._bar(samples, progress) as bar:

            def pending() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
                for index, first, batch in self._batches(samples):
                    digests[index] = digest(arrays_of(batch)) if checkpoint.is_stored else ""
                    if checkpoint.is_done(index, digests[index]):
                        bar.update(len(batch))
                    else:
                        yield index, self._captured(batch, first)

            for index, result in self.engine.map(self.job, pending()):
                checkpoint.add(index, digests[index], result)
                self._advance(bar, index)
        checkpoint.save()
        return checkpoint.result(len(digests))

    def results(self, samples: Samples, progress: bool) -> Iterator[Any]:
        """Yield the result of each batch, in order."""
        captured: Iterator[tuple[int, Any]] = (
            (index, self._captured(batch, first)) for index, first, batch in self._batches(samples)
        )
        with self._bar(samples, progress) as bar:
            for index, result in in_order(self.engine.map(self.job, captured)):
                self._advance(bar, index)
                yield result

    def _captured(self, batch: Any, first: int) -> dict[str, np.ndarray]:
        values = self.capture(batch, self.job.captured, first)
        return values if isinstance(self.job, ExclusionWalk) else values | {FIRST: np.array(first)}

    def _bar(self, samples: Samples, progress: bool) -> Any:
        what = "Compiling" if self.job.compiles_first else "Slicing"
        return progress_bar(what, samples.count, progress, unit="sample")

    def _advance(self, bar: Any, index: int) -> None:
        bar.set_description("Slicing", refresh=False)
        rest = bar.total and bar.total - index * self.batch_size
        bar.update(min(self.batch_size, rest or self.batch_size))

    def _batches(self, samples: Samples) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (batch number, number of its first sample, batch)."""
        first = 0
        batches = warn_of_unusual(samples.batches(self.batch_size), self.profile)
        for index, batch in enumerate(batches):
            yield index, first, batch
            first += len(batch)


def warn_of_unusual(batches: Iterable[np.ndarray], profile: Profile) -> Iterator[np.ndarray]:
    """Yield the batches; warn at the first that does not fit the profile: perhaps not scaled."""
    known, warned = profile.input_range, False
    means = next(iter(profile.means.values()), None)  # the first operation is the input
    for batch in batches:
        if known is not None and not warned:
            warned = warn_of_range(batch, means, known, profile.input_means)
        yield batch
