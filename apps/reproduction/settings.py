"""Settings of experiments: dataclasses whose fields are also the options of a command.

    @dataclass(frozen=True)
    class CurveSettings(Settings):
        kept = "pruning"
        model: Annotated[str, Option(help="Model of the zoo.")] = "resnet10"

The annotations are Typer's. An experiment takes only settings, so that a notebook can call
`run(CurveSettings(model="digits_cnn"))` instead of passing `--model digits_cnn`.
"""

import os
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Annotated, ClassVar, Self

from typer import Option

DATA = Path(__file__).parents[2] / "data"
"""Folder of the papers' tables, measured results and large weights."""

# A package that is installed elsewhere finds this checkout's weights, and so do its workers.
os.environ.setdefault("NNSLICER_WEIGHTS", str(DATA / "weights"))

View = Annotated[Path | None, Option(help="HTML file for an interactive view of the results.")]
"""The option `--explore` of experiments with an interactive view."""


@dataclass(frozen=True)
class Settings:
    """Base class of settings, with folders of results and the changes for a trial."""

    kept: ClassVar[str]
    """Folder of results to keep, below `data/results`."""

    trial: ClassVar[dict[str, object]] = {}
    """Field → its value in a trial; fields that are empty by default keep a given value."""

    def quick(self) -> Self:
        """Return settings for a trial of a few minutes, with its own working folder."""
        given = {f.name for f in fields(self) if not f.default and getattr(self, f.name)}
        changes = {name: value for name, value in self.trial.items() if name not in given}
        if hasattr(self, "work"):
            changes["work"] = self.work / "quick"
        return replace(self, **changes)

    def values(self, *names: str) -> dict[str, object]:
        """Return the values of the fields with these names."""
        return {name: getattr(self, name) for name in names}

    @property
    def results_folder(self) -> Path:
        """The folder of results to keep."""
        return DATA / "results" / self.kept

    @property
    def trial_folder(self) -> Path:
        """The folder of a trial's results; call it on the settings that `quick` returns."""
        return getattr(self, "work", Path("runs") / self.kept / "quick")
