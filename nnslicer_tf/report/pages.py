"""Pages as self-contained HTML and as Markdown: headings, text, tables, pictures.

    page = Page("Results")
    page.add(Heading("Detection"), Table(frame, "F1 by attack"), Picture(Path("f1.png"), "F1"))
    page.html(folder); page.markdown(folder)

The HTML loads nothing: pictures and styles are embedded, and there is no script. It
follows the reader's light or dark theme; wide tables scroll separately.
"""

import base64
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from nnslicer_tf._tables import html_frame
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report.tables import markdown_table

if TYPE_CHECKING:
    import pandas as pd


_WEBP_SIDE = 16_383  # pixels: the format's largest


class Block(Protocol):
    """A part of a page. To add a kind of block, write a class with these two methods."""

    def html(self, folder: Path) -> str:
        """Return HTML for a page in a folder."""

    def markdown(self, folder: Path) -> str:
        """Return Markdown for a page in a folder."""


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or 3, listed in the table of contents."""

    text: str
    level: int = 2

    @property
    def anchor(self) -> str:
        """The anchor for links to the heading: lower-case words with hyphens."""
        return re.sub(r"[^\w-]+", "-", self.text.lower()).strip("-")

    def html(self, folder: Path) -> str:
        """Return the heading."""
        return f'<h{self.level} id="{self.anchor}">{escape(self.text)}</h{self.level}>'

    def markdown(self, folder: Path) -> str:
        """Return the heading."""
        return f'<a id="{self.anchor}"></a>\n\n{"#" * self.level} {self.text}'


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; text between backticks is code."""

    text: str

    def html(self, folder: Path) -> str:
        """Return the paragraph."""
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(self.text))
        return f"<p>{text}</p>"

    def markdown(self, folder: Path) -> str:
        """Return the paragraph."""
        return self.text


@dataclass(frozen=True)
class Code:
    """A command."""

    text: str

    def html(self, folder: Path) -> str:
        """Return the command."""
        return f"<pre>{escape(self.text)}</pre>"

    def markdown(self, folder: Path) -> str:
        """Return the command."""
        return f"```\n{self.text}\n```"


@dataclass(frozen=True)
class Link:
    """A link to a file."""

    text: str
    path: Path

    def html(self, folder: Path) -> str:
        """Return the link."""
        return f'<p><a href="{escape(_relative(self.path, folder))}">{escape(self.text)}</a></p>'

    def markdown(self, folder: Path) -> str:
        """Return the link."""
        return f"[{self.text}]({_relative(self.path, folder)})"


@dataclass(frozen=True, eq=False)
class Table:
    """A table, which is folded if it is long.

    Attributes:
        frame: The rows.
        caption: The caption.
        longest: Tables with more rows are folded.
    """

    frame: "pd.DataFrame"
    caption: str = ""
    longest: int = 24

    def html(self, folder: Path) -> str:
        """Return the table in a box that scrolls."""
        table = html_frame(self.frame, most=len(self.frame))
        caption = escape(self.caption)
        if len(self.frame) > self.longest:
            summary = f"<summary>{caption} ({len(self.frame)} rows)</summary>"
            return f'<details>{summary}<div class="scroll">{table}</div></details>'
        above = f'<p class="caption">{caption}</p>' if caption else ""
        return f'{above}<div class="scroll">{table}</div>'

    def markdown(self, folder: Path) -> str:
        """Return the table."""
        table = markdown_table(self.frame)
        if len(self.frame) > self.longest:
            summary = f"<summary>{self.caption} ({len(self.frame)} rows)</summary>"
            return f"<details>{summary}\n\n{table}\n\n</details>"
        return f"*{self.caption}*\n\n{table}" if self.caption else table


@dataclass(frozen=True)
class Picture:
    """A PNG picture, embedded in the HTML and linked from the Markdown.

    Attributes:
        path: The file.
        caption: The caption.
    """

    path: Path
    caption: str

    def html(self, folder: Path) -> str:
        """Return the picture itself."""
        caption = escape(self.caption)
        image = f'<img alt="{caption}" src="{_embedded(self.path)}">'
        return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"

    def markdown(self, folder: Path) -> str:
        """Return a link to the picture."""
        return f"![{self.caption}]({_relative(self.path, folder)})"


def _embedded(path: Path) -> str:
    """Return a picture as a data URL: a lossless WebP, a fifth smaller than a PNG, if it fits."""
    from PIL import Image

    kind, data = "png", path.read_bytes()
    with Image.open(path) as image:
        if max(image.size) <= _WEBP_SIDE:
            buffer = io.BytesIO()
            image.convert("RGBA").save(buffer, "WEBP", lossless=True)
            kind, data = "webp", buffer.getvalue()
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


@dataclass(frozen=True, eq=False)
class Fold:
    """Folded blocks; links to a heading among them unfold them.

    Attributes:
        summary: Plain text that is shown when they are folded.
        blocks: The blocks.
    """

    summary: str
    blocks: "Sequence[Block]"

    def html(self, folder: Path) -> str:
        """Return the folded blocks."""
        body = "\n".join(block.html(folder) for block in self.blocks)
        summary = f"<summary>{escape(self.summary)}</summary>"
        return f'<details class="section">{summary}\n{body}\n</details>'

    def markdown(self, folder: Path) -> str:
        """Return the folded blocks."""
        body = "\n\n".join(block.markdown(folder) for block in self.blocks)
        return f"<details><summary>{escape(self.summary)}</summary>\n\n{body}\n\n</details>"


@dataclass
class Page:
    """A page.

    Attributes:
        title: Its title.
        blocks: Its parts, in order.
    """

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Add parts at the end."""
        self.blocks += blocks

    def html(self, folder: str | os.PathLike) -> str:
        """Return the page as HTML.

        Args:
            folder: The page's folder; links are relative to it.

        Raises:
            InvalidArgumentError: if two headings have the same anchor.
            OSError: if a picture cannot be read.
        """
        contents = "".join(
            f'<li class="level{h.level}"><a href="#{h.anchor}">{escape(h.text)}</a></li>'
            for h in self._headings()
        )
        body = "\n".join(block.html(Path(folder)) for block in self.blocks)
        return _HTML.format(title=escape(self.title), style=_STYLE, contents=contents, body=body)

    def markdown(self, folder: str | os.PathLike) -> str:
        """Return the page as Markdown; arguments and errors are the same as for `html`."""
        contents = "\n".join(
            f"{'  ' * (h.level - 2)}- [{h.text}](#{h.anchor})" for h in self._headings()
        )
        body = "\n\n".join(block.markdown(Path(folder)) for block in self.blocks)
        return f"# {self.title}\n\n{contents}\n\n{body}\n"

    def _headings(self) -> list[Heading]:
        headings = list(_headings(self.blocks))
        anchors = [heading.anchor for heading in headings]
        twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
        if twice:
            raise InvalidArgumentError(f"Two headings have the anchor {twice[0]!r}.")
        return headings


def _headings(blocks: Iterable[Block]) -> Iterator[Heading]:
    """Yield headings in order, including those in folded blocks."""
    for block in blocks:
        if isinstance(block, Heading):
            yield block
        elif isinstance(block, Fold):
            yield from _headings(block.blocks)


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix().replace(" ", "%20")


_STYLE = """
:root { color-scheme: light dark; --text: #1d1f23; --back: #ffffff; --soft: #f2f3f5;
  --line: #d5d8dd; --link: #0b57a4; --quiet: #5b616b; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e5e8; --back: #16181c;
  --soft: #22252b; --line: #3a3e46; --link: #8ab8ef; --quiet: #a0a6b0; } }
* { box-sizing: border-box; }
body { margin: 0; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main, nav { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 1rem; }
h2 { margin: 3rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { margin: 2.2rem 0 .4rem; }
a { color: var(--link); }
nav ul { list-style: none; padding: 0; margin: .5rem 0; columns: 18rem; font-size: .9rem; }
nav .level2 { font-weight: 600; margin-top: .4rem; break-after: avoid; }
nav .level3 { padding-left: 1rem; }
.scroll { overflow-x: auto; max-width: 100%; margin: .3rem 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  overflow-wrap: normal; }
th { background: var(--soft); vertical-align: bottom; }
pre { background: var(--soft); padding: .5rem .7rem; border-radius: 4px; font-size: .82rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.caption, figcaption, summary { color: var(--quiet); font-size: .9rem; }
.caption { margin: .8rem 0 0; }
summary { cursor: pointer; padding: .3rem 0; }
.section > summary { font-size: 1rem; color: var(--link); }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
"""

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main><h1>{title}</h1></main>
<nav aria-label="Contents"><details><summary>Contents</summary>
<ul>{contents}</ul></details></nav>
<main>
{body}
</main>
</body>
</html>
"""
