"""Griffe extension: the API pages show a name once, in the module that defines it.

A package that imports names of its public modules would otherwise show them a second time.
"""

from typing import Any

import griffe

__all__ = ["WithoutRepeats"]


class WithoutRepeats(griffe.Extension):
    """Drops from a package what one of its public modules defines."""

    def on_package(self, *, pkg: griffe.Module, **kwargs: Any) -> None:
        """Go through the package and all packages in it."""
        for name, member in list(pkg.members.items()):
            if member.is_alias:
                home = member.target_path.split(".")[:-1]
                if home[:1] == ["nnslicer_tf"] and not any(part.startswith("_") for part in home):
                    del pkg.members[name]
            elif member.is_module:
                self.on_package(pkg=member)
