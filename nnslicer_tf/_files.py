"""Atomic writing of files, result files, and weights of Keras models.

A file is written under a temporary name and replaces the older one when complete. Results are NumPy
archives (`.npz`) with a JSON header, read without pickle: `read_archive` checks the declared sizes
before anything is allocated, and each reader declares the keys, shapes and dtypes that it expects.
Keras is imported only for weights.
"""

import errno
import glob
import hashlib
import json
import math
import os
import re
import tempfile
import uuid
import warnings
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np

from nnslicer_tf.errors import (
    CorruptFileError,
    InvalidArgumentError,
    MissingFileError,
    NNSlicerError,
)

if TYPE_CHECKING:
    import keras

# Errors of a disk, not of a program.
_DISK_ERRORS = {getattr(errno, e, 0) for e in ("ENOSPC", "EDQUOT", "EFBIG", "EIO", "EROFS")} - {0}
_UNFINISHED = ".unfinished-"  # prefix of temporary files
_MAX_STEM = 150  # bytes of a name in that of a temporary file, of at most 255

# An archive that unpacks to more bytes than MAX_UNPACKED must not be compressed by more than
# MAX_RATIO. A mostly empty slice of VGG-16 unpacks to 1.1 GB from a thousandth of that.
MAX_UNPACKED = 5 << 28
MAX_RATIO = 200


def as_path(path: str | os.PathLike) -> Path:
    """Return a path; raise InvalidArgumentError for what names no file, such as "" or an int."""
    try:
        name = os.fspath(path)
    except TypeError:
        name = b""
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidArgumentError(f"A path must be a string or a pathlib.Path. Received: {path!r}")
    try:
        os.lstat(name)
    except UnicodeEncodeError:
        raise InvalidArgumentError(f"The file name {name!r} cannot be encoded.") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise InvalidArgumentError(f"The file name '{name[:80]}…' is too long.") from error
    return Path(name)


def check_writable(path: str | os.PathLike) -> Path:
    """Return `path` if a file can be written where it leads to, else raise; make its folders."""
    path, reason = as_path(path), ""
    try:
        target = Path(os.path.realpath(path))
        if path.is_dir():
            reason = "it is a folder. Pass a file name"
        elif target.is_symlink() or (path.exists() and not path.is_file()):  # or links in a circle
            reason = "it is a device, a pipe or another special file. Pass a file name"
        else:
            if not path.is_symlink():
                path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=target.parent):
                pass
    except OSError as error:
        reason = error.strerror or str(error)
    if reason:
        raise InvalidArgumentError(f"Cannot write to '{path}': {reason}.")
    return path


@contextmanager
def atomic_path(path: str | os.PathLike, *, replace: bool = True) -> Iterator[Path]:
    """Yield a temporary path that replaces `path` when the block succeeds, else is removed.

    A link stays, and the file that it names is replaced.
    If threads, processes or hosts write the same file at once, one of the complete files remains.
    Without `replace` it is the first one, and FileExistsError is raised for the others. Raises
    `InvalidArgumentError` if the file cannot be written, as on a full disk.
    """
    path = check_writable(path)
    target = Path(os.path.realpath(path))
    leftovers = f"{glob.escape(_short(path.stem))}-*{glob.escape(path.suffix)}"
    with folder_lock(target.parent, leftovers):
        temporary = temporary_file(target.parent, path.stem, path.suffix)
        try:
            with disk_errors(path):
                yield temporary
                if replace:
                    os.replace(temporary, target)
                    return
                try:
                    os.link(temporary, target)
                except FileExistsError:
                    raise
                except OSError:  # a file system without links
                    with target.open("xb") as file:
                        file.write(temporary.read_bytes())
        finally:
            temporary.unlink(missing_ok=True)


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn errors of a full or failing disk into `InvalidArgumentError` with the file's name."""
    try:
        yield
    except (OSError, RuntimeError) as error:
        # HDF5 reports the system's error in its text only.
        code = re.search(r"errno = (\d+)", str(error))
        number = int(code[1]) if code else getattr(error, "errno", None)
        if number not in _DISK_ERRORS:
            raise
        raise InvalidArgumentError(
            f"Cannot write to '{path}': {os.strerror(number)}. An earlier file is unchanged."
        ) from error


@contextmanager
def folder_lock(folder: Path, leftovers: str = "*") -> Iterator[None]:
    """Hold a lock of a folder while files are written in it, if the system can lock folders.

    The first holder removes the temporary files of killed processes that match `leftovers`.
    """
    try:
        import fcntl

        handle = os.open(folder, os.O_RDONLY)
    except (ImportError, OSError):  # Windows
        yield
        return
    try:
        with suppress(OSError):  # held by others, or no locks on this file system
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            for path in folder.glob(f"{_UNFINISHED}{leftovers}"):
                path.unlink(missing_ok=True)
        with suppress(OSError):
            fcntl.flock(handle, fcntl.LOCK_SH)
        yield
    finally:
        os.close(handle)


def temporary_file(folder: Path, stem: str, suffix: str = "") -> Path:
    """Create an empty temporary file in a folder whose lock is held, and return its path.

    It has the permissions of any new file; those of Python's temporary files are stricter.
    """
    path = folder / f"{_UNFINISHED}{_short(stem)}-{uuid.uuid4().hex[:16]}{suffix}"
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
    return path


def _short(stem: str) -> str:
    """Return the start of a file's name, to which a temporary file's can add some characters."""
    return stem.encode(errors="ignore")[:_MAX_STEM].decode(errors="ignore")


# --- archives ---


_CHECKSUM = "checksum"  # of all other arrays of a file


def write_archive(
    path: str | os.PathLike,
    kind: str,
    header: Mapping[str, object],
    arrays: Mapping[str, np.ndarray],
    *,
    compress: bool = True,
    replace: bool = True,
) -> None:
    """Write an .npz file for `read_archive` with the same format, `kind`, as `atomic_path` does."""
    if as_path(path).suffix != ".npz":
        raise InvalidArgumentError(f"A result file's name must end in .npz. Received: '{path}'")
    text = json.dumps({"format": kind, **header}, default=np.generic.item)  # of NumPy's numbers
    members: dict[str, Any] = {"header": np.array(text), **arrays}
    with atomic_path(path, replace=replace) as temporary:
        for save in (np.savez_compressed, np.savez) if compress else (np.savez,):
            with temporary.open("wb") as file:
                save(file, **members)
            if not _unpacks_to_too_much(sum(array.nbytes for array in members.values()), temporary):
                break
        with zipfile.ZipFile(temporary, "a") as file:
            value = np.array(_checksum(file), np.uint32)
            with file.open(f"{_CHECKSUM}.npy", "w") as member:
                np.lib.format.write_array(member, value)


def _checksum(file: zipfile.ZipFile) -> int:
    """Return one CRC-32 for those of all members but the checksum, by name."""
    known = {m.filename: m.CRC for m in file.infolist() if m.filename != f"{_CHECKSUM}.npy"}
    return zlib.crc32(repr(sorted(known.items())).encode())


@contextmanager
def read_archive(path: str | os.PathLike, kind: str, what: str) -> Iterator["Archive"]:
    """Open an .npz file written by this package.

    `kind` is the header's expected format, `what` the content's name for messages. Raises
    MissingFileError, or CorruptFileError if the file is damaged or not as the block expects.
    """
    path = as_path(path)
    if not path.exists():
        raise MissingFileError(f"There is no {what} file '{path}'.")
    if not path.is_file():  # a device may never end
        raise CorruptFileError(f"'{path}' is not a regular file, so it cannot be a {what}.")
    try:
        with zipfile.ZipFile(path) as file:
            archive = Archive(path, what, file)
            if _unpacks_to_too_much(sum(m.file_size for m in file.infolist()), path):
                raise archive.error("it unpacks to far more than its size allows")
            archive.header.update(json.loads(str(archive.array("header", np.str_, ""))))
            if (found := archive.header.get("format")) != kind:
                raise archive.error(f"its format is {found!r}, expected {kind!r}")
            yield archive
            if _CHECKSUM in archive:  # older files have none
                written = int(archive.array(_CHECKSUM, np.uint32, ""))
                archive.check(written == _checksum(file), "its values were changed later")
    except (NNSlicerError, MemoryError):
        raise
    except Exception as error:  # whatever the parsers of ZIP, JSON and NumPy raise
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:200]
        raise CorruptFileError(
            f"'{path}' is not a {what}: it is truncated, damaged or of another kind ({reason})."
        ) from error


class Archive:
    """An open archive; wrong or missing content raises `CorruptFileError` with the file's name."""

    def __init__(self, path: Path, what: str, file: zipfile.ZipFile) -> None:
        self._path, self._what, self._file = path, what, file
        self._members = {m.filename.removesuffix(".npy"): m for m in file.infolist()}
        self._sizes: dict[str, int] = {}
        self.header: dict[str, Any] = _Entries(self)

    def __contains__(self, name: str) -> bool:
        return name in self._members

    def error(self, problem: str) -> CorruptFileError:
        """Return the error to raise for a problem of the file."""
        return CorruptFileError(f"'{self._path}' is not a {self._what}: {problem}.")

    def check(self, holds: Any, problem: str) -> None:
        """Raise an error with the description of a problem unless a condition holds."""
        if not holds:
            raise self.error(problem)

    def value(self, name: str, *types: type, least: float = -math.inf) -> Any:
        """Return a header value of one of the types; numbers are finite and at least `least`."""
        value = self.header[name]
        expected = " or ".join(t.__name__ for t in types)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self.error(f"its {name!r} is {str(value)[:50]!r}, expected {expected}")
        if isinstance(value, (int, float)) and not least <= value < math.inf:
            raise self.error(f"its {name!r} is {value!r}, expected a finite number ≥ {least:g}")
        return value

    def names(self, key: str) -> list[str]:
        """Return a list of distinct names in the header."""
        names = self.value(key, list)
        if not all(isinstance(name, str) for name in names) or len(set(names)) < len(names):
            raise self.error(f"its {key!r} are not a list of different names")
        return names

    def shapes(self, key: str) -> dict[str, tuple[int, ...]]:
        """Return a mapping in the header of names to shapes."""
        shapes = self.value(key, dict)
        for shape in shapes.values():
            if not isinstance(shape, list) or not all(type(n) is int and n >= 0 for n in shape):
                raise self.error(f"its {key!r} have the shape {shape!r}")
        return {name: tuple(shape) for name, shape in shapes.items()}

    def array(
        self, name: str, dtype: Any, shape: str | tuple[int, ...] = "...", *, finite: bool = True
    ) -> np.ndarray:
        """Return an array of a dtype, perhaps an abstract one; `np.number` excludes complex ones.

        A `shape` may be a description such as "samples 2 ...": equal names in one file mean equal
        extents, and "..." any number of axes. With `finite`, NaN and infinite values are errors.
        """
        self.check(name in self, f"it has no {name!r}")
        array = self._read(name)
        if not np.issubdtype(array.dtype, dtype) or array.dtype.kind == "c":
            raise self.error(f"{name!r} has dtype {array.dtype}, expected {dtype.__name__}")
        fits = array.shape == shape if isinstance(shape, tuple) else self._fits(array.shape, shape)
        self.check(fits, f"{name!r} has shape {array.shape}, expected {shape}")
        if finite and array.dtype.kind == "f" and not np.isfinite(array).all():
            raise self.error(f"{name!r} has values that are NaN or infinite")
        return array

    def arrays(self, prefix: str = "") -> dict[str, np.ndarray]:
        """Return all arrays whose names start with `prefix`, by the rest of the name, unchecked."""
        own = {"header", _CHECKSUM}
        names = [n for n in self._members if n not in own and n.startswith(prefix)]
        return _Entries(self, {name.removeprefix(prefix): self._read(name) for name in names})

    def named(self, key: str, prefix: str, *how: Any, finite: bool = True) -> dict[str, np.ndarray]:
        """Return arrays by the `names` in the header, called `prefix` and a number, from 0.

        Dtype, shape and `finite` are those of `array`.
        """
        names = enumerate(self.names(key))
        return {name: self.array(f"{prefix}{i}", *how, finite=finite) for i, name in names}

    def _fits(self, shape: tuple[int, ...], description: str) -> bool:
        """Whether a shape is as described; sizes of names are remembered."""
        terms = description.split()
        if "..." in terms:
            place = terms.index("...")
            if len(shape) < len(terms) - 1:
                return False
            terms[place : place + 1] = ["*"] * (len(shape) - len(terms) + 1)
        return len(terms) == len(shape) and all(
            term == "*"
            or extent == (int(term) if term.isdigit() else self._sizes.setdefault(term, extent))
            for term, extent in zip(terms, shape, strict=True)
        )

    def _read(self, name: str) -> np.ndarray:
        """Return an array after comparing its declared size with that of its part of the file."""
        member = self._members[name]
        with self._file.open(member) as file:
            headers = np.lib.format
            readers = {(1, 0): headers.read_array_header_1_0, (2, 0): headers.read_array_header_2_0}
            shape, _, dtype = readers[headers.read_magic(file)](file)
            self.check(not dtype.hasobject, f"{name!r} holds Python objects")
            declared = math.prod(shape) * dtype.itemsize
            if min(shape, default=0) < 0 or declared != member.file_size - file.tell():
                raise self.error(
                    f"{name!r} declares {declared:,} bytes of shape {shape}, and there are "
                    f"{member.file_size - file.tell():,}"
                )
        with self._file.open(member) as file:
            array = np.lib.format.read_array(file, allow_pickle=False)
            self.check(not file.read(1), f"{name!r} is too long")  # compares the checksum, too
            return array


class _Entries(dict):
    """A part of an archive; a missing key is an error of the file."""

    def __init__(self, archive: Archive, entries: Mapping[str, Any] | None = None) -> None:
        super().__init__(entries or {})
        self._archive = archive

    def __missing__(self, key: str) -> Any:
        raise self._archive.error(f"it has no {key!r}")


def _unpacks_to_too_much(unpacked: int, path: Path) -> bool:
    return unpacked > max(MAX_UNPACKED, MAX_RATIO * path.stat().st_size)


def digest(parts: Iterable[bytes | np.ndarray]) -> str:
    """Return a hash of bytes and of arrays' values (not shapes or dtypes), 32 hex digits."""
    known = hashlib.blake2b(digest_size=16)
    for part in parts:
        known.update(part if isinstance(part, bytes) else np.ascontiguousarray(part).tobytes())
    return known.hexdigest()


# --- weights of Keras models ---


def load_weights(model: "keras.Model", path: str | os.PathLike) -> None:
    """Load a model's weights; raise `CorruptFileError` if they are damaged or do not fit."""
    if not Path(path).is_file():  # a pipe may never end
        raise MissingFileError(f"There is no weights file '{path}'.")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)  # Keras only warns of some mismatches
            model.load_weights(path)
    except Exception as error:  # HDF5 raises errors of many classes for damaged files
        raise CorruptFileError(
            f"'{path}' does not hold weights of '{model.name}': {error}"
        ) from error


class Saved:
    """A dataclass of arrays and numbers that is saved in an `.npz` file."""

    _format: ClassVar[str]
    _arrays: ClassVar[dict[str, tuple[type, str]]]  # field → dtype and shape; see `Archive.array`
    _names: ClassVar[dict[str, str]] = {}  # field → its name in the file, where that is another
    # Field that is a non-negative number → its types.
    _numbers: ClassVar[dict[str, tuple[type, ...]]] = {}

    def save(self, path: str | os.PathLike) -> None:
        """Write an `.npz` file, completely or not at all; reject paths that cannot be written."""
        header = {name: getattr(self, name) for name in self._numbers}
        arrays = {self._names.get(name, name): getattr(self, name) for name in self._arrays}
        write_archive(path, self._format, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> Self:
        """Read what `save` wrote; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, cls._format, f"saved {cls.__name__}") as file:
            values = {name: file.value(name, *of, least=0) for name, of in cls._numbers.items()}
            for name, (dtype, shape) in cls._arrays.items():
                values[name] = file.array(cls._names.get(name, name), dtype, shape)
            result = cls(**values)
            result._check(file)
        return result

    def _check(self, file: Archive) -> None:
        """Raise an error if arrays read from a file do not fit each other."""
