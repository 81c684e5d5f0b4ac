"""Pictures of slices: colours by sign, neurons in their places."""

import numpy as np
import pytest
from matplotlib import pyplot

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import plot_neurons, plot_slices
from nnslicer_tf.report.slices import neuron_picture

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


@pytest.mark.parametrize("values", [[], [np.nan, 1], 3.0, np.ones((1, 2, 3, 4))])
def test_values_that_no_neurons_have(values):
    with pytest.raises(InvalidArgumentError, match="Neurons must be"):
        plot_neurons(values)


def test_axes_given_are_drawn_into():
    values = np.array([1, -1, 0, 1])
    axes = pyplot.figure().subplots()
    assert plot_neurons(values, axes) is axes and plot_neurons(values) is not axes
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
    alone = axes[1, 2].get_images()[0].get_array()
    for colour, members in (((27, 158, 119), one & ~other), ((217, 95, 2), other & ~one)):
        assert (alone == colour).all(axis=-1).sum() == members.sum() > 0  # whose the neuron is
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
