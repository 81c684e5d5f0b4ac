"""Adversarial examples of the paper's attacks, for the experiments on detection."""

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import keras
import numpy as np

from nnslicer_tf._checks import check_name
from nnslicer_tf.detection.attacks import ATTACKS, MNIST_ATTACKS, AttackSpec, generate
from nnslicer_tf.detection.attacks.generation import AdversarialExamples
from reproduction.nnslicer.settings import split_names


def attacks_on(dataset: str, names: str = "") -> list[AttackSpec]:
    """Return attacks by their names, separated by commas; by default all of a data set.

    Raises:
        InvalidArgumentError: for an unknown name.
    """
    table = ATTACKS if dataset == "cifar10" else MNIST_ATTACKS
    chosen = split_names(names)
    for name in chosen:
        check_name("attack", name, table)
    return [table[name] for name in chosen or table]


def examples(
    model: keras.Model,
    attacks: Iterable[AttackSpec],
    x: np.ndarray,
    y: np.ndarray,
    work: Path,
    **options: Any,
) -> Iterator[tuple[AttackSpec, AdversarialExamples]]:
    """Yield each attack and its examples; print its number of successes."""
    for attack in attacks:
        made = generate(model, attack, x, y, cache=work / "examples", **options)
        print(f"{attack.name}: {made.success.sum()} of {len(x)} mislead the model", flush=True)
        yield attack, made
