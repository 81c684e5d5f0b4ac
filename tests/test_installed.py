"""Notebooks, tutorials and the page on transformers as users have them: installed by pip.

The package is installed into a folder, without the checkout's `data/weights`, and other tests run
against it: with the data sets that are at hand, and with none, nor a connection.
"""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SCRIPTS = Path(sys.executable).parent
# Refuse to connect, in every process of Python that has this folder on its path.
OFFLINE = """
import socket

def refuse(address, *arguments, **options):
    if address[0] not in ("localhost", "127.0.0.1", "::1"):
        raise OSError("no route to host")
    return connect(address, *arguments, **options)

connect, socket.create_connection = socket.create_connection, refuse
"""

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """A folder with the package as pip installs it; its dependencies are those of the tests."""
    folder, copy = tmp_path_factory.mktemp("site"), tmp_path_factory.mktemp("copy")
    for name in ("setup.py", "setup.cfg", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "nnslicer_tf", copy / "nnslicer_tf")  # pip builds where the source is
    command = ["install", "--quiet", "--no-deps", "--target", str(folder), str(copy)]
    subprocess.run([sys.executable, "-m", "pip", *command], check=True)
    return folder


@pytest.fixture(params=["with data sets", "without"])
def environment(request, site, tmp_path):
    """Variables of processes that use the installed package."""
    path = [str(site)]
    if request.param == "without":
        (tmp_path / "offline").mkdir()
        (tmp_path / "offline" / "sitecustomize.py").write_text(OFFLINE)
        path.append(str(tmp_path / "offline"))
        data = tmp_path / "none"
    else:
        data = request.getfixturevalue("shared") / "tfds"
    added = {"PYTHONPATH": os.pathsep.join(path), "TFDS_DATA_DIR": str(data)}
    hidden = ("NNSLICER_WEIGHTS", "GLUE_DIR")
    return {name: text for name, text in (os.environ | added).items() if name not in hidden}


def test_the_package_is_the_installed_one(environment, site, tmp_path):
    code = "import nnslicer_tf; from nnslicer_tf import zoo; zoo.load('lenet5')"
    code += "; print(nnslicer_tf.__file__, zoo.weights_path('mlp', 'mnist').is_file())"
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == [str(site / "nnslicer_tf" / "__init__.py"), "False"]


@pytest.mark.parametrize(
    ("file", "tests"),
    [
        ("test_notebooks.py", "it_runs_and_shows"),
        ("test_docs.py", "code_of_a_page and (tutorials or transformers or index or minutes)"),
    ],
)
def test_they_run(environment, file, tests):
    command = [str(SCRIPTS / "pytest"), "-n", "0", "-q", "-p", "no:cacheprovider", "-m", ""]
    done = subprocess.run(
        [*command, "-k", tests, f"tests/{file}"],
        env=environment,
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:]
    assert " passed" in done.stdout
