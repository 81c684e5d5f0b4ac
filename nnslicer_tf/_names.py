"""Checks of names; the error for an unknown name suggests the nearest known ones."""

from collections.abc import Iterable
from difflib import get_close_matches

from nnslicer_tf.errors import InvalidArgumentError

_MOST = 3
_CUTOFF = 0.5


def check_name(what: str, name: object, known: Iterable[str]) -> None:
    """Check that a name is known.

    Args:
        what: What the name denotes, such as "metric", for the error message.
        name: The name asked for.
        known: All known names.

    Raises:
        InvalidArgumentError: if it is not; the message lists the nearest names, and all names.
    """
    known = list(known)
    if name not in known:
        raise InvalidArgumentError(
            f"There is no {what} {name!r}.{did_you_mean(name, known)} "
            f"It is one of {', '.join(known)}."
        )


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return a suggestion of the nearest names, ignoring case; "" if none is near."""
    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(str(name).lower(), by_lower, n=_MOST, cutoff=_CUTOFF)
    asked = " or ".join(repr(by_lower[one]) for one in near)
    return f" Did you mean {asked}?" if near else ""
