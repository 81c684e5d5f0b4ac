"""Restructuring, re-adaptation and incremental development (sections 5.3 to 5.5, tables 5 to 8).

The paper can be read in two ways about how a sample's task is known, and both are measured.
"Among all classes": the whole model predicts, and any class may win. This must be so in the
paper's tables for plain retraining, where task A falls to 0 %. "Task known": only the task's own
classes may win. An old task is predicted by its frozen neurons alone and the last task by the
whole model, since a model switches between tasks by section 4.3; methods that freeze nothing use
the whole model.

It can also be read in two ways about what is frozen: the weights into the critical neurons, or
the weights out of them as well (rows "sealed"; see `sealed`).
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import keras
import numpy as np

from nnslicer_tf.datasets import Dataset
from nnslicer_tf.detection.attacks import AttackSpec, generate
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.semantic import CriticalNeurons, masked, parameter_share, train_neurons
from nnslicer_tf.semantic import develop as learn_task
from nnslicer_tf.semantic import restructure as remove_neurons
from nnslicer_tf.semantic.neurons import neuron_layers
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.sealed import develop_sealed
from reproduction.neusemslice.settings import OURS, WAYS, MaintenanceSettings
from reproduction.neusemslice.tables import means_result, paired_tests
from reproduction.neusemslice.trial import (
    Repeats,
    SlicedModel,
    Trial,
    all_neurons,
    redundant,
    slices_of_one_size,
    split_classes,
)
from reproduction.neusemslice.weight_pruning import compress
from reproduction.result import ExperimentResult
from reproduction.samples import of_classes

COMPRESSORS = {"lamp": "LAMP", "global": "Glob", "uniform_plus": "Unif", "erk": "ERK"}
"""Name of a compressor → its name in the paper's tables."""


def restructure(s: MaintenanceSettings) -> ExperimentResult:
    """Compress whole and restructured models until the accuracy falls (table 5)."""
    repeats = Repeats(s)
    what = f"restructure-{s.metric}-{s.tolerance}"
    rows = repeats.rows(what, restructure_rows, s.metric, s.tolerance)
    pairs = [
        (f"{way}+{name}", other)
        for name in COMPRESSORS.values()
        for way in OURS
        for other in (name, f"Global+{name}", f"Category-wise+{name}")
    ]
    tests = paired_tests(rows, ["CR", "NI", "MA"], pairs)
    name = f"table5-{1_000 * s.tolerance:.0f}permille"  # no dot: what follows is an ending
    title, loss = "Compression until the accuracy falls", f"{s.tolerance:.1%} of held-out accuracy"
    return means_result(repeats, rows, 5, title, tests, name, tolerance=loss)


def restructure_rows(trial: Trial, metric: str, tolerance: float = 0.01) -> Iterator[dict]:
    """Yield the result of every compressor, alone and after every slicing method.

    CR is the share of the whole model's parameters removed, NI counts iterations, MA is the test
    accuracy. Compression stops where `tolerance` of the held-out accuracy is lost. Slices may lose
    a tenth of a point of it, at most half: they remove only what is redundant.
    """
    yield {"method": "Original", "CR": 0.0, "NI": 0, "MA": accuracy(trial.model, trial.test)}
    lowest = accuracy(trial.model, trial.held_out) - tolerance
    starts: dict[str, keras.Model] = {"": trial.model}
    for way, critical in slices_of_one_size(trial, metric, min(0.001, tolerance / 2)).items():
        starts[f"{way}+"] = remove_neurons(trial.model, critical)
    size = trial.model.count_params()
    for compressor, name in COMPRESSORS.items():
        for way, start in starts.items():
            found = compress(start, compressor, lambda m: accuracy(m, trial.held_out), lowest)
            removed = 1 - (1 - found.rate) * start.count_params() / size
            row = {"method": way + name, "CR": removed, "NI": found.iterations}
            yield row | {"MA": accuracy(found.model, trial.test)}


# Held-out accuracy that slices alone may lose; the paper's lose about so much for this share
# of trained parameters.
_LOSS = 0.04
_REDUNDANT = 0.95  # above which DeepArc leaves a layer as it is, or trains it on a new task


def readapt(s: MaintenanceSettings) -> ExperimentResult:
    """Train critical neurons on adversarial samples and attack again (table 6)."""
    repeats = Repeats(s)
    attacked = min(s.attacked, len(repeats.data["held_out"]) // 2)
    epsilon = 8 / 255 if s.dataset == "cifar10" else 0.1
    what = f"readapt-{s.metric}-{attacked}"
    rows = repeats.rows(what, readapt_rows, s.metric, epsilon, 10, attacked)
    pairs = [
        (way, other)
        for way in (*OURS, *(f"{way}+DeepArc" for way in OURS))
        for other in ("Fully Training", "DeepArc", "Global", "Category-wise")
    ]
    tests = paired_tests(rows, ["RA", "RAA", "clean"], pairs)
    title = "Re-adaptation to adversarial samples"
    how = f"10 epochs of Adam on {attacked} attacked images and their originals"
    return means_result(repeats, rows, 6, title, tests, epsilon=round(epsilon, 4), adaptation=how)


def attacks(epsilon: float) -> tuple[AttackSpec, AttackSpec]:
    """Return FGSM, and PGD with 20 steps of an eighth of the bound, in the maximum norm."""
    pgd, fgsm = "LinfProjectedGradientDescentAttack", "LinfFastGradientAttack"
    steps = {"steps": 20, "rel_stepsize": 0.125}
    return (
        AttackSpec("FGSM", "gradient", f"foolbox.attacks:{fgsm}", {}, "linf", epsilon),
        AttackSpec("PGD", "gradient", f"foolbox.attacks:{pgd}", steps, "linf", epsilon),
    )


def readapt_rows(
    trial: Trial,
    metric: str,
    epsilon: float,
    epochs: int,
    attacked: int,
    methods: Sequence[str] = (),
) -> Iterator[dict]:
    """Yield the accuracies after training on samples and their adversarial versions.

    Held-out samples, at most half of them, are attacked to train on, and as many others after the
    training. Attacks are bounded by `epsilon` in the maximum norm, of values in [0, 1]. TPR is the
    share of parameters trained, RA the accuracy on the samples trained on, RAA when attacked again.
    """
    count = min(attacked, len(trial.held_out) // 2)
    x, y = trial.held_out.x[:count], trial.held_out.y[:count]
    again_x, again_y = trial.held_out.x[count : 2 * count], trial.held_out.y[count : 2 * count]
    # The neurons that each method trains.
    whole, unneeded = all_neurons(trial.model), redundant(trial, _REDUNDANT)

    def without_unneeded(masks: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        return {name: mask for name, mask in masks.items() if name not in unneeded}

    trained_neurons = {"Fully Training": whole, "DeepArc": without_unneeded(whole)}
    for way, critical in slices_of_one_size(trial, metric, _LOSS).items():
        trained_neurons[way] = whole | dict(critical)
    for way in OURS:
        trained_neurons[f"{way}+DeepArc"] = without_unneeded(trained_neurons[way])
    for attack in attacks(epsilon):
        adversarial = _attacked(trial.model, attack, x, y, trial.seed)
        both, labels = np.concatenate([x, adversarial]), np.concatenate([y, y])
        learned = replace(trial.held_out, x=both, y=labels)
        before = accuracy(trial.model, replace(trial.held_out, x=adversarial, y=y))
        options = {"epochs": epochs, "rng": trial.seed}
        for method in methods or trained_neurons:
            neurons = trained_neurons[method]
            trained = train_neurons(trial.model, neurons, both, labels, **options)
            again = _attacked(trained, attack, again_x, again_y, trial.seed)
            row = {"attack": attack.name, "method": method}
            row |= {"TPR": parameter_share(trial.model, neurons), "RA": accuracy(trained, learned)}
            row["RAA"] = accuracy(trained, replace(trial.held_out, x=again, y=again_y))
            yield row | {"clean": accuracy(trained, trial.test), "attacked before": before}


def _attacked(
    model: keras.Model, attack: AttackSpec, x: np.ndarray, y: np.ndarray, seed: int
) -> np.ndarray:
    return generate(model, attack, x, y, rng=seed, batch_size=250, progress=False).x


Tasks = Sequence[tuple[int, ...]]


@dataclass(frozen=True)
class _Method:
    """A method of learning the later tasks."""

    name: str
    way: str = ""  # how critical neurons are chosen; empty: none are frozen
    replay: float = 0.0  # share of the earlier tasks' samples that are trained on again
    sealed: bool = False  # freeze the weights out of critical neurons too


_METHODS = (
    _Method("Retrain"),
    *(_Method(f"Replay {share:.0%}", replay=share) for share in (0.05, 0.1, 1.0)),
    _Method("DeepArc", "DeepArc"),
    *(_Method(way, way) for way in WAYS),
    *(_Method(f"{way}+Replay 10%", way, 0.1) for way in OURS),
    _Method(f"{WAYS[-1]}, sealed", WAYS[-1], sealed=True),
    _Method(f"{WAYS[-1]}, sealed+Replay 10%", WAYS[-1], 0.1, sealed=True),
)


def develop(s: MaintenanceSettings) -> ExperimentResult:
    """Learn new classes, without samples of the old ones or with some (tables 7 and 8)."""
    repeats = Repeats(s)
    tasks = split_classes(repeats.data["train"].classes, s.scenario + 1)
    what = f"develop{s.scenario}-{s.metric}"
    rows = repeats.rows(what, develop_rows, tasks, s.metric, classes=tasks[0])
    replays = [method.name for method in _METHODS if not method.way]
    pairs = [(way, other) for way in OURS for other in (*replays, "Global", "Category-wise")]
    title = f"Incremental development, scenario {'I' * s.scenario}"
    tests = paired_tests(rows, ["TaskA", "Avg", "TaskA known", "Avg known"], pairs)
    how = "2 epochs of Adam on each task"
    return means_result(repeats, rows, 6 + s.scenario, title, tests, training=how)


def develop_rows(
    trial: Trial,
    tasks: Tasks,
    metric: str,
    loss: float = 0.001,
    epochs: int = 2,
    methods: Sequence = (),
) -> Iterator[dict]:
    """Yield each task's test accuracy after the later tasks were learned, by every method.

    The trial has a model of all classes, trained on those of the first task, and the data of all.
    Its slices alone may lose `loss` of the held-out accuracy on that task; each new task is trained
    on for some epochs of Adam. `methods` are names of the rows, all by default.
    """
    own, held_out = (of_classes(part, tasks[0]) for part in (trial.train, trial.held_out))
    base = replace(trial, train=own, held_out=held_out)
    slices = slices_of_one_size(base, metric, loss)
    yield {"method": "Original", **_accuracies(trial.test, trial.model, tasks)}
    for method in _METHODS:
        if methods and method.name not in methods:
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
            # Train on the task's samples, and on a share of the earlier ones again.
            learned = [c for task in tasks[:number] for c in task]
            new, old = of_classes(trial.train, tasks[number]), of_classes(trial.train, learned)
            rows = np.random.default_rng(trial.seed).permutation(len(old))
            rows = rows[: round(method.replay * len(old))]
            x, y = np.concatenate([new.x, old.x[rows]]), np.concatenate([new.y, old.y[rows]])
            options = {"epochs": epochs, "batch_size": 128, "rng": trial.seed}
            if frozen is None:
                current = train_neurons(current, all_neurons(current), x, y, **options)
            else:
                learn = develop_sealed if method.sealed else learn_task
                current = learn(current, frozen, x, y, learned, **options)
            if heads and number < len(tasks) - 1:
                task = replace(trial, model=current, train=of_classes(trial.train, tasks[number]))
                sliced = SlicedModel(task, metric)
                frozen |= sliced.of_size(method.way, sliced.compression(heads[0]))
                heads.append(frozen)
        yield {"method": method.name, **_accuracies(trial.test, current, tasks, heads)}


def _accuracies(
    test: Dataset, model: keras.Model, tasks: Tasks, heads: Sequence[CriticalNeurons] = ()
) -> dict[str, float]:
    """Return each task's accuracy and the mean: among all classes, and with the task known."""
    every, known = {}, {}
    for i, task in enumerate(tasks):
        name, data = f"Task{'ABCDEFGH'[i]}", of_classes(test, task)
        every[name] = accuracy(model, data)
        network = masked(model, heads[i]) if i < len(heads) else model
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
