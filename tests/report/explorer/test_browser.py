"""The explorer in a real browser: every function is used, and numbers are read back."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import zoo
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


@pytest.fixture(scope="module")
def of_two_thetas(digits):
    """A view of two sets of slices, and the smaller ones."""
    im, profile, slices, x = digits
    smaller = nns.Slicer(im, profile, theta=0.8, workers=0, progress=False).slice_each(x)
    given = {"large": slices, "small": smaller}
    return nns.explore(given, im, x, profile=profile, progress=False), smaller


@pytest.fixture
def two_thetas(digits, of_two_thetas, opened):
    """An opened view of two sets of slices, and the sets."""
    im, _, slices, x = digits
    view, smaller = of_two_thetas
    return opened(view), slices, smaller, im, x


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
    from nnslicer_tf.report import palette

    page, *_ = two_thetas
    same = {
        **{"--positive": palette.POSITIVE, "--negative": palette.NEGATIVE},
        **{"--left": palette.FIRST_ONLY, "--right": palette.SECOND_ONLY},
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
          const at = (i + 0.5) * tiles.cell;
          const pixel = (y) => [...context.getImageData(at, y, 1, 1).data].join(' ');
          return [pixel(22), pixel(68)];
        });"""
    bars = page.run(script)
    values = slices[0].neurons["logits"]
    assert [above != below for above, below in bars] == (values != 0).tolist()


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


def test_compare_two(two_thetas):
    """The algebra of slices: what both have, what one of them has alone."""
    page, large, small, *_ = two_thetas
    page.choose("compare", "small")
    page.node("conv1")
    a, b = large[0], small[0]
    sets = {"common": a & b, "left": a - b, "right": b - a}
    found = page.counts("neurons")
    assert found == {k: np.count_nonzero(s.neurons["conv1"]) for k, s in sets.items()}
    found = page.counts("synapses")
    assert found == {k: np.count_nonzero(s.synapses["conv1"]) for k, s in sets.items()}
    empty = page.colour_of("--back")
    buttons = {
        "common": "common (A & B)",
        "left": "only left (A − B)",
        "right": "only right (B − A)",
    }
    for key, button in buttons.items():
        page.button(button)
        members = sets[key].neurons["conv1"].ravel() != 0
        own = page.colour_of(f"--{key}")
        assert page.colours() == [own if member else empty for member in members]
    both, either = (np.count_nonzero(s.neurons["conv1"]) for s in (a & b, a | b))
    said = page.all(".node .share")[1].text
    assert said == f"8×8×16 · {100 * both / either:.1f} %"
    page.choose("compare", "nothing")
    assert page.counts("neurons") == {"kept": np.count_nonzero(a.neurons["conv1"]), "all": 1024}


def test_compare_two_samples_of_a_set(two_thetas):
    page, large, *_ = two_thetas
    page.choose("compare", "large")
    page.choose("right-part", page.options("right-part")[4])
    page.node("relu2")
    both = large[0] & large[4]
    assert page.counts("neurons")["common"] == np.count_nonzero(both.neurons["relu2"])
    assert len(page.all("canvas.picture")) == 2


def test_what_the_model_says(digits, two_thetas):
    page, slices, _, im, x = two_thetas
    shares = keras.ops.softmax(slices[2].apply(im.model).predict(x[2:3], verbose=0))[0].numpy()
    page.choose("left-part", page.options("left-part")[2])
    rows = page.rows('table[data-says="the slice alone"]')
    expected = np.argsort(-shares)[:3]
    assert [int(row["class"]) for row in rows] == expected.tolist()
    np.testing.assert_allclose([float(row["share"]) for row in rows], shares[expected], atol=1e-5)
    assert len(page.all("table.says")) == 3


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


def test_names_cannot_inject_anything(opened):
    """Names of layers, classes and slices are text, whatever they look like."""
    evil = "<img src=x onerror=alert(1)>"
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2, name="a<b>&")], name="m<script>")
    im = nns.InstrumentedModel(model)
    x = np.eye(3, dtype=np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    slices = nns.Slicer(im, profile, workers=0, progress=False).slice_each(x)
    given = {evil: slices, "</script><b>": slices}
    view = nns.explore(
        given, im, x, profile=profile, classes=[evil, evil], title=evil, progress=False
    )
    page = opened(view)
    page.node("a<b>&")
    page.neuron(0)
    assert page.text("h1") == evil and page.all("img") == [] and page.all("b") == []
    assert page.options("left-exhibit") == [evil, "</script><b>"]
    assert evil in page.text("table.says td")


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


def test_rounding_and_leaving_out_are_said(digits, opened, monkeypatch):
    from nnslicer_tf.report.explorer import document

    im, profile, slices, x = digits
    monkeypatch.setattr(document, "EXACT_VALUES", 1000)
    monkeypatch.setattr(document, "DENSE_WEIGHTS", 1000)
    monkeypatch.setattr(document, "STORED_SYNAPSES", 10)
    page = opened(nns.explore(slices, im, x, profile=profile, progress=False))
    page.node("conv2")
    assert "left out to keep the file small" in page.text("section.operation")
    kept = np.count_nonzero(slices[0].synapses["conv2"])
    assert page.counts("synapses") == {"kept": kept, "all": 4608}
    place = np.argwhere(slices[0].neurons["conv2"])[0]
    page.neuron(*place)
    said = page.text(".neuron")
    assert "rounded to 2 %" in said and "strongest weights of each neuron" in said


def test_slices_without_neurons(digits, opened):
    """Of a set that kept only some synapses, the rest of the page says that it is not known."""
    im, profile, _, x = digits
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    slices = slicer.slice_each(x, kernels=["conv2"], operations=())
    page = opened(nns.explore(slices, im, x, profile=profile, progress=False))
    page.node("conv2")
    kept = np.count_nonzero(slices[0].synapses["conv2"])
    assert page.counts("synapses") == {"kept": kept, "all": 4608}
    page.button("activation")
    page.neuron(0, 0, 3)
    assert "activation" in page.text(".neuron") and page.all("table.feeders")
    page.node("conv1")
    assert "No neurons of it are known. No synapses" in page.text("section.operation").replace(
        "known.No", "known. No"
    )
    page.choose("compare", "θ = 0.3")
    assert "not in the file" in page.text("section.operation")


def test_marks_of_another_analysis(digits, opened):
    im = digits[0]
    marks = {"conv2": np.arange(32) % 3 == 0}
    page = opened(nns.explore({"critical": marks}, im, progress=False))
    page.node("conv2")
    assert page.counts("neurons") == {"kept": 11, "all": 32}
    assert "The samples are not in the file." in page.text("section.input")


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [390, 900, 1600])
def test_light_and_dark_narrow_and_wide(two_thetas, dark, width):
    """Nothing is wider than the page, and text differs from what is behind it."""
    page, *_ = two_thetas
    command = page.driver.execute_cdp_cmd
    scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
    command("Emulation.setEmulatedMedia", {"features": [scheme]})
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    command("Emulation.setDeviceMetricsOverride", size)
    try:
        page.driver.execute_async_script("setTimeout(arguments[0], 100)")  # it is drawn anew
        page.node("conv1")
        page.neuron(1, 1, 0)
        assert page.run("return document.documentElement.scrollWidth") <= width
        style = """
            const style = getComputedStyle(document.querySelector('.nnx'));
            return [style.color, style.backgroundColor];"""
        text, back = (luminance(colour) for colour in page.run(style))
        assert (text > back) == dark
        assert (max(text, back) + 0.05) / (min(text, back) + 0.05) > 7
    finally:
        command("Emulation.clearDeviceMetricsOverride", {})
        command("Emulation.setEmulatedMedia", {"features": []})


def luminance(colour):
    """Relative luminance of `rgb(r, g, b)`, as WCAG defines it."""
    parts = np.array([int(p) for p in colour[4:-1].split(",")]) / 255
    linear = np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)
    return float(linear @ [0.2126, 0.7152, 0.0722])


def test_data_of_another_version_is_refused(digits, chromium, tmp_path):
    im, _, slices, _ = digits
    view = nns.explore(slices[0], im, progress=False)
    path = tmp_path / "other.html"
    path.write_text(view.html().replace("nnslicer_tf explorer 2", "nnslicer_tf explorer 0"))
    chromium.get(path.as_uri())
    alert = "return document.querySelector('[role=alert]')?.textContent ?? ''"
    for _ in range(100):
        if chromium.execute_script(alert):
            break
        chromium.execute_async_script("setTimeout(arguments[0], 50)")
    assert "explorer 2" in chromium.execute_script(alert)
    chromium.get_log("browser")  # the error itself


def test_the_widget_s_module_draws_the_same(digits, chromium, tmp_path):
    """The module that a notebook loads, with a model that holds the data as bytes."""
    import base64

    im, profile, slices, x = digits
    view = nns.explore(slices, im, x, profile=profile, progress=False)
    module = base64.b64encode(view.widget._esm.encode()).decode()
    path = tmp_path / "widget.html"
    path.write_text(
        f"""<!doctype html><meta charset="utf-8"><style>{view.widget._css}</style>
        <div id="cell"></div><script type="module">
        const text = (encoded) => new TextDecoder().decode(bytes(encoded));
        const bytes = (encoded) => Uint8Array.from(atob(encoded), (c) => c.charCodeAt(0));
        const source = new Blob([text("{module}")], {{ type: "text/javascript" }});
        const widget = (await import(URL.createObjectURL(source))).default;
        const data = bytes("{base64.b64encode(view.data).decode()}");
        window.kept = {{ data: new DataView(data.buffer) }};
        const model = {{ get: (key) => kept[key], set: (key, value) => {{ kept[key] = value; }},
          save_changes: () => undefined }};
        await widget.render({{ model, el: document.getElementById("cell") }});
        window.drawn = true;</script>"""
    )
    chromium.get(path.as_uri())
    for _ in range(100):
        if chromium.execute_script("return window.drawn === true"):
            break
        chromium.execute_async_script("setTimeout(arguments[0], 50)")
    shown = chromium.execute_script(
        "document.querySelector('[data-node=conv2]').dispatchEvent(new MouseEvent('click'));"
        "return [document.querySelector('[data-count=neurons]').dataset.kept, kept.selection]"
    )
    assert int(shown[0]) == np.count_nonzero(slices[0].neurons["conv2"])
    assert shown[1] == {"exhibit": "θ = 0.3", "part": 0, "operation": "conv2", "neuron": None}
    assert chromium.get_log("browser") == []
