"""Make the pictures of the explorer's and the explanations' pages, and explore-example.html.

python docs/explore_example.py [PART OF A NAME …]

The subjects are the package's digits network, one image of CIFAR-10, a small transformer that is
trained here, and the tutorials of tables, texts and transformers. Needs Chromium and its driver
(`apt-get install chromium-driver`).
"""

import os
import re
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, versions, zoo

sys.path.append(str(Path(__file__).parents[1] / "apps"))
from reproduction.browser import PHONE, chromium, picture

FOLDER = Path(__file__).parent
PAGE = FOLDER / "explore-example.html"

BESIDE = "document.querySelector('.beside button').click();"
OPEN = "explorer.open(explorer.doc.operations.findIndex((one) => one.name.endsWith('{}')));"

Made = dict[str, Path]


def digits_slicer() -> tuple[nns.Slicer, Any]:
    """Return a slicer of the digits network, and test images with labels."""
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, datasets.load("digits", "train").x, progress=False)
    slicer = nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)
    return slicer, datasets.load("digits", "test")


def digits(folder: Path) -> Made:
    """Explore and explain a 4, which could be an 8: the example of the page."""
    slicer, test = digits_slicer()
    why = slicer.explain(test.x[0], instead_of=8, compare=True)
    why.save(folder / "why.html")
    nns.explore(why, slicer.im, progress=False).save(PAGE)
    return {"why": folder / "why.html", "explore": PAGE}


def bird(folder: Path) -> Made:
    """Explore why an image of CIFAR-10 is a bird and not a cat."""
    train, test = datasets.load("cifar10", "train[:500]"), datasets.load("cifar10", "test[:1]")
    im = nns.InstrumentedModel(zoo.load("resnet10", "cifar10"))
    slicer = nns.Slicer(im, nns.Profile.from_data(im, train.x, progress=False), workers=0)
    names = test.class_names
    why = slicer.explain(test.x[0], classes=names, instead_of="cat", compare=False)
    nns.explore(why, im, progress=False).save(folder / "bird.html")
    return {"explore-bird": folder / "bird.html"}


def two_versions(folder: Path) -> Made:
    """Explore a digit that a model answers differently after fine-tuning on shifted digits."""
    slicer, test = digits_slicer()
    train = datasets.load("digits", "train")
    keras.utils.set_random_seed(0)
    new = zoo.load("digits_cnn")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    new.compile(keras.optimizers.Adam(1e-3), loss)
    new.fit(np.roll(train.x[:1000], 2, axis=2), train.y[:1000], epochs=10, verbose=0)
    im, x = nns.InstrumentedModel(new), test.x
    x = x[versions.compare(slicer.im.model, new, x, test.y).negative]
    profile = nns.Profile.from_data(im, train.x, progress=False)
    slicers = {"old": slicer, "new": nns.Slicer(im, profile, 0.3, workers=0, progress=False)}
    # Digits that neither version answers with nothing active: there a slice says something.
    for one in slicers.values():
        found = one.decisive(x, others=0, scope=0).certificate
        x = x[(found["empty answer"] != found["answer"]) & (found["probability"] > 0.5)]
    slices, models, profiles = {}, {}, {}
    x = x[:4]
    for kind in ("", ", by counts"):
        for name, one in slicers.items():
            by_counts = one.slice_each(x, outputs="predicted") if kind else None
            slices[name + kind] = by_counts or one.decisive(x, max_share=1.0, max_divergence=0.2)
            models[name + kind], profiles[name + kind] = one.im, one.profile
    title = "Digits that a new version answers differently"
    view = nns.explore(slices, models, x, profile=profiles, title=title, progress=False)
    view.save(folder / "versions.html")
    return {"explore-versions": folder / "versions.html"}


WORDS = ["[pad]", "a", "the", "film", "plot", "cast", "is", "and", "with", "good", "great", "bad"]
WORDS += ["dull", "not"]


def heads(folder: Path) -> Made:
    """Explore the decisive heads of a transformer that learned what "not" does."""
    rng = np.random.default_rng(0)
    x, y = np.zeros((600, 9), np.int32), np.zeros(600, int)
    for i in range(len(x)):
        length = rng.integers(5, 10)
        x[i, :length] = rng.integers(1, 9, length)
        at, word, is_denied = rng.integers(0, length - 1), rng.integers(9, 13), rng.random() < 0.5
        x[i, at + 1] = word
        x[i, at] = WORDS.index("not") if is_denied else x[i, at]
        y[i] = (word < 11) != is_denied
    keras.utils.set_random_seed(0)
    tokens = keras.Input((9,), dtype="int32", name="words")
    embedded = layers.Embedding(len(WORDS), 16, mask_zero=True, name="embedding")(tokens)
    attended = layers.MultiHeadAttention(2, 8, name="attention")(embedded, embedded)
    h = layers.LayerNormalization(name="norm")(layers.Add(name="add")([embedded, attended]))
    h = layers.GlobalAveragePooling1D(name="average")(h)
    h = layers.Dense(16, "relu", name="hidden")(h)
    model = keras.Model(tokens, layers.Dense(2, name="logits")(h), name="reviews")
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss)
    model.fit(x, y, epochs=15, verbose=0)

    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, theta=0.1, workers=0, progress=False)
    texts = [t.split() for t in ("the film is not good and the cast", "a great plot with a cast")]
    sample = np.array([[WORDS.index(w) for w in t] + [0] * (9 - len(t)) for t in texts])
    slices = {"decisive": slicer.decisive(sample, level="head")}
    slices["θ = 0.1"] = slicer.slice_each(sample, outputs="predicted")
    options = {"classes": ["blame", "praise"], "words": texts, "profile": profile}
    options["title"] = "Head 2 looks at “not”, but the slice needs head 1"
    nns.explore(slices, im, sample, progress=False, **options).save(folder / "heads.html")
    return {"explore-heads": folder / "heads.html"}


def tutorial(name: str, folder: Path) -> None:
    """Run the code of a tutorial in a folder, into which it writes its pages and pictures."""
    page = (FOLDER / "tutorials" / f"{name}.md").read_text(encoding="utf-8")
    before = Path.cwd()
    os.chdir(folder)
    try:
        names: dict[str, Any] = {}
        for code in re.findall(r"```python\n(.*?)```", page, re.S):
            exec(code, names)
    finally:
        os.chdir(before)


def text(folder: Path) -> Made:
    """Run the tutorial of texts."""
    tutorial("a-text", folder)
    return {"text": folder / "explore.html", "why-text": folder / "text.html"}


def table(folder: Path) -> Made:
    """Run the tutorial of tables."""
    tutorial("a-table", folder)
    return {"table": folder / "why.html"}


def transformer(folder: Path) -> Made:
    """Run the tutorial of transformers."""
    tutorial("a-transformer", folder)
    return {"heads": folder / "heads.png", "where": folder / "where.png"}


# Picture → its page's maker, the page, and how it is taken.
NEURON = (
    "explorer.choose(explorer.left, 2);"  # by counts, which knows why
    + OPEN.format("conv2")
    + "const sizes = [...explorer.one.contributions(explorer.operation)].map(Math.abs);"
    + "explorer.chooseNeuron(sizes.indexOf(Math.max(...sizes)));"
)
PICTURES: dict[str, tuple[Callable[[Path], Made], str, dict[str, Any]]] = {
    "explore-why": (digits, "explore", {}),
    "explore-contrast": (digits, "explore", {"clicks": BESIDE}),
    "explore-phone": (digits, "explore", {"size": PHONE, "dark": True}),
    "explore-operation": (digits, "explore", {"clicks": BESIDE + OPEN.format("conv2")}),
    "explore-example": (digits, "explore", {"clicks": NEURON, "size": (1366, 940)}),
    "explore-bird": (bird, "explore-bird", {"clicks": BESIDE, "dark": True}),
    "explore-versions": (two_versions, "explore-versions", {}),
    "explore-heads": (heads, "explore-heads", {"clicks": OPEN.format("probabilities")}),
    "why-image": (digits, "why", {}),
    "why-phone": (digits, "why", {"size": PHONE}),
    "why-curves": (
        digits,
        "why",
        {"clicks": "[...document.querySelectorAll('h2')].at(-1).scrollIntoView();"},
    ),
    "tutorials/a-table": (table, "table", {"dark": True}),
    "tutorials/a-transformer-heads": (transformer, "heads", {}),
    "tutorials/a-transformer-where": (transformer, "where", {}),
    "tutorials/a-text": (text, "text", {}),
}


def main(parts: list[str]) -> None:
    """Make the pages, and their pictures."""
    chosen = {
        name: one for name, one in PICTURES.items() if not parts or any(map(name.count, parts))
    }
    with tempfile.TemporaryDirectory() as folder, chromium() as driver:
        pages: Made = {}
        for make in dict.fromkeys(maker for maker, *_ in chosen.values()):
            own = Path(folder) / make.__name__  # their pages have the same names
            own.mkdir()
            pages |= make(own)
        for name, (_, page, how) in chosen.items():
            file = FOLDER / f"{name}.png"
            drawn = pages[page].suffix == ".png"  # by the tutorial itself
            file.write_bytes(
                pages[page].read_bytes() if drawn else picture(driver, pages[page], **how)
            )
            print(f"{file.name}: {file.stat().st_size / 1000:.0f} kB", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
