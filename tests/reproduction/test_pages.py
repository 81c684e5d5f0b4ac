"""Pages: well-formed, self-contained, and with everything that was put on them."""

import base64
import io
import re
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest
from matplotlib import pyplot
from PIL import Image

from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import save_figure
from reproduction.pages import Code, Fold, Heading, Link, Page, Picture, Table, Text

VOID = {"meta", "img", "br", "link"}


class Reader(HTMLParser):
    """Collects what a page has, and refuses tags that do not match."""

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.links, self.ids, self.text = [], [], [], [], ""

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self.seen.append(tag)
        self.links += [attrs[key] for key in ("href", "src") if key in attrs]
        self.ids += [attrs["id"]] if "id" in attrs else []
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


@pytest.fixture
def picture(tmp_path):
    figure = pyplot.figure(figsize=(1, 1))
    save_figure(figure, tmp_path / "plots" / "a b.png", dpi=20)
    return tmp_path / "plots" / "a b.png"


@pytest.fixture
def page(tmp_path, picture):
    frame = pd.DataFrame({"best |r|": [0.123456, float("nan")], "what": ["<b>&", "x"]})
    page = Page("All & more")
    page.add(Heading("First part"), Text("1 < 2, `a<b`"), Code("python a.py --x 'y'"))
    page.add(Heading("a/b: Table", 3), Table(frame, "Figures"), Picture(picture, "A plot"))
    page.add(Table(pd.concat([frame] * 20), "Many"), Link("notes", tmp_path / "notes.md"))
    return page


def _pixels(file):
    with Image.open(file) as image:
        return np.asarray(image.convert("RGB"))


def test_html_is_well_formed_and_loads_nothing(tmp_path, page, picture):
    html = page.html(tmp_path / "report")
    reader = Reader()
    reader.feed(html)
    assert not reader.open and not {"script", "link", "iframe"} & set(reader.seen)
    embedded = [link for link in reader.links if link.startswith("data:image/webp;base64,")]
    pixels = [_pixels(io.BytesIO(base64.b64decode(e.partition(",")[2]))) for e in embedded]
    np.testing.assert_array_equal(pixels, [_pixels(picture)])
    rest = [link for link in reader.links if link not in embedded]
    assert rest == ["#first-part", "#a-b-table", "../notes.md"]
    assert {link[1:] for link in rest if link.startswith("#")} == set(reader.ids)
    assert "http:" not in html and "https:" not in html and "default-src 'none'" in html
    assert "@import" not in html and "url(" not in html
    assert "prefers-color-scheme: dark" in html and 'name="viewport"' in html


def test_a_picture_that_is_too_long_for_webp_stays_a_png(tmp_path):
    Image.new("RGB", (2, 16_384), "red").save(tmp_path / "long.png")
    page = Page("Long")
    page.add(Picture(tmp_path / "long.png", "A long plot"))
    embedded = re.search(r"data:image/png;base64,([^\"]+)", page.html(tmp_path))
    assert base64.b64decode(embedded[1]) == (tmp_path / "long.png").read_bytes()


def test_html_says_everything(tmp_path, page):
    reader = Reader()
    reader.feed(page.html(tmp_path))
    for text in (
        "All & more",
        "1 < 2",
        "--x 'y'",
        "<b>&",
        "2, a<b",
        "0.1235",
        "Many (40 rows)",
        "best |r|",
    ):
        assert text in reader.text
    assert "nan" not in reader.text
    assert reader.seen.count("tr") == 3 + 41


def test_every_table_scrolls_by_itself(tmp_path, page):
    html = page.html(tmp_path)
    assert len(re.findall(r'<div class="scroll"><table>', html)) == html.count("<table>") == 2


def test_markdown_says_the_same(tmp_path, page):
    text = page.markdown(tmp_path / "report")
    assert text.startswith(
        "# All & more\n\n- [First part](#first-part)\n  - [a/b: Table](#a-b-table)"
    )
    assert "![A plot](../plots/a%20b.png)" in text and "[notes](../notes.md)" in text
    assert "| best \\|r\\| | what |\n| --- | --- |\n| 0.1235 | <b>& |\n|  | x |" in text
    assert "```\npython a.py --x 'y'\n```" in text


def test_folded_blocks_are_in_the_contents(tmp_path):
    page = Page("All")
    inner = [Heading("Inside", 3), Text("hidden <at> first")]
    page.add(Heading("Outside"), Fold("1 < 2 tables", inner))
    html, markdown = page.html(tmp_path), page.markdown(tmp_path)
    reader = Reader()
    reader.feed(html)
    assert not reader.open and reader.ids == ["outside", "inside"]
    assert reader.links == ["#outside", "#inside"]
    start = html.index('<details class="section"><summary>1 &lt; 2 tables</summary>')
    assert start < html.index("hidden &lt;at&gt; first") < html.index("</details>", start)
    assert "<details><summary>1 &lt; 2 tables</summary>\n\n<a id=" in markdown
    assert "  - [Inside](#inside)" in markdown and "hidden <at> first\n\n</details>" in markdown
    page.add(Fold("again", [Heading("Outside")]))
    with pytest.raises(InvalidArgumentError, match="outside"):
        page.html(tmp_path)


def test_two_headings_of_one_anchor_are_refused(tmp_path):
    page = Page("x", [Heading("A b"), Heading("a  B", 3)])
    for write in (page.html, page.markdown):
        with pytest.raises(InvalidArgumentError, match="'a-b'"):
            write(tmp_path)
