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

INK = "#1d1f23"  # the colour of an SVG's text and lines, in place of which a page has its own
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
        return re.sub(r"`([^`]+)`", r"<code>\1</code>", f"<p>{escape(self.text)}</p>")


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
    """A PNG or SVG, embedded, from a file or as bytes; text of an SVG has the page's colour."""

    path: Path | bytes
    caption: str
    width: int = 0  # in pixels of the page; 0 for that of the file

    def html(self, folder: Path) -> str:
        """Return the picture itself."""
        caption = escape(self.caption)
        content = self.path if isinstance(self.path, bytes) else self.path.read_bytes()
        # Pictures of a given width stand side by side, or below each other on a narrow page.
        style = f"display:inline-block;vertical-align:top;width:{self.width}px;max-width:100%"
        width = f' style="{style}"' if self.width else ""
        if content.startswith(b"<?xml"):
            text = content.decode().replace(INK, "currentColor")
            image_tag = text[text.index("<svg") :]
        else:
            source = f"data:image/png;base64,{base64.b64encode(content).decode()}"
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
        files = (Path(__file__).with_name(name) for name in ("page.html", "page.css"))
        page, style = (file.read_text(encoding="utf-8") for file in files)
        return page.format(title=escape(self.title), style=f"\n{style}", body=body)
