"""The explorer in a real browser, with sequences: words, heads, gates over time."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from support.explored import adds_up


@pytest.mark.parametrize("theta", [0.0, 0.2])
@pytest.mark.parametrize("model", ["transformer", "recurrent"])
def test_local_values_of_sequences_give_the_slice(model, theta, opened, request):
    """The same through attention, lookups and time, and past padding."""
    im, profile, x = request.getfixturevalue(model)
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    one = slicer.slice(x[:1], range(3))
    page = opened(nns.explore(one, im, x[:1], profile=profile, progress=False))
    assert adds_up(page, im, one) > 50


def test_words(opened):
    """A model of text: the tokens stand in colour, and a neuron marks those that it depends on."""
    inputs = keras.Input((5, 4))
    x = layers.Conv1D(6, 3, activation="relu", name="conv")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="logits")(layers.GlobalMaxPooling1D()(x)))
    im = nns.InstrumentedModel(model)
    data = np.random.default_rng(0).normal(size=(4, 5, 4)).astype(np.float32)
    profile = nns.Profile.from_data(im, data, progress=False)
    slices = nns.Slicer(im, profile, workers=0, progress=False).slice_each(data)
    words = [["the", "<i>", "is", "a", f"w{i}"] for i in range(4)]
    page = opened(nns.explore(slices, im, data, profile=profile, words=words, progress=False))
    assert [span.text for span in page.all(".words span")] == words[0]
    sums = slices[0].neurons[im.input_operation].sum(axis=1)
    for span, value in zip(page.all(".words span"), sums, strict=True):
        title = span.get_attribute("title").replace("−", "-")
        assert title == f"contribution {value}"
    page.node("conv")
    page.neuron(1, 0)
    marked = [span.text for span in page.all(".words span.field-of-neuron")]
    assert marked == words[0][1:4]


WORDS = [["a", "b", "c", "d", "e"], [f"w{i}" for i in range(7)]]


def test_heads_are_matrices_without_padding(transformer, opened):
    im, profile, x = transformer
    slices = nns.Slicer(im, profile, 0.1, workers=0, progress=False).slice_each(x)
    view = nns.explore(slices, im, x, profile=profile, words=WORDS, progress=False)
    page = opened(view)
    values = slices[0].neurons["attention/probabilities"]
    page.button("Unfold all")
    page.node("attention/probabilities")
    script = """
        const { tiles } = document.querySelector('.nnx').explorer;
        return [tiles.channels, tiles.width, tiles.height,
          [0, 1].map((head) => tiles.neuron(head, 2, 1))];"""
    # A tile for each head: rows attend to columns, of the five words alone.
    assert page.run(script) == [2, 5, 5, [8 + 2, 64 + 8 + 2]]
    empty = page.colour_of("--back")
    found = page.shown_colours()
    assert len(found) == 2 * 5 * 5
    assert {n for n, colour in found.items() if colour != empty} == set(np.flatnonzero(values))
    page.neuron(1, 3, 2)
    assert "“d” attends to “c”" in page.text(".neuron h3").replace(" · ", " ")
    # A probability depends on all words, a score on two alone.
    assert len(page.all(".words span.field-of-neuron")) == 5
    page.node("attention/scores")
    page.neuron(1, 3, 2)
    marked = [span.text for span in page.all(".words span.field-of-neuron")]
    assert marked == ["c", "d"]
    assert page.all("table.feeders")
    page.node("attention/context")
    assert page.run(script)[:3] == [2, 5, 4]  # time to the right, features down
    page.choose("left-part", page.options("left-part")[1])
    assert page.run(script)[:3] == [2, x[1].astype(bool).sum(), 4]


def test_gates_over_time(recurrent, opened):
    im, profile, x = recurrent
    slices = nns.Slicer(im, profile, 0.1, workers=0, progress=False).slice_each(x)
    page = opened(nns.explore(slices, im, x, profile=profile, words=WORDS, progress=False))
    page.button("Unfold all")
    page.node("gru:z")
    assert page.text(".operation h2") == "gru:z"
    assert [gate.get_attribute("data-gate") for gate in page.all(".gate")] == [
        *("gru:z", "gru:r", "gru:g", "gru:h")
    ]
    assert page.find('.gate[aria-pressed="true"]').get_attribute("data-gate") == "gru:z"
    page.click('.gate[data-gate="gru:h"]')
    assert page.text(".operation h2") == "gru:h"
    values = slices[0].neurons["gru:h"]
    empty = page.colour_of("--back")
    found = page.shown_colours()
    assert len(found) == 5 * 4  # five words, four units
    assert {n for n, colour in found.items() if colour != empty} == set(np.flatnonzero(values))
    # Backwards, the first steps are padding, and a neuron has read the words from the end on.
    page.node("both:backward:i:pre")
    assert {n // 5 for n in page.shown_colours()} == {3, 4, 5, 6, 7}
    page.neuron(4, 0)
    assert "at “d”" in page.text(".neuron h3")
    assert [span.text for span in page.all(".words span.field-of-neuron")] == ["d", "e"]
    kept = np.count_nonzero(slices[0].synapses["both/backward/kernel"])
    assert page.counts("synapses of both/backward/kernel") == {"kept": kept, "all": 6 * 20}
