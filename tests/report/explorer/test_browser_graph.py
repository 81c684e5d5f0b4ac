"""The network of the explorer in a real browser: folding, search, keyboard, zoom, choices."""

import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import zoo


def test_the_graph_folds_and_unfolds(two_thetas):
    page, slices, *_ = two_thetas
    assert page.nodes() == list(slices[0].neurons)  # a small network is not folded
    page.button("Fold all")
    assert page.nodes() == ["input", "conv1", "pool1", "conv2", "logits"]
    page.node("conv2")
    assert page.nodes() == ["input", "conv1", "pool1", "conv2", "relu2", "flatten", "logits"]
    page.button("Unfold all")
    assert page.nodes() == list(slices[0].neurons)


def test_boxes_say_how_much_is_in_the_slice(two_thetas):
    page, slices, *_ = two_thetas
    said = [element.text for element in page.all(".node .share")]
    for text, values in zip(said, slices[0].neurons.values(), strict=True):
        assert text.endswith(f"· {np.mean(values != 0):.1%}".replace("%", " %"))
        assert text.startswith("×".join(map(str, values.shape)))
    page.button("Fold all")
    both = [slices[0].neurons[name] for name in ("conv1", "relu1")]
    share = np.mean(np.concatenate([v.ravel() for v in both]) != 0)
    assert page.all(".node .share")[1].text == f"2 operations · {100 * share:.1f} %"


def test_counts_of_sample_and_theta(two_thetas):
    """Choose a sample and another θ; what is counted is what the slice has."""
    page, large, small, *_ = two_thetas
    page.node("conv2")
    assert page.options("left-exhibit") == ["large", "small"]
    assert page.options("left-theta") == ["0.3", "0.8"]
    for theta, slices in (("0.8", small), ("0.3", large)):
        page.choose("left-theta", theta)
        for sample in (0, 5):
            page.choose("left-part", page.options("left-part")[sample])
            one = slices[sample]
            kept = np.count_nonzero(one.neurons["conv2"])
            assert page.counts("neurons") == {"kept": kept, "all": 128}
            kept = np.count_nonzero(one.synapses["conv2"])
            assert page.counts("synapses") == {"kept": kept, "all": 4608}
    page.choose("left-exhibit", "small")
    assert f"θ = {0.8}" in page.text(".facts")


def test_search_and_keyboard(two_thetas):
    from selenium.webdriver.common.keys import Keys

    page, slices, *_ = two_thetas
    page.press("body", "/")
    active = page.driver.switch_to.active_element
    assert active.get_attribute("name") == "search"
    active.send_keys("CONV", Keys.ENTER)
    assert page.text("section.operation h2") == "conv1"
    active.send_keys(Keys.ENTER)
    assert page.text("section.operation h2") == "conv2"
    assert page.text("p[role=status]") == "2 operations found"
    # In the graph: one box takes the tab; arrows move, Enter opens, Escape folds.
    (current,) = page.all('.node[tabindex="0"]')
    assert current.get_attribute("data-node") == "conv2"
    page.run("arguments[0].focus()", current)
    page.driver.switch_to.active_element.send_keys(Keys.ARROW_DOWN)
    page.driver.switch_to.active_element.send_keys(Keys.ENTER)
    assert page.text("section.operation h2") == "relu2"
    page.driver.switch_to.active_element.send_keys(Keys.ESCAPE)
    folded = page.driver.switch_to.active_element
    assert folded.get_attribute("aria-expanded") == "false" and "relu2" not in page.nodes()
    folded.send_keys(Keys.ENTER)
    assert "relu2" in page.nodes()
    # Among the neurons.
    page.node("conv1")
    page.neuron(1, 1, 3)
    page.press(".tiles canvas", Keys.ARROW_RIGHT, Keys.ARROW_DOWN, Keys.PAGE_DOWN)
    assert page.find('input[name="neuron"]').get_attribute("value") == "2, 2, 4"
    said = page.text('[aria-live="polite"]')
    assert f"contribution {slices[0].neurons['conv1'][2, 2, 4]}" in said.replace("−", "-")
    page.neuron(1, 99, 3)
    assert "There is no neuron" in page.text('[aria-live="polite"]')


def test_zoom(two_thetas):
    page, *_ = two_thetas
    scale = "return document.querySelector('svg.graph').__zoom.k"
    before = page.run(scale)
    page.button("+")
    assert page.run(scale) == pytest.approx(1.4 * before)
    page.button("−")
    page.button("Fit")
    assert page.run(scale) == pytest.approx(before)


def test_a_deep_network_is_folded_and_opens(opened):
    im = nns.InstrumentedModel(zoo.load("resnet10"))
    x = np.random.default_rng(0).uniform(size=(3, 32, 32, 3)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    one = nns.Slicer(im, profile, workers=0, progress=False).slice(x[:1])
    page = opened(nns.explore(one, im, x[:1], profile=profile, progress=False))
    assert len(page.nodes()) == 8
    page.node("stage2_block1")
    assert "stage2_block1_add" in page.nodes()
    page.node("stage2_block1_1_conv")
    assert page.counts("neurons")["kept"] == np.count_nonzero(one.neurons["stage2_block1_1_conv"])
    page.press('input[name="search"]', "stage4", "\n")
    assert page.text("section.operation h2").startswith("stage4_block1")
