"""What has to be downloaded: one table, which the page, the errors and the files agree with."""

import hashlib
from importlib.util import find_spec
from pathlib import Path

import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction import again, downloads
from reproduction.catalogue import load_catalogue
from reproduction.deepxplore.networks import published_lenet
from reproduction.dflare.pairs import load_pair
from reproduction.exactline.advice_maps import network_files
from reproduction.settings import DATA

SOURCES = downloads.sources()
ENTRIES = [entry for entry in load_catalogue().entries if entry.command]


def test_the_page_is_that_of_the_table():
    assert downloads.PAGE.read_text() == downloads.downloads_page(), "run apps/reproduce.py pages"


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist", "cifar10", "glue"])
def test_archives_are_those_that_tensorflow_datasets_downloads(name):
    package = find_spec("tensorflow_datasets")
    if package is None:
        pytest.skip("TensorFlow Datasets is an extra")
    text = (Path(package.origin).parent / "url_checksums" / f"{name}.txt").read_text()
    known = {tuple(line.split("\t")[:3]) for line in text.splitlines()}
    source = SOURCES[{"glue": "glue/sst2"}.get(name, name)]
    assert {(source.address + n, str(size), sha) for n, size, sha in source.files} <= known


def test_published_files_have_these_sizes_and_checksums(shared):
    folders = {"diffchaser": "models/diffchaser", "deepxplore": "models/deepxplore"}
    for name, folder in (folders | {"acas_xu": "acasxu"}).items():
        for file, size, digest in SOURCES[name].files:
            content = (shared / folder / file).read_bytes()
            assert (len(content), hashlib.sha256(content).hexdigest()) == (size, digest), file


def test_errors_say_where_files_are(tmp_path):
    for miss, name in (
        (lambda: load_pair("lenet1", tmp_path), "diffchaser"),
        (lambda: published_lenet("lenet4", tmp_path / "lenet4_weights.h5"), "deepxplore"),
        (lambda: network_files(tmp_path), "acas_xu"),
    ):
        with pytest.raises(InvalidArgumentError) as error:
            miss()
        for part in (SOURCES[name].address, SOURCES[name].licence, SOURCES[name].given):
            assert part in str(error.value)
    assert "2,427,280 bytes, SHA-256 cda92f79" in SOURCES["diffchaser"].how_to_get()
    assert "45 files, 7,539,652 bytes" in SOURCES["acas_xu"].how_to_get()


@pytest.mark.parametrize("entry", ENTRIES, ids=lambda entry: entry.id)
def test_what_an_entry_needs_is_on_the_page(entry):
    page = downloads.PAGE.read_text()
    table = page[page.index("## Which experiment") : page.index("## Files")]
    assert (entry.needs != "nothing") == (f"`{entry.id}`" in table)
    commands = again.commands_of(entry, DATA / "results")
    words = [word for command in commands for word in again.arguments_of(command, DATA)]
    if str(DATA) in " ".join(words):
        words = ("published", "DIFFCHASER_MODELS", "ACAS Xu", "data/results")
        assert any(word in entry.needs for word in words)


def test_weights_that_are_not_kept_are_those_to_train():
    """Files that Git leaves out, and what the kept commands of an entry name."""
    ignored = (DATA.parent / ".gitignore").read_text().split("/data/weights/")[1:]
    names = {line.partition("*")[0].rstrip("-.") for line in ignored}
    trained = downloads._tables()["trained"]
    files = {row["file"].removesuffix(".weights.h5").removesuffix("-cifar10") for row in trained}
    assert {name.removesuffix("-cifar10") for name in names} == files
    for entry in ENTRIES:
        commands = " ".join(again.commands_of(entry, DATA / "results"))
        for word, needed in {"vgg16": "VGG-16's", "alexnet cifar10 --weights": "AlexNet's"}.items():
            assert word not in commands or needed in entry.needs, entry.id
