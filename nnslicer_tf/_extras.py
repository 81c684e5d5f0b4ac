"""Optional packages, which are installed as extras: `pip install "nnslicer_tf[ray]"`."""

from importlib import import_module
from importlib.util import find_spec
from types import ModuleType

from nnslicer_tf.errors import MissingPackageError

_EXTRAS = {
    "ray": ("ray", "Ray"),
    "foolbox": ("foolbox", "Foolbox"),
    "tensorflow_datasets": ("tfds", "TensorFlow Datasets"),
}


def is_installed(package: str) -> bool:
    """Return whether a package can be imported, without importing it."""
    spec = find_spec(package)
    # A folder of the same name on the path is also found, but has no code of its own.
    return spec is not None and spec.origin is not None


def require(package: str, what: str, instead: str = "") -> ModuleType:
    """Import and return a package that belongs to an extra.

    Args:
        package: A key of the table above.
        what: What needs it; the error message begins with this.
        instead: What works without it; the error message ends with this.

    Raises:
        MissingPackageError: if it is not installed.
    """
    extra, name = _EXTRAS[package]
    if not is_installed(package):
        raise MissingPackageError(
            f'{what} {name}, which is not installed: pip install "nnslicer_tf[{extra}]". '
            f"{instead}".strip()
        )
    return import_module(package)
