"""Two slices, marks and predictions in a real browser, and what the page says it lacks."""

import keras
import numpy as np

import nnslicer_tf as nns


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
        "common": "in both",
        "left": "only in “large”",
        "right": "only in “small”",
    }
    for key, button in buttons.items():
        page.button(button)
        members = sets[key].neurons["conv1"].ravel() != 0
        own = page.colour_of(f"--{key}")
        assert page.colours() == [own if member else empty for member in members]
    both, either = (np.count_nonzero(s.neurons["conv1"]) for s in (a & b, a | b))
    said = page.all(".node .share")[1].text
    assert said == f"{100 * both / either:.1f} % in both"
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
    shares = keras.ops.softmax(slices[2].apply(im.model, digits[1]).predict(x[2:3], verbose=0))[
        0
    ].numpy()
    page.choose("left-part", page.options("left-part")[2])
    rows = page.rows('table[data-says="the slice alone"]')
    # All three tables have the same classes, among them those that each answers.
    shown = [int(row["class"]) for row in rows]
    assert shares.argmax() in shown and shown[0] == im.predict(x[2:3]).argmax()
    np.testing.assert_allclose([float(row["share"]) for row in rows], shares[shown], atol=1e-5)
    titles = ["whole model", "the slice alone", "without the slice"]
    for title in titles:
        others = page.rows(f'table[data-says="{title}"]')
        assert [int(row["class"]) for row in others] == shown
        assert int(max(others, key=lambda row: float(row["share"]))["class"]) in shown
    assert len(page.all("table.says")) == len(titles)


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
    assert "The samples are not in the file." in page.text("section.answer")
    assert page.text("section.operation .legend") == "in “critical”not in “critical”"
    assert not page.all(".bar select")  # there is nothing to choose
