"""Repeats of an experiment: models trained with different seeds, their data, stored rows.

The first images of the training split are held out to choose thresholds; the models are trained
on those that follow, and only final figures are of the test split. Finished models and repeats
are kept in the working folder, from which an interrupted experiment continues.
"""

import itertools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

import keras
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._progress import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.engine.rows import RowStore
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.experiments.neusemslice.settings import MaintenanceSettings
from nnslicer_tf.experiments.result import ExperimentTable
from nnslicer_tf.experiments.samples import of_classes


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model and its data.

    Attributes:
        model: A classifier that ends in logits.
        train: Its training samples; the first of them give scores and similarities.
        held_out: Samples by which thresholds are chosen and training or compression is stopped.
        test: Samples for final figures only.
        seed: Random seed.
        samples: Number of training samples for scores and similarities.
    """

    model: keras.Model
    train: Dataset
    held_out: Dataset
    test: Dataset
    seed: int = 0
    samples: int = 5_000


@dataclass(frozen=True, eq=False)
class Repeats:
    """Trials of one model and data set, one for each seed.

    Attributes:
        settings: Model, data set, sizes and number of seeds.
    """

    settings: MaintenanceSettings

    @cached_property
    def data(self) -> dict[str, Dataset]:
        """Training, held-out and test samples, as a `Trial` takes them.

        Raises:
            InvalidArgumentError: if there are fewer training samples than asked for.
        """
        s = self.settings
        held_out = min(5_000, s.images // 4)
        parts = {
            "train": datasets.load(s.dataset, f"train[{held_out}:{held_out + s.images}]"),
            "held_out": datasets.load(s.dataset, f"train[:{held_out}]"),
            "test": datasets.load(s.dataset, f"test[:{s.tests}]"),
        }
        if len(parts["train"]) < s.images:
            raise InvalidArgumentError(
                f"--images {s.images} are more than the {len(parts['train'])} training images "
                f"that '{s.dataset}' has behind {held_out} held-out ones."
            )
        return parts

    @property
    def _precision(self) -> str:
        """The ending of files of models that were not trained in float32."""
        precision = self.settings.precision
        return "" if precision == "float32" else f"-{precision}"

    def trial(self, seed: int, classes: Iterable[int] | None = None) -> Trial:
        """Return a model trained with a seed, on some classes or on all, with all data."""
        s, data, which = self.settings, self.data["train"], "all"
        if classes is not None:
            data, which = of_classes(data, classes), "".join(map(str, classes))
        name = f"{s.name}-{s.images}-{s.epochs}-{which}-{seed}{self._precision}"
        keras.utils.set_random_seed(seed)
        model = zoo.build(s.model, data.x.shape[1:], data.classes)
        recipe = zoo.Recipe(epochs=s.epochs, precision=s.precision)
        folder = s.work / "trained" / name
        zoo.train(model, data, recipe, rng=seed, folder=folder)
        model = zoo.in_precision(model, s.precision)
        return Trial(model, **self.data, seed=seed, samples=s.samples)

    def rows(self, what: str, run: Callable[[int], Iterable[dict]]) -> pd.DataFrame:
        """Return the rows of all seeds; stored ones are read, not made again."""
        s = self.settings
        sizes = f"{s.images}-{s.epochs}-{s.tests}-{s.samples}{self._precision}"
        store = RowStore(s.work / what / f"{s.name}-{sizes}.csv", ["seed"])
        parts = []
        for seed in range(s.repeats):

            def make(seed: int = seed) -> Iterable[dict]:
                return track(run(seed), what)

            parts.append(store.complete({"seed": seed}, make))
            print(f"{what} {s.name}: repeat {seed + 1} of {s.repeats}", flush=True)
        return pd.concat(parts, ignore_index=True).astype({"seed": int})

    def table(
        self,
        name: str,
        title: str,
        frame: pd.DataFrame,
        kind: str = "",
        more: Mapping[str, object] | None = None,
    ) -> ExperimentTable:
        """Return a table headed by how it was made and `more`; a `kind` ends its name."""
        s = self.settings
        parts = ", ".join(f"{len(part)} {part_name}" for part_name, part in self.data.items())
        training = f"{s.epochs} epochs in {s.precision}"
        sizes = f"{parts} images; {training}; scores on {s.samples} images"
        head = {"seeds": f"0 … {s.repeats - 1}", "sizes": sizes, **(more or {})}
        return ExperimentTable(f"{name}-{s.name}{kind}", frame, title, head)


def split_classes(classes: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in order: equally many, the last task has the remainder.

    Raises:
        InvalidArgumentError: if there are fewer than two tasks, or not a class for each.
    """
    if not 2 <= tasks <= classes:
        raise InvalidArgumentError(f"{classes} classes cannot be split into {tasks} tasks.")
    size = classes // tasks
    starts = [*range(0, size * tasks, size), classes]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(starts))
