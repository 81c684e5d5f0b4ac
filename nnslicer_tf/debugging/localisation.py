"""Fault localisation: score how suspicious neurons and synapses are, and mend the worst."""

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf._training import loss_of
from nnslicer_tf.debugging.evidence import METHODS, SuspicionScores, channel_scores
from nnslicer_tf.debugging.runs import Labelled, Runs
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import InstrumentedModel, Synapses
from nnslicer_tf.instrument.data import one_order
from nnslicer_tf.instrument.outputs import check_exclusive, check_synapses
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.pruning.fine_tuning import fine_tune

_LEVELS = ("channel", "neuron", "synapse", "layer")

_FACTORS = (-1.0, -0.5, 0.0, 0.125, 0.25, 0.5, 0.75, 1.0, 1.5, 2.0)

Masks = dict[str, np.ndarray]


class Suspicion(ShownAsTable):
    """Non-negative scores of how suspicious each neuron and each synapse is.

    They are magnitudes, comparable only within a method.

    Attributes:
        method: Name of the method.
        neurons: Operation name → float64 array of its shape.
        synapses: Kernel name → float64 array of its shape.
        channels: Name of an operation with kernels, or a recurrent one → `(channels,)` float64:
            magnitude of a filter's or unit's sum over positions, or mean if they do not add up.
        columns: Names of the samples' columns, if they are rows of a table.
    """

    def __init__(self, im: InstrumentedModel, method: str, scores: SuspicionScores) -> None:
        self.method, self.columns = method, im.columns
        self.neurons = {name: np.abs(values) for name, values in scores.neurons.items()}
        self.synapses = {name: np.abs(values) for name, values in scores.synapses.items()}
        sums = [o.name for o in im.operations if isinstance(o.params, (Synapses, Member))]
        channels = {name: channel_scores(scores.neurons[name], scores.add_up) for name in sums}
        self.channels = {name: np.abs(values) for name, values in channels.items()}

    def to_frame(self, level: str = "channel", most: int | None = 50) -> pd.DataFrame:
        """Return a ranking of at most `most` rows, the most suspicious first.

        The level is "channel" (filters and units), "neuron", "synapse", or "layer", by its most
        suspicious channel; others raise InvalidArgumentError.
        """
        check_name("level", level, _LEVELS)
        check_count("most", 1 if most is None else most)
        part = "channel" if level == "layer" else level
        levels = {"channel": self.channels, "neuron": self.neurons, "synapse": self.synapses}
        what, parts = "kernel" if level == "synapse" else "operation", []
        for name, values in levels[part].items():
            flat = values.ravel()
            order = np.argsort(-flat, kind="stable")[:most]
            places = [tuple(map(int, np.unravel_index(i, values.shape))) for i in order]
            column = order.tolist() if part == "channel" else places
            parts.append(pd.DataFrame({what: name, part: column, "score": flat[order]}))
        frame = pd.concat(parts).sort_values("score", ascending=False, kind="stable")
        frame = frame.drop_duplicates(what) if level == "layer" else frame
        frame = frame.iloc[:most].reset_index(drop=True)
        frame.insert(0, "rank", range(1, len(frame) + 1))
        return frame

    def __repr__(self) -> str:
        operation = max(self.channels, key=lambda name: self.channels[name].max())
        channel = int(self.channels[operation].argmax())
        return f"Suspicion({self.method}: first is channel {channel} of '{operation}')"


def suspicious(
    im: InstrumentedModel,
    failing: Labelled,
    passing: Labelled,
    method: str = "gradient",
    *,
    output: str | None = None,
    progress: bool = True,
) -> Suspicion:
    """Score neurons and synapses by how much they cause wrong outputs.

    Args:
        im: The model: a classifier, a segmentation, or a model of numbers or images.
        failing: Samples with wrong answers, and the right ones; see `Runs.of`.
        passing: Samples with good answers, and the right ones.
        method: One of `METHODS`.

            - "gradient": gradient of the wrong logit minus the right one (of maps, summed over
              wrong positions; of numbers, of the distance to the right ones), times the activation.
            - "adjustment": by how much the loss over failing and passing samples falls when a
              channel is set to its mean, mirrored there, scaled or shifted, whichever helps most;
              also finds dead, copied and swapped units. Slower.

            The neurons of the logits and what is computed from them are no suspects; they score 0.
        output: Name of the output that is meant; only operations before it get scores.
        progress: Show progress bars.

    Raises InvalidArgumentError for an unknown method, or samples that do not fail or pass as
    claimed; InputShapeError, InputRangeError or NonFiniteActivationError for bad data;
    UnsupportedLayerError if the gradient of a recurrent layer is asked for.
    """
    check_name("method", method, METHODS)
    im = im.of_output(output).named_by(failing, passing)
    check_synapses(im)
    return Suspicion(im, method, METHODS[method](im, Runs.of(im, failing, passing), progress))


def mend(
    im: InstrumentedModel,
    suspicion: Suspicion,
    x: np.ndarray,
    y: np.ndarray,
    how: str = "train",
    *,
    output: str | None = None,
    channels: int = 1,
    epochs: int = 30,
    learning_rate: float = 1e-3,
    rng: int | np.random.Generator = 0,
) -> keras.Model:
    """Return a copy of a model in which only the most suspicious channels are changed.

    Args:
        im: The model, whose outputs are logits or probabilities.
        suspicion: Scores of its channels; the output layer's are not changed.
        x: A few samples `(samples, *input_shape)`: failing ones, and passing ones to keep.
        y: Their right answers: classes `(samples, …)`, of maps at each position, or numbers.
        how: "mask" sets the synapses that feed the channels to zero; "scale" multiplies them by
            that of ten factors, -1 to 2, which has the smallest loss on the samples; "train" trains
            only them, with Adam.
        output: Name of the output that is mended; needed if there are several.
        channels: Number of channels.
        epochs: For "train": passes over the samples.
        learning_rate: For "train".
        rng: For "train": draws the order of the samples, and dropout.

    Raises InvalidArgumentError for an unknown `how`, or samples without labels; InputShapeError,
    InputRangeError or NonFiniteActivationError for bad data.
    """
    check_name("way of mending", how, ("mask", "scale", "train"))
    check_count("epochs", epochs)
    whole, im = im.copy(), im.of_output(output)
    im = im.with_columns(one_order(im.columns, suspicion.columns))
    check_exclusive(im)
    x, y = im.labelled(x, y)
    masks = suspicious_synapses(im, suspicion, channels)
    copy = whole.of_output(output)  # which shares its weights
    model, kernels = copy.model, copy.kernels
    if how == "train":
        for layer in model.layers:  # statistics stay fixed
            if isinstance(layer, keras.layers.BatchNormalization):
                layer.trainable = False
        fine_tune(
            copy,
            x,
            y,
            epochs,
            learning_rate=learning_rate,
            batch_size=min(32, len(x)),
            rng=rng,
            progress=False,
            from_logits=im.classes.are_logits,
            free=[(kernels[name].variable(), mask) for name, mask in masks.items()],
        )
        return whole.model

    truth = y if im.classes.is_number else y[..., None]
    loss = loss_of(im.classes)

    def scaled(factor: float) -> float:
        """Scale the synapses, and return the loss."""
        for name, mask in masks.items():
            weights = im.kernels[name].kernel()
            kernels[name].variable().assign(np.where(mask, factor * weights, weights))
        return float(loss(truth, keras.ops.convert_to_tensor(model.predict_on_batch(x))))

    scaled(0.0 if how == "mask" else min(_FACTORS, key=scaled))
    return whole.model


def suspicious_synapses(im: InstrumentedModel, suspicion: Suspicion, channels: int = 1) -> Masks:
    """Return bool masks, by kernel, of synapses that feed the most suspicious hidden channels."""
    check_count("channels", channels)
    widths = {n: len(values) for n, values in suspicion.channels.items()}
    known = [o for o in im.operations if isinstance(o.params, (Synapses, Member))]
    if widths != {o.name: o.shape[-1] for o in known}:
        raise InvalidArgumentError("The suspicion is of another model.")
    # Hidden channels that weights feed, not kernels that a layer computes.
    fed = {o.name for o in known if isinstance(o.params, Member) or o.kernels}
    ranked = suspicion.to_frame("channel", None)
    others = fed - {*im.graph.ends(im.logit_operation)}
    ranked = ranked[ranked["operation"].isin(others)].head(channels)
    for name in ranked["operation"]:
        if isinstance(im[name].params, Member):
            raise UnsupportedLayerError(
                f"'{name}' is of a recurrent layer, which is not mended. Use pruning.fine_tune."
            )
    if len(ranked) < channels:
        raise InvalidArgumentError(
            f"The model has {len(ranked)} hidden channels with weights of their own that can be "
            f"mended. Received: channels={channels}"
        )
    masks: Masks = {}
    for name, channel in zip(ranked["operation"], ranked["channel"], strict=True):
        kernel: Synapses = im[name].params
        matrix = np.zeros(kernel.matrix().shape, bool)
        matrix[..., channel] = True
        masks[kernel.name] = masks.get(kernel.name, False) | kernel.to_kernel(matrix)
    return masks
