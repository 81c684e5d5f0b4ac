"""Tables in `.csv` files, read so that no value can end up in another column unnoticed.

The lines are split and counted before values are read: each row has a value for each name. Lines
that begin with `#` are comments above the names, and below if they do not have as many values.
"""

import csv
import io
import warnings
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import MAX_CLASSES, counted, is_int
from nnslicer_tf.errors import CorruptFileError, PlausibilityWarning

if TYPE_CHECKING:
    import pandas as pd

_LARGEST = float(np.finfo(np.float32).max)
_SEPARATORS = ",;\t"
NO_LABELS = np.zeros(0, np.int64)


def read_table(path: Path) -> "pd.DataFrame":
    """Return the table in a file; raise CorruptFileError with the line that does not fit."""
    import pandas as pd

    what = f"'{path}'"
    try:
        content = path.read_bytes()
        utf16 = content[:2] in (b"\xff\xfe", b"\xfe\xff")
        text = content.decode("utf-16" if utf16 else "utf-8-sig")
    except UnicodeDecodeError as error:
        raise CorruptFileError(
            f"{what} is not a readable .csv file: it is not text in UTF-8 ({error.reason} at byte "
            f"{error.start}). Save it as UTF-8."
        ) from error
    except OSError as error:
        raise CorruptFileError(f"{what} is not a readable .csv file: {error}") from error

    # The separator is that of Excel's first line, or the first one that the names have.
    lines = io.StringIO(text, newline="").readlines() or [""]
    filled = [i for i, line in enumerate(lines) if line.strip() and line[0] != "#"] or [0]
    separators, above = _SEPARATORS, filled[0]
    if len(filled) > 1 and lines[above].rstrip(" \r\n")[:-1].lower() == "sep=":
        separators, above = lines[above][4], filled[1]
    read = partial(csv.reader, lines[above:], skipinitialspace=True)
    counts = {s: [0] for s in separators}
    for s in separators:
        with suppress(csv.Error):  # of a wrong one, which makes cells too long
            counts[s] = [len(row) for row in islice(filter(any, read(delimiter=s)), 2)] or [0]
    splits = [s for s in separators if counts[s][0] > 1]
    even = (s for s in splits if counts[s][0] == counts[s][-1])  # a name may have a comma inside
    separator = next(even, (splits or separators)[0])

    # All rows have as many values as there are names, but for empty ones at the end.
    rows, numbers = list[list[str]](), list[int]()
    reader = read(delimiter=separator, strict=True)
    names: list[str] = []
    try:
        for cells in reader:
            number, cells = above + reader.line_num, [cell.strip() for cell in cells]
            if not any(cells) and len(cells) < 2:
                continue
            if not names:
                names = cells
                continue
            is_comment = cells[0].startswith("#") and len(cells) != len(names)
            if is_comment and lines[number - 1].startswith("#"):
                continue
            rows.append(cells)
            numbers.append(number)
    except csv.Error as error:
        line = f"line {above + reader.line_num}"
        raise CorruptFileError(f"{what} is not a readable .csv file: {line}: {error}.") from error
    while names and not names[-1] and all(not any(row[len(names) - 1 :]) for row in rows):
        names.pop()
    for number, row in zip(numbers, rows, strict=True):
        if any(row[len(names) :]) or len(row) < len(names):
            raise CorruptFileError(
                f"{what}: line {number} has {counted(len(row), 'value')}, but the header has "
                f"{counted(len(names), 'name')}. Text that contains the separator needs quotes."
            )
        del row[len(names) :]
    _check_names(names, rows, what)
    repeated = io.StringIO()
    csv.writer(repeated, quoting=csv.QUOTE_MINIMAL).writerows([names, *rows])
    repeated.seek(0)
    frame = pd.read_csv(repeated, index_col=False, skip_blank_lines=False)
    frame.columns = pd.Index(names)  # pandas renames some
    return frame


def split_frame(
    frame: "pd.DataFrame", what: str, numbers: bool = False
) -> tuple[np.ndarray, np.ndarray, tuple[str, ...]]:
    """Return a table's x `(rows, columns)` float32, y int64 `(rows,)` or `(0,)`, and names.

    With `numbers`, y may hold numbers instead of classes, float64 unless they are whole.
    """
    import pandas as pd

    label = label_column(frame, what)
    parts, values = [], frame if label is None else frame.drop(columns=label)
    for name in values:
        column = values[name]
        if column.dtype == object:  # pandas fails at whole numbers of more than 308 digits
            column = column.map(lambda v: np.inf if is_int(v) and abs(v) > _LARGEST else v)
        read = pd.to_numeric(column, errors="coerce")
        if column.dtype.kind not in "fiub" and (wrong := read.isna() & column.notna()).any():
            raise CorruptFileError(
                f"{what}: column {name!r} does not hold numbers: row {wrong.argmax() + 1} has "
                f"{column.iloc[wrong.argmax()]!r:.60}. Remove the column, rename it to 'label', or "
                "encode it as for training (pandas.get_dummies, keras.layers.StringLookup)."
            )
        with np.errstate(over="ignore"):
            parts.append(read.to_numpy(np.float64).astype(np.float32))
        if (bad := ~np.isfinite(parts[-1])).any():
            value = column.iloc[bad.argmax()]
            has = "no value" if pd.isna(value) else f"{value}, which is no finite float32"
            raise CorruptFileError(
                f"{what}: column {name!r} has {has} in row {bad.argmax() + 1} of {len(bad)}. Fill "
                "it in as for training, or remove the row."
            )
    x = np.array(parts, np.float32).T.reshape(len(frame), -1).copy()
    if label is None:
        return x, NO_LABELS, ()

    column = frame[label]
    missing = column.isna().to_numpy()
    if missing.any():
        raise CorruptFileError(
            f"{what}: row {missing.argmax() + 1} of {len(column)} has no label (column {label!r}). "
            "Add it, or remove the row. In files 'NA', 'None' and 'null' count as missing."
        )
    column = column.astype(object).infer_objects()  # replaces categories by their values
    if column.dtype.kind == "b":  # also if only one of the two values occurs
        return x, column.to_numpy(np.int64), ("False", "True")
    if column.dtype.kind not in "iuf":
        names, y = np.unique(column.astype(str).to_numpy(object), return_inverse=True)
        return x, y.astype(np.int64), tuple(names.tolist())
    labels = column.to_numpy()
    wrong = (labels < 0) | (labels != np.floor(labels)) | (labels >= MAX_CLASSES)
    if numbers and wrong.any() and np.isfinite(labels).all():
        is_whole = (labels % 1 == 0).all() and (np.abs(labels) < MAX_CLASSES).all()
        return x, labels.astype(np.int64 if is_whole else np.float64), ()
    if wrong.any():
        row = wrong.argmax()
        raise CorruptFileError(
            f"{what}: labels must be class indices from 0, or names; row {row + 1} of column "
            f"{label!r} has {labels[row]:g}. If these are no labels, rename the column."
        )
    return x, labels.astype(np.int64), ()


def label_column(frame: "pd.DataFrame", what: str) -> Any:
    """Return the name of the column with the labels, if any; y only if no name is clearer."""
    clear = ("label", "labels", "class", "target")
    columns = [name for name in frame if str(name).lower() in clear]
    columns = columns or [name for name in frame if str(name).lower() == "y"]
    if len(columns) > 1:
        raise CorruptFileError(
            f"{what}: each of the columns {', '.join(map(repr, columns))} could hold the labels. "
            "Remove or rename all but one."
        )
    return columns[0] if columns else None


def _check_names(names: list[str], rows: list[list[str]], what: str) -> None:
    """Raise CorruptFileError unless each column has a name of its own, and there are rows."""
    # Names may be numbers: pandas's 0, 1, … or a scale such as wavelengths. Others are a first row
    # of values, which would be lost.
    numbers = np.array([float(name) for name in names if _is_number(name)])
    steps, problem = np.diff(numbers), ""
    is_even = len(steps) > 1 and np.allclose(steps, steps[0])
    are_all = (values := _count_values(names)) == len(numbers)
    is_scale = are_all and (steps > 0).all() and (is_even or len(steps) > 5)
    is_places = are_all and np.array_equal(numbers, np.arange(len(numbers)))
    twice = [name for i, name in enumerate(names) if name in names[:i]]
    if names and not names[0]:
        problem = (
            ": its first column has no name. If it is the index of a DataFrame, write the file "
            "with to_csv(path, index=False); else name the column."
        )
    elif 2 * values > len(names) and not (is_scale or is_places):
        problem = f" begins with values, {', '.join(names)[:80]}. Add a line of columns' names."
    elif "" in names:
        problem = f": column {names.index('') + 1} has no name. Name it, or leave it out."
    elif twice:
        problem = f": two columns are called {twice[0]!r}. Give each its own name."
    elif not rows:
        problem = " has no rows."
    elif 2 * values >= len(names) and not is_places:
        said = f"{what}: the first line, {', '.join(names)[:60]}, is taken for the columns' names."
        warnings.warn(said, PlausibilityWarning, stacklevel=2)
    if problem:
        raise CorruptFileError(f"{what}{problem}")


def _count_values(cells: list[str]) -> int:
    """Return how many cells, but for empty ones, pandas or Python reads as values, not as text."""
    import pandas as pd

    cells = [cell for cell in cells if cell]
    line = io.StringIO()
    csv.writer(line, quoting=csv.QUOTE_ALL).writerow(cells)
    line.seek(0)
    kinds = [dtype.kind for dtype in pd.read_csv(line, header=None).dtypes] if cells else []
    return sum(k in "biuf" or _is_number(c) for k, c in zip(kinds, cells, strict=True))


def _is_number(text: str) -> bool:
    try:
        return np.isfinite(float(text))
    except ValueError:
        return False
