"""Fault localisation: score how suspicious neurons and synapses are."""

import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_name
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.debugging.evidence import (
    OF_SLICES,
    OF_VALUES,
    SuspicionScores,
    chance,
    channel_scores,
)
from nnslicer_tf.debugging.runs import Labelled, Runs
from nnslicer_tf.instrument import InstrumentedModel, Synapses
from nnslicer_tf.slicing import Profile, Slicer

_LEVELS = ("channel", "neuron", "synapse", "layer")

METHODS = (*OF_VALUES, *OF_SLICES, "random")
"""Names of the methods of `suspicious`."""


class Suspicion(ShownAsTable):
    """Non-negative scores of how suspicious each neuron and each synapse is.

    They are magnitudes: raising the right output too far is as suspicious as holding it back.
    Scores are comparable only within a method.

    Attributes:
        method: Name of the method.
        neurons: Operation name → float64 array of its shape.
        synapses: Kernel name → float64 array of its shape.
        channels: Name of an operation with a kernel → `(channels,)` float64: magnitude of a
            filter's or unit's sum over positions, or mean for methods whose scores do not add up.
    """

    def __init__(self, im: InstrumentedModel, method: str, scores: SuspicionScores) -> None:
        self.method = method
        self.neurons = {name: np.abs(values) for name, values in scores.neurons.items()}
        self.synapses = {name: np.abs(values) for name, values in scores.synapses.items()}
        self.channels = {
            o.name: np.abs(channel_scores(scores.neurons[o.name], scores.add_up))
            for o in im.operations
            if isinstance(o.params, Synapses)
        }

    def to_frame(self, level: str = "channel", most: int | None = 50) -> pd.DataFrame:
        """Return a ranking, the most suspicious first.

        Args:
            level: "channel" (filters and units), "neuron", "synapse", or "layer", by its most
                suspicious channel.
            most: Number of rows; None for all.

        Raises:
            InvalidArgumentError: for an unknown level.
        """
        check_name("level", level, _LEVELS)
        if level == "layer":
            rows = [(name, int(v.argmax()), float(v.max())) for name, v in self.channels.items()]
            frame = pd.DataFrame(rows, columns=["operation", "channel", "score"])
        else:
            levels = {"channel": self.channels, "neuron": self.neurons, "synapse": self.synapses}
            what, parts = "kernel" if level == "synapse" else "operation", []
            for name, values in levels[level].items():
                flat = values.ravel()
                order = np.argsort(-flat, kind="stable")[:most]
                places = [tuple(map(int, np.unravel_index(i, values.shape))) for i in order]
                column = order.tolist() if level == "channel" else places
                parts.append(pd.DataFrame({what: name, level: column, "score": flat[order]}))
            frame = pd.concat(parts, ignore_index=True)
        frame = frame.sort_values("score", ascending=False, kind="stable")
        frame = frame.head(most or len(frame)).reset_index(drop=True)
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
    method: str = "gradient_contrast",
    *,
    profile: Profile | None = None,
    theta: float = 0.3,
    rng: int = 0,
    progress: bool = True,
) -> Suspicion:
    """Score neurons and synapses by how much they cause wrong outputs.

    Args:
        im: The model, a classifier.
        failing: Misclassified samples, and their right classes.
        passing: Correctly classified samples and their classes, which must include some of the
            failing samples' right classes.
        method: One of `METHODS`.

            - "gradient_contrast": gradient of the wrong logit minus the right one, times the
              neuron's difference from passing samples of the same class.
            - "patching": the gain when a channel takes its value on passing samples, one channel
              at a time. Exact, but costs a forward pass per channel.
            - "tarantula", "ochiai", "dstar": membership in slices of failing and passing samples.
            - "contrast": contributions to the right class, failing against passing samples.
            - "wrong_minus_right": contributions to the wrong class minus those to the right one.
            - "deepfault_…": the three formulas on activations instead of slices (Eniser et al.,
              "DeepFault", FASE 2019).
            - "gradient": gradient × activation.
            - "random": for comparison.
        profile: For methods on slices: the model's profile; by default of the passing samples.
        theta: For methods on slices: threshold θ of the exclusion. At 0 nearly everything is in
            every slice, so membership says little.
        rng: Seed of "random".
        progress: Show progress bars.

    Raises:
        InvalidArgumentError: for an unknown method, samples that do not fail or pass as claimed,
            or classes that cannot be compared.
        InputShapeError, InputRangeError, NonFiniteActivationError: for bad data.
        UnsupportedLayerError: if a method on slices has no rule for an operation.
    """
    check_name("method", method, METHODS)
    runs = Runs.of(im, failing, passing)
    if method == "random":
        scores = chance(im, np.random.default_rng(rng))
    elif method in OF_VALUES:
        scores = OF_VALUES[method](im, runs)
    else:
        if profile is None:
            profile = Profile.from_data(im, runs.passing.x, progress=progress)
        scores = OF_SLICES[method](Slicer(im, profile, theta, progress=progress), runs)
    return Suspicion(im, method, scores)
