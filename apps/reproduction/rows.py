"""A table whose rows are saved as they are computed, so that a run can resume."""

import hashlib
import json
import os
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Self

import pandas as pd
from filelock import FileLock

from nnslicer_tf._environment import track
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.errors import CorruptFileError

Row = Mapping[str, Any]
_Groups = dict[tuple[str, ...], list[dict[str, Any]]]

WRITE_INTERVAL = 5.0  # seconds between writes of rows that are computed one by one


class RowStore:
    """A table in a CSV file; the values in its key columns identify a row, or a group of rows.

    Every addition atomically rewrites the whole file: meant for thousands of rows, not millions.
    Threads and processes may add rows to the same file.
    A file that does not hold a table with the key columns raises `CorruptFileError`.
    """

    def __init__(self, path: str | os.PathLike, keys: Iterable[str]) -> None:
        self._path = Path(path)
        self._keys = tuple(keys)
        self._groups = self._read()

    @classmethod
    def of(cls, s: Any, name: str, keys: Iterable[str], *fields: str, **made_from: Any) -> Self:
        """Return the store of rows that depend on `fields` of settings `s` and on `made_from`.

        Its file, `name-DIGEST.csv` in the folder `s.work`, is another one for other values, so that
        rows that were made from these are never taken for others.
        """
        text = json.dumps(s.values(*fields) | made_from, sort_keys=True)
        digest = hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
        return cls(s.work / f"{name}-{digest}.csv", keys)

    def __contains__(self, name: Row) -> bool:
        """Whether there are rows with the key values of `name`."""
        return self._key(name) in self._groups

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows and write the file; they replace earlier rows with the same key values."""
        self._groups |= self._grouped(rows)
        self._write()

    def extend(self, rows: Iterable[Row]) -> None:
        """Add rows as the iterable `rows` computes them, each with its own key values.

        The file is written every few seconds, at the end, and if `rows` raises an exception.
        """
        written = time.monotonic()
        try:
            for row in rows:
                self._groups[self._key(row)] = [dict(row)]
                if time.monotonic() - written > WRITE_INTERVAL:
                    self._write()
                    written = time.monotonic()
        finally:
            self._write()

    def complete(self, name: Row, make: Callable[[], Iterable[Row]]) -> pd.DataFrame:
        """Return the rows with the key values of `name`; compute and add them if missing."""
        if name not in self:
            self.add([{**name, **row} for row in make()])
        return self.to_frame([name])

    def fill(
        self, names: Iterable[Row], make: Callable[..., Iterable[Row]], what: str
    ) -> pd.DataFrame:
        """Return the rows of all names (key values); compute and add those that are missing.

        `make` maps key values, given by name, to the other columns of their rows; `what` names the
        progress bar.
        """
        names = list(names)
        for name in track(names, what):
            self.complete(name, partial(make, **name))
        return self.to_frame(names)

    def to_frame(self, names: Iterable[Row]) -> pd.DataFrame:
        """Return the rows with the key values of `names`; the file may hold more.

        Key columns have the types that they have in `names`, also in rows from the file.
        """
        rows = [
            {**row, **{key: name[key] for key in self._keys}}
            for name in names
            for row in self._groups[self._key(name)]
        ]
        return pd.DataFrame(rows)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values()))

    def __repr__(self) -> str:
        return f"RowStore({len(self)} rows in '{self._path}')"

    def _write(self) -> None:
        if not self._groups:
            return
        path = check_writable(self._path)
        with FileLock(path.with_name(f".{path.name}.lock")), atomic_path(path) as temporary:
            # Other threads and processes may have added rows.
            self._groups = self._read() | self._groups
            rows = [row for group in self._groups.values() for row in group]
            pd.DataFrame(rows).to_csv(temporary, index=False)

    def _read(self) -> _Groups:
        if not self._path.exists():
            return {}
        try:
            table = pd.read_csv(self._path, dtype=dict.fromkeys(self._keys, str))
            if not set(self._keys) <= set(table.columns):
                raise ValueError(f"it has no columns {', '.join(self._keys)}")
        except (ValueError, OSError) as error:
            raise CorruptFileError(
                f"'{self._path}' does not hold the rows of an unfinished run: {error}. Remove it."
            ) from error
        return self._grouped(table.to_dict("records"))

    def _grouped(self, rows: Iterable[Row]) -> _Groups:
        groups: _Groups = {}
        for row in rows:
            groups.setdefault(self._key(row), []).append(dict(row))
        return groups

    def _key(self, row: Row) -> tuple[str, ...]:
        return tuple(str(row[name]) for name in self._keys)
