"""Operations and neurons of the explorer in a real browser: tiles, local values, the input."""

import numpy as np
import pytest

import nnslicer_tf as nns
from support.explored import adds_up

SETTINGS = [
    {"theta": 0.1},
    {"theta": 0.01},
    {"theta": 0.0},
    {"theta": 0.5, "relative_to": "sum"},
    {"theta": 0.1, "rectify": "pass"},
    {"theta": 0.05, "granularity": "channel"},
]


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_local_values_and_exclusion_give_the_slice(mixed, opened, settings):
    """The page's sums for single neurons add up to the contributions of the slice."""
    im, profile, x = mixed
    one = nns.Slicer(im, profile, workers=0, progress=False, **settings).slice(x[:1], range(5))
    page = opened(nns.explore(one, im, x[:1], profile=profile, progress=False))
    assert adds_up(page, im, one) > 50


def test_tiles_show_every_neuron(two_thetas):
    page, slices, *_ = two_thetas
    page.node("conv1")
    values = slices[0].neurons["conv1"].ravel()
    colours = page.colours()
    empty = page.colour_of("--back")
    assert [colour != empty for colour in colours] == (values != 0).tolist()
    assert page.colour_of("--positive") == colours[int(values.argmax())]
    # Channels in the order of their share of the slice are the same neurons.
    page.button("most in the slice first")
    assert page.colours() == colours
    kept = np.count_nonzero(slices[0].neurons["conv1"], axis=(0, 1))
    first = page.run("return document.querySelector('.nnx').explorer.tiles.shown")
    assert kept[first].tolist() == sorted(kept.tolist(), reverse=True)


def test_colours_are_those_of_static_pictures(two_thetas):
    from nnslicer_tf.report import figures as palette

    page, *_ = two_thetas
    same = {
        "--positive": palette.POSITIVE,
        "--negative": palette.NEGATIVE,
        "--left": palette.FIRST_ONLY,
        "--right": palette.SECOND_ONLY,
    }
    for name, colour in same.items():
        assert page.colour_of(name) == " ".join(map(str, colour))


def test_activations_means_and_changes(digits, two_thetas):
    page, _, _, im, x = two_thetas
    page.node("conv2")
    value, mean = im.capture(x[:1])["conv2"], digits[1].means["conv2"]
    for button, values in (("activation", value), ("mean", mean)):
        page.button(button)
        script = """
            const values = document.querySelector('.nnx').explorer.tiles.values();
            return [Math.min(...values), Math.max(...values)];"""
        found = page.run(script)
        np.testing.assert_allclose(found, [values.min(), values.max()], rtol=1e-5)
    page.button("change Δ")
    colours = page.colours()
    change = (value - mean).ravel()
    assert colours[int(change.argmax())] != colours[int(change.argmin())]


def test_bars_of_units(two_thetas):
    page, slices, *_ = two_thetas
    page.node("logits")
    script = """
        const { tiles } = document.querySelector('.nnx').explorer;
        const context = tiles.canvas.getContext('2d');
        return tiles.shown.map((unit, i) => {
          const pixel = (x) => [...context.getImageData(x * tiles.cell, 22, 1, 1).data].join(' ');
          return pixel(i) !== pixel(i + 0.5);  // beside it, and at its middle
        });"""
    values = slices[0].neurons["logits"]
    assert page.run(script) == (values != 0).tolist()


def test_what_feeds_a_neuron(digits, two_thetas):
    """Weights, local values and verdicts of a table are those of the definition."""
    page, slices, _, im, x = two_thetas
    page.node("conv2")
    contributions = slices[0].neurons["conv2"]
    row, column, channel = np.argwhere(contributions)[0]
    page.neuron(row, column, channel)
    rows = page.rows("table.feeders")
    taps = im["conv2"].params.taps[row * 2 + column]
    weights = im["conv2"].params.matrix()[:, :, channel]
    values = im.capture(x[:1])
    before, after = (im["conv2"].inputs[0], "conv2")
    change = (values[before][0] - digits[1].means[before]).astype(np.float32).reshape(-1, 16)
    local = {
        taps[t] * 16 + i: weights[t, i] * change[taps[t], i]
        for t in range(len(taps))
        for i in range(16)
        if taps[t] >= 0
    }
    order = sorted(local, key=lambda index: abs(local[index]))
    sums = np.cumsum([np.float64(local[index]) for index in order])
    below = np.flatnonzero(np.abs(sums) < 0.3 * abs(values[after][0, row, column, channel]))
    excluded = set(order[: below[-1] + 1]) if len(below) else set()
    assert len(rows) == min(60, len(local))
    for found in rows:
        index = int(found["index"])
        np.testing.assert_allclose(float(found["value"]), local[index], rtol=1e-5)
        assert (found["kept"] == "false") == (index in excluded)
        assert found["operation"] == before
    assert f"the {len(excluded)} smallest of {len(local)}" in page.text(".why")
    assert "0.3 ×" in page.text(".why")


def test_follow_the_connections(two_thetas):
    """A neuron that feeds another lists it among those that it feeds, with the same verdict."""
    page, slices, *_ = two_thetas
    page.node("logits")
    output = int(np.flatnonzero(slices[0].neurons["logits"])[0])
    page.neuron(output)
    kept = [row for row in page.rows("table.feeders") if row["kept"] == "true"]
    gives = sum(abs(int(row["gives"])) for row in kept)
    assert gives == np.count_nonzero(slices[0].neurons["flatten"])
    page.click("table.feeders tbody tr button")
    assert page.text("section.operation h2") == "flatten"
    assert page.find('input[name="neuron"]').get_attribute("value") == kept[0]["index"]
    (fed,) = [row for row in page.rows("table.feeds") if int(row["index"]) == output]
    assert (fed["operation"], fed["kept"]) == ("logits", "true")
    assert fed["gives"] == kept[0]["gives"]


def test_the_input_and_the_receptive_field(two_thetas):
    page, slices, *_ = two_thetas
    script = """
        const canvas = document.querySelector('canvas.picture');
        const scale = canvas.width / 8;
        const context = canvas.getContext('2d');
        return Array.from({ length: 64 }, (_, p) => {
          const at = [p % 8, Math.floor(p / 8)].map((c) => (c + 0.5) * scale);
          const [r, g, b] = context.getImageData(...at, 1, 1).data;
          return r === g && g === b;
        });"""
    grey = page.run(script)
    assert grey == (slices[0].neurons["input"].ravel() == 0).tolist()
    page.click('input[name="overlay"]')
    assert all(page.run(script))
    # conv1 is 3×3; pool1 2×2 of it; conv2 3×3 with stride 2 over that.
    for operation, place, size in (
        ("conv1", (3, 3, 0), 9),
        ("conv1", (0, 0, 0), 4),
        ("pool1", (1, 1, 0), 16),
        ("logits", (0,), 64),
    ):
        page.node(operation)
        page.neuron(*place)
        assert int(page.find("canvas.picture").get_attribute("data-field")) == size


def test_hovering_shows_the_neuron_and_its_field(two_thetas):
    from selenium.webdriver import ActionChains

    page, slices, *_ = two_thetas
    page.node("conv1")
    ActionChains(page.driver).move_to_element_with_offset(
        page.find(".tiles canvas"), *first_tile(page, row=2, column=5)
    ).perform()
    contribution = slices[0].neurons["conv1"][2, 5, 0]
    said = page.text(".tip").replace("−", "-")
    assert said.startswith(f"neuron (2, 5, 0)\ncontribution {contribution}\nactivation")
    assert page.find("canvas.picture").get_attribute("data-field") == "9"
    ActionChains(page.driver).click().perform()
    assert page.find('input[name="neuron"]').get_attribute("value") == "2, 5, 0"
    assert page.all("table.feeders")


def first_tile(page, row, column):
    """Offset from the middle of the canvas to a pixel of the first tile."""
    script = """
        const { tiles } = document.querySelector('.nnx').explorer;
        const box = tiles.canvas.getBoundingClientRect();
        return [tiles.scale, box.width / 2, box.height / 2];"""
    scale, x, y = page.run(script)
    return round((column + 0.5) * scale - x), round((row + 0.5) * scale - y)
