"""Selective protection by the procedure of the paper's program (Figure 5)."""

import itertools

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
from reproduction.nnslicer.targets import Targets, load_task, set_name, summary
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable
from reproduction.rows import RowStore

Masks = dict[str, np.ndarray]

METHODS = ("NNSlicer", "EffectivePath", "NNSlicer (all)", "Weight", "Random", "Everything")
_TARGETED = ("NNSlicer", "EffectivePath")
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
_BATCH = 250
_KEYS = ("attacker", "method", "budget", "targets_of")


def protect_by_program(s: ProgramProtectionSettings) -> ExperimentResult:
    """Hide synapses, let the program's attackers retrain, and measure their accuracy."""
    chosen = s.method or list(METHODS)
    for name in chosen:
        check_name("method", name, METHODS)
    task = load_task(s, PROGRAM)
    store = RowStore(task.folder / f"program-attacks-{s.share}-{task.sets}.csv", _KEYS)
    subsets = task.subsets[: s.first or None]
    slices, paths = task.ranked["slices"], task.ranked["paths"]
    shapes = {name: kernel.shape for name, kernel in task.im.kernels.items()}
    victims = task.im.logits(task.train.x)
    attacker, said = ATTACKERS[s.attacker]

    def hidden(method: str, targets: Targets) -> Masks:
        """Return what a method hides for target classes."""
        if method == "Everything":
            return {name: np.ones(shape, bool) for name, shape in shapes.items()}
        if method == "Random":
            return _with_replacement(shapes, s.share, s.seed)
        if method == "Weight":
            return protection.select(pruning.scores(task.im, "weight"), s.share)
        scores = paths if method == "EffectivePath" else slices
        total = scores.total() if method == "NNSlicer (all)" else scores.total(targets)
        return protection.select(total, s.share)

    # A row for every method, budget and set; rows are saved as they finish. What does not depend
    # on the targets is attacked once, and measured on every set.
    jobs = [
        (method, budget, sets)
        for method, budget in itertools.product(chosen, s.budget or [10_000])
        for sets in ([[t] for t in subsets] if method in _TARGETED else [subsets])
    ]
    names = []
    for method, budget, sets in track(jobs, "Attacks"):
        row = {"attacker": s.attacker, "method": method, "budget": budget}
        named = [{**row, "targets_of": set_name(targets)} for targets in sets]
        names += named
        if all(name in store for name in named):
            continue
        order = np.random.default_rng(s.seed).permutation(len(victims))[:budget]
        x, y = task.train.x[order], attacker.labels(victims[order])
        stages = attacker.retrain(task.im.model, hidden(method, sets[0]), x, y, s.seed)
        epochs = [_logits(stolen, task.measured.x) for stolen in stages]  # before, and after each
        for name, targets in zip(named, sets, strict=True):
            table = pd.DataFrame([subset_figures(e, task.measured.y, targets) for e in epochs])
            figures = table[["targets", "others", "all"]]
            best = figures.max().add_prefix("best ")
            untrained = {"untrained": table["targets"].iloc[0]}
            store.add([name | figures.iloc[-1].to_dict() | best.to_dict() | untrained])
    rows = store.to_frame(names)
    groups = ["attacker", "method", "budget"]
    table = summary(rows, groups, [c for c in rows if c not in _KEYS])
    table["sets"] = rows.groupby(groups, sort=False).size().to_numpy()
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} images of each class to rank by, {len(task.measured):,} test "
        "images",
        "attacks": f"{s.share:.0%} of each layer hidden",
        "attackers": f"{said}; {attacker}",
        "sets": ", ".join(map(set_name, subsets)),
        "seed": s.seed,
    }
    sets = f"{s.size}x{len(subsets)}"
    budgets = "".join(f"-{budget}" for budget in s.budget or [])
    name = f"protection-{s.model_name}-{s.attacker.replace(' ', '-')}-{sets}{budgets}"
    title = "Selective protection by the program's procedure (Figure 5)"
    return ExperimentResult(
        [ExperimentTable(name, table, title, head, _TEXT)], [ExperimentFigure(name, plot(table))]
    )


def _logits(model: keras.Model, x: np.ndarray) -> np.ndarray:
    parts = [model.predict_on_batch(x[i : i + _BATCH]) for i in range(0, len(x), _BATCH)]
    return np.concatenate(parts)


def _with_replacement(shapes: dict[str, tuple[int, ...]], share: float, seed: int) -> Masks:
    """Return random synapses, drawn with replacement as in the program: half hides 39 %."""
    rng = np.random.default_rng(seed)
    masks = {}
    for name, shape in shapes.items():
        mask = np.zeros(int(np.prod(shape)), bool)
        mask[rng.integers(mask.size, size=int(mask.size * share))] = True
        masks[name] = mask.reshape(shape)
    return masks
