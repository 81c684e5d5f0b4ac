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
from nnslicer_tf.semantic import CriticalNeurons, Masker, train_neurons
from nnslicer_tf.semantic import develop as learn_task
from nnslicer_tf.semantic.neurons import neuron_layers
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, WAYS, MaintenanceSettings
from reproduction.neusemslice.slices import SlicedModel, all_neurons, redundant, slices_of_one_size
from reproduction.neusemslice.tables import means_result
from reproduction.neusemslice.trial import Repeats, Trial, split_classes
from reproduction.result import ExperimentResult
from reproduction.samples import of_classes

Tasks = Sequence[tuple[int, ...]]

_REDUNDANT = 0.95  # above which DeepArc trains a layer on the new task


@dataclass(frozen=True)
class _Method:
    """A method of learning the later tasks.

    Attributes:
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


def develop(s: MaintenanceSettings) -> ExperimentResult:
    """Learn new classes, without samples of the old ones or with some (tables 7 and 8)."""
    repeats = Repeats(s)
    tasks = split_classes(repeats.data["train"].classes, s.scenario + 1)
    what = f"develop{s.scenario}-{s.metric}"
    rows = repeats.rows(what, develop_rows, tasks, s.metric, classes=tasks[0])
    replays = [method.name for method in _METHODS if not method.way]
    pairs = [(way, other) for way in OURS for other in (*replays, "Global", "Category-wise")]
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

    The trial has a model of all classes, trained on those of the first task, and the data of all.
    Its slices alone may lose `loss` of the held-out accuracy on that task; each new task is trained
    on for some epochs of Adam. `methods` are names of the rows, all by default.
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
        frozen = slices.get(method.way)
        if method.way == "DeepArc":
            layers = redundant(base, _REDUNDANT)
            if not layers:
                continue
            # All neurons but those of some layers.
            units = {k: v.units for k, v in neuron_layers(InstrumentedModel(trial.model)).items()}
            frozen = CriticalNeurons({k: np.full(n, k not in layers) for k, n in units.items()})
        # Learn the tasks one after the other; each learned one adds its own slice.
        current, heads = trial.model, [frozen] if method.way in WAYS else []
        for number in range(1, len(tasks)):
            current = _learned(trial, tasks, number, method, current, frozen, epochs)
            if heads and number < len(tasks) - 1:
                task = replace(trial, model=current, train=of_classes(trial.train, tasks[number]))
                sliced = SlicedModel(task, metric)
                frozen |= sliced.of_size(method.way, sliced.compression(heads[0]))
                heads.append(frozen)
        yield {"method": method.name, **_accuracies(trial.test, current, tasks, heads)}


def _learned(
    trial: Trial,
    tasks: Tasks,
    number: int,
    method: _Method,
    model: keras.Model,
    frozen: CriticalNeurons | None,
    epochs: int,
) -> keras.Model:
    """Return the model after it learned a task, and a share of the earlier samples again."""
    learned = [c for task in tasks[:number] for c in task]
    new, old = of_classes(trial.train, tasks[number]), of_classes(trial.train, learned)
    rows = np.random.default_rng(trial.seed).permutation(len(old))
    rows = rows[: round(method.replay * len(old))]
    x, y = np.concatenate([new.x, old.x[rows]]), np.concatenate([new.y, old.y[rows]])
    options = {"epochs": epochs, "batch_size": 128, "rng": trial.seed}
    if frozen is None:
        return train_neurons(model, all_neurons(model), x, y, **options)
    outgoing = method.freeze_outgoing
    return learn_task(model, frozen, x, y, learned, freeze_outgoing=outgoing, **options)


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
        classes = list(task)
        parts = [
            network.predict_on_batch(data.x[i : i + 512])[:, classes].argmax(axis=1)
            for i in range(0, len(data), 512)
        ]
        known[f"{name} known"] = float(np.mean(np.take(classes, np.concatenate(parts)) == data.y))
    every["Avg"] = float(np.mean(list(every.values())))
    known["Avg known"] = float(np.mean(list(known.values())))
    return every | known
