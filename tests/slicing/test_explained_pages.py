"""Pages and pictures of explanations and sets have what was asked for, and no more."""

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


def slicer_of(model):
    x = np.random.default_rng(0).normal(size=(30, *model.input_shape[1:])).astype(np.float32)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    return nns.Slicer(im, profile, workers=0, progress=False), x


@pytest.mark.parametrize("compared", [True, False])
def test_curves_are_drawn_if_methods_were_compared(compared, tmp_path):
    keras.utils.set_random_seed(0)
    slicer, x = slicer_of(
        keras.Sequential([keras.Input((4,)), layers.Dense(5, "relu"), layers.Dense(3, "softmax")])
    )
    methods = ["gradient × input"] if compared else False
    explanation = slicer.explain(x[0], compare=methods, decisive=compared)
    figure = explanation.figure()
    titles = " ".join(axes.get_title() for axes in figure.axes)
    plt.close(figure)
    assert ("hidden, largest first" in titles) == compared
    assert ("shown, largest first" in titles) == compared
    explanation.save(tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert ("Areas under the curves" in page) == compared
    assert ("probability with slice alone" in page) == compared
    explanation.save(tmp_path / "why.svg")
    assert "<svg" in (tmp_path / "why.svg").read_text(encoding="utf-8")


def test_a_model_without_synapses_is_refused_by_name():
    slicer, x = slicer_of(keras.Sequential([keras.Input((3,)), layers.Softmax()], name="bare"))
    with pytest.raises(nns.errors.UnsupportedLayerError, match="'bare' has no layer with weights"):
        slicer.explain(x[0])


def test_a_set_is_drawn_on_given_axes():
    keras.utils.set_random_seed(0)
    slicer, x = slicer_of(keras.Sequential([keras.Input((4,)), layers.Dense(2), layers.Dense(2)]))
    slices = slicer.slice_each(x[:5])
    figure, axes = plt.subplots()
    assert slices.plot(axes) is axes
    shares = [np.mean([np.mean(s.synapses[n] != 0) for s in slices]) for n in slices[0].synapses]
    heights = [patch.get_height() for patch in axes.patches]
    plt.close(figure)
    np.testing.assert_allclose(heights, shares)
