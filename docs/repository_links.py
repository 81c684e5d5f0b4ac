"""MkDocs hook: links from the pages to files of the repository outside docs/.

The pages link to files as they are in the repository, so that the links work there too. In
the site, notebooks are pages (see `notebook_pages.py`), pictures and other finished files are
copied, and what remains (sources, Markdown) is linked where the repository's address is known
(`REPOSITORY_URL`, when the site is built), and named instead where it is not.
"""

import os
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
LINK = re.compile(r"(?P<picture>!?)\[(?P<text>[^\]]*)\]\((?P<target>[^)#\s]+)(?P<anchor>#[^)]*)?\)")
COPIED = (".png", ".svg", ".html", ".csv", ".json")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the files outside docs/ that pages link to and that a browser shows."""
    for page in list(files.documentation_pages()):
        if page.abs_src_path is None:  # generated from a notebook
            continue
        for link in LINK.finditer(page.content_string):
            path = outside(page.src_uri, link["target"])
            if path and path.endswith(COPIED) and files.get_file_from_path(path) is None:
                files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point links to files outside docs/ to what stands for them in the site."""

    def replaced(link: re.Match) -> str:
        path = outside(page.file.src_uri, link["target"])
        if path is None:
            return link[0]
        if path.endswith(".ipynb"):
            path = f"{path.removesuffix('.ipynb')}.md"
        elif not path.endswith(COPIED):
            name = f"`{path}`"
            if config.repo_url:
                return f"[{link['text']}]({config.repo_url.rstrip('/')}/blob/main/{path})"
            return name if link["text"] in path else f"{link['text']} ({name})"
        target = os.path.relpath(path, posixpath.dirname(page.file.src_uri) or ".")
        return f"{link['picture']}[{link['text']}]({Path(target).as_posix()}{link['anchor'] or ''})"

    return LINK.sub(replaced, markdown)


def outside(page: str, target: str) -> str | None:
    """Return a link's path from the repository's root if it leads out of docs/, else None.

    Args:
        page: Path of the page below docs/.
        target: The link, relative to the page.
    """
    if ":" in target or target.startswith("/"):
        return None
    path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page), target))
    return None if path.startswith(("docs/", "..")) else path
