"""Draw the picture of patching.md: `python docs/patching_example.py`."""

from pathlib import Path

from matplotlib.figure import Figure

import nnslicer_tf as nns
from nnslicer_tf import zoo
from nnslicer_tf.datasets import texts
from nnslicer_tf.report import save_figure
from nnslicer_tf.slicing import patch

WORDS = ["the", "film", "is", "a", "wonderful", "surprise"]
STATES = ["positions", "block1_add1", "block1_add2", "block2_add1", "block2_add2"]

if __name__ == "__main__":
    im = nns.InstrumentedModel(zoo.load("text_transformer"))
    corrupted = ["terrible" if word == "wonderful" else word for word in WORDS]
    clean, corrupt = texts.vocabulary().encode([" ".join(WORDS), " ".join(corrupted)])
    figure = Figure(figsize=(12, 2.9), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(3, 2))
    patch(im, clean, corrupt, operations=STATES).plot(left, WORDS)
    patch(im, clean, corrupt, sweep="head").plot(right)
    save_figure(figure, Path(__file__).with_name("patching.png"), dpi=80)
