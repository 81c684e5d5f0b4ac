"""Stores that threads and processes share, and what killed processes leave."""

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.engine import Store


@pytest.fixture(scope="module")
def work():
    """(slicer, x, its contributions)."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((6,)), keras.layers.Dense(40, activation="relu"), keras.layers.Dense(4)]
    )
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(1500, 6)).astype(np.float32)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), 0.3, workers=0)
    slicer.progress = False
    return slicer, x, slicer.slice_each(x, outputs="predicted").to_array()


def test_threads_share_a_folder_of_rows(work, tmp_path):
    slicer, x, expected = work

    def contributions(count):
        return count, slicer.slice_each(x[:count], outputs="predicted", folder=tmp_path / "rows")

    contributions(len(x))
    with ThreadPoolExecutor(4) as pool:  # sizes differ, so that results have files of other lengths
        for count, rows in pool.map(contributions, [1500, 1024] * 12):
            assert np.array_equal(rows.to_array(), expected[:count])
    assert not list((tmp_path / "rows").glob(".unfinished-*"))


SLICE = """
import sys, keras, numpy as np, nnslicer_tf as nns
keras.utils.set_random_seed(0)
model = keras.Sequential(
    [keras.Input((6,)), keras.layers.Dense(40, activation="relu"), keras.layers.Dense(4)]
)
im = nns.InstrumentedModel(model)
x = np.random.default_rng(0).normal(size=(1500, 6)).astype(np.float32)
slicer = nns.Slicer(im, nns.Profile.from_data(im, x, progress=False), 0.3, workers=0)
slicer.progress = False
for _ in range(5):
    rows = slicer.slice_each(x, outputs="predicted", folder=sys.argv[1])
    np.save(sys.argv[2], rows.to_array())
"""


@pytest.mark.slow  # two processes import TensorFlow
def test_processes_share_a_folder_of_rows(work, tmp_path):
    *_, expected = work
    outputs = [tmp_path / f"{i}.npy" for i in range(2)]
    runs = [
        subprocess.Popen([sys.executable, "-c", SLICE, str(tmp_path / "rows"), str(output)])
        for output in outputs
    ]
    assert [run.wait() for run in runs] == [0, 0]
    for output in outputs:
        assert np.array_equal(np.load(output), expected)


WRITE = """
import sys, numpy as np
from concurrent.futures import ThreadPoolExecutor
from nnslicer_tf.engine import Store

def write(value):
    store = Store(sys.argv[1], {"work": 1}, "checkpoint")
    store.save("part", {}, {"x": np.full(1000, value)})
    with store.open("part") as file:
        x = file.array("x", np.int64, "1000")
    assert len(set(x.tolist())) == 1  # one of the written parts, whole

with ThreadPoolExecutor(4) as pool:
    list(pool.map(write, range(100)))
"""


def test_processes_and_threads_write_the_same_part(tmp_path):
    command = [sys.executable, "-c", WRITE, str(tmp_path)]
    runs = [subprocess.Popen(command) for _ in range(3)]
    assert [run.wait() for run in runs] == [0, 0, 0]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["identity.json", "part.npz"]


HANG = """
import sys, time
from nnslicer_tf import _files
with _files.atomic_path(sys.argv[1] + "/part.npz") as path:
    path.write_bytes(b"half")
    print("writing", flush=True)
    time.sleep(60)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="folders cannot be locked")
def test_what_a_killed_process_leaves_is_removed_but_nothing_of_a_living_one(tmp_path):
    Store(tmp_path, {}, "checkpoint").save("a", {}, {"x": np.zeros(3)})
    writer = subprocess.Popen(
        [sys.executable, "-c", HANG, str(tmp_path)], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout.readline() == "writing\n"
    Store(tmp_path, {}, "checkpoint").save("b", {}, {})
    assert len(list(tmp_path.glob(".*"))) == 1  # the other process still writes it
    writer.send_signal(signal.SIGKILL)
    writer.wait()
    writer.stdout.close()
    time.sleep(0.1)
    assert Store(tmp_path, {}, "checkpoint").keys() == ["a", "b"]
    assert not list(tmp_path.glob(".*"))


def test_resumption_is_announced(tmp_path, caplog):
    caplog.set_level("INFO", logger="nnslicer_tf")
    store = Store(tmp_path, {}, "checkpoint")
    assert not caplog.messages
    store.save("a", {}, {})
    Store(tmp_path, {}, "checkpoint")
    assert caplog.messages == [f"Resuming from 1 finished parts in '{tmp_path}'."]


FORK = """
import os, signal, numpy as np, keras, nnslicer_tf as nns
model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(3)])
im, x = nns.InstrumentedModel(model), np.ones((4, 6), np.float32)
if os.fork() == 0:
    signal.alarm(60)
    try:
        im.predict(x)
    except nns.errors.NNSlicerError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes cannot be forked")
@pytest.mark.skipif(keras.backend.backend() != "tensorflow", reason="of TensorFlow")
def test_a_forked_process_is_refused_in_words():
    answer = subprocess.run(
        [sys.executable, "-c", FORK], capture_output=True, text=True, check=True
    )
    assert "This process was forked" in answer.stdout
