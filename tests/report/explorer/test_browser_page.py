"""The explorer as a page in a real browser: names as text, sizes, themes, versions, the widget."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns


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
        given, im, x, profile=profile, classes=[evil, f"{evil} 2"], title=evil, progress=False
    )
    page = opened(view)
    page.node("a<b>&")
    page.neuron(0)
    assert page.text("h1") == evil and page.all("img") == [] and page.all("b") == []
    assert page.options("left-exhibit") == [evil, "</script><b>"]
    assert evil in page.text("table.says td")


def test_a_decisive_slice_shows_its_certificate(opened):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, "relu"), layers.Dense(2)])
    x = np.random.default_rng(0).normal(size=(9, 3)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    found = nns.Slicer(model, profile, progress=False).decisive(x[:2])
    page = opened(nns.explore(found, model, x[:2], progress=False))
    assert page.text("p.certificate") == found.summary(0)


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
    path.write_text(view.html().replace("nnslicer_tf explorer 5", "nnslicer_tf explorer 0"))
    chromium.get(path.as_uri())
    alert = "return document.querySelector('[role=alert]')?.textContent ?? ''"
    for _ in range(100):
        if chromium.execute_script(alert):
            break
        chromium.execute_async_script("setTimeout(arguments[0], 50)")
    assert "explorer 5" in chromium.execute_script(alert)
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
