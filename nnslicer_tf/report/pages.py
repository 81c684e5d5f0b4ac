"""Pages as self-contained HTML: headings, text, tables, pictures.

Pictures and styles are embedded, and there is no script. Pages follow the reader's light or dark
theme; wide tables scroll separately.
"""

import base64
import os
import re
from dataclasses import dataclass, field
from html import escape
from pathlib import Path
from typing import Any

import pandas as pd

from nnslicer_tf._checks import counted
from nnslicer_tf._tables import html_frame

Block = Any  # A part of a page: its method `html(folder)` returns HTML for a page in a folder


@dataclass(frozen=True)
class Heading:
    """A heading of level 2 or 3."""

    text: str
    level: int = 2

    @property
    def anchor(self) -> str:
        """The anchor for links to the heading: lower-case words with hyphens."""
        return re.sub(r"[^\w-]+", "-", self.text.lower()).strip("-")

    def html(self, folder: Path) -> str:
        """Return the heading."""
        return f'<h{self.level} id="{self.anchor}">{escape(self.text)}</h{self.level}>'


@dataclass(frozen=True)
class Text:
    """A paragraph of plain text; text between backticks is code."""

    text: str

    def html(self, folder: Path) -> str:
        """Return the paragraph."""
        text = re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(self.text))
        return f"<p>{text}</p>"


@dataclass(frozen=True, eq=False)
class Table:
    """A table; one with more than `longest` rows is folded."""

    frame: pd.DataFrame
    caption: str = ""
    longest: int = 24

    def html(self, folder: Path) -> str:
        """Return the table in a box that scrolls."""
        table = html_frame(self.frame, most=len(self.frame))
        caption = escape(self.caption)
        if len(self.frame) > self.longest:
            summary = f"<summary>{caption} ({counted(len(self.frame), 'row')})</summary>"
            return f'<details>{summary}<div class="scroll">{table}</div></details>'
        above = f'<p class="caption">{caption}</p>' if caption else ""
        return f'{above}<div class="scroll">{table}</div>'


@dataclass(frozen=True)
class Picture:
    """A PNG file, embedded."""

    path: Path
    caption: str
    width: int = 0  # in pixels of the page; 0 for that of the file

    def html(self, folder: Path) -> str:
        """Return the picture itself."""
        caption = escape(self.caption)
        source = f"data:image/png;base64,{base64.b64encode(self.path.read_bytes()).decode()}"
        # Pictures of a given width stand side by side, or below each other on a narrow page.
        style = f"display:inline-block;vertical-align:top;width:{self.width}px;max-width:100%"
        width = f' style="{style}"' if self.width else ""
        image_tag = f'<img alt="{caption}" src="{source}"{width}>'
        return f"<figure{width}>{image_tag}<figcaption>{caption}</figcaption></figure>"


@dataclass
class Page:
    """A page with a title and blocks, in order."""

    title: str
    blocks: list[Block] = field(default_factory=list)

    def add(self, *blocks: Block) -> None:
        """Add parts at the end."""
        self.blocks += blocks

    def html(self, folder: str | os.PathLike) -> str:
        """Return the page as HTML; links are relative to `folder`, where the page will be."""
        body = "\n".join(block.html(Path(folder)) for block in self.blocks)
        return _HTML.format(title=escape(self.title), style=_STYLE, body=body)


_STYLE = """
:root { color-scheme: light dark; --text: #1d1f23; --back: #ffffff; --soft: #f2f3f5;
  --line: #d5d8dd; --link: #0b57a4; --quiet: #5b616b; }
@media (prefers-color-scheme: dark) { :root { --text: #e3e5e8; --back: #16181c;
  --soft: #22252b; --line: #3a3e46; --link: #8ab8ef; --quiet: #a0a6b0; } }
* { box-sizing: border-box; }
body { margin: 0; color: var(--text); background: var(--back);
  font: 16px/1.5 system-ui, sans-serif; overflow-wrap: anywhere; }
main { max-width: 68rem; margin: 0 auto; padding: 0 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: 1.5rem 0 1rem; }
h2 { margin: 3rem 0 .5rem; padding-top: .5rem; border-top: 1px solid var(--line); }
h3 { margin: 2.2rem 0 .4rem; }
a { color: var(--link); }
.scroll { overflow-x: auto; max-width: 100%; margin: .3rem 0 1rem; }
table { border-collapse: collapse; font-size: .85rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid var(--line); text-align: left;
  overflow-wrap: normal; }
th { background: var(--soft); vertical-align: bottom; }
.caption, figcaption, summary { color: var(--quiet); font-size: .9rem; }
.caption { margin: .8rem 0 0; }
summary { cursor: pointer; padding: .3rem 0; }
figure { margin: 1rem 0; }
img { display: block; max-width: 100%; height: auto; background: #fff; border-radius: 4px; }
"""

_HTML = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; \
style-src 'unsafe-inline'; img-src data:">
<title>{title}</title>
<style>{style}</style>
</head>
<body>
<main>
<h1>{title}</h1>
{body}
</main>
</body>
</html>
"""
