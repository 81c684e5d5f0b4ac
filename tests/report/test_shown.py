"""Results in a notebook: a repr, a table under it, a plot; all of what is in the arrays."""

import re

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._tables import html_frame, text_table
from nnslicer_tf.deepxplore import Differences, NeuronCoverage, NeuronRanges
from nnslicer_tf.detection.attacks import ATTACKS
from nnslicer_tf.detection.attacks.generation import AdversarialExamples
from nnslicer_tf.dflare.deviations import Deviation, DeviationSet, SearchOutcome
from nnslicer_tf.dflare.domain import Mutation
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import LinearPartition, acas
from nnslicer_tf.exactline.gradients import PathGradients
from nnslicer_tf.exactline.partition import Regions
from nnslicer_tf.exactline.steps import Steps
from nnslicer_tf.semantic import CriticalNeurons

LINE = LinearPartition(
    np.zeros((2, 2)), np.ones((2, 2)), np.array([0, 0.5, 1]), np.array([[0.0, 1], [2, 0], [3, -1]])
)
REGIONS = Regions(np.array([0, 0.5, 1]), np.array([4, 2]))
PATH = PathGradients(
    LINE, 0, Steps(np.array([0, 3]), LINE.ratios, np.array([[1, 0, 0, 1], [-1] * 4, [-1.0] * 4]))
)
FOUND = Deviation(np.eye(4), 12, 0.5, (7, 3), (Mutation("noise", {"scale": 2}, 1),))
MISSED = SearchOutcome("query_budget", 20, 1.0)
SEARCHES = DeviationSet([SearchOutcome("found", 12, 0.5, FOUND), MISSED])


def of_the_digits(digits):
    im, profile, slices, x = digits
    coverage = NeuronCoverage(im, 0.25)
    coverage.update(x)
    ranges = NeuronRanges.from_data(im, x, progress=False)
    return [im, profile, slices, slices[0], im.capture(x), coverage, ranges]


MADE = [
    AdversarialExamples(
        ATTACKS["FGSM_8"], np.zeros((2, 4, 4, 1)), np.array([True, False]), np.array([3, 5])
    ),
    LINE,
    REGIONS,
    PATH,
    FOUND,
    SEARCHES,
    CriticalNeurons({"a": np.array([True, False]), "b": np.array([True] * 3)}),
    Differences(
        np.zeros((1, 4)),
        np.zeros(1, int),
        np.array([[1, 2]]),
        np.zeros(1, int),
        np.ones(1, int),
        3,
        0.1,
    ),
]


def rows_of(html):
    return [re.findall("<td[^>]*>(.*?)</td>", row) for row in re.findall("<tr>(.*?)</tr>", html)][
        1:
    ]


def check_shown(result):
    html, frame = result._repr_html_(), result.to_frame()
    rows = rows_of(html)
    assert len(rows) == min(len(frame), 30) > 0
    assert all(len(row) == frame.shape[1] for row in rows)
    caption = re.search("<caption>(.*?)</caption>", html)[1]
    assert type(result).__name__ in caption and len(repr(result)) < 400 and "\n" not in repr(result)


@pytest.mark.parametrize("result", MADE, ids=lambda result: type(result).__name__)
def test_results_are_shown(result):
    check_shown(result)


def test_results_of_a_model_are_shown(digits):
    for result in of_the_digits(digits):
        check_shown(result)


@pytest.mark.parametrize(
    "result",
    [r for r in MADE if hasattr(r, "plot") and not isinstance(r, Differences)],
    ids=lambda result: type(result).__name__,
)
def test_results_are_drawn(result):
    axes = pyplot.figure().subplots()
    assert result.plot(ax=axes) is axes and axes.has_data()
    assert result.plot() is not axes


def test_tables_say_what_the_arrays_say(digits):
    im, profile, slices, x = digits
    acts = im.capture(x)
    frame = acts.to_frame().set_index("operation")
    assert frame.loc["conv1", "shape"] == "×".join(map(str, acts["conv1"].shape))
    np.testing.assert_allclose(frame.loc["relu1", "share of zeros"], (acts["relu1"] == 0).mean())
    np.testing.assert_allclose(frame["largest"], [values.max() for values in acts.values()])
    means = profile.to_frame().set_index("operation")["mean"]
    np.testing.assert_allclose(means["conv2"], profile.means["conv2"].mean())
    frame = slices.to_frame()
    expected = [sum(np.count_nonzero(v) for v in one.synapses.values()) for one in slices]
    np.testing.assert_array_equal(frame["synapses"], expected)
    expected = [sum(np.count_nonzero(v) for v in one.neurons.values()) for one in slices]
    np.testing.assert_array_equal(frame["neurons"], expected)
    np.testing.assert_array_equal(frame["predicted"], im.logits(x).argmax(axis=1))
    shares = slices.kept_share("conv2")
    np.testing.assert_allclose(shares, [np.mean(one.synapses["conv2"] != 0) for one in slices])
    with pytest.raises(InvalidArgumentError, match="Unknown kernel 'x'"):
        slices.kept_share("x")
    operations = im.to_frame()
    assert operations["operation"].tolist() == [o.name for o in im.operations]
    assert operations["synapses"].sum() == sum(k.size for k in im.kernels.values())


def test_lines_as_tables():
    frame = LINE.to_frame()
    np.testing.assert_array_equal(frame["ratio"], LINE.ratios)
    np.testing.assert_array_equal(frame["output 1"], LINE.outputs[:, 1])
    np.testing.assert_array_equal(PATH.to_frame()["gradient, L1"], [2, 4])
    np.testing.assert_array_equal(REGIONS.to_frame()["class"], [4, 2])


def test_searches_as_a_table():
    frame = SEARCHES.to_frame()
    assert frame["status"].tolist() == ["found", "query_budget"]
    assert frame["original"].tolist()[0] == 7 and frame["original"].isna().tolist() == [False, True]
    assert repr(SEARCHES) == "DeviationSet(1 found from 2 seeds, 12.0 queries on average)"


def test_data_and_networks_have_short_reprs():
    data = datasets.load("digits", "test")
    said = "Dataset(digits[test]: 360 inputs (8, 8, 1) float32, 10 classes, normalise='unit')"
    assert repr(data) == said
    weights, biases = (np.zeros((3, 2)), np.zeros((1, 3))), (np.zeros(3), np.zeros(1))
    assert repr(acas.NNet(weights, biases, *[np.zeros(2)] * 4)) == "NNet(2 → 3 → 1)"


def test_html_is_escaped_and_long_tables_end():
    html = html_frame(pd.DataFrame({"<a>": ["b & c", 0.123456, float("nan")]}), "d > e")
    assert "<a>" not in html and "&lt;a&gt;" in html and "b &amp; c" in html and "d &gt; e" in html
    assert '<td style="text-align:right">0.1235</td><' in html and "nan" not in html
    frame = nns.InstrumentedModel(zoo.build("digits_cnn")).to_frame()
    short = html_frame(frame, most=3)
    assert len(rows_of(short)) == 3 and f"… {len(frame) - 3} rows more" in short


def test_names_stand_in_tables_as_they_are():
    """The package that writes the tables takes ":o:" for an emoji, "[red]" for a colour."""
    rows = [("lstm:o:pre", "[red]"), ("[/x]", "b" * 300)]
    cells = [line.split() for line in text_table(("[bold]", ":a:"), rows).splitlines()]
    _, titles, _, *found = cells
    assert titles == ["[bold]", ":a:"] and found == [*map(list, rows)]
