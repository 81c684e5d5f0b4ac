"""Units that follow hypotheses: the others are pruned."""

import keras
import numpy as np
import pandas as pd

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.deepbase import classes, inspect
from nnslicer_tf.pruning import remove_units
from reproduction.deepbase.following import following_units

COLUMNS = ["model", "group", "unit", "hypothesis", "measure", "score"]


def scores_of(frame, group, hypothesis):
    """Scores of a group's units with a hypothesis, `(units,)`."""
    return frame.query("group == @group and hypothesis == @hypothesis")["score"].to_numpy()


def test_units_without_affinity_are_removed():
    digits = datasets.load("digits", "train[:300]")
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    hypotheses = classes(digits.y, "0123456789")
    frame = inspect(im, digits.x, hypotheses, units=["conv1", "conv2"], progress=False)
    masks = following_units(frame, im, ["3", "5"], 0.15)
    for name, mask in masks.items():
        largest = np.max([np.abs(scores_of(frame, name, h)) for h in ("3", "5")], axis=0)
        np.testing.assert_array_equal(mask, np.nan_to_num(largest) >= 0.15)
    assert sum((~mask).sum() for mask in masks.values()) > 0
    smaller = remove_units(im.model, masks)
    assert smaller.count_params() < im.model.count_params()
    assert smaller.get_layer("conv1").filters == masks["conv1"].sum()
    # Nothing follows so closely: one unit a layer stays.
    assert [m.sum() for m in following_units(frame, im, ["3"], 2.0).values()] == [1, 1]


def test_a_unit_of_a_shared_layer_is_kept_if_one_of_its_calls_follows_something():
    inputs = keras.Input((3,))
    shared = keras.layers.Dense(3, activation="relu", name="shared")
    model = keras.Model(inputs, keras.layers.Dense(2, name="logits")(shared(shared(inputs))))
    im = nns.InstrumentedModel(model)
    scores = {"shared": [0.9, 0.1, 0.0], "shared#1": [0.0, 0.8, 0.1]}
    assert {im[name].layer for name in scores} == {"shared"}
    rows = [
        ("m", group, unit, "a", "correlation", score)
        for group, values in scores.items()
        for unit, score in enumerate(values)
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS)
    for order in (frame, frame[::-1]):
        masks = following_units(order, im, ["a"], 0.5)
        np.testing.assert_array_equal(masks["shared"], [True, True, False])
