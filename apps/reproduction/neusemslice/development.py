"""Incremental development: new classes, task by task (section 5.5, tables 7 and 8).

The paper can be read in two ways about how a sample's task is known, and both are measured.
"Among all classes": the whole model predicts, and any class may win. This must be so in the
paper's tables for plain retraining, where task A falls to 0 %. "Task known": only the task's own
classes may win. An old task is predicted by its frozen neurons alone and the last task by the
whole model, since a model switches between tasks by section 4.3; methods that freeze nothing use
the whole model.

It can also be read in two ways about what is frozen: the weights into the critical neurons, or
the weights out of them as well (rows "sealed"; see `nnslicer_tf.semantic.develop`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import keras
import numpy as np

from nnslicer_tf.datasets import Dataset
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic import CriticalNeurons, Masker, neuron_layers, output_layer, train_neurons
from nnslicer_tf.semantic import develop as learn_task
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, WAYS, MaintenanceSettings
from reproduction.neusemslice.slices import SlicedModel, redundant, slices_of_one_size
from reproduction.neusemslice.tables import means_result
from reproduction.neusemslice.trial import Trial, repeats_of, split_classes
from reproduction.result import ExperimentResult
from reproduction.samples import of_classes

Tasks = Sequence[tuple[int, ...]]

_REDUNDANT = 0.95  # above which DeepArc trains a layer on the new task


@dataclass(frozen=True)
class _Method:
    """A method of learning the later tasks.

    Attributes:
        name: The name in the tables.
        way: How critical neurons are chosen; empty: none are frozen.
        replay: Share of the earlier tasks' samples that are trained on again.
        freeze_outgoing: Freeze the weights out of critical neurons too.
    """

    name: str
    way: str = ""
    replay: float = 0.0
    freeze_outgoing: bool = False


_METHODS = (
    _Method("Retrain"),
    *(_Method(f"Replay {share:.0%}", replay=share) for share in (0.05, 0.1, 1.0)),
    _Method("DeepArc", "DeepArc"),
    *(_Method(way, way) for way in WAYS),
    *(_Method(f"{way}+Replay 10%", way, 0.1) for way in OURS),
    _Method(f"{WAYS[-1]}, sealed", WAYS[-1], freeze_outgoing=True),
    _Method(f"{WAYS[-1]}, sealed+Replay 10%", WAYS[-1], 0.1, freeze_outgoing=True),
)


_REPLAYS = ("Retrain", "Replay 5%", "Replay 10%", "Replay 100%")


def develop(s: MaintenanceSettings) -> ExperimentResult:
    """Learn new classes, without samples of the old ones or with some (tables 7 and 8)."""
    repeats = repeats_of(s)
    tasks = split_classes(repeats.data["train"].classes, s.scenario + 1)
    rows = repeats.rows(
        f"develop{s.scenario}-{s.metric}",
        lambda seed: develop_rows(repeats.trial(seed, tasks[0]), tasks, s.metric),
    )
    pairs = [(way, other) for way in OURS for other in (*_REPLAYS, "Global", "Category-wise")]
    used = {"training": "2 epochs of Adam on each task"}
    title = f"Incremental development, scenario {'I' * s.scenario}"
    figures = ["TaskA", "Avg", "TaskA known", "Avg known"]
    return means_result(repeats, rows, 6 + s.scenario, title, figures, pairs, used)


def develop_rows(
    trial: Trial,
    tasks: Tasks,
    metric: str,
    loss: float = 0.001,
    epochs: int = 2,
    methods: Sequence[str] | None = None,
) -> Iterator[dict]:
    """Yield each task's test accuracy after the later tasks were learned, by every method.

    Args:
        trial: A model of all classes, trained on those of the first task, and the data of all.
        tasks: The classes of each task.
        metric: A name of `METRICS`.
        loss: Held-out accuracy on the first task that its slices alone may lose.
        epochs: Passes over each new task's samples, by Adam.
        methods: Names of the rows; all by default.
    """
    base = replace(
        trial,
        train=of_classes(trial.train, tasks[0]),
        held_out=of_classes(trial.held_out, tasks[0]),
    )
    slices = slices_of_one_size(base, metric, loss)
    yield {"method": "Original", **_accuracies(trial.test, trial.model, tasks)}
    for method in _METHODS:
        if methods is not None and method.name not in methods:
            continue
        if method.way == "DeepArc":
            layers = redundant(base, _REDUNDANT)
            if not layers:
                continue
            # All neurons but those of some layers.
            found = neuron_layers(InstrumentedModel(trial.model))
            critical = CriticalNeurons(
                {name: np.full(layer.units, name not in layers) for name, layer in found.items()}
            )
        else:
            critical = slices.get(method.way)
        learner = _Learner(trial, tasks, metric, method, epochs)
        yield {"method": method.name, **learner.learn(critical)}


class _Learner:
    """Learns the tasks one after the other, by one method."""

    def __init__(
        self, trial: Trial, tasks: Tasks, metric: str, method: _Method, epochs: int
    ) -> None:
        self._trial, self._tasks, self._metric = trial, tasks, metric
        self._method, self._epochs = method, epochs

    def learn(self, critical: CriticalNeurons | None) -> dict[str, float]:
        """Learn the later tasks, and return the accuracies."""
        current = self._trial.model
        heads = [critical] if critical is not None and self._method.way in WAYS else []
        for number in range(1, len(self._tasks)):
            current = self._learn_task(current, heads[-1] if heads else critical, number)
            if heads and number < len(self._tasks) - 1:
                heads.append(heads[-1] | self._slice_of(current, number, heads[0]))
        return _accuracies(self._trial.test, current, self._tasks, heads)

    def _learn_task(
        self, model: keras.Model, frozen: CriticalNeurons | None, number: int
    ) -> keras.Model:
        learned = [c for task in self._tasks[:number] for c in task]
        data = self._samples(number, learned)
        epochs, seed = self._epochs, self._trial.seed
        if frozen is None:
            im = InstrumentedModel(model)
            layers = (*neuron_layers(im).values(), output_layer(im))
            whole = {layer.name: np.ones(layer.units, bool) for layer in layers}
            return train_neurons(
                model, whole, data.x, data.y, epochs=epochs, batch_size=128, rng=seed
            )
        return learn_task(
            model,
            frozen,
            data.x,
            data.y,
            learned,
            freeze_outgoing=self._method.freeze_outgoing,
            epochs=epochs,
            batch_size=128,
            rng=seed,
        )

    def _samples(self, number: int, learned: Sequence[int]) -> Dataset:
        """Return a task's samples and a share of those learned before."""
        new = of_classes(self._trial.train, self._tasks[number])
        old = of_classes(self._trial.train, learned)
        order = np.random.default_rng(self._trial.seed).permutation(len(old))
        chosen = order[: round(self._method.replay * len(old))]
        x, y = np.concatenate([new.x, old.x[chosen]]), np.concatenate([new.y, old.y[chosen]])
        return replace(new, x=x, y=y)

    def _slice_of(self, model: keras.Model, number: int, like: CriticalNeurons) -> CriticalNeurons:
        """Return the slice of a task learned later, of the compression rate of the first's."""
        task = of_classes(self._trial.train, self._tasks[number])
        sliced = SlicedModel(replace(self._trial, model=model, train=task), self._metric)
        return sliced.of_size(self._method.way, sliced.compression(like))


def _accuracies(
    test: Dataset, model: keras.Model, tasks: Tasks, heads: Sequence[CriticalNeurons] = ()
) -> dict[str, float]:
    """Return each task's accuracy and the mean: among all classes, and with the task known."""
    masker, every, known = Masker(model), {}, {}
    for i, task in enumerate(tasks):
        name, data = f"Task{'ABCDEFGH'[i]}", of_classes(test, task)
        every[name] = accuracy(model, data)
        network = masker.neurons(heads[i]) if i < len(heads) else model
        # The accuracy where only some classes may win.
        chosen = list(task)
        parts = [
            network.predict_on_batch(data.x[i : i + 512])[:, chosen].argmax(axis=1)
            for i in range(0, len(data), 512)
        ]
        known[f"{name} known"] = float(np.mean(np.take(chosen, np.concatenate(parts)) == data.y))
    every["Avg"] = float(np.mean(list(every.values())))
    known["Avg known"] = float(np.mean(list(known.values())))
    return every | known
