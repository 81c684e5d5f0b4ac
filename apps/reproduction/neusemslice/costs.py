"""Seconds and bytes of re-adaptation and incremental development (sections 5.4 and 5.5)."""

import io
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import keras
import numpy as np
import pandas as pd

from nnslicer_tf.semantic import CriticalNeurons, develop, parameter_share, train_neurons
from reproduction.neusemslice.settings import OURS, MaintenanceSettings
from reproduction.neusemslice.trial import (
    Repeats,
    Trial,
    all_neurons,
    slices_of_one_size,
    split_classes,
)
from reproduction.result import ExperimentResult, note
from reproduction.samples import of_classes

_REPLAYS = (0.0, 0.05, 0.1, 1.0)
_RUNS = 3  # of a training, of which the shortest counts


def costs(s: MaintenanceSettings) -> ExperimentResult:
    """Measure what slices save, beside training everything and beside replay."""
    repeats = Repeats(s)
    tasks = split_classes(repeats.data["train"].classes, s.scenario + 1)
    rows = [
        repeats.rows(f"costs-readapt-{s.metric}-{s.attacked}", readapt_rows, s.metric, s.attacked),
        repeats.rows(f"costs-develop-{s.metric}", develop_rows, tasks, s.metric, classes=tasks[0]),
    ]
    every = pd.concat(rows, ignore_index=True).drop(columns="seed")
    means = every.groupby(["task", "method"], sort=False).mean().round(4).reset_index()
    title = "Costs of maintenance (sections 5.4 and 5.5)"
    table = repeats.table("costs", title, means, metric=s.metric)
    return ExperimentResult([replace(table, text=note("maintenance_costs"))])


def readapt_rows(trial: Trial, metric: str, attacked: int) -> Iterator[dict]:
    """Yield the seconds of 10 epochs on as many held-out images twice, as table 6 trains.

    What the images show does not change the time, so they are not attacked here.
    """
    count = min(attacked, len(trial.held_out) // 2)
    x, y = (np.concatenate([v[:count]] * 2) for v in (trial.held_out.x, trial.held_out.y))
    whole = all_neurons(trial.model)
    neurons = {"Fully Training": whole}
    critical, seconds = _sliced(trial, metric, 0.04)
    neurons[OURS[1]] = whole | dict(critical)
    for method, masks in neurons.items():
        trained, took = _timed(lambda m=masks: train_neurons(trial.model, m, x, y, epochs=10))
        del trained
        row = {"task": "re-adaptation", "method": method, "seconds": took}
        row["share trained"] = parameter_share(trial.model, masks)
        yield row | {"seconds of slicing": seconds if method in OURS else 0.0}


def develop_rows(trial: Trial, tasks: tuple, metric: str) -> Iterator[dict]:
    """Yield the seconds of 2 epochs on the second task, and the bytes kept of the first."""
    own = of_classes(trial.train, tasks[0])
    first = replace(trial, train=own, held_out=of_classes(trial.held_out, tasks[0]))
    new = of_classes(trial.train, tasks[1])
    order = np.random.default_rng(trial.seed).permutation(len(own))
    options = {"epochs": 2, "batch_size": 128, "rng": trial.seed}
    for share in _REPLAYS:
        rows = order[: round(share * len(own))]
        x, y = np.concatenate([new.x, own.x[rows]]), np.concatenate([new.y, own.y[rows]])
        whole = all_neurons(trial.model)
        _, took = _timed(lambda x=x, y=y, w=whole: train_neurons(trial.model, w, x, y, **options))
        row = {"task": "development", "method": f"Replay {share:.0%}" if share else "Retrain"}
        # As files of images keep them: a byte for each value.
        yield row | {"seconds": took, "kilobytes": own.x[rows].size / 1000}
    critical, seconds = _sliced(first, metric, 0.001)
    learned = list(tasks[0])
    _, took = _timed(lambda: develop(trial.model, critical, new.x, new.y, learned, **options))
    np.savez_compressed(file := io.BytesIO(), **{k: np.packbits(m) for k, m in critical.items()})
    row = {"task": "development", "method": OURS[1], "seconds": took}
    yield row | {"seconds of slicing": seconds, "kilobytes": len(file.getvalue()) / 1000}


def _sliced(trial: Trial, metric: str, loss: float) -> tuple[CriticalNeurons, float]:
    """Return the slice of the tables, and how long it took to find it among all thresholds."""
    start = time.perf_counter()
    critical = slices_of_one_size(trial, metric, loss, OURS[1:])[OURS[1]]
    return critical, time.perf_counter() - start


def _timed(train: Callable[[], keras.Model]) -> tuple[keras.Model, float]:
    """Return a trained model and the shortest time; the first run compiles and does not count."""
    train()
    times = []
    for _ in range(_RUNS):
        start = time.perf_counter()
        model = train()
        times.append(time.perf_counter() - start)
    return model, min(times)
