"""Fixtures of the explorer's tests: models, slices, and a real browser."""

import shutil

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


@pytest.fixture(scope="package")
def mixed():
    """A model with every kind of connection, its profile, and two samples."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    a = layers.Conv2D(8, 3, padding="same", activation="relu", name="first")(inputs)
    b = layers.DepthwiseConv2D(3, padding="same", name="depthwise")(a)
    b = layers.BatchNormalization(name="norm")(b)
    merged = layers.Add(name="add")([a, b])
    gate = layers.GlobalAveragePooling2D(keepdims=True, name="squeeze")(merged)
    gate = layers.Dense(8, activation="sigmoid", name="gate")(gate)
    gated = layers.Multiply(name="gated")([merged, gate])
    p = layers.SeparableConv2D(6, 3, strides=2, name="separable")(
        layers.ZeroPadding2D(1, name="pad")(gated)
    )
    q = layers.Conv2D(6, 2, groups=2, name="grouped")(gated)
    q = layers.AveragePooling2D(2, padding="same", name="average")(q)
    both = layers.Concatenate(name="both")([p, q])
    less = layers.Subtract(name="less")([both, layers.Conv2D(12, 1, name="one")(both)])
    wide = layers.Conv2DTranspose(4, 2, strides=2, name="transposed")(less)
    flat = layers.Flatten(name="flat")(layers.MaxPooling2D(2, name="maximum")(wide))
    outputs = layers.Dense(5, name="logits")(flat)
    im = nns.InstrumentedModel(keras.Model(inputs, outputs, name="mixed"))
    x = np.random.default_rng(0).normal(size=(20, 8, 8, 3)).astype(np.float32)
    return im, nns.Profile.from_data(im, x, progress=False), x[:2]


def _of_words(layer):
    """A model of sentences of eight words, one of them shorter, its profile and two sentences."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8,), dtype="int32", name="words")
    x = layer(layers.Embedding(20, 6, mask_zero=True, name="embedding")(inputs))
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(3, name="logits")(x)))
    rng = np.random.default_rng(0)
    data = np.where(np.arange(8) < rng.integers(4, 9, (30, 1)), rng.integers(1, 20, (30, 8)), 0)
    data[0, 5:] = 0
    return im, nns.Profile.from_data(im, data, progress=False), data[:2]


@pytest.fixture(scope="package")
def transformer():
    """Attention of two heads over masked words, with a residual connection."""

    def block(x):
        attended = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
        x = layers.LayerNormalization(name="norm")(layers.Add(name="add")([x, attended]))
        return layers.GlobalAveragePooling1D(name="average")(x)

    return _of_words(block)


@pytest.fixture(scope="package")
def recurrent():
    """An LSTM in both directions over masked words, and a GRU over what it gives."""

    def block(x):
        lstm = layers.LSTM(5, return_sequences=True, name="lstm")
        return layers.GRU(4, name="gru")(layers.Bidirectional(lstm, name="both")(x))

    return _of_words(block)


@pytest.fixture(scope="package")
def chromium():
    """Start a browser; tests that need one skip where it is not installed."""
    paths = [shutil.which(name) for name in ("chromium", "chromedriver")]
    if None in paths:
        pytest.skip("Chromium and its driver are not installed: apt-get install chromium-driver")
    from selenium import webdriver
    from selenium.webdriver.chrome.options import Options
    from selenium.webdriver.chrome.service import Service

    options = Options()
    options.binary_location = paths[0]
    for argument in ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    options.add_argument("--window-size=1400,1000")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(paths[1]))
    driver.set_script_timeout(60)
    yield driver
    driver.quit()


@pytest.fixture
def opened(chromium, tmp_path):
    """Save a view, and open the file in the browser; afterwards its console must be empty."""

    def open_file(view):
        path = tmp_path / "slices.html"
        view.save(path)
        chromium.get(path.as_uri())
        ready = "return Boolean(document.querySelector('.nnx')?.explorer)"
        for _ in range(200):
            if chromium.execute_script(ready):
                return Page(chromium)
            chromium.execute_async_script("setTimeout(arguments[0], 50)")
        raise AssertionError(chromium.get_log("browser"))

    yield open_file
    assert complaints(chromium) == []


@pytest.fixture(scope="package")
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


def complaints(driver):
    """Messages of the browser's console, but for those that tests cause by reading pixels."""
    messages = [entry["message"] for entry in driver.get_log("browser")]
    return [message for message in messages if "willReadFrequently" not in message]


class Page:
    """An opened page, as a user sees it."""

    def __init__(self, driver):
        self.driver = driver

    def find(self, selector):
        return self.driver.find_element("css selector", selector)

    def all(self, selector):
        return self.driver.find_elements("css selector", selector)

    def run(self, script, *arguments):
        return self.driver.execute_script(script, *arguments)

    def press(self, selector, *keys):
        self.find(selector).send_keys(*keys)

    def click(self, selector):
        self.run("arguments[0].scrollIntoView({block: 'center'})", self.find(selector))
        self.find(selector).click()

    def button(self, text):
        """Click a button by what stands on it."""
        script = (
            "[...document.querySelectorAll('button')].find(b => b.textContent === arguments[0])"
        )
        self.run(f"{script}.click()", text)

    def text(self, selector):
        return self.run("return document.querySelector(arguments[0]).textContent", selector)

    def rows(self, selector):
        """The data attributes of the rows of a table."""
        script = "return [...document.querySelectorAll(arguments[0])].map(r => ({...r.dataset}))"
        return self.run(script, f"{selector} tbody tr")

    def shown_colours(self):
        """Neuron → colour of its pixel, as text, of those that have a place in the tiles."""
        script = """
            const { tiles } = document.querySelector('.nnx').explorer;
            const context = tiles.canvas.getContext('2d', { willReadFrequently: true });
            const found = {};
            tiles.shown.forEach((tile, place) => {
              const [left, top] = tiles.corner(place);
              for (let y = 0; y < tiles.height; y++) for (let x = 0; x < tiles.width; x++) {
                const at = [left + (x + 0.5) * tiles.scale, top + (y + 0.5) * tiles.tall];
                const [r, g, b] = context.getImageData(...at, 1, 1).data;
                found[tiles.neuron(tile, x, y)] = `${r} ${g} ${b}`;
              }
            });
            return found;"""
        return {int(n): colour for n, colour in self.run(script).items()}

    def colours(self):
        """The colours of all neurons of the open operation."""
        found = self.shown_colours()
        return [found[n] for n in range(len(found))]

    def colour_of(self, name):
        """A colour of the page's palette, as text."""
        script = """
            const root = document.querySelector('.nnx');
            const { r, g, b } = root.explorer.colour(arguments[0]);
            return `${r} ${g} ${b}`;"""
        return self.run(script, name)

    def node(self, label):
        """Click a box of the graph, wherever it is zoomed to."""
        script = """
            const box = [...document.querySelectorAll('.node')]
              .find((node) => node.dataset.node === arguments[0]);
            box.dispatchEvent(new MouseEvent('click', { bubbles: true }));"""
        self.run(script, label)

    def nodes(self):
        return [node.get_attribute("data-node") for node in self.all(".node")]

    def choose(self, name, text):
        from selenium.webdriver.support.ui import Select

        Select(self.find(f'select[name="{name}"]')).select_by_visible_text(text)

    def options(self, name):
        from selenium.webdriver.support.ui import Select

        return [option.text for option in Select(self.find(f'select[name="{name}"]')).options]

    def neuron(self, *place):
        from selenium.webdriver.common.keys import Keys

        field = self.find('input[name="neuron"]')
        field.clear()
        field.send_keys(", ".join(map(str, place)), Keys.ENTER)

    def counts(self, what):
        element = self.find(f'[data-count="{what}"]')
        keys = ("kept", "all", "common", "left", "right")
        found = {key: element.get_attribute(f"data-{key}") for key in keys}
        return {key: int(value) for key, value in found.items() if value is not None}
