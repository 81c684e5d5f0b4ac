"""The progress bar of long-running work."""

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
