"""Pages of the report, as self-contained HTML and as Markdown.

    page = Page("Results")
    page.add(Heading("Detection"), Table(frame, "F1 by attack"), Picture(Path("f1.png"), "F1"))
    page.html(folder); page.markdown(folder)

The HTML is that of `nnslicer_tf.report.pages`, with three more kinds of blocks.
"""

import base64
import io
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from PIL import Image

from nnslicer_tf._checks import counted
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.report import pages
from nnslicer_tf.report.pages import Block, Heading, Table, Text
from reproduction.tables import markdown_table


@dataclass(frozen=True)
class Code:
    """A command."""

    text: str

    def html(self, folder: Path) -> str:
        """Return the command."""
        return f"<pre>{escape(self.text)}</pre>"


@dataclass(frozen=True)
class Link:
    """A link to a file."""

    text: str
    path: Path

    def html(self, folder: Path) -> str:
        """Return the link."""
        return f'<p><a href="{escape(_relative(self.path, folder))}">{escape(self.text)}</a></p>'


class Picture(pages.Picture):
    """A picture, embedded as a lossless WebP, a fifth smaller, if that format can hold it."""

    def html(self, folder: Path) -> str:
        """Return the picture itself."""
        text = super().html(folder)
        with Image.open(self.path) as image:
            if max(image.size) > 16_383:  # the largest side of a WebP
                return text
            buffer = io.BytesIO()
            image.convert("RGBA").save(buffer, "WEBP", lossless=True)
        data = base64.b64encode(buffer.getvalue()).decode()
        return re.sub(r"data:image/png;base64,[^\"]+", f"data:image/webp;base64,{data}", text)


@dataclass(frozen=True, eq=False)
class Fold:
    """Folded blocks below a summary; links to a heading among them unfold them."""

    summary: str
    blocks: Sequence[Block]

    def html(self, folder: Path) -> str:
        """Return the folded blocks."""
        body = "\n".join(block.html(folder) for block in self.blocks)
        summary = f"<summary>{escape(self.summary)}</summary>"
        return f'<details class="section">{summary}\n{body}\n</details>'


_STYLE = """<style>
nav ul { list-style: none; padding: 0; margin: .5rem 0; columns: 18rem; font-size: .9rem; }
nav .level2 { font-weight: 600; margin-top: .4rem; break-after: avoid; }
nav .level3 { padding-left: 1rem; }
pre { background: var(--soft); padding: .5rem .7rem; border-radius: 4px; font-size: .82rem;
  white-space: pre-wrap; overflow-wrap: anywhere; }
.section > summary { font-size: 1rem; color: var(--link); }
</style>"""


@dataclass(frozen=True)
class Contents:
    """A folded list of headings, with links to them."""

    headings: Sequence[Heading]

    def html(self, folder: Path) -> str:
        """Return the list, with the style of what only these pages have."""
        links = "".join(
            f'<li class="level{h.level}"><a href="#{h.anchor}">{escape(h.text)}</a></li>'
            for h in self.headings
        )
        inside = f"<details><summary>Contents</summary>\n<ul>{links}</ul></details>"
        return f'{_STYLE}\n<nav aria-label="Contents">{inside}</nav>'


class Page(pages.Page):
    """A page with a list of its headings, which can also be written as Markdown."""

    def html(self, folder: str | os.PathLike) -> str:
        """Return the page as HTML; links are relative to `folder`, where the page will be."""
        return pages.Page(self.title, [Contents(self.headings()), *self.blocks]).html(folder)

    def headings(self) -> list[Heading]:
        """Return the headings in order, also those inside blocks; reject two of the same anchor."""

        def walk(blocks: Iterable[Block]) -> Iterator[Heading]:
            for block in blocks:
                if isinstance(block, Heading):
                    yield block
                yield from walk(getattr(block, "blocks", ()))

        headings = list(walk(self.blocks))
        anchors = [heading.anchor for heading in headings]
        twice = sorted({anchor for anchor in anchors if anchors.count(anchor) > 1})
        if twice:
            raise InvalidArgumentError(f"Two headings have the anchor {twice[0]!r}.")
        return headings

    def markdown(self, folder: str | os.PathLike) -> str:
        """Return the page as Markdown; arguments and errors are those of `html`."""
        contents = "\n".join(
            f"{'  ' * (h.level - 2)}- [{h.text}](#{h.anchor})" for h in self.headings()
        )
        body = "\n\n".join(_markdown(block, Path(folder)) for block in self.blocks)
        return f"# {self.title}\n\n{contents}\n\n{body}\n"


def _markdown(block: Block, folder: Path) -> str:
    match block:
        case Heading():
            return f'<a id="{block.anchor}"></a>\n\n{"#" * block.level} {block.text}'
        case Text():
            return block.text
        case Code():
            return f"```\n{block.text}\n```"
        case Link():
            return f"[{block.text}]({_relative(block.path, folder)})"
        case Picture():
            return f"![{block.caption}]({_relative(block.path, folder)})"
        case Fold():
            body = "\n\n".join(_markdown(one, folder) for one in block.blocks)
            return f"<details><summary>{escape(block.summary)}</summary>\n\n{body}\n\n</details>"
        case Table():
            table = markdown_table(block.frame)
            if len(block.frame) > block.longest:
                summary = f"<summary>{block.caption} ({counted(len(block.frame), 'row')})</summary>"
                return f"<details>{summary}\n\n{table}\n\n</details>"
            return f"*{block.caption}*\n\n{table}" if block.caption else table
    raise TypeError(f"No Markdown for {type(block).__name__}.")


def _relative(path: Path, folder: Path) -> str:
    return Path(os.path.relpath(path, folder)).as_posix().replace(" ", "%20")
