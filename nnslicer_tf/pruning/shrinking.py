"""`shrink`: a physically smaller model for the answers that are needed (ours, not the paper's).

1. Units and filters are scored by their contributions to the outputs, or by any ranker.
2. The least important are removed from every layer, until enough parameters are gone.
3. The head keeps only the wanted classes, or these and "other".
4. `reconstruct` fits the rest of each layer to the outputs of the whole layer; if requested, the
model is then trained to imitate the original.

Cost: slices of a few hundred samples, two forward passes and a linear system for each layer.
"""

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_generator, check_count, check_number, is_int
from nnslicer_tf._environment import without_retracing_warnings
from nnslicer_tf._files import as_path, atomic_path
from nnslicer_tf._numerics import OutputClasses
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, MissingPackageError, UnsupportedLayerError
from nnslicer_tf.instrument import DataLike, InstrumentedModel, ModelLike, instrumented
from nnslicer_tf.instrument.ablated_network import maskable
from nnslicer_tf.instrument.copies import check_copyable
from nnslicer_tf.instrument.outputs import check_classes
from nnslicer_tf.pruning.channels import ChannelGraph
from nnslicer_tf.pruning.costs import Costs, to_litert
from nnslicer_tf.pruning.fine_tuning import imitate
from nnslicer_tf.pruning.groups import channel_groups
from nnslicer_tf.pruning.quotas import families_of, remaining_groups, unit_scores
from nnslicer_tf.pruning.rankers import NNSlicerRanker, Ranker, scores, times_weight
from nnslicer_tf.pruning.reconstruction import reconstruct
from nnslicer_tf.pruning.removal import without_groups

CONTRIBUTIONS = "contributions"
MAX_SCORED = 200  # samples of each class that are sliced
MAX_FITTED = 4_000  # samples to which layers are fitted
_COSTS = {
    "parameters": "parameters",
    "multiply-adds": "multiply_adds",
    "Keras, ms": "keras_ms",
    "LiteRT, ms": "litert_ms",
    "LiteRT file, bytes": "file_bytes",
}


@dataclass(frozen=True, eq=False, repr=False)
class Shrunk(ShownAsTable):
    """A smaller model, with its costs and quality compared to the original.

    Attributes:
        model: The smaller model, made of ordinary Keras layers: it loads without this package.
        whole: The original, with the smaller model's outputs.
        classes: The classes of its outputs, in order; a last one may represent all others; or none.
        other: Whether its last output represents all other classes.
        before: Costs of the original; latencies and file sizes are measured when they are read.
        after: Costs of the smaller model.
        quality: Name of a figure → its value for the original and for the smaller model on the test
            samples: "accuracy"; of maps also "mean IoU" and "IoU of class …"; of numbers "R²" and
            "RMSE"; of several outputs after their name, as in "depth: R²". Where only some classes
            are wanted, the others (or positions of others) are left out, and cannot be predicted.
    """

    model: keras.Model
    whole: keras.Model
    classes: tuple[int, ...]
    other: bool
    before: Costs
    after: Costs
    quality: dict[str, tuple[float, float]]

    @property
    def accuracy(self) -> tuple[float, float]:
        """The accuracy in `quality`; NaN if there is none."""
        return self.quality.get("accuracy", (float("nan"), float("nan")))

    def to_frame(self) -> pd.DataFrame:
        """Return costs and quality before and after, and the remaining share of each cost."""
        rows = []
        for label, name in _COSTS.items():
            before, after = (getattr(costs, name) for costs in (self.before, self.after))
            rows.append((label, before, after, after / before if before else float("nan")))
        rows += [(name, *values, float("nan")) for name, values in self.quality.items()]
        return pd.DataFrame(rows, columns=["what", "before", "after", "left"])

    def save(self, path: str | os.PathLike) -> None:
        """Write the model to a .keras, .tflite or .onnx file, or to a folder (SavedModel).

        A file is written completely or not at all. Raises InvalidArgumentError for a different
        ending, or if nothing can be written there, MissingPackageError if Keras needs a package
        for the format, and UnsupportedLayerError if Keras cannot write this format here.
        """
        path = as_path(path)
        if path.suffix not in (".keras", ".tflite", ".onnx", ""):
            raise InvalidArgumentError(
                "A model can be written as .keras, .tflite or .onnx, or as a folder without an "
                f"ending (SavedModel). Received: '{path}'"
            )
        if not path.suffix and path.exists() and not path.is_dir():
            raise InvalidArgumentError(
                f"Cannot write to '{path}': it is no folder. Remove it, or give an ending."
            )
        try:
            if not path.suffix:
                self.model.export(path, verbose=False)
                return
            with atomic_path(path) as temporary:
                if path.suffix == ".tflite":
                    temporary.write_bytes(to_litert(self.model))
                elif path.suffix == ".keras":
                    self.model.save(temporary)
                else:
                    self.model.export(temporary, format="onnx", verbose=False)
        except ImportError as error:
            raise MissingPackageError(
                f"Keras writes '{path}' with other packages: {error}. Install them: "
                "pip install tf2onnx onnx"
            ) from error
        except InvalidArgumentError:
            raise
        except (ValueError, RuntimeError) as error:
            raise UnsupportedLayerError(f"Keras cannot write '{path}' here: {error}") from error

    def __repr__(self) -> str:
        left = self.after.parameters / self.before.parameters
        classes = f"classes {', '.join(map(str, self.classes))}{' and other' * self.other}, "
        name, (before, after) = next(iter(self.quality.items()))
        form = ".3f" if name.endswith("R²") else ".1%"
        return (
            f"Shrunk({classes if self.classes else ''}{left:.1%} of {self.before.parameters:,} "
            f"parameters, {name} {before:{form}} before, {after:{form}} after)"
        )


@without_retracing_warnings()
def shrink(
    model: ModelLike,
    x: DataLike,
    y: Any = None,
    *,
    classes: Iterable[int] | None = None,
    ratio: float = 0.75,
    by: str | Ranker = CONTRIBUTIONS,
    other: bool = False,
    epochs: int = 0,
    test: DataLike | None = None,
    rng: int | np.random.Generator = 0,
    progress: bool = True,
) -> Shrunk:
    """Return a smaller model, perhaps for some classes only.

    Args:
        model: A classifier (one sigmoid counts as two classes), a segmentation, a regression, an
            autoencoder, or a model with several outputs of these kinds.
        x: Training samples, in any form of `DataLike`.
        y: The right answers: classes, of maps at each position, or numbers; for several outputs a
            dict by name. None if `x` has them.
        classes: The classes of a single output that are needed, at least two, or one if `other`; by
            default all outputs stay as they are.
        ratio: Share of the parameters to remove, 0 < ratio < 1.
        by: "contributions" (to the outputs, times the weights), a method of `scores`, or a ranker.
        other: Add an output for all other classes. The model then outputs probabilities.
        epochs: Number of epochs of imitating the original after the fit; 0 for none.
        test: Labelled samples, such as a pair (x, y), for the quality; by default `x` and `y`,
            whose quality says little about new samples.
        rng: Draws the samples to use and the order of training.
        progress: Show progress bars.

    Raises InvalidArgumentError for arguments out of range, or if so many cannot be removed;
    UnsupportedLayerError if no unit of the model can be removed; InputShapeError or
    NonFiniteActivationError for bad samples.
    """
    im = maskable(instrumented(model, x)).named_by(x, test)
    check_copyable(im.functional)
    targets = _check(im, classes, ratio, other)
    x, y = im.labelled(x, y, by_output=True)
    test_x, test_y = (x, y) if test is None else im.labelled(test, by_output=True)
    if len(im.output_names) > 1 and not isinstance(y, Mapping):
        raise InvalidArgumentError(
            f"'{im.model.name}' has several outputs: {', '.join(im.output_names)}. Pass y as a "
            "dict by name, or choose one output: keras.Model(model.inputs, model.outputs[0])."
        )
    truth, test_truth = (
        part if isinstance(part, Mapping) else {im.output_names[0]: part} for part in (y, test_y)
    )
    generator = as_generator(rng)
    check_count("epochs", epochs, 0)
    used = np.arange(len(x))
    if targets:
        check_classes(im, y, targets)
        if not other:
            used = np.flatnonzero(np.isin(y, targets).reshape(len(x), -1).any(axis=1))
        if not other and not np.isin(test_y, targets).any():
            raise InvalidArgumentError(f"The test samples have none of the classes {targets}.")
    used = generator.permutation(used)
    x, truth = x[used], {name: part[used] for name, part in truth.items()}

    # Groups of channels, without outputs of classes that are not needed; one sigmoid has both.
    head = None if other or not targets or im.classes.is_binary else targets
    groups = channel_groups(ChannelGraph(im), head)
    first = np.ones(len(groups.fixed), bool)
    if head is not None:
        outputs = groups.of[im.logit_operation]
        first[outputs] = False
        first[outputs[head]] = True
    for operation in im.operations:
        if not first[groups.of[operation.name]].any():
            raise UnsupportedLayerError(
                f"Layer '{operation.layer}' computes only classes that are not needed, so no unit "
                "of it would be left. Remove it: keras.Model(inputs, the other outputs)."
            )
    families = families_of(im, groups, first)
    if not (families >= 0).any():
        raise UnsupportedLayerError(
            f"No unit of '{im.model.name}' can be removed: all channels are next to layers that "
            "cannot be rebuilt for fewer of them, such as own layers. Write these as a function "
            "of layers, or as a Keras model."
        )

    rows: list[np.ndarray] = []
    for name, part in truth.items():
        is_number = im.classes_of(name).is_number
        for target in [0] if is_number else targets or np.unique(part):
            of_target = (part == target).reshape(len(x), -1).any(axis=1) | is_number
            rows.append(np.flatnonzero(of_target)[:MAX_SCORED])
    scored = np.array(list(dict.fromkeys(np.concatenate(rows).tolist())))
    how: str | Ranker = by
    if by == CONTRIBUTIONS:  # at θ = 0, all samples are walked at once on the backend
        how = NNSlicerRanker(theta=0.0, collect="magnitudes", progress=progress, correct_only=False)
    labels = {name: part[scored] for name, part in truth.items()}
    of_one = labels if len(im.output_names) > 1 else labels[im.output_names[0]]
    synapses = scores(im, how, x[scored], of_one, targets or None)
    if by == CONTRIBUTIONS:
        synapses = times_weight(im, synapses)
    stays = remaining_groups(im, groups, first, families, unit_scores(im, groups, synapses), ratio)

    small = without_groups(im, groups, stays)
    kept = {name: stays[numbers] for name, numbers in groups.of.items()}
    reconstruct(im, small, kept, x[:MAX_FITTED], generator, progress)
    whole = without_groups(im, groups, first)
    if other:
        small, whole = (_with_other(one, im.classes, targets) for one in (small, whole))
    if epochs:
        # Adam, with a learning rate that falls to zero.
        batch = min(128, len(x))
        rate = keras.optimizers.schedules.CosineDecay(1e-3, epochs * (len(x) // batch))
        options: Any = {"learning_rate": rate, "batch_size": batch, "rng": generator}
        imitate(small, whole, x, epochs, progress=progress, **options)

    quality: dict[str, tuple[float, float]] = {}
    outputs = keras.tree.flatten(small.predict(test_x, batch_size=256, verbose=0))
    of_small = dict(zip(im.output_names, outputs, strict=True))
    for name, right in test_truth.items():
        kind, before, after = im.classes_of(name), im.predict(test_x, output=name), of_small[name]
        if other:
            right = _places(right, targets)
            both = [_places(kind.from_outputs(before), targets), after.argmax(axis=1)]
        elif head is None:
            both = [kind.answers(values) for values in (before, after)]
        else:  # only where one of the wanted classes is right
            wanted = np.isin(right, head)
            right, of_head = right[wanted], (kind.by_class(before)[..., head], after)
            both = [np.take(head, values.argmax(axis=-1))[wanted] for values in of_head]
        prefix = f"{name}: " if len(im.output_names) > 1 else ""
        figures = kind.both_qualities(both, right)
        quality |= {prefix + figure: values for figure, values in figures.items()}
    costs = Costs(im, x[0]), Costs(small, x[0])
    return Shrunk(small, whole, tuple(targets), other, *costs, quality)


def _check(
    im: InstrumentedModel, classes: Iterable[int] | None, ratio: float, other: bool
) -> list[int]:
    """Return the classes that are needed, in order; [] for all, or for numbers."""
    check_number("ratio", ratio, "(0, 1)")
    kind = im.classes
    if classes is None and not other:
        return []
    if kind.is_number or len(im.output_names) > 1 or kind.axis != -1 or (other and kind.is_map):
        raise InvalidArgumentError(
            "`classes` chooses among the classes of a model with one output, on its last axis, and "
            "`other` needs one class for a sample. To shrink a model of maps, numbers or several "
            f"outputs, omit them. {kind.remark}"
        )
    if not isinstance(classes, Iterable) or not all(map(is_int, classes)):
        raise InvalidArgumentError(f"classes must be integers, as in [0, 3]. Received: {classes!r}")
    targets = sorted(set(classes))
    if other and im.classes.is_multi_label:
        raise InvalidArgumentError(
            "other=True needs classes that exclude each other; this model has a sigmoid for each. "
            "Leave `other` out: the outputs of the other classes are then removed."
        )
    if len(targets) + other < 2:
        raise InvalidArgumentError(
            f"A classifier needs two classes, or one and other=True (--other). Received: {targets}"
        )
    return targets


def _with_other(model: keras.Model, kind: OutputClasses, classes: list[int]) -> keras.Model:
    """Return a model that outputs probabilities of the classes, and of all others together."""
    outputs = model.outputs[0]
    functions = {"": "sigmoid" if kind.is_binary else "softmax", "log_softmax": "exponential"}
    if kind.final in functions:
        outputs = keras.layers.Activation(functions[kind.final], name="probabilities")(outputs)
    sums = np.zeros((kind.count, len(classes) + 1), np.float32)
    sums[np.arange(len(sums)), _places(np.arange(len(sums)), classes)] = 1
    bias = np.zeros(sums.shape[1:], np.float32)
    if kind.is_binary:  # the sigmoid p stands for the probabilities 1 − p and p
        bias, sums = sums[0], sums[1:] - sums[:1]
    add = keras.layers.Dense(
        sums.shape[1], use_bias=kind.is_binary, trainable=False, name="with_other"
    )
    joined = keras.Model(model.inputs, add(outputs), name=model.name)
    add.set_weights([sums, bias] if kind.is_binary else [sums])
    return joined


def _places(y: np.ndarray, classes: list[int]) -> np.ndarray:
    """Return the output index of each sample's class: its place in `classes`, or the last."""
    return np.where(np.isin(y, classes), np.searchsorted(classes, y), len(classes))
