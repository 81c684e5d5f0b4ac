"""Plots: what is in the artists is what is in the arrays."""

import matplotlib
import numpy as np
import pytest
from matplotlib import pyplot
from matplotlib.text import Text
from PIL import Image

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.exactline import LinearPartition
from nnslicer_tf.exactline.partition import Regions
from nnslicer_tf.report import (
    plot_kept_synapses,
    plot_over_image,
    plot_over_time,
    save_figure,
)
from nnslicer_tf.report.attributions import (
    _RAMP,
    InputPanel,
    answer_cell,
    cell_figure,
    curve_cell,
    panel_cells,
)
from nnslicer_tf.report.figures import overlay


@pytest.fixture
def axes():
    return pyplot.figure().subplots()


def heights(axes):
    return [[bar.get_height() for bar in bars] for bars in axes.containers if len(bars)]


def line(ratios=(0.0, 0.2, 0.7, 1.0)):
    outputs = np.array([[0.0, 1.0], [1.0, 0.5], [-1.0, 0.25], [2.0, 0.0]])[: len(ratios)]
    return LinearPartition(np.zeros(2), np.array([3.0, 4.0]), np.array(ratios), outputs)


# Over the image ---------------------------------------------------------------------------


def test_the_overlay_has_sign_and_strength():
    values = np.zeros((2, 3, 2))
    values[0, 0] = 4, 4  # channels are added up
    values[1, 2] = -1, -3
    values[0, 1] = 5, -5
    sheet = overlay(values)
    assert sheet[0, 0, 2] > sheet[0, 0, 0] and sheet[1, 2, 0] > sheet[1, 2, 2]  # blue, red
    np.testing.assert_allclose(sheet[..., 3], np.abs(values.sum(-1)) / 8)


def test_nothing_is_laid_over_where_nothing_contributes():
    assert not overlay(np.zeros((2, 2)))[..., 3].any()


def test_an_image_is_under_its_contributions(digits, axes):
    im, _, slices, x = digits
    values = slices[0].neurons[im.input_operation]
    assert plot_over_image(values, x[0], axes) is axes
    below, above = (image.get_array() for image in axes.get_images())
    assert np.ptp(below) == 0  # the same for all values
    np.testing.assert_array_equal(above[..., 3] > 0, values[..., 0] != 0)


def test_an_image_is_an_outline_over_contributions_in_the_scales_colours(axes):
    """The outline separates light from dark; a colour is its value's on the scale, anywhere."""
    rng = np.random.default_rng(0)
    image = np.zeros((8, 12))
    image[2:5, 3:9] = rng.uniform(0.6, 1, (3, 6))
    values = rng.normal(size=(8, 12))
    plot_over_image(values, image, axes)
    below, above = (shown.get_array() for shown in axes.get_images())
    mixed = below * (1 - above[..., 3:]) + above[..., :3] * above[..., 3:]
    expected = _RAMP(0.5 + values / np.abs(values).max() / 2)[..., :3]
    np.testing.assert_allclose(mixed, expected, atol=0.01)
    (outline,) = axes.collections[0].get_paths()
    box = np.array([[2.5, 1.5], [8.5, 4.5]])  # around the light pixels
    np.testing.assert_allclose([outline.vertices.min(0), outline.vertices.max(0)], box, atol=0.15)


def test_steps_are_whole_numbers_and_axes_have_names():
    values = np.ones((4, 2))
    axes = plot_over_time(values)
    panel = InputPanel(values, {"a": values}, "")
    drawn = [axes, *cell_figure(panel_cells(panel)[0]).axes]
    assert len(drawn) == 3
    for axis in drawn:
        axis.figure.canvas.draw()
        assert axis.get_xlabel() == "step" and axis.get_ylabel()
        assert all(label.get_text().lstrip("−").isdigit() for label in axis.get_xticklabels())


def test_no_curve_is_hidden_and_all_text_is_large_enough():
    """Curves that coincide are one line with both names; others are thinner than those below."""
    shares = np.linspace(0, 1, 5)
    curves = {"a": (shares, 1 - shares), "b": (shares, 1 - shares + 1e-4), "c": (shares, shares)}
    answers = {"whole model": (0.9, "x"), "slice alone": (0.1, "y"), "nothing": (np.nan, "y")}
    cells = curve_cell(curves, "hidden", "probability of x"), answer_cell(answers, "x", "of 3")
    figure = cell_figure(cells)
    drawn = figure.axes[0]
    lines = {line.get_label(): line.get_linewidth() for line in drawn.get_lines()}
    assert list(lines) == ["a, b: area 0.50", "c: area 0.50"]
    assert lines["a, b: area 0.50"] > lines["c: area 0.50"]
    labels = drawn.get_xlabel(), drawn.get_ylabel(), figure.axes[1].get_xlabel()
    assert labels == ("share of the features hidden", "probability of x", "x")
    assert [bar.get_width() for bar in figure.axes[1].patches] == [0.9, 0.1, 0]
    assert [text.get_text() for text in figure.axes[1].texts] == ["x", "y", "y"]
    # Nine points are 12.5 pixels of a page, on which 100 pixels are an inch.
    assert min(text.get_fontsize() for text in figure.findobj(Text)) >= 9


@pytest.mark.parametrize(
    ("values", "image", "message"),
    [
        (np.zeros((2, 3)), np.zeros((3, 2)), "same height and width"),
        (np.full((2, 2), np.nan), np.zeros((2, 2)), "finite"),
        (np.zeros(4), np.zeros(4), "same height and width"),
        (np.zeros((2, 2, 2, 2)), np.zeros((2, 2)), "two or three axes"),
    ],
)
def test_values_that_do_not_fit_an_image_are_refused(values, image, message):
    with pytest.raises(InvalidArgumentError, match=message):
        plot_over_image(values, image)


# Bars -------------------------------------------------------------------------------------


def test_kept_synapses_of_a_slice(digits, axes):
    one = digits[2][0]
    plot_kept_synapses(one, axes)
    expected = [np.mean(values != 0) for values in one.synapses.values()]
    np.testing.assert_allclose(heights(axes), [expected])
    assert [t.get_text() for t in axes.get_xticklabels()] == list(one.synapses)


def test_kept_synapses_of_a_set_have_mean_and_deviation(digits, axes):
    slices = digits[2]
    plot_kept_synapses({"all": slices, "first": slices[0]}, axes)
    shares = np.array([[np.mean(v != 0) for v in one.synapses.values()] for one in slices])
    bars = [c for c in axes.containers if hasattr(c, "patches")]
    np.testing.assert_allclose([b.get_height() for b in bars[0]], shares.mean(axis=0))
    np.testing.assert_allclose([b.get_height() for b in bars[1]], shares[0])
    ends = np.array([s[:, 1] for s in bars[0].errorbar.lines[2][0].get_segments()])
    np.testing.assert_allclose((ends[:, 1] - ends[:, 0]) / 2, shares.std(axis=0))


def test_kept_synapses_of_different_models_are_refused(digits):
    one = digits[2][0]
    other = type(one)({}, {"k": np.ones(3)}, {})
    with pytest.raises(InvalidArgumentError, match="all of the same model"):
        plot_kept_synapses({"a": one, "b": other})
    with pytest.raises(InvalidArgumentError, match="none"):
        plot_kept_synapses({})


# Lines ------------------------------------------------------------------------------------


def test_a_lines_outputs_bend_at_its_ticks(axes):
    partition = line()
    partition.plot(axes)
    (ticks,) = (c.get_segments() for c in axes.collections)
    np.testing.assert_array_equal([tick[0, 0] for tick in ticks], partition.ratios)
    for drawn, output in zip(axes.get_lines(), partition.outputs.T):
        np.testing.assert_array_equal(drawn.get_xydata(), np.c_[partition.ratios, output])
    partition.plot(outputs=[1])
    (drawn,) = pyplot.gca().get_lines()
    np.testing.assert_array_equal(drawn.get_ydata(), partition.outputs[:, 1])


@pytest.mark.parametrize("outputs", [[], [2], [-1]])
def test_outputs_that_do_not_exist_are_refused(outputs):
    with pytest.raises(InvalidArgumentError, match="indices 0 … 1"):
        line().plot(outputs=outputs)


def test_outputs_that_are_no_vector_are_refused():
    image = LinearPartition(np.zeros(1), np.ones(1), np.array([0.0, 1.0]), np.zeros((2, 3, 3)))
    with pytest.raises(InvalidArgumentError, match=r"\(3, 3\)"):
        image.plot()


def test_regions_end_at_their_boundaries(axes):
    regions = Regions(np.array([0.0, 0.25, 0.6, 1.0]), np.array([3, 1, 3]))
    regions.plot(axes)
    spans = [(p.get_x(), p.get_x() + p.get_width()) for p in axes.patches]
    np.testing.assert_allclose(spans, [(0, 0.25), (0.25, 0.6), (0.6, 1)])
    assert [text.get_text() for text in axes.texts] == ["3", "1", "3"]
    colours = [p.get_facecolor() for p in axes.patches]
    assert colours[0] == colours[2] != colours[1]


# Files ------------------------------------------------------------------------------------


def test_a_png_has_few_colours_and_looks_the_same(tmp_path):
    figure, axes = pyplot.subplots(figsize=(4, 3))
    axes.imshow(np.random.default_rng(0).random((20, 20)), cmap="viridis")
    figure.savefig(tmp_path / "all.png", dpi=50)
    save_figure(figure, tmp_path / "few.png", dpi=50)
    every, few = (Image.open(tmp_path / f"{name}.png") for name in ("all", "few"))
    assert few.size == every.size
    assert len(few.convert("RGB").getcolors(256)) > 100  # and at most 256
    difference = np.abs(np.array(few.convert("RGB"), float) - np.array(every.convert("RGB")))
    assert difference.mean() < 2 and difference.max() < 64  # of 255
    assert (tmp_path / "few.png").stat().st_size < 0.7 * (tmp_path / "all.png").stat().st_size


def test_a_saved_figure_is_closed_and_whole(tmp_path):
    figure = pyplot.figure(figsize=(2, 1))
    save_figure(figure, tmp_path / "a.png", dpi=50)
    assert pyplot.imread(tmp_path / "a.png").shape[:2] == (50, 100)
    assert not pyplot.fignum_exists(figure.number)
    before = (tmp_path / "a.png").read_bytes()
    with pytest.raises(ValueError, match="dpi"):
        save_figure(figure, tmp_path / "a.png", dpi=-1)
    assert (tmp_path / "a.png").read_bytes() == before
    assert matplotlib.get_backend().lower() == "agg"
