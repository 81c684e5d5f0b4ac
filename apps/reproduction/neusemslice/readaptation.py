"""Re-adaptation to adversarial samples (section 5.4, table 6)."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import keras
import numpy as np

from nnslicer_tf.detection.attacks import AttackSpec, generate
from nnslicer_tf.semantic import parameter_share, train_neurons
from nnslicer_tf.zoo import accuracy
from reproduction.neusemslice.settings import OURS, MaintenanceSettings
from reproduction.neusemslice.slices import all_neurons, redundant, slices_of_one_size
from reproduction.neusemslice.tables import means_result
from reproduction.neusemslice.trial import Repeats, Trial
from reproduction.result import ExperimentResult

# Held-out accuracy that slices alone may lose; the paper's lose about so much for this share
# of trained parameters.
_LOSS = 0.04
_REDUNDANT = 0.95  # above which DeepArc leaves a layer as it is


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
    used = {
        "epsilon": round(epsilon, 4),
        "adaptation": f"10 epochs of Adam on {attacked} attacked images and their originals",
    }
    title = "Re-adaptation to adversarial samples"
    return means_result(repeats, rows, 6, title, ["RA", "RAA", "clean"], pairs, used)


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
    epochs: int = 10,
    attacked: int = 1_000,
    methods: Sequence[str] | None = None,
) -> Iterator[dict]:
    """Yield the accuracies after training on samples and their adversarial versions.

    Held-out samples, at most half of them, are attacked to train on, and as many others after the
    training. Attacks are bounded by `epsilon` in the maximum norm, of values in [0, 1].

    Yields:
        attack, method, TPR (share of parameters trained), RA (accuracy on the samples trained
        on), RAA (accuracy when attacked again), clean (test accuracy), and the accuracies
        when attacked before.
    """
    count = min(attacked, len(trial.held_out) // 2)
    x, y = trial.held_out.x[:count], trial.held_out.y[:count]
    again_x, again_y = trial.held_out.x[count : 2 * count], trial.held_out.y[count : 2 * count]
    trained_neurons = _trained_neurons(trial, metric)
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
            yield {
                "attack": attack.name,
                "method": method,
                "TPR": parameter_share(trial.model, neurons),
                "RA": accuracy(trained, learned),
                "RAA": accuracy(trained, replace(trial.held_out, x=again, y=again_y)),
                "clean": accuracy(trained, trial.test),
                "attacked before": before,
            }


def _trained_neurons(trial: Trial, metric: str) -> dict[str, dict[str, np.ndarray]]:
    """Return the neurons that each method trains."""
    whole = all_neurons(trial.model)
    unneeded = redundant(trial, _REDUNDANT)
    methods = {
        "Fully Training": whole,
        "DeepArc": {name: mask for name, mask in whole.items() if name not in unneeded},
    }
    for way, critical in slices_of_one_size(trial, metric, _LOSS).items():
        methods[way] = whole | dict(critical)
    for way in OURS:
        methods[f"{way}+DeepArc"] = {
            name: mask for name, mask in methods[way].items() if name not in unneeded
        }
    return methods


def _attacked(
    model: keras.Model, attack: AttackSpec, x: np.ndarray, y: np.ndarray, seed: int
) -> np.ndarray:
    return generate(model, attack, x, y, rng=seed, batch_size=250, progress=False).x
