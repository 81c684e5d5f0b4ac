"""Pictures of slices: colours by sign, neurons in their places."""

import numpy as np
import pytest
from matplotlib import pyplot

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import plot_neurons, plot_slices
from nnslicer_tf.report.slices import difference_picture, neuron_picture

BLUE, RED, WHITE, BORDER = (31, 90, 180), (200, 40, 40), (255, 255, 255), (215, 215, 215)


def signs(picture):
    """The sign that each colour stands for; 9 for the border."""
    meaning = {BLUE: 1, RED: -1, WHITE: 0, BORDER: 9}
    return np.array([[meaning[tuple(map(int, pixel))] for pixel in row] for row in picture])


def test_channels_are_tiles():
    values = np.random.default_rng(0).integers(-2, 3, (3, 4, 2))
    read = signs(neuron_picture(values))
    assert read.shape == (3, 9)  # two tiles of 3×4, a border between
    np.testing.assert_array_equal(read[:, :4], np.sign(values[..., 0]))
    np.testing.assert_array_equal(read[:, 5:], np.sign(values[..., 1]))
    assert (read[:, 4] == 9).all()


def test_units_are_a_rectangle():
    values = np.array([1, -1, 0, 5, -7])
    read = signs(neuron_picture(values)).ravel()
    np.testing.assert_array_equal(read[:5], np.sign(values))
    assert (read[5:] == 9).all()


@pytest.mark.parametrize("rows", [1, 2, 3])
def test_unrolled_neurons_stand_in_order(rows):
    values = np.random.default_rng(1).integers(-1, 2, (2, 3, 2))
    read = signs(neuron_picture(values, rows))
    assert read.shape == (rows, 12 // rows)
    np.testing.assert_array_equal(read.ravel(), np.sign(values).ravel())


@pytest.mark.parametrize("rows", [0, 5])
def test_more_rows_than_neurons_are_refused(rows):
    with pytest.raises(InvalidArgumentError, match="4 neurons can be laid in 1 … 4 rows"):
        neuron_picture(np.zeros(4), rows)


def test_differences_say_whose_the_neuron_is():
    picture = difference_picture(np.array([3, 0, 2, 0]), np.array([-1, 0, 0, 4]))
    colours = {tuple(map(int, pixel)) for pixel in picture.reshape(-1, 3)[:4]}
    assert colours == {WHITE, (27, 158, 119), (217, 95, 2)}
    np.testing.assert_array_equal(picture.reshape(-1, 3)[0], WHITE)  # in both
    with pytest.raises(InvalidArgumentError, match="equal shapes"):
        difference_picture(np.zeros(3), np.zeros(4))


@pytest.mark.parametrize("rows", [None, 2])
def test_axes_given_are_drawn_into(rows):
    values = np.array([1, -1, 0, 1])
    axes = pyplot.figure().subplots()
    assert plot_neurons(values, rows, axes) is axes and plot_neurons(values, rows) is not axes
    (image,) = axes.get_images()
    np.testing.assert_array_equal(signs(image.get_array()).ravel()[:4], values)


def test_a_pair_is_drawn_with_its_differences(digits):
    slices, x = digits[2:]
    pair = {"normal": slices[0], "adversarial": slices[1]}
    images = {"normal": x[0], "adversarial": x[1]}
    figure = plot_slices(pair, ["conv2"], images, difference=True)
    axes = np.array(figure.axes).reshape(2, 3)
    drawn = axes[1, 0].get_images()[0].get_array()
    np.testing.assert_array_equal(drawn, neuron_picture(slices[0].neurons["conv2"]))
    drawn = axes[1, 1].get_images()[0].get_array()
    np.testing.assert_array_equal(drawn, neuron_picture(slices[1].neurons["conv2"]))
    one, other = (s.neurons["conv2"] != 0 for s in (slices[0], slices[1]))
    assert axes[1, 2].get_title() == f"conv2: {(one ^ other).sum()} in only one slice"
    first = axes[0, 0].get_images()[0].get_array()
    np.testing.assert_allclose(first, x[0, ..., 0] / x[0].max(), atol=1e-6)


def test_what_is_not_in_a_slice_is_refused(digits):
    slices, _ = digits[2:]
    with pytest.raises(InvalidArgumentError, match="'normal' has no operation 'nothing'"):
        plot_slices({"normal": slices[0]}, ["nothing"])
    with pytest.raises(InvalidArgumentError, match="at least one slice"):
        plot_slices({}, ["conv1"])
    with pytest.raises(InvalidArgumentError, match=r"needs two slices\. Received: 1"):
        plot_slices({"normal": slices[0]}, ["conv1"], difference=True)


def test_slices_stand_side_by_side(digits):
    slices, x = digits[2:]
    figure = plot_slices({"a": slices[0], "b": slices[1]}, ["conv1", "logits"], {"a": x[0]})
    axes = np.array(figure.axes).reshape(3, 2)
    assert [axis.get_title() for axis in axes[0]] == ["a", "b"]
    drawn = axes[2, 1].get_images()[0].get_array()
    np.testing.assert_array_equal(drawn, neuron_picture(slices[1].neurons["logits"]))
