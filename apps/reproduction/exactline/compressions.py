"""Exact disagreement of networks with quantised weights and the original."""

import keras
import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import as_generator
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import disagreement
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.copies import copy_model
from reproduction.exactline.settings import CompressedSettings
from reproduction.result import ExperimentResult, ExperimentTable

BITS = (8, 6, 4)
_SAMPLES = 1_000  # points at which predictions are also compared


def compressions(s: CompressedSettings) -> ExperimentResult:
    """Compare networks with lower-precision versions, on planes and lines between images."""
    rows = []
    cases = (("digits_cnn", "digits", "plane", s.planes), ("lenet5", "mnist", "line", s.lines))
    for name, dataset, where, count in cases:
        model = zoo.load(name) if dataset == "digits" else zoo.load(name, dataset)
        original = InstrumentedModel(model)
        data = datasets.load(dataset, "test")
        # Groups of `size` indices of images of different classes.
        size = 3 if where == "plane" else 2
        rng = as_generator(s.seed)
        classes = np.unique(data.y)
        groups = [
            np.array(
                [rng.choice(np.flatnonzero(data.y == c)) for c in rng.permutation(classes)[:size]]
            )
            for _ in range(count)
        ]
        for bits in BITS:
            compressed = InstrumentedModel(quantised(model, bits))
            for i, chosen in enumerate(track(groups, f"{name}, {bits} bits", count)):
                corners = np.asarray(data.x[chosen], np.float64)
                exact = disagreement(original, compressed, corners)
                shares = as_generator(s.seed + i).dirichlet(np.ones(len(corners)), _SAMPLES)
                x = np.tensordot(shares, corners, axes=1).astype(np.float32)
                answers = [im.logits(x).argmax(axis=1) for im in (original, compressed)]
                row = {"network": name, "where": where, "index": i, "bits": bits}
                row |= {"parts": exact.parts, "share_percent": 100 * exact.share}
                row["sampled_percent"] = 100 * float((answers[0] != answers[1]).mean())
                rows.append(row | {"largest_logit_difference": exact.difference})
    table = pd.DataFrame(rows)
    differ = table.share_percent > 0
    marks = table.assign(differ=differ, missed=differ & (table.sampled_percent == 0))
    summary = marks.groupby(["network", "where", "bits"], sort=False, as_index=False).agg(
        count=("index", "size"),
        parts_mean=("parts", "mean"),
        share_percent_mean=("share_percent", "mean"),
        share_percent_largest=("share_percent", "max"),
        with_differences=("differ", "sum"),
        none_seen=("missed", "sum"),
        largest_logit_difference=("largest_logit_difference", "max"),
    )
    title = "Quantised weights: the exact share on which the network answers differently"
    head = {"planes": s.planes, "lines": s.lines, "seed": s.seed}
    return ExperimentResult(
        [
            ExperimentTable("compressions_all", table),
            ExperimentTable("compressions", summary, title, head, _TEXT),
        ]
    )


_TEXT = (
    "Planes through three test images of different classes, lines between two. Weights are rounded "
    "to the given number of bits, per kernel, symmetrically; biases are not. `share` is exact: the "
    f"part of the area or length with different answers. `none_seen` counts planes or lines with a "
    f"share above 0 on which {_SAMPLES:,} random points show no difference."
)


def quantised(model: keras.Model, bits: int) -> keras.Model:
    """Return a copy of a model with the weights of its kernels rounded to a number of bits."""
    copy = copy_model(model)
    for variable in copy.trainable_variables:
        if len(variable.shape) > 1:
            weights = keras.ops.convert_to_numpy(variable)
            step = np.abs(weights).max() / (2 ** (bits - 1) - 1)
            variable.assign(np.round(weights / step) * step)
    return copy
