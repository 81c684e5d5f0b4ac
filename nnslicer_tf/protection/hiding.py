"""Hiding the synapses that classes need, and attackers who train them again (NNSlicer, 6.3)."""

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_generator, check_name, check_number, is_int
from nnslicer_tf._numerics import subset_figures
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import DataLike, ModelLike, instrumented
from nnslicer_tf.instrument.ablated_models import check_masks
from nnslicer_tf.instrument.copies import copy_model
from nnslicer_tf.instrument.outputs import check_classes, check_classifier
from nnslicer_tf.pruning import keep_masks
from nnslicer_tf.pruning.fine_tuning import fine_tune
from nnslicer_tf.pruning.masks import kernel_layers

_TRAINED = ("all", "hidden", "known")


def select(scores: Mapping[str, np.ndarray], share: float) -> dict[str, np.ndarray]:
    """Return the synapses to hide, those with the largest |score| in every kernel, as masks.

    Args:
        scores: Kernel name → scores of its shape, as from `pruning.scores` for the target classes.
        share: The budget: share of every kernel's synapses to hide, 0 < share ≤ 1.

    Returns kernel name → bool array of the kernel's shape; raises InvalidArgumentError if the share
    is out of range, or scores are NaN.
    """
    check_number("share", share, "(0, 1]")
    return keep_masks(scores, 1 - share)


def hide(
    model: ModelLike, hidden: Mapping[str, np.ndarray], rng: int | np.random.Generator = 0
) -> keras.Model:
    """Return a copy of the model with new random values for the hidden weights.

    The attacker gets this model, an ordinary Keras model. The layers' initializers draw the new
    values; all others are equal. `hidden` maps names of kernels to bool arrays, as from `select`.

    Raises InvalidArgumentError if there is no such kernel, or its shape is different.
    """
    generator = as_generator(rng)
    original = instrumented(model)
    hidden = check_masks(original, hidden)
    copy = copy_model(original.model)
    im = original.like(copy)
    owners = kernel_layers(im)
    for name, mask in hidden.items():
        kernel, (layer, slot) = im.kernels[name], owners[name]
        seed = int(generator.integers(2**31))
        attribute = (slot or "kernel_constraint").replace("constraint", "initializer")
        initializer = getattr(layer, attribute, None)
        if initializer is None or "seed" not in initializer.get_config():  # not a random one
            initializer = keras.initializers.GlorotUniform(seed)
        else:
            initializer = type(initializer).from_config({**initializer.get_config(), "seed": seed})
        fresh = keras.ops.convert_to_numpy(initializer(kernel.shape))
        kernel.variable().assign(np.where(mask, fresh, kernel.kernel()))
    return copy


@dataclass(frozen=True)
class Attacker:
    """An attacker who knows a model except its hidden weights, and trains it.

    Attributes:
        epochs: Number of passes over the samples.
        learning_rate: Learning rate of Adam.
        batch_size: Samples per step.
        trains: The weights to train: "all", only "hidden" or only "known" (the paper does not say
            which). Moving statistics of batch normalisations are always updated.
        progress: Show progress bars.

    Raises InvalidArgumentError if `trains` has another value.
    """

    epochs: int = 5
    learning_rate: float = 1e-3
    batch_size: int = 128
    trains: str = "all"
    progress: bool = True

    def __post_init__(self) -> None:
        check_name("set of weights", self.trains, _TRAINED)

    def retrain(
        self,
        stolen: ModelLike,
        hidden: Mapping[str, np.ndarray],
        x: np.ndarray,
        y: np.ndarray,
        rng: int | np.random.Generator = 0,
    ) -> keras.Model:
        """Train a stolen model in place, and return the Keras model.

        Args:
            stolen: A model from `hide`.
            hidden: Its hidden synapses.
            x: The attacker's samples `(samples, *input_shape)`.
            y: Their classes, `(samples,)` integers.
            rng: Draws the order of the samples.

        Raises InvalidArgumentError if samples or labels are missing, or a mask fits no kernel.
        """
        im = instrumented(stolen)
        hidden = check_masks(im, hidden)
        free = [(im.kernels[name].variable(), mask) for name, mask in hidden.items()]
        if self.trains == "known":  # hidden synapses are left out
            masks = {id(variable): mask for variable, mask in free}
            variables = im.model.trainable_variables
            free = [(v, ~masks.get(id(v), np.zeros(v.shape, bool))) for v in variables]
            for variable, known in free:
                variable.assign(np.where(known, keras.ops.convert_to_numpy(variable), 0))
        return fine_tune(
            stolen,
            x,
            y,
            self.epochs,
            learning_rate=self.learning_rate,
            batch_size=self.batch_size,
            rng=rng,
            progress=self.progress,
            from_logits=im.classes.are_logits,
            free=None if self.trains == "all" else free,
        )


def steal(
    model: ModelLike,
    hidden: Mapping[str, np.ndarray],
    train: DataLike,
    budget: int,
    attacker: Attacker | None = None,
    rng: int | np.random.Generator = 0,
) -> keras.Model:
    """Return the model that an attacker recovers from a protected one.

    Hidden weights start from random values. A larger budget includes the samples of smaller ones.

    Args:
        model: The model, with logits as output; it is not changed.
        hidden: Kernel name → bool array, the hidden synapses, as from `select`.
        train: The samples available to attackers, with their classes.
        budget: Number of these samples in this attack, drawn at random.
        attacker: The attacker; `Attacker()` by default.
        rng: Draws hidden weights, samples and their order.

    Raises InvalidArgumentError for a budget out of range, samples without classes, or invalid
    masks; SeveralInputsError if the model has several inputs.
    """
    im = instrumented(model)
    x, y = im.labelled(train)
    _check_budget(budget, len(x))
    of_samples, of_weights, of_training = map(int, as_generator(rng).integers(2**31, size=3))
    rows = np.random.default_rng(of_samples).permutation(len(x))[:budget]
    stolen = im.like(hide(im, hidden, rng=of_weights))
    return (attacker or Attacker()).retrain(stolen, hidden, x[rows], y[rows], of_training)


def simulate_attacks(
    model: ModelLike,
    hidden: Mapping[str, np.ndarray],
    train: DataLike,
    test: DataLike,
    targets: Iterable[int],
    budgets: Sequence[int] = (1_000, 5_000, 10_000),
    attacker: Attacker | None = None,
    rng: int | np.random.Generator = 0,
) -> pd.DataFrame:
    """Return the accuracies that attackers recover from a protected model, a row for each budget.

    The accuracies are those on the samples `test`: on "all", on "targets" (of the protected
    classes), on "others", and "among_targets", where only protected classes may be predicted.
    All `budgets` have the same random numbers. The other arguments are those of `steal`.

    Raises InvalidArgumentError or SeveralInputsError as `steal`, or for classes out of range.
    """
    im, budgets = instrumented(model).named_by(train, test), list(budgets)
    check_classifier(im)
    samples, (x, y) = im.labelled(train), im.labelled(test)
    targets = check_classes(im, y, targets)
    for budget in budgets:
        _check_budget(budget, len(samples[0]))
    generator, rows = as_generator(rng), []
    for budget in budgets:
        stolen = steal(im, hidden, samples, budget, attacker, copy.deepcopy(generator))
        logits = im.classes.scores(im.like(stolen).logits(x))
        rows.append({"budget": budget} | subset_figures(logits, y, targets))
    return pd.DataFrame(rows)


def _check_budget(budget: int, samples: int) -> None:
    if not is_int(budget) or not 0 < budget <= samples:
        raise InvalidArgumentError(
            f"budget must be a number of samples from 1 to {samples}. Received: {budget!r}"
        )
