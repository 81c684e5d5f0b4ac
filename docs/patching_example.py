"""Draw the picture of patching.md: `python docs/patching_example.py`."""

from pathlib import Path

from matplotlib.figure import Figure

import nnslicer_tf as nns
from nnslicer_tf import zoo
from nnslicer_tf.datasets import texts
from nnslicer_tf.report import save_figure
from nnslicer_tf.slicing import patch

WORDS = ["the", "film", "is", "a", "wonderful", "surprise"]
# Operation → what it is called in the picture.
STATES = {
    "positions/add": "words, embedded",
    "block1_add1": "block 1, after attention",
    "block1_add2": "block 1, output",
    "block2_add1": "block 2, after attention",
    "block2_add2": "block 2, output",
}

if __name__ == "__main__":
    im = nns.InstrumentedModel(zoo.load("text_transformer"))
    corrupted = ["terrible" if word == "wonderful" else word for word in WORDS]
    clean, corrupt = texts.vocabulary().encode([" ".join(WORDS), " ".join(corrupted)])
    figure = Figure(figsize=(12, 3.4), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    patch(im, clean, corrupt, operations=list(STATES)).plot(left, WORDS)
    left.set_yticklabels(STATES.values())
    patch(im, clean, corrupt, sweep="head").plot(right)
    right.set_yticklabels(["block 1, attention", "block 2, attention"])
    figure.suptitle(
        "Clean: “… a wonderful surprise” (positive); corrupt: “… a terrible surprise” (negative)"
    )
    save_figure(figure, Path(__file__).with_name("patching.png"), dpi=80)
