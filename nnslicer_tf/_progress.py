"""The progress bar of long-running work, and short announcements beside it."""

import sys
from collections.abc import Iterable, Iterator
from typing import TypeVar

from tqdm.auto import tqdm

T = TypeVar("T")


def track(
    items: Iterable[T], what: str, total: int | None = None, progress: bool = True
) -> Iterator[T]:
    """Yield `items` and show a progress bar named `what`, unless `progress` is false."""
    with tqdm(items, desc=what, total=total, disable=not progress, leave=False) as bar:
        yield from bar


def announce(text: str, progress: bool = True) -> None:
    """Write a line to standard error, above a progress bar, unless `progress` is false."""
    if progress:
        tqdm.write(text, file=sys.stderr)
