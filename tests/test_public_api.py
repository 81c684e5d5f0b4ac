"""The names that the package promises: each resolves, is documented and annotated."""

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import nnslicer_tf as nns
from nnslicer_tf import errors
from support.faces import past_the_faces, shared_names


def public_modules():
    """The package and all its modules, private ones left out."""
    found = [nns]
    for info in pkgutil.walk_packages(nns.__path__, "nnslicer_tf."):
        if any(part.startswith("_") for part in info.name.split(".")):
            continue
        found.append(importlib.import_module(info.name))
    return found


def public_names(module):
    """Functions and classes without a leading underscore that a module defines."""
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isclass(value) or inspect.isfunction(value))
        and value.__module__ == module.__name__
    ]


MODULES = public_modules()
NAMES = [(module, name) for module in MODULES for name in public_names(module)]
IDS = [f"{module.__name__}.{name}" for module, name in NAMES]
ERRORS = public_names(errors)


def functions_of(value):
    """A public function, or the public functions that a class defines itself."""
    if inspect.isfunction(value):
        return [value]
    if not inspect.isclass(value):
        return []
    members = []
    for name, member in vars(value).items():
        member = getattr(member, "__func__", member)
        member = getattr(member, "fget", member)
        member = getattr(member, "func", member)
        own = inspect.isfunction(member) and member.__module__ == value.__module__
        # Code that dataclasses write has no file.
        written = own and member.__code__.co_filename != "<string>"
        if written and (name == "__init__" or not name.startswith("_")):
            members.append(member)
    return members


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_module(module):
    assert module.__doc__ and module.__doc__.strip()
    promised = getattr(module, "__all__", [])
    assert len(set(promised)) == len(promised)
    assert all(hasattr(module, name) for name in promised)


def test_there_are_names_to_test():
    assert len(NAMES) > 300 and len(ERRORS) > 8


@pytest.mark.parametrize(("module", "name"), NAMES, ids=IDS)
def test_name(module, name):
    value = getattr(module, name)
    assert value.__doc__ and value.__doc__.strip(), f"{name} has no docstring"
    for function in functions_of(value):
        where = f"{function.__module__}.{function.__qualname__}"
        if function.__name__ != "__init__":
            assert function.__doc__ or inherits_documentation(value, function), where
        parameters = list(inspect.signature(function).parameters.values())
        for position, parameter in enumerate(parameters):
            bound = position == 0 and parameter.name in ("self", "cls")
            assert bound or parameter.annotation is not parameter.empty, (where, parameter.name)
        if function.__name__ != "__init__":
            returns = inspect.signature(function).return_annotation
            assert returns is not inspect.Signature.empty, where


def inherits_documentation(value, function):
    """Whether a class documents the method that this one overrides."""
    return inspect.isclass(value) and any(
        getattr(getattr(base, function.__name__, None), "__doc__", None) for base in value.__mro__
    )


def test_help_shows_names_in_place_of_long_unions():
    signatures = [str(inspect.signature(f)) for m, n in NAMES for f in functions_of(vars(m)[n])]
    assert sum("DataLike" in signature for signature in signatures) > 30
    assert not [s for s in signatures if "_SupportsArray" in s or "_NestedSequence" in s]


def test_everything_is_reachable_from_the_package():
    assert set(nns.__all__) <= set(dir(nns))
    for name in dir(nns):
        getattr(nns, name)
    with pytest.raises(AttributeError, match="slicer"):
        _ = nns.slicer


def test_every_subpackage_is_an_attribute():
    for info in pkgutil.iter_modules(nns.__path__):
        if not info.name.startswith("_") and info.name not in ("cli", "demo", "errors"):
            assert getattr(nns, info.name).__name__ == f"nnslicer_tf.{info.name}"


def test_the_contract_is_there():
    """The names of the documented entry points."""
    promised = (
        *("InstrumentedModel", "Step", "register_layer", "explore", "errors"),
        *("Profile", "Slicer", "Slice", "SliceSet", "Criterion"),
    )
    assert set(promised) <= set(nns.__all__)


@pytest.mark.parametrize("name", ERRORS)
def test_errors_have_one_base(name):
    base = UserWarning if name.endswith("Warning") else errors.NNSlicerError
    assert issubclass(getattr(errors, name), base)


def test_importing_the_package_loads_nothing_heavy():
    heavy = ("tensorflow", "keras", "ray", "foolbox", "matplotlib", "tensorflow_datasets", "cv2")
    code = f"import sys, nnslicer_tf; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_slicing_does_not_load_exact_lines():
    """Nor do attributions: exact integrated gradients are loaded by their first call."""
    code = (
        "import sys, nnslicer_tf.slicing as s, nnslicer_tf.attributions; s.Slicer;"
        "print([m for m in sys.modules if m.startswith('nnslicer_tf.exactline')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_packages_import_what_is_public_or_shared():
    """The names of a package's face, or those that nnslicer_tf/README.md lists, and no more."""
    imports = {(package, module, name): where for package, module, name, where in past_the_faces()}
    shared = shared_names()
    assert {key: where for key, where in imports.items() if key not in shared} == {}
    assert shared - imports.keys() == set()
    assert not [name for *_, name in shared if name.startswith("_")]


def test_tests_of_the_package_import_no_experiment():
    """The papers' experiments stand on the package, whose tests stand without them."""
    folder = Path(__file__).parent
    files = [f for f in folder.rglob("*.py") if "reproduction" not in f.relative_to(folder).parts]
    assert len(files) > 100
    importing = re.compile(r"^\s*(from|import) reproduction\b", re.MULTILINE)
    assert [f for f in files if importing.search(f.read_text(encoding="utf-8"))] == []
