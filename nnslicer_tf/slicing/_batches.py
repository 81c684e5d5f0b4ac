"""`Work`: captures the batches of samples and runs a walk on them; a warning for unusual ones."""

import warnings
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._files import digest
from nnslicer_tf.engine import Engine
from nnslicer_tf.engine.engines import in_order
from nnslicer_tf.errors import InputRangeWarning
from nnslicer_tf.instrument.data import Samples
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.slicing._checkpoint import Checkpoint
from nnslicer_tf.slicing._exclusion_walk import ExclusionWalk
from nnslicer_tf.slicing._zero_walk import AmountWalk, CountWalk
from nnslicer_tf.slicing.profile import Profile

# Distance from the profiled range, as a share of its width, that no perturbed image has.
_MAX_DISTANCE = 0.5
# In batches of at least this size, inputs within a small part of the range are unusual, as after a
# wrong scaling, and so is a mean that is far from the means of single profiled samples.
_MIN_BATCH = 8
_MIN_WIDTH = 0.02


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
        sizes: dict[int, int] = {}
        with tqdm(
            total=samples.count,
            desc="Compiling" if self.job.compiles_first else "Slicing",
            unit="sample",
            disable=not progress,
            leave=False,
        ) as bar:

            def pending() -> Iterator[tuple[int, dict[str, np.ndarray]]]:
                for index, first, batch in self._batches(samples):
                    digests[index] = digest(arrays_of(batch)) if checkpoint.is_stored else ""
                    sizes[index] = len(batch)
                    if checkpoint.is_done(index, digests[index]):
                        bar.update(len(batch))
                    else:
                        yield index, self.capture(batch, self.job.captured, first)

            for index, result in self.engine.map(self.job, pending()):
                checkpoint.add(index, digests[index], result)
                bar.set_description("Slicing", refresh=False)
                bar.update(sizes[index])
        checkpoint.save()
        return checkpoint.result(len(digests))

    def results(self, samples: Samples) -> Iterator[Any]:
        """Yield the result of each batch, in order."""
        captured: Iterator[tuple[int, Any]] = (
            (index, self.capture(batch, self.job.captured, first))
            for index, first, batch in self._batches(samples)
        )
        for _, result in in_order(self.engine.map(self.job, captured)):
            yield result

    def _batches(self, samples: Samples) -> Iterator[tuple[int, int, np.ndarray]]:
        """Yield (batch number, number of its first sample, batch)."""
        first = 0
        batches = warn_of_unusual(samples.batches(self.batch_size), self.profile)
        for index, batch in enumerate(batches):
            yield index, first, batch
            first += len(batch)


def warn_of_unusual(batches: Iterable[np.ndarray], profile: Profile) -> Iterator[np.ndarray]:
    """Yield the batches; warn at the first that does not fit the profile: perhaps not scaled."""
    warned = profile.input_range is None
    for batch in batches:
        difference = "" if warned else _difference(batch, profile)
        if difference:
            warned = True
            warnings.warn(
                f"{difference}. Slices compare the two: scale inputs as for the profile, or "
                "bind the scaling to the model with InstrumentedModel(preprocess=…).",
                InputRangeWarning,
                stacklevel=2,
            )
        yield batch


def _difference(batch: np.ndarray, profile: Profile) -> str:
    """Describe how a batch differs from the profiled inputs; "" if it does not."""

    def is_beyond(value: float, known: tuple[float, float]) -> bool:
        margin = _MAX_DISTANCE * (known[1] - known[0])
        return not known[0] - margin <= value <= known[1] + margin

    assert profile.input_range is not None
    low, high = profile.input_range
    least, largest = float(batch.min()), float(batch.max())
    is_small = len(batch) >= _MIN_BATCH and largest - least < _MIN_WIDTH * (high - low)
    if is_small or is_beyond(least, (low, high)) or is_beyond(largest, (low, high)):
        return (
            f"Inputs range from {least:.4g} to {largest:.4g}, the inputs of the profile from "
            f"{low:.4g} to {high:.4g}"
        )
    mean, means = float(batch.mean(dtype=np.float64)), profile.input_means
    if len(batch) < _MIN_BATCH or means is None or not is_beyond(mean, means):
        return ""
    return (
        f"The mean of the inputs is {mean:.4g}, those of the profile's samples are from "
        f"{means[0]:.4g} to {means[1]:.4g}"
    )
