"""Slicing on Ray: equal results, two nodes, killed workers, killed drivers."""

import json
import os
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import psutil
import pytest
import ray
from ray.cluster_utils import Cluster

import nnslicer_tf as nns
from nnslicer_tf.engine import engines as engine_module
from nnslicer_tf.engine.ray_engine import RayEngine
from nnslicer_tf.slicing import slicer as slicer_module


@pytest.fixture(scope="module")
def two_nodes():
    """A cluster of two nodes of one core each, to which this process is connected."""
    cluster = Cluster(
        initialize_head=True,
        head_node_args={"num_cpus": 1, "object_store_memory": 150 << 20},
    )
    cluster.add_node(num_cpus=1, object_store_memory=150 << 20)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


@pytest.fixture
def connected(two_nodes):
    if not ray.is_initialized():
        ray.init(address=two_nodes.address, log_to_driver=False, logging_level="ERROR")
    return two_nodes


@pytest.fixture
def small_batches(monkeypatch):
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 4)


def nodes_that_worked(job_results):
    return {node for _, (node, _) in job_results}


class WhereAmI:
    """A job that says on which node it ran."""

    def __call__(self, item):
        time.sleep(0.05)
        return ray.get_runtime_context().get_node_id(), item


class DieOnce:
    """A job whose worker is killed, for real, the first time that it gets item 3."""

    def __init__(self, marker):
        self.marker = str(marker)

    def __call__(self, item):
        if item == 3 and not os.path.exists(self.marker):
            with open(self.marker, "w"):
                pass
            os.kill(os.getpid(), signal.SIGKILL)
        return item * item


class AlwaysDie:
    def __call__(self, item):
        if item == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return item


class AlwaysFail:
    def __call__(self, item):
        raise ZeroDivisionError("no such weight")


def test_a_cluster_of_two_nodes_gives_equal_slices(connected, im, profile, x, small_batches):
    here = nns.Slicer(im, profile, workers=0, progress=False)
    there = nns.Slicer(im, profile, workers=2, ray_address=connected.address, progress=False)
    assert there.slice(x) == here.slice(x)
    each, expected = there.slice_each(x), here.slice_each(x)
    assert (each.matrix != expected.matrix).nnz == 0
    np.testing.assert_array_equal(each.predicted, expected.predicted)


def test_decisive_slices_of_workers_are_equal(connected, im, profile, x):
    settings = {"level": "channel", "reference": nns.instrument.Samples(x[8:12])}
    alone = nns.Slicer(im, profile, workers=0, progress=False).decisive(x[:3], **settings)
    found = nns.Slicer(im, profile, workers=2, progress=False).decisive(x[:3], **settings)
    assert found.info == alone.info and list(found) == list(alone)
    for name, column in found.certificate.items():
        np.testing.assert_allclose(column, alone.certificate[name], 1e-5, err_msg=name)


def test_the_work_is_spread_over_the_nodes(connected):
    results = list(RayEngine(2).map(WhereAmI(), enumerate(range(12))))
    assert len(nodes_that_worked(results)) == 2
    assert sorted(index for index, _ in results) == list(range(12))


def test_the_batch_of_a_killed_worker_is_done_again_once(connected, tmp_path):
    results = list(RayEngine(2).map(DieOnce(tmp_path / "died"), enumerate(range(10))))
    assert (tmp_path / "died").exists()
    assert sorted(results) == [(i, i * i) for i in range(10)]


def test_a_slice_survives_a_killed_worker(connected, im, profile, x, small_batches):
    """A real worker is killed between two batches of a real slice."""
    slicer = nns.Slicer(im, profile, workers=2, progress=False)

    def stream():
        for start in range(0, len(x), 4):
            if start == 20:
                kill_a_worker()
            yield from x[start : start + 4]

    whole = nns.Slicer(im, profile, workers=0, progress=False).slice(x)
    assert slicer.slice(stream()) == whole


def kill_a_worker():
    """Kill one of this cluster's: other tests' workers run on this machine too."""
    raylets = ",".join(process_ids("-P", str(os.getpid()), "raylet"))
    os.kill(int(process_ids("-P", raylets, "-f", "ray::_Worker")[0]), signal.SIGKILL)


def process_ids(*criteria):
    return subprocess.run(["pgrep", *criteria], capture_output=True, text=True).stdout.split()


@pytest.mark.parametrize(
    ("job", "cause"),
    [
        pytest.param(AlwaysDie(), "ActorDiedError", marks=pytest.mark.slow),
        (AlwaysFail(), "no such weight"),
    ],
)
def test_a_worker_that_always_fails_is_one_clear_error(connected, job, cause):
    with pytest.raises(nns.errors.WorkerError, match=f"failed 3 times.*{cause}"):
        list(RayEngine(2).map(job, enumerate(range(6))))


def test_the_stream_is_read_only_as_fast_as_it_is_worked_off(connected):
    read = []

    def items():
        for i in range(20):
            read.append(i)
            yield i, i

    for finished, _ in enumerate(RayEngine(2).map(WhereAmI(), items()), start=1):
        assert len(read) - finished <= 4


def test_a_cluster_on_this_machine_is_left_alone_without_its_address(two_nodes, tmp_path):
    """Ray by itself would join the cluster that was started last, or fail to."""
    script = tmp_path / "two_workers.py"
    script.write_text(
        "import ray\n"
        "from nnslicer_tf.engine.ray_engine import RayEngine\n"
        "results = RayEngine(2).map(abs, enumerate([-1, -2]))\n"
        "print(next(results) in [(0, 1), (1, 2)], len(ray.nodes()))\n"
    )
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=120, env=environment
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True 1\n"


SCRIPT = """
import json, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # shells' background jobs ignore it
import numpy as np
import keras
import nnslicer_tf as nns
from nnslicer_tf.slicing import slicer as module

module.LARGEST_BATCH = 2
folder, delay, workers, rows = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
keras.utils.set_random_seed(0)
inputs = keras.Input((6, 6, 1))
h = keras.layers.Conv2D(4, 3, activation="relu")(inputs)
model = keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(h)))
x = np.random.default_rng(0).normal(size=(40, 6, 6, 1)).astype(np.float32)
im = nns.InstrumentedModel(model)
profile = nns.Profile.from_data(im, x, progress=False)

def stream():
    import time
    for i, sample in enumerate(x):
        print(i, flush=True)
        time.sleep(delay)
        yield sample

slicer = nns.Slicer(im, profile, 0.3, workers=workers, progress=False)
if rows == "rows":
    vector = slicer.slice_each(stream(), folder=folder).sum().to_vector()
else:
    vector = slicer.slice(stream(), checkpoint=folder).to_vector()
print(json.dumps(vector.tolist()))
"""


def run_script(tmp_path, folder, delay=0.0, workers=0, kind="sums", stop=None):
    """Run a slicing script; `stop` is (line to wait for, what then to do to the process)."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    command = [sys.executable, str(script), str(folder), str(delay), str(workers), kind]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    lines = []
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as process:
        for line in process.stdout:
            lines.append(line.strip())
            if stop and line.strip() == stop[0]:
                stop[1](process)
                stop = None
    return process.returncode, lines


@pytest.mark.parametrize("kind", ["sums", pytest.param("rows", marks=pytest.mark.slow)])
def test_a_killed_driver_resumes_to_the_same_result(tmp_path, kind):
    _, lines = run_script(tmp_path, tmp_path / "uninterrupted", kind=kind)
    expected = json.loads(lines[-1])
    code, _ = run_script(
        tmp_path, tmp_path / "broken", delay=0.05, kind=kind, stop=("30", subprocess.Popen.kill)
    )
    assert code == -signal.SIGKILL
    assert any((tmp_path / "broken").glob("sums.npz" if kind == "sums" else "rows-*.npz"))
    code, lines = run_script(tmp_path, tmp_path / "broken", kind=kind)
    assert code == 0
    assert json.loads(lines[-1]) == expected


def test_ctrl_c_leaves_no_ray_processes_behind(tmp_path):
    started = []

    def interrupt(process):
        started.extend(psutil.Process(process.pid).children(recursive=True))
        process.send_signal(signal.SIGINT)

    code, _ = run_script(tmp_path, tmp_path / "c", delay=0.3, workers=1, stop=("12", interrupt))
    assert code != 0
    assert len(started) > 2  # of Ray: its servers, and the worker
    assert not psutil.wait_procs(started, timeout=30)[1]


def test_a_checkpoint_of_another_run_is_refused(im, profile, x, tmp_path, small_batches):
    def slicer(theta=0.3, granularity="activation"):
        return nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)

    folder = tmp_path / "checkpoint"
    whole = slicer().slice(x, checkpoint=folder)
    assert slicer().slice(x, checkpoint=folder) == whole
    with pytest.raises(nns.errors.ProfileMismatchError, match="theta"):
        slicer(theta=0.2).slice(x, checkpoint=folder)
    with pytest.raises(nns.errors.ProfileMismatchError, match="granularity"):
        slicer(granularity="channel").slice(x, checkpoint=folder)
    with pytest.raises(nns.errors.ProfileMismatchError, match="criterion"):
        slicer().slice(x, outputs=[1], checkpoint=folder)
    with pytest.raises(nns.errors.ProfileMismatchError, match="other data"):
        slicer().slice(x + 1, checkpoint=folder)
    other = nns.Profile.from_data(im, x[:8], progress=False)
    with pytest.raises(nns.errors.ProfileMismatchError, match="profile"):
        nns.Slicer(im, other, 0.3, workers=0, progress=False).slice(x, checkpoint=folder)


def test_a_folder_of_another_task_is_refused(tmp_path):
    """A value that is a number has no predicted class; as one of two classes it has."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    found = {}
    for task in ("binary", "regression"):
        im = nns.InstrumentedModel(model, task=task)
        profile = nns.Profile.from_data(im, x, progress=False)
        slicer = nns.Slicer(im, profile, 0.0, progress=False)
        found[task] = slicer.slice_each(x).predicted
        np.testing.assert_array_equal(
            slicer.slice_each(x, folder=tmp_path / task).predicted, found[task]
        )
        if task == "regression":
            with pytest.raises(nns.errors.ProfileMismatchError, match="task"):
                slicer.slice_each(x, folder=tmp_path / "binary")
    np.testing.assert_array_equal(found["binary"], model.predict(x, verbose=0)[:, 0] > 0)
    assert (found["regression"] == -1).all()


@pytest.mark.parametrize("rows", [False, True])
def test_a_truncated_checkpoint_is_detected(im, profile, x, tmp_path, small_batches, rows):
    slicer = nns.Slicer(im, profile, workers=0, progress=False)

    def run():
        return (
            slicer.slice_each(x, folder=tmp_path / "c")
            if rows
            else slicer.slice(x, checkpoint=tmp_path / "c")
        )

    run()
    path = next((tmp_path / "c").glob("rows-*.npz" if rows else "sums.npz"))
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(nns.errors.CorruptFileError, match=path.name):
        run()


def test_short_work_stays_in_this_process_and_says_so(im, profile, x, caplog):
    with caplog.at_level("INFO", logger="nnslicer_tf"):
        result = nns.Slicer(im, profile, workers=None, progress=False).slice(x)
    assert "in this process" in caplog.text
    assert result == nns.Slicer(im, profile, workers=0, progress=False).slice(x)


def test_long_work_goes_on_with_ray(connected, im, profile, x, small_batches, monkeypatch, caplog):
    monkeypatch.setattr(engine_module, "PATIENCE_SECONDS", 0.0)
    monkeypatch.setattr(engine_module, "available_cores", lambda: 2)
    with caplog.at_level("INFO", logger="nnslicer_tf"):
        result = nns.Slicer(im, profile, workers=None, progress=False).slice(x)
    assert "continues with 2 Ray workers" in caplog.text
    assert result == nns.Slicer(im, profile, workers=0, progress=False).slice(x)
