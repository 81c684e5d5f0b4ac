"""Selective protection by the procedure of the paper's program (Figure 5)."""

import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import keras
import numpy as np
import pandas as pd

from nnslicer_tf import protection, pruning
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf.pruning.class_scores import subset_figures
from reproduction.nnslicer.program import PROGRAM
from reproduction.nnslicer.program_attack import ProgramAttacker
from reproduction.nnslicer.protection import plot
from reproduction.nnslicer.settings import ProgramProtectionSettings
from reproduction.nnslicer.targets import Targets, TargetTask, load_task, set_name
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

Masks = dict[str, np.ndarray]

METHODS = ("NNSlicer", "EffectivePath", "NNSlicer (all)", "Weight", "Random", "Everything")
ATTACKERS = {
    "program": (ProgramAttacker(), "as in the program"),
    "one softmax": (ProgramAttacker(softmax_twice=False), "whose loss has one softmax"),
    "all weights": (
        ProgramAttacker(softmax_twice=False, trains_all=True),
        "whose loss has one softmax, and who train all weights",
    ),
    "distillation": (
        ProgramAttacker(
            learning_rate=1e-3,
            decay=0.0,
            softmax_twice=False,
            trains_all=True,
            adam=True,
            distils=True,
        ),
        "who train all weights by Adam on the victim's probabilities",
    ),
}
"""Name → attacker, from the program's to stronger ones."""

_TEXT = (
    "Mean accuracy of the retrained models on test images of the target classes, of the other "
    "classes and of all: after the last epoch, and in the best epoch by these very images, which "
    "the program reports, of each figure for itself. `untrained`: on the targets before training. "
    "What NNSlicer (all), Weight, Random and Everything hide does not depend on the targets: one "
    "attack is measured on every set."
)
_FIGURES = ("targets", "others", "all")
_BATCH = 250
_KEYS = ("attacker", "method", "budget", "targets_of")


def protect_by_program(s: ProgramProtectionSettings) -> ExperimentResult:
    """Hide synapses, let the program's attackers retrain, and measure their accuracy."""
    chosen = s.method or list(METHODS)
    for name in chosen:
        check_name("method", name, METHODS)
    task = load_task(s, PROGRAM)
    store = RowStore(task.folder / f"program-attacks-{s.share}-{task.sets}.csv", _KEYS)
    task = replace(task, subsets=task.subsets[: s.first or None])
    # A row for every method, budget and set; rows are saved as they finish.
    names = []
    hidden = _hidden(task, s)
    victims = task.im.logits(task.train.x)
    budgets = s.budget or [10_000]
    jobs = [
        (method, budget, sets)
        for method, budget in itertools.product(chosen, budgets)
        for sets in _measured_together(method, task.subsets)
    ]
    for method, budget, sets in track(jobs, "Attacks"):
        row = {"attacker": s.attacker, "method": method, "budget": budget}
        named = [{**row, "targets_of": set_name(targets)} for targets in sets]
        names += named
        if all(name in store for name in named):
            continue
        order = np.random.default_rng(s.seed).permutation(len(victims))[:budget]
        attacker, _ = ATTACKERS[s.attacker]
        masks = hidden[method](sets[0])
        x, y = task.train.x[order], attacker.labels(victims[order])
        stages = attacker.retrain(task.im.model, masks, x, y, s.seed)
        figures = _figures(task, sets, stages)
        store.add(name | found for name, found in zip(named, figures, strict=True))
    rows = store.to_frame(names)
    rows["budget"] = pd.to_numeric(rows["budget"])  # stored rows are read as text
    found = rows.groupby(["attacker", "method", "budget"], sort=False)
    figures = [c for c in rows if c not in _KEYS]
    table = found[figures].mean()
    table["targets ±"] = found["targets"].std(ddof=0)
    table["sets"] = found.size()
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} images of each class to rank by, {len(task.measured):,} test "
        "images",
        "attacks": f"{s.share:.0%} of each layer hidden",
        "attackers": f"{ATTACKERS[s.attacker][1]}; {ATTACKERS[s.attacker][0]}",
        "sets": ", ".join(map(set_name, task.subsets)),
        "seed": s.seed,
    }
    ending = s.attacker.replace(" ", "-")
    title = "Selective protection by the program's procedure (Figure 5)"
    budgets = "".join(f"-{budget}" for budget in s.budget or [])
    name = f"protection-{s.model_name}-{ending}-{task.sets}{budgets}"
    table = table.reset_index()
    return ExperimentResult(
        [ExperimentTable(name, table, title, head, _TEXT)], [ExperimentFigure(name, plot(table))]
    )


def _measured_together(method: str, subsets: Sequence[Targets]) -> list[list[Targets]]:
    """Return the sets of targets, grouped by the attack on which they are measured."""
    targeted = method in ("NNSlicer", "EffectivePath")
    return [[targets] for targets in subsets] if targeted else [list(subsets)]


def _figures(task: TargetTask, sets: list[Targets], stages: Iterator) -> list[dict[str, float]]:
    """Return the metrics of each set: for the last epoch, the best one, and before training."""
    epochs = [_logits(stolen, task.measured.x) for stolen in stages]
    found = []
    for targets in sets:
        table = pd.DataFrame([subset_figures(e, task.measured.y, targets) for e in epochs])
        best = {f"best {name}": table[name].max() for name in _FIGURES}
        last = {name: table[name].iloc[-1] for name in _FIGURES}
        found.append({**last, **best, "untrained": table["targets"].iloc[0]})
    return found


def _logits(model: keras.Model, x: np.ndarray) -> np.ndarray:
    parts = [model.predict_on_batch(x[i : i + _BATCH]) for i in range(0, len(x), _BATCH)]
    return np.concatenate(parts)


def _hidden(
    task: TargetTask, s: ProgramProtectionSettings
) -> dict[str, Callable[[Targets], Masks]]:
    """Return method → function that returns what it hides for target classes."""
    slices, paths = task.ranked["slices"], task.ranked["paths"]
    weight = pruning.scores(task.im, "weight")
    shapes = {name: kernel.shape for name, kernel in task.im.kernels.items()}
    found = (
        lambda targets: protection.select(slices.total(targets), s.share),
        lambda targets: protection.select(paths.total(targets), s.share),
        lambda targets: protection.select(slices.total(), s.share),
        lambda targets: protection.select(weight, s.share),
        lambda targets: _with_replacement(shapes, s.share, s.seed),
        lambda targets: {name: np.ones(shape, bool) for name, shape in shapes.items()},
    )
    return dict(zip(METHODS, found, strict=True))


def _with_replacement(shapes: dict[str, tuple[int, ...]], share: float, seed: int) -> Masks:
    """Return random synapses, drawn with replacement as in the program: half hides 39 %."""
    rng = np.random.default_rng(seed)
    masks = {}
    for name, shape in shapes.items():
        mask = np.zeros(int(np.prod(shape)), bool)
        mask[rng.integers(mask.size, size=int(mask.size * share))] = True
        masks[name] = mask.reshape(shape)
    return masks
