"""What a page of the explorer says first, in a real browser: the answer, contrasts, two models."""

import keras
import numpy as np

import nnslicer_tf as nns
from nnslicer_tf import zoo


def certificate(page, side=0):
    """Situation → (answer, probability), as the table of a side says."""
    script = """
        const table = document.querySelectorAll('.side')[arguments[0]].querySelector('.measured');
        return [...table.querySelectorAll('tbody tr')].map((row) => ({ ...row.dataset }));"""
    rows = page.run(script, side)
    return {row["how"]: (int(row["answer"]), float(row["share"])) for row in rows}


def measured(slices):
    row = {name: column[0] for name, column in slices.certificate.items()}
    found = {"whole": (row["answer"], row["probability"])}
    for how in ("alone", "removed"):
        shares = (row[f"{what} with slice {how}"] for what in ("answer", "probability"))
        found[how] = tuple(shares)
    return {**found, "empty": (row["empty answer"], row["probability with nothing active"])}


def test_it_opens_on_the_answer_and_a_click_adds_the_contrast(digits, opened):
    im, profile, slices, x = digits
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    label = int(slices.predicted[0])
    other = (label + 1) % 10
    why = slicer.explain(x[0], instead_of=other, compare=False)
    page = opened(nns.explore(why, im, progress=False))
    # The input with its contributions, what was measured, and where the slice is; no operation yet.
    question = f"{label} rather than {other}"
    assert page.text(".answer h2") == f"Why {question}?"
    assert certificate(page) == measured(why.contrast)
    size = why.contrast.certificate["size"][0]
    assert page.text(".answer .size").startswith(f"{size} of 6,032 synapses")
    legend = page.text(".answer .scale").replace("−", "-")
    largest = f"{np.abs(why.contributions).max():.4g}"
    assert legend == f"red lowers, blue raises the score of {question}: -{largest}{largest}"
    counts = page.run(
        "return [...document.querySelectorAll('.summary tbody tr')].map(r => r.textContent)"
    )
    masks = why.contrast.masks()
    top = max(mask.mean() for mask in masks.values())  # the scale ends at the largest share
    most = f"0 %{float(f'{100 * top:.2g}'):g} %, the most"
    assert page.text(".network .scale").endswith(most)
    for row, (name, mask) in zip(counts, masks.items(), strict=True):
        assert row.startswith(f"{name}{mask.sum():,}{mask.size:,}")
    # One click: both slices, side by side, with what they are about, below the one input.
    page.button(f"Why {label}?")
    assert page.text(".answer h2") == f"Why {question}? And why {label}?"
    assert [e.text for e in page.all(".side h3")] == [question, f"{label}"]
    assert certificate(page, 1) == measured(why.decisive)
    assert len(page.all("canvas.plain")) == len(page.all("canvas.picture")) == 1
    pairs = {n: (masks[n], why.decisive.masks()[n]) for n in masks}
    both, either = ([f(*p).sum() for p in pairs.values()] for f in (np.logical_and, np.logical_or))
    said = page.text(".in-common")
    assert f"{sum(both)} of the {sum(either)} synapses in either in common" in said
    shares = {n: b / e for n, b, e in zip(pairs, both, either, strict=True) if e}
    least, best = min(shares, key=shares.get), max(shares, key=shares.get)
    assert (
        f"largest share in {best} ({100 * shares[best]:.1f} %), the smallest in {least} (" in said
    )
    page.node("conv2")
    other_mask = why.decisive.masks()["conv2"]
    assert page.counts("synapses")["common"] == (masks["conv2"] & other_mask).sum()
    # Bars: this slice's counts up, the other one's down, on one scale.
    counts = [mask.sum(axis=(0, 1, 2)) for mask in (masks["conv2"], other_mask)]
    assert page.text(".operation .axis") == f"{np.max(counts)}0{np.max(counts)}"
    bars = """
        const { tiles } = document.querySelector('.nnx').explorer;
        const context = tiles.canvas.getContext('2d', { willReadFrequently: true });
        const colour = (x, y) => context.getImageData(x, y, 1, 1).data.slice(0, 3).join();
        const { r, g, b } = tiles.explorer.colour('--common');
        const height = 90; // below it are numbers
        return tiles.shown.map((unit, place) => [0, 1].map((side) => {
          let [long, shared] = [0, 0];
          for (let y = 0; y < height; y++) {
            const isOfSide = side ? y > height / 2 + 1 : y < height / 2 - 1;
            const drawn = colour((place + 0.5) * tiles.cell, y);
            if (isOfSide && drawn !== colour(0, 1)) long++;
            if (isOfSide && drawn === [r, g, b].join()) shared++;
          }
          return [long, shared];
        }));"""
    drawn = np.transpose(page.run(bars), (2, 1, 0))  # lengths, and of them what both have
    expected = np.array(counts) / np.max(counts) * 44
    assert np.abs(drawn[0] - np.where(expected, np.maximum(expected, 3), 0)).max() <= 3
    common = (masks["conv2"] & other_mask).sum(axis=(0, 1, 2)) / np.max(counts) * 44
    assert common.max() > 3 and np.abs(drawn[1] - common).max() <= 3
    page.button("Close")
    assert page.text(".operation h2") == "Where the synapses are"


def test_two_models_stand_side_by_side_with_their_names(digits, opened):
    im, profile, slices, x = digits
    keras.utils.set_random_seed(1)
    models = {"old": nns.InstrumentedModel(zoo.build("digits_cnn")), "new": im}
    profiles = {"old": nns.Profile.from_data(models["old"], x, progress=False), "new": profile}
    slicer = nns.Slicer(models["old"], profiles["old"], theta=0.3, workers=0, progress=False)
    sets = {"old": slicer.slice_each(x, outputs="predicted"), "new": slices}
    page = opened(nns.explore(sets, models, x, profile=profiles, progress=False))
    answers = [int(sets[name].predicted[0]) for name in sets]
    assert page.text(".answer h2") == f"old answers {answers[0]}, new answers {answers[1]}"
    assert [e.text for e in page.all(".side h3")] == ["old", "new"]
    page.node("relu2")
    legend = "in bothonly in “old”only in “new”in neither"
    assert page.text(".operation .legend") == legend
    alone = (sets["old"][0] - sets["new"][0]).neurons["relu2"]
    assert page.counts("neurons")["left"] == np.count_nonzero(alone)


def test_the_chosen_operation_comes_into_view(opened):
    im = nns.InstrumentedModel(zoo.load("resnet10"))
    x = np.random.default_rng(0).uniform(size=(3, 32, 32, 3)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    one = nns.Slicer(im, profile, workers=0, progress=False).slice(x[:1])
    page = opened(nns.explore(one, im, x[:1], profile=profile, progress=False))
    inside = """
        const box = document.querySelector('.node.chosen').getBoundingClientRect();
        const frame = document.querySelector('svg.graph').getBoundingClientRect();
        return box.top >= frame.top && box.bottom <= frame.bottom && box.left >= frame.left
          && box.right <= frame.right;"""
    for name in ("stage4_block1_2_conv", "stem_conv"):
        page.button(name)  # in the table; the graph shows the middle of the network, or its start
        assert page.text(".operation h2") == name and page.run(inside)
        page.button("Close")
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    page.driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        page.node("average")
        top = "return document.querySelector('.operation h2').getBoundingClientRect().top"
        assert 0 <= page.run(top) < 700
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_heads_say_whether_they_are_in_the_slice(transformer, opened):
    im, profile, x = transformer
    slicer = nns.Slicer(im, profile, 0.1, workers=0, progress=False)
    slices = slicer.decisive(x[:2], level="head", max_share=1.0, others=0, scope=0)
    view = nns.explore(slices, im, x[:2], profile=profile, progress=False)
    page = opened(view)
    masks = [slices.masks(i) for i in range(2)]
    page.choose("compare", page.options("compare")[1])  # sample 0 beside sample 1
    pairs = [(masks[0][name], masks[1][name]) for name in masks[0]]
    both = sum(int((a & b).sum()) for a, b in pairs)
    either = sum(int((a | b).sum()) for a, b in pairs)
    assert f"{both} of the {either} heads and channels in either" in page.text(".in-common")
    page.choose("compare", "nothing")
    page.node("attention")
    page.node("attention/probabilities")
    heads = masks[0]["attention/context"]
    said = f"The slice has {heads.sum()} of the 2 heads, as members of attention/context."
    assert page.text(".operation .count") == said


def test_words_stand_at_the_matrices_of_heads(transformer, opened):
    from selenium.webdriver import ActionChains

    im, profile, x = transformer
    slices = nns.Slicer(im, profile, 0.1, workers=0, progress=False).slice_each(x[:1])
    words = [["a", "b", "c", "d", "e"]]
    page = opened(nns.explore(slices, im, x[:1], profile=profile, words=words, progress=False))
    page.node("attention")
    page.node("attention/probabilities")
    script = """
        const { tiles } = document.querySelector('.nnx').explorer;
        const [left, top] = tiles.corner(0);
        const context = tiles.canvas.getContext('2d', { willReadFrequently: true });
        const ink = (x, y, w, h) => context.getImageData(x, y, w, h).data
          .filter((_, i) => i % 4 === 3).some((alpha) => alpha > 0);
        const box = tiles.canvas.getBoundingClientRect();
        const at = [left + 3.5 * tiles.scale, top + 1.5 * tiles.tall];
        return [tiles.words, ink(left, top - 12, tiles.scale, 10),
          ink(left - 12, top, 10, tiles.tall), 
          [Math.round(at[0] - box.width / 2), Math.round(at[1] - box.height / 2)]];"""
    labels, above, beside, offset = page.run(script)
    assert labels == [words[0], words[0]] and above and beside
    # What is pointed at is the pair of words of its row and column.
    canvas = page.find(".tiles canvas")
    ActionChains(page.driver).move_to_element_with_offset(canvas, *offset).perform()
    assert "“b” attends to “d”" in page.text(".tip")


def test_a_page_of_an_explanation_fits_a_phone(digits, chromium, tmp_path):
    """Its policy allows what it shows; pictures are below each other, none is wider than it."""
    im, profile, _, x = digits
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    slicer.explain(x[0], compare=["gradient × input"]).save(tmp_path / "why.html")
    size = {"width": 390, "height": 800, "deviceScaleFactor": 1, "mobile": False}
    chromium.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        chromium.get((tmp_path / "why.html").as_uri())
        script = """
            const drawn = [...document.querySelectorAll("figure > svg")];
            return [document.documentElement.scrollWidth, drawn.map((image) => {
              const box = image.getBoundingClientRect();
              return [box.width, box.left];
            })];"""
        width, images = chromium.execute_script(script)
    finally:
        chromium.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
    assert width <= 390 and len(images) == 6  # input, two methods, answers, two curves
    assert {tuple(image) for image in images} == {(340, images[0][1])}
    assert chromium.get_log("browser") == []  # nothing is refused
