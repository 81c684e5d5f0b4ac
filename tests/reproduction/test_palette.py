"""Colours that stand beside each other differ, for the colour-blind too."""

import itertools
import re
from pathlib import Path

import numpy as np
import pytest

from nnslicer_tf.report import explorer
from reproduction import plots
from reproduction.nnslicer.detection import DETECTORS

# Machado, Oliveira and Fernandes, "A physiologically-based model for simulation of color vision
# deficiency", IEEE TVCG 2009, severity 1, on linear RGB.
SEEN_BY = {
    "all": np.eye(3),
    "protanopes": np.array(
        [
            [0.152286, 1.052583, -0.204868],
            [0.114503, 0.786281, 0.099216],
            [-0.003882, -0.048116, 1.051998],
        ]
    ),
    "deuteranopes": np.array(
        [
            [0.367322, 0.860646, -0.227968],
            [0.280085, 0.672501, 0.047413],
            [-0.011820, 0.042940, 0.968881],
        ]
    ),
}
_TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])


def lab(colour, seen):
    """A colour in CIE Lab as somebody sees it."""
    rgb = np.array(colour) / 255
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    xyz = _TO_XYZ @ np.clip(seen @ linear, 0, 1) / [0.9505, 1, 1.089]
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def of_hex(text):
    return tuple(int(text[i : i + 2], 16) for i in (1, 3, 5))


def themes():
    """The colours of the explorer's light and dark themes."""
    style = (Path(explorer.__file__).parent / "static" / "explorer.css").read_text()
    blocks = [b for b in re.findall(r"\{([^{}]*)\}", style) if "--positive:" in b]
    found = [dict(re.findall(r"--(\w+): (#\w{6})", block)) for block in blocks]
    return {"light": found[0], "dark": found[1]}, found


def test_a_notebooks_themes_are_those_of_the_page():
    by_name, found = themes()
    assert found[2:] == [by_name["light"], by_name["dark"]]


@pytest.mark.parametrize("seen", SEEN_BY.values(), ids=SEEN_BY)
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_stands_together_differs(theme, seen):
    """A difference of 20 in CIE Lab is one that nobody overlooks in small squares."""
    colours = themes()[0][theme]
    for names in (("positive", "negative", "back"), ("left", "right", "common", "back")):
        for a, b in itertools.combinations(names, 2):
            apart = np.linalg.norm(lab(of_hex(colours[a]), seen) - lab(of_hex(colours[b]), seen))
            assert apart > 20, (a, b, apart)


@pytest.mark.parametrize("seen", SEEN_BY.values(), ids=SEEN_BY)
def test_methods_that_are_compared_differ(seen):
    compared = ("NNSlicer (targeted)", "EffectivePath", "Weight", "Random", "Everything")
    colours = {name: lab(of_hex(plots.METHODS[name]), seen) for name in compared}
    for a, b in itertools.combinations(compared, 2):
        assert np.linalg.norm(colours[a] - colours[b]) > 15, (a, b)


def test_every_detector_has_a_colour_and_a_marker_of_its_own():
    assert set(DETECTORS) <= set(plots.METHODS)
    markers = [plots.MARKERS[name] for name in DETECTORS]
    assert len(set(markers)) == len(markers)


def test_methods_with_markers_have_colours():
    assert set(plots.MARKERS) <= set(plots.METHODS)
