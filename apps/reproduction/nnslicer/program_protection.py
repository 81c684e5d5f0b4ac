"""Selective protection by the procedure of the paper's program (Figure 5), and its attackers.

Unlike `nnslicer_tf.protection.Attacker`, the program's retrains a model whose hidden weights start
from zeros. It trains only the stem and the 3×3 convolutions, by plain gradient descent, on the
victim's own predictions, and its loss applies a softmax to outputs that already went through one,
which makes the gradients small.
"""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from scipy.special import softmax

from nnslicer_tf import protection, pruning
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import subset_figures
from nnslicer_tf._training import train_epoch
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from reproduction.nnslicer.program import PROGRAM
from reproduction.nnslicer.protection import plot
from reproduction.nnslicer.settings import ProgramProtectionSettings
from reproduction.nnslicer.targets import Targets, load_task, set_name, summary
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

Masks = Mapping[str, np.ndarray]


@dataclass(frozen=True)
class ProgramAttacker:
    """Retrains a model whose hidden weights are zero."""

    epochs: int = 10
    learning_rate: float = 5e-3
    momentum: float = 0.5  # Adam has none
    decay: float = 5e-4  # weight decay, added to the gradients
    batch_size: int = 256
    softmax_twice: bool = True  # the loss takes the softmax of probabilities
    trains_all: bool = False  # otherwise only convolutions wider than 1×1 are trained
    adam: bool = False  # otherwise gradient descent
    distils: bool = False  # learn the victim's probabilities, otherwise its classes

    def labels(self, logits: np.ndarray) -> np.ndarray:
        """Return the labels to learn from the victim's logits: classes, or probabilities."""
        return softmax(logits, axis=1) if self.distils else logits.argmax(axis=1)

    def retrain(
        self, model: keras.Model, hidden: Masks, x: np.ndarray, y: np.ndarray, rng: int
    ) -> Iterator[keras.Model]:
        """Yield the stolen model before training, and after each epoch; see `labels` for `y`."""
        stolen = zeroed(model, hidden)
        variables = self.trained(stolen)
        optimizer = keras.optimizers.SGD(self.learning_rate, momentum=self.momentum)
        if self.adam:
            optimizer = keras.optimizers.Adam(self.learning_rate)
        optimizer.build(variables)
        losses = tf.nn.sparse_softmax_cross_entropy_with_logits
        if self.distils:
            losses = tf.nn.softmax_cross_entropy_with_logits

        @tf.function(reduce_retracing=True, autograph=False)
        def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
            with tf.GradientTape() as tape:
                # Normalisations use the statistics of the batch, whatever is trained.
                outputs = stolen(x, training=True)
                if self.softmax_twice:
                    outputs = tf.nn.softmax(outputs)
                loss = tf.reduce_mean(losses(y, outputs))
            gradients = tape.gradient(loss, [v.value for v in variables])
            decayed = [g + self.decay * v for g, v in zip(gradients, variables, strict=True)]
            optimizer.apply(decayed, variables)
            return loss

        def loss_of(rows: np.ndarray, _: object) -> float:
            return float(step(x[rows], y[rows]))

        generator = np.random.default_rng(rng)
        yield stolen
        for _ in range(self.epochs):
            train_epoch(loss_of, len(x), self.batch_size, generator, progress=False)
            yield stolen

    def trained(self, model: keras.Model) -> list[keras.Variable]:
        """Return the weights to train."""
        if self.trains_all:
            return list(model.trainable_variables)
        kernels = (layer.kernel for layer in model.layers if isinstance(layer, keras.layers.Conv2D))
        return [kernel for kernel in kernels if kernel.shape[0] > 1]


def zeroed(model: keras.Model, hidden: Masks) -> keras.Model:
    """Return a copy whose hidden weights are zero."""
    copy = copy_model(model)
    kernels = InstrumentedModel(copy).kernels
    for name, mask in hidden.items():
        kernels[name].variable().assign(np.where(mask, 0, kernels[name].kernel()))
    return copy


METHODS = ("NNSlicer", "EffectivePath", "NNSlicer (all)", "Weight", "Random", "Everything")
_TARGETED = ("NNSlicer", "EffectivePath")
_STRONG = {"softmax_twice": False, "trains_all": True}
ATTACKERS = {
    "program": (ProgramAttacker(), "as in the program"),
    "one softmax": (ProgramAttacker(softmax_twice=False), "whose loss has one softmax"),
    "all weights": (
        ProgramAttacker(**_STRONG),
        "whose loss has one softmax, and who train all weights",
    ),
    "distillation": (
        ProgramAttacker(learning_rate=1e-3, decay=0.0, adam=True, distils=True, **_STRONG),
        "who train all weights by Adam on the victim's probabilities",
    ),
}
"""Name → attacker, from the program's to stronger ones."""

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
        masks = {name: np.ones(shape, bool) for name, shape in shapes.items()}
        if method == "Everything":
            return masks
        if method == "Random":  # drawn with replacement as in the program: half hides 39 %
            rng = np.random.default_rng(s.seed)
            for name, mask in masks.items():
                drawn = rng.integers(mask.size, size=int(mask.size * s.share))
                masks[name] = np.isin(np.arange(mask.size), drawn).reshape(mask.shape)
            return masks
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
        batches = np.split(task.measured.x, range(_BATCH, len(task.measured), _BATCH))
        epochs = [  # before, and after each
            np.concatenate([stolen.predict_on_batch(x) for x in batches]) for stolen in stages
        ]
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
    images = len(task.measured)
    head = {
        "model": f"{s.model_name} on {s.dataset}",
        "samples": f"{s.samples} images of each class to rank by, {images:,} test images",
        "attacks": f"{s.share:.0%} of each layer hidden",
        "attackers": f"{said}; {attacker}",
        "sets": ", ".join(map(set_name, subsets)),
        "seed": s.seed,
    }
    sets = f"{s.size}x{len(subsets)}"
    budgets = "".join(f"-{budget}" for budget in s.budget or [])
    name = f"protection-{s.model_name}-{s.attacker.replace(' ', '-')}-{sets}{budgets}"
    title = "Selective protection by the program's procedure (Figure 5)"
    tables = [ExperimentTable(name, table, title, head, note("program_protection"))]
    return ExperimentResult(tables, [ExperimentFigure(name, plot(table))])
