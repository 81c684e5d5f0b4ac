"""Repeats of an experiment: models trained with different seeds, their slices, stored rows.

The first images of the training split are held out to choose thresholds; the models are trained
on those that follow, and only final figures are of the test split. Where the model is the zoo's,
its last tenth is held out, on which the zoo's models are not trained either. Finished models and
repeats are kept in the working folder, from which an interrupted experiment continues.

`NeuSemSlice` compares landscapes as Equation 2 is printed. `NeuSemSlice, centred` centres them
first, as does the centred kernel alignment after which the equation is named.
"""

import copy
import itertools
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._checks import counted
from nnslicer_tf._environment import track
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from nnslicer_tf.pruning.channels import ChannelGraph
from nnslicer_tf.pruning.groups import channel_groups
from nnslicer_tf.pruning.removal import living_groups, size_without_groups
from nnslicer_tf.semantic import (
    CriticalNeurons,
    SemanticSlicer,
    masked,
)
from nnslicer_tf.semantic.metrics import mask_names
from nnslicer_tf.semantic.neurons import neuron_layers
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.landscapes import landscape, similarity
from reproduction.neusemslice.settings import OURS, SETTINGS, WAYS, MaintenanceSettings
from reproduction.result import ExperimentTable
from reproduction.rows import RowStore
from reproduction.samples import first, of_classes
from reproduction.zoo import recipes
from reproduction.zoo.models import zoo


@dataclass(frozen=True, eq=False)
class Trial:
    """A trained model that ends in logits, and its data."""

    model: keras.Model
    train: Dataset  # its training samples
    held_out: Dataset  # by which thresholds are chosen and training or compression is stopped
    test: Dataset  # for final figures only
    seed: int = 0
    samples: int = 5_000  # of the training samples, for scores and similarities
    interval: int = 1  # number of neurons by which semantic slices grow (Algorithm 1's i)


def zoo_trial(model: str, dataset: str, tests: int, samples: int) -> Trial:
    """Return the zoo's trained model of a name, and its data."""
    splits = ("train[:90%]", "train[90%:]", f"test[:{tests}]")
    data = (datasets.load(dataset, split) for split in splits)
    return Trial(zoo.load(model, dataset), *data, samples=samples)


class Repeats:
    """Trials of one model and data set, one for each seed; or the one of the zoo's weights."""

    def __init__(self, settings: MaintenanceSettings) -> None:
        self.settings = settings

    @cached_property
    def _zoo_trial(self) -> Trial | None:
        s = self.settings
        return zoo_trial(s.model, s.dataset, s.tests, s.samples) if s.weights == "zoo" else None

    @cached_property
    def data(self) -> dict[str, Dataset]:
        """Training, held-out and test samples, as a `Trial` takes them."""
        if (trial := self._zoo_trial) is not None:
            return {"train": trial.train, "held_out": trial.held_out, "test": trial.test}
        s = self.settings
        held_out = min(5_000, s.images // 4)
        train = datasets.load(s.dataset, f"train[{held_out}:{held_out + s.images}]")
        if len(train) < s.images:
            raise InvalidArgumentError(
                f"--images {s.images} are more than the {len(train)} training images that "
                f"'{s.dataset}' has behind {held_out} held-out ones."
            )
        return {
            "train": train,
            "held_out": datasets.load(s.dataset, f"train[:{held_out}]"),
            "test": datasets.load(s.dataset, f"test[:{s.tests}]"),
        }

    @property
    def training(self) -> str:
        """How the models were trained, in words."""
        s = self.settings
        if self._zoo_trial is not None:
            right = zoo.accuracy(self._zoo_trial.model, self.data["test"])
            return f"weights of the zoo, {right:.1%} right"
        how = " by the zoo's recipe" if s.recipe == "zoo" else ""
        return f"{counted(s.epochs, 'epoch')}{how} in {s.precision}"

    def trial(self, seed: int, classes: Iterable[int] | None = None) -> Trial:
        """Return a model trained with a seed, on some classes or on all, with all data."""
        s, data, which = self.settings, self.data["train"], "all"
        if self._zoo_trial is not None:
            if classes is not None:
                raise InvalidArgumentError(
                    "The zoo's models know all classes, and this experiment starts with a model "
                    "of some: leave out --weights zoo."
                )
            fresh = zoo.load(s.model, s.dataset)
            return replace(self._zoo_trial, model=fresh, interval=s.interval)
        if classes is not None:
            data, which = of_classes(data, classes), "".join(map(str, classes))
        keras.utils.set_random_seed(seed)
        model = zoo.build(s.model, data.x.shape[1:], data.classes)
        recipe = recipes.Recipe(epochs=s.epochs, precision=s.precision)
        if s.recipe == "zoo":
            # Epochs of smaller images are a part of the recipe's own number of epochs.
            own = recipes.RECIPES.get(s.model, recipes.DEFAULT_RECIPE)
            recipe = replace(own, epochs=s.epochs, precision=s.precision, sizes=())
        name = f"{s.name}-{s.images}-{s.epochs}-{which}-{seed}{s.training_name}"
        recipes.train(model, data, recipe, rng=seed, folder=s.work / "trained" / name)
        model = recipes.in_precision(model, s.precision)
        warn_of_failure(model, data, seed)
        return Trial(model, **self.data, seed=seed, samples=s.samples, interval=s.interval)

    def rows(
        self, what: str, run: Callable[..., Iterable[dict]], *options: Any, classes: Any = None
    ) -> pd.DataFrame:
        """Return the rows of all seeds; stored ones are read, not made again.

        Each seed's are `run(trial, *options)`, with a model trained on all or some classes.
        """
        s = self.settings
        # What tells models of different training apart.
        trained = f"{s.images}-{s.epochs}-{s.tests}-{s.samples}{s.training_name}"
        if self._zoo_trial is not None:
            weights = model_fingerprint(self._zoo_trial.model)[:8]
            trained = f"zoo-{weights}-{s.tests}-{s.samples}"
        parts = []
        for number, seed in enumerate(s.seeds, 1):

            def make(seed: int = seed) -> Iterable[dict]:
                return track(run(self.trial(seed, classes), *options), what)

            # A file for each seed, so that repeats can run side by side.
            path = s.work / what / f"{s.name}-{trained}{s.interval_name}-seed{seed}.csv"
            parts.append(RowStore(path, ["seed"]).complete({"seed": seed}, make))
            print(f"{what} {s.name}: repeat {number} of {s.repeats}", flush=True)
        return pd.concat(parts, ignore_index=True).astype({"seed": int})

    def table(
        self, name: str, title: str, frame: pd.DataFrame, kind: str = "", **more: object
    ) -> ExperimentTable:
        """Return a table headed by how it was made and `more`; a `kind` ends its name."""
        s = self.settings
        parts = ", ".join(f"{len(part)} {part_name}" for part_name, part in self.data.items())
        sizes = f"{parts} images; {self.training}; scores on {s.samples} images"
        head = {"seeds": f"{s.seeds[0]} … {s.seeds[-1]}", "sizes": sizes, **more}
        if s.interval != 1:
            head["interval"] = f"semantic slices grow by {s.interval} neurons at a time"
        return ExperimentTable(f"{name}-{s.name}{s.interval_name}{kind}", frame, title, head)


def warn_of_failure(model: keras.Model, data: Dataset, seed: int) -> None:
    """Warn of a model that is hardly better than chance on samples that it was trained on."""
    chance = 1 / len(np.unique(data.y))
    right = zoo.accuracy(model, first(data, 500))
    if right < 1.5 * chance:
        warnings.warn(
            f"The model of seed {seed} has not learned: {right:.1%} of its training samples are "
            f"right, {chance:.1%} would be by chance. Its rows say nothing about the methods.",
            stacklevel=3,
        )


def split_classes(classes: int, tasks: int) -> tuple[tuple[int, ...], ...]:
    """Return the classes of each task, in order: equally many, the last task has the remainder."""
    if not 2 <= tasks <= classes:
        raise InvalidArgumentError(f"{classes} classes cannot be split into {tasks} tasks.")
    size = classes // tasks
    starts = [*range(0, size * tasks, size), classes]
    return tuple(tuple(range(a, b)) for a, b in itertools.pairwise(starts))


class SlicedModel:
    """A trial's model with all slicing methods, by one of `METRICS`."""

    def __init__(self, trial: Trial, metric: str = "taylor") -> None:
        data = first(trial.train, trial.samples)
        self.model = trial.model
        self.slicer = SemanticSlicer(InstrumentedModel(trial.model), data.x, data.y, metric)
        centred = copy.copy(self.slicer)
        centred.centred = True  # before its similarities are computed
        self._ways: dict[str, Callable[[float], CriticalNeurons]] = {
            "Global": self.slicer.global_slice,
            "Category-wise": self.slicer.category_slice,
            "NeuSemSlice": partial(self.slicer.semantic_slice, step=trial.interval),
            "NeuSemSlice, centred": partial(centred.semantic_slice, step=trial.interval),
        }
        self._masked: keras.Model | None = None

    def slice(self, way: str, setting: float) -> CriticalNeurons:
        """Return the slice of a method at a share or threshold."""
        return self._ways[way](setting)

    def compression(self, critical: CriticalNeurons) -> float:
        """Return the share of the parameters that restructuring removes."""
        return 1 - restructured_size(self.model, critical) / self.model.count_params()

    def masked(self, critical: CriticalNeurons) -> keras.Model:
        """Return the model with only the critical neurons; the next call changes the same model."""
        self._masked = masked(self.model, critical, into=self._masked)
        return self._masked

    def own_share(self, critical: CriticalNeurons) -> float:
        """Return the share of the parameters in kernels and biases of masked neurons themselves."""
        sizes = {layer: self.model.get_layer(layer).count_params() for layer in critical}
        own = sum((1 - mask.mean()) * sizes[layer] for layer, mask in critical.items())
        return own / self.model.count_params()

    def of_size(self, way: str, compression: float) -> CriticalNeurons:
        """Return a method's slice whose compression rate is nearest to the one given."""
        low, high, found = 0.0, 1.0, []
        for _ in range(16):
            middle = (low + high) / 2
            critical = self.slice(way, middle)
            rate = self.compression(critical)
            found.append((abs(rate - compression), critical))
            if found[-1][0] < 1e-3:
                break
            low, high = (middle, high) if rate > compression else (low, middle)
        return min(found, key=lambda pair: pair[0])[1]


def slices_of_one_size(
    trial: Trial, metric: str, loss: float, ways: Sequence[str] = WAYS
) -> dict[str, CriticalNeurons]:
    """Return a slice by every method, all of about the same compression rate (section 5.3).

    It is that of the smallest centred semantic slice that keeps the held-out accuracy by itself.
    """
    sliced = SlicedModel(trial, metric)
    lowest = accuracy(trial.model, trial.held_out) - loss
    way = OURS[1]
    chosen = sliced.slice(way, 1.0)
    for theta in SETTINGS[way]:
        critical = sliced.slice(way, theta)
        if accuracy(sliced.masked(critical), trial.held_out) >= lowest:
            chosen = critical
            break
    size = sliced.compression(chosen)
    return {w: chosen if w == way else sliced.of_size(w, size) for w in ways}


def layer_similarities(im: InstrumentedModel, x: np.ndarray) -> dict[str, float]:
    """Return each layer's similarity with the layer before it (Equation 2), in topological order.

    Layers are those with neurons and the output layer, but not the first. Padding counts as zeros.
    """
    similarities, before = {}, None
    for name, layer in neuron_layers(im, classes=True).items():
        values = im.capture(x, of=[layer.value, *mask_names([layer])])
        current = landscape(layer.of_data(values[layer.value], values))
        if before is not None:
            similarities[name] = similarity(current, before)
        before = current
    return similarities


def redundant(trial: Trial, threshold: float) -> list[str]:
    """Return the hidden layers that are redundant on 500 training samples."""
    similarities = layer_similarities(InstrumentedModel(trial.model), first(trial.train, 500).x)
    hidden = list(similarities.items())[:-1]
    return [name for name, similarity in hidden if similarity > threshold]


def all_neurons(model: keras.Model) -> dict[str, np.ndarray]:
    """Return masks of all neurons, the classes included."""
    layers = neuron_layers(InstrumentedModel(model), classes=True)
    return {name: np.ones(layer.units, bool) for name, layer in layers.items()}


def restructured_size(model: keras.Model, critical: CriticalNeurons) -> int:
    """Return the number of parameters that `restructure` leaves, without building a model.

    Later calls for a model are fast.
    """
    im = maskable(model)

    def prepare() -> tuple:
        copy = masked(im, {})
        graph = ChannelGraph(im.like(copy))  # analysed without masks
        return copy, graph, channel_groups(graph)

    copy, graph, groups = im.prepared("restructured size", prepare)
    masked(im, critical, into=copy)
    return size_without_groups(graph.im, groups, living_groups(graph, groups))
