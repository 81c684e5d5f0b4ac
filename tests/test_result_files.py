"""Every format of result files: intact files come back, damaged ones are refused by name."""

import io
import json
import shutil
import struct
import subprocess
import sys
import tracemalloc
import warnings
import zipfile

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import deepxplore, detection, dflare, exactline, semantic
from nnslicer_tf._files import load_weights
from nnslicer_tf.dflare.deviations import Deviation, SearchOutcome
from nnslicer_tf.dflare.domain import Mutation
from nnslicer_tf.instrument.loading import load_model

# What older files lack is optional.
OPTIONAL = {"input_range", "input_means", "positions", "max_distance", "features"}
OPTIONAL |= {
    "synapses_shape",
    "neurons_shape",
    "scale",
    "seeds",
    "truth",
    "confidences",
    "columns",
    "own_code",
    "model",
    "range",
    "items",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Name → (file, function that reads such a file)."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((4,)), keras.layers.Dense(5, activation="relu"), keras.layers.Dense(3)]
    )
    model.layers[1].set_weights([np.eye(5, 3), np.zeros(3)])  # all classes are predicted
    im = nns.InstrumentedModel(model)
    x = np.random.default_rng(0).normal(size=(400, 4)).astype(np.float32)
    y = im.predict(x).argmax(axis=1)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, theta=0.3, progress=False)
    coverage = deepxplore.NeuronCoverage(im)
    coverage.update(x[:3])
    found = Deviation(x[0], 7, 0.5, (0, 1), (Mutation("shift", {"by": [1, 2]}),))
    outcomes = [SearchOutcome("found", 7, 0.5, found), SearchOutcome("timeout", 9, 1.5)]
    square = np.eye(4, dtype=np.float32)[[0, 1, 2]] * 4
    results = {
        "profile": (profile, nns.Profile.load),
        "slice": (slicer.slice(x[:20]), nns.Slice.load),
        "slice set": (slicer.slice_each(x[:20]), nns.SliceSet.load),
        "critical neurons": (
            semantic.CriticalNeurons({"dense": np.arange(5) > 2}),
            semantic.CriticalNeurons.load,
        ),
        "coverage": (coverage, lambda path: deepxplore.NeuronCoverage(im).restore(path)),
        "differences": (
            deepxplore.Differences(
                x[:2],
                np.arange(2),
                np.array([[0, 1], [1, 2]]),
                np.arange(2),
                np.ones(2, int),
                5,
                1.5,
            ),
            deepxplore.Differences.load,
        ),
        "deviations": (
            dflare.DeviationSet(outcomes, x[:2], y[:2], np.full((1, 2), 0.5), 0.1),
            dflare.DeviationSet.load,
        ),
        "line": (exactline.exact_line(im, x[0], x[1]), exactline.LinearPartition.load),
        "plane": (exactline.exact_plane(im, square), exactline.PlanarPartition.load),
        "detector": (
            detection.LogitMargin(im).fit(x),
            lambda path: detection.LogitMargin.load(path, im),
        ),
        "slice detector": (
            detection.SliceDetector(slicer, "fused").fit(x),
            lambda path: detection.SliceDetector.load(path, slicer),
        ),
        "decisive slices": (
            slicer.decisive(x[:4], level="synapse", max_share=1.0, others=0),
            nns.slicing.DecisiveSlices.load,
        ),
    }
    folder = tmp_path_factory.mktemp("results")
    files = {}
    for name, (result, load) in results.items():
        files[name] = folder / f"{name}.npz", load
        result.save(files[name][0])
    return files


@pytest.fixture(
    params=[
        *("profile", "slice", "slice set", "critical neurons"),
        *("coverage", "differences", "deviations", "line", "plane", "detector"),
        *("slice detector", "decisive slices"),
    ]
)
def result(request, results, tmp_path):
    """(path of a copy, its header, its arrays, function that reads it)."""
    path, load = results[request.param]
    copy = shutil.copy(path, tmp_path / "damaged.npz")
    with np.load(path) as archive:
        arrays = {name: archive[name] for name in archive.files if name != "checksum"}
    return copy, json.loads(str(arrays.pop("header"))), arrays, load


def write(path, header, arrays):
    """Write a file by hand, without a checksum, like the older ones, if `arrays` has none."""
    np.savez_compressed(path, header=np.array(json.dumps(header)), **arrays)


def refused(load, path):
    with pytest.raises(nns.errors.CorruptFileError, match=r"damaged\.npz"):
        load(path)


def test_intact_files_are_read(result):
    path, header, arrays, load = result
    load(path)
    write(path, header, {**arrays, "unknown": np.zeros(3)})
    load(path)


def test_missing_entries_are_named(result):
    path, header, arrays, load = result
    for key in set(header) - OPTIONAL:
        write(path, {k: v for k, v in header.items() if k != key}, arrays)
        refused(load, path)
    for key in set(arrays) - OPTIONAL:
        write(path, header, {k: v for k, v in arrays.items() if k != key})
        with pytest.raises(nns.errors.CorruptFileError, match=rf"damaged\.npz.* has no '{key}"):
            load(path)


def test_values_of_other_types_are_refused(result):
    path, header, arrays, load = result
    free = {"options", "parameters", "identity", "model", "fingerprint", "kind", "class"}
    for key in set(header) - free:
        for other in ({"a": 1}, [[1, [2]]], "text", float("nan")):
            if type(other) is not type(header[key]) or key != "info":
                write(path, {**header, key: other}, arrays)
                refused(load, path)


def test_arrays_of_other_dtypes_and_shapes_are_refused(result):
    path, header, arrays, load = result
    for key, array in arrays.items():
        others = [array.astype(str) if array.dtype.kind != "U" else np.zeros(array.shape)]
        others += [array.astype(complex)] if array.dtype.kind in "fib" else []
        for other in others:
            write(path, header, {**arrays, key: other})
            refused(load, path)


def test_arrays_that_do_not_fit_each_other_are_refused(result):
    path, header, arrays, load = result
    free = {"mean", "neurons", "synapses", "layer"}  # of any shape: only a model fits them
    for key, array in arrays.items():
        if key.rstrip("0123456789") in free or key in {"corners", "normal_scores", "loop"}:
            continue
        write(path, header, {**arrays, key: np.stack([array] * 7)})
        refused(load, path)
        # More scores, and means of further classes, would do no harm.
        is_list = key.startswith("state/reference|") or key.endswith("|means")
        if array.ndim and key not in {"q", "origin"} and not is_list:
            write(path, header, {**arrays, key: np.concatenate([array, array[:1], array[:1]])})
            refused(load, path)


def test_values_that_are_not_finite_are_refused(result):
    path, header, arrays, load = result
    for key, array in arrays.items():
        if array.dtype.kind == "f" and not key.startswith(("low", "high")):
            for value in (np.nan, np.inf):
                other = array.copy()
                other.flat[-1] = value
                write(path, header, {**arrays, key: other})
                refused(load, path)


def edited(array, *changes):
    """Return a copy with some values replaced, given as (place, value)."""
    copy = array.copy()
    for place, value in changes:
        copy[place] = value
    return copy


def column(header, arrays, name, value):
    """Replace the first value of a column of a certificate."""
    key = f"column{header['columns'].index(name)}"
    arrays[key] = edited(arrays[key].astype(type(value)), (0, value))


LINE, PLANE = ("q", "ratios", "outputs"), ("origin", "vertices", "values")

# Name of a result → edits that leave every value of the right type: function of the header and the
# arrays, which it changes.
CONTRADICTIONS = {
    "slice set": [
        lambda h, a: h["operations"].popitem(),
        lambda h, a: h["operations"].update({list(h["operations"])[1]: [1]}),
        lambda h, a: h["kernels"].update(more=[2]),
        lambda h, a: h["operations"].update(more=[2]),
        lambda h, a: a.update(synapses_indices=edited(a["synapses_indices"], (1, 0), (0, 0))),
        lambda h, a: a.update(neurons_indices=np.zeros_like(a["neurons_indices"])),
        lambda h, a: a.update(predicted=edited(a["predicted"], (0, -1))),
        lambda h, a: a.update(predicted=np.full_like(a["predicted"], -2)),
        lambda h, a: h["info"].update(theta="bogus"),
        lambda h, a: h["info"].update(theta=None),
        lambda h, a: h["info"].update(granularity=[1]),
    ],
    "decisive slices": [
        *(
            lambda h, a, name=name, value=value: column(h, a, name, value)
            for name, values in {
                "share": (-0.1, 1.5, 0.123),
                "probability": (-0.1, 1.5, np.nan),
                "probability with slice alone": (-0.1, 1.5),
                "answer": (-1, 0.5, 2**40),
                "empty answer": (-1, 0.5),
                "divergence": (-0.1, np.inf),
                "passes": (-1,),
            }.items()
            for value in values
        ),
        lambda h, a: h["shapes"][next(iter(h["shapes"]))].insert(0, 10**25),
        lambda h, a: h["shapes"].update(more=[2]),
    ],
    "coverage": [lambda h, a: h.update(samples=0)],
    "differences": [
        lambda h, a: h.update(tried=1),
        lambda h, a: a.update(seed_index=np.array([0, -1])),
        lambda h, a: a.update(seed_index=np.array([0, 5])),
        lambda h, a: a.update(predictions=a["predictions"] - 1),
        lambda h, a: a.update(labels=a["labels"] - 2),
        lambda h, a: a.update(iterations=-a["iterations"]),
    ],
    "deviations": [
        lambda h, a: h.update(max_distance=-0.1),
        lambda h, a: a.update(queries=-a["queries"]),
        lambda h, a: a.update(seconds=-a["seconds"]),
        lambda h, a: a.update(labels=np.array([[1, 1]])),
        lambda h, a: a.update(labels=np.array([[-1, 1]])),
        lambda h, a: a.update(labels=np.array([[-2, 1]])),
        lambda h, a: a.update(status=np.array(["query_budget", "timeout"], "U16")),
        lambda h, a: a.update(status=np.array(["found", "found"], "U16")),
        lambda h, a: a.update(status=np.array(["found", "lost"], "U16")),
        lambda h, a: a.update(confidences=a["confidences"] + 1),
        lambda h, a: a.update(confidences=a["confidences"] - 1),
        lambda h, a: a.update(seeds=a["seeds"][:, :3]),
    ],
    "line": [
        lambda h, a: a.update(
            ratios=np.append(0.0, a["ratios"]), outputs=np.append(a["outputs"][:1], a["outputs"], 0)
        ),
        *(lambda h, a, name=name: a.update({name: a[name].astype(np.float16)}) for name in LINE),
    ],
    "plane": [
        lambda h, a: a.update(loop=a["loop"][::-1]),
        lambda h, a: a.update(corners=a["corners"][::-1]),
        lambda h, a: a.update(corners=a["corners"][:0]),
        lambda h, a: a.update(corners=a["corners"] * 2),
        *(lambda h, a, name=name: a.update({name: a[name].astype(np.float16)}) for name in PLANE),
    ],
    "detector": [lambda h, a: a.update(range=a["range"][::-1])],
    "slice detector": [
        lambda h, a: h["parameters"].update(theta=None),
        lambda h, a: h["parameters"].update(theta=-1.0),
        lambda h, a: h["parameters"].update(theta=True),
        lambda h, a: a.update({COLUMNS: a[COLUMNS].astype(bool)}),
        lambda h, a: a.update({COLUMNS: a[COLUMNS][::-1]}),
        lambda h, a: a.update({COLUMNS: edited(a[COLUMNS], (1, a[COLUMNS][0]))}),
        lambda h, a: a.update({COLUMNS: edited(a[COLUMNS], (0, -1))}),
        lambda h, a: a.update({COLUMNS: edited(a[COLUMNS], (-1, 10**6))}),
    ],
}
COLUMNS = "state/distance|columns"
CASES = [(name, number) for name, edits in CONTRADICTIONS.items() for number in range(len(edits))]


@pytest.mark.parametrize(("name", "number"), CASES)
def test_values_that_contradict_each_other_are_refused(results, tmp_path, name, number):
    path, load = results[name]
    with np.load(path) as archive:
        arrays = {key: archive[key] for key in archive.files if key != "checksum"}
    header = json.loads(str(arrays.pop("header")))
    CONTRADICTIONS[name][number](header, arrays)
    write(tmp_path / "damaged.npz", header, arrays)
    refused(load, tmp_path / "damaged.npz")


def plausible(value):
    """Other values of one kind, which no check of a class could always tell from the right ones."""
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, (int, float)):
        return [value + 1, value / 2, -value - 1]
    if isinstance(value, str):
        return [f"{value} 2", value[::-1] + "x"]
    if isinstance(value, list):
        return [value[1:], [*value, *value[:1]], value[::-1]] if len(value) > 1 else [[*value, 1]]
    return [{**value, "more": 1}] if isinstance(value, dict) else ["other"]


def test_values_that_were_changed_later_are_refused(result):
    """Whatever they are: the file keeps the checksum of what was written."""
    path, header, arrays, load = result
    with np.load(path) as archive:
        checksum = {"checksum": archive["checksum"]}

    def changed(of_header, of_arrays):
        write(path, header | of_header, arrays | of_arrays | checksum)
        with pytest.raises(nns.errors.NNSlicerError, match=r"damaged\.npz"):
            load(path)

    for key, value in header.items():
        for other in plausible(value):
            changed({key: other}, {})
    for key, value in (header.get("info") or {}).items():
        changed({"info": {**header["info"], key: plausible(value)[0]}}, {})
    for key, array in arrays.items():
        others = [array[::-1]] if array.ndim else []
        others += [array + 1, -array, array * 2] if array.dtype.kind in "iuf" else []
        others += [~array] if array.dtype.kind == "b" else []
        for other in others:
            if not np.array_equal(other, array, equal_nan=array.dtype.kind == "f"):
                changed({}, {key: other.astype(array.dtype)})
    changed({}, {"unknown": np.zeros(3)})


def test_a_file_that_is_written_anew_unchanged_is_read(result):
    """By another program and without compression: its values are those that were written."""
    path, *_, load = result
    with np.load(path) as archive:
        values = {name: archive[name] for name in archive.files}
    assert "checksum" in values
    np.savez(path, **values)
    load(path)


def test_other_files_are_refused(result):
    path, header, _, load = result
    np.save(path.with_suffix(".npy"), np.zeros(3))
    for content in (
        path.with_suffix(".npy").read_bytes(),
        b"",
        b"PK\x03\x04",
        b"\x89HDF\r\n\x1a\n",
    ):
        path.write_bytes(content)
        refused(load, path)
    deep = "[" * 100_000
    for text in (deep, '{"format": "' + header["format"] + '", "x": ' + deep, "[1]", "3", "null"):
        np.savez(path, header=np.array(text))
        refused(load, path)
    path.unlink()
    path.mkdir()
    refused(load, path)


def test_flipped_bits_never_change_numbers(result):
    path, _, arrays, load = result
    whole = path.read_bytes()
    generator = np.random.default_rng(0)
    for place in generator.integers(0, 8 * len(whole), 40):
        damaged = bytearray(whole)
        damaged[place // 8] ^= 1 << (place % 8)
        path.write_bytes(damaged)
        try:
            back = load(path)
        except nns.errors.CorruptFileError as error:
            assert "damaged.npz" in str(error)
            continue
        if hasattr(back, "save"):  # the flip was in a date, say
            back.save(path)
            with np.load(path) as archive:
                for name in arrays:
                    np.testing.assert_array_equal(archive[name], arrays[name])


def npy(shape, data, dtype="<f8"):
    text = f"{{'descr': '{dtype}', 'fortran_order': False, 'shape': {shape}, }}"
    text += " " * (-(len(text) + 11) % 64) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text.encode() + data


@pytest.mark.parametrize("claim", ["array", "array and member", "zeros"])
def test_huge_claims_are_refused_before_memory_is_taken(results, tmp_path, claim):
    path, load = results["profile"]
    with np.load(path) as archive:
        header = archive["header"]
    damaged = tmp_path / "damaged.npz"
    with zipfile.ZipFile(damaged, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as file:
        text = io.BytesIO()
        np.save(text, header)
        file.writestr("header.npy", text.getvalue())
        if claim == "zeros":
            with file.open("mean0.npy", "w", force_zip64=True) as member:
                member.write(npy((11 << 24,), b""))
                for _ in range(11 << 7):
                    member.write(bytes(1 << 20))
        else:
            file.writestr("mean0.npy", npy((10**12,), bytes(1000)))
    if claim == "array and member":
        content = damaged.read_bytes()  # the directory's sizes of mean0
        place = content.rindex(b"PK\x01\x02")
        size = struct.pack("<I", 0xFFFFFFFE)
        damaged.write_bytes(content[: place + 24] + size + content[place + 28 :])
    tracemalloc.start()
    try:
        refused(load, damaged)
        assert tracemalloc.get_traced_memory()[1] < 50e6
    finally:
        tracemalloc.stop()


def test_very_sparse_large_results_come_back(tmp_path, monkeypatch):
    from nnslicer_tf import _files

    monkeypatch.setattr(_files, "MAX_UNPACKED", 1 << 20)
    contributions = np.zeros((500, 500), np.int64)
    contributions[3, 4] = 5
    nns.Slice({}, {"dense": contributions}, {}).save(tmp_path / "s.npz")
    back = nns.Slice.load(tmp_path / "s.npz")
    assert np.array_equal(back.synapses["dense"], contributions)


FULL = """
import resource, signal, sys
import numpy as np
import nnslicer_tf as nns
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
values = np.random.default_rng(0).integers(0, 1 << 60, (100, 100))
try:
    nns.Slice({}, {"dense": values}, {}).save(sys.argv[1])
except nns.errors.InvalidArgumentError as error:
    print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of file sizes")
def test_a_full_disk_is_named_and_the_old_file_stays(tmp_path):
    path = tmp_path / "slice.npz"
    nns.Slice({}, {"dense": np.ones((2, 2), np.int64)}, {}).save(path)
    # No bytecode is written, which would be cut short as well, for all processes to come.
    command = [sys.executable, "-B", "-c", FULL, str(path)]
    answer = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert f"Cannot write to '{path}'" in answer
    assert "too large" in answer
    assert nns.Slice.load(path).synapses["dense"].sum() == 4
    assert list(tmp_path.iterdir()) == [path]


def test_flipped_bits_of_models_and_weights_are_named(tmp_path):
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(5), keras.layers.Dense(3)])
    files = {
        "damaged.h5": load_model,
        "damaged.keras": load_model,
        "damaged.weights.h5": lambda path: load_weights(model, path),
    }
    generator = np.random.default_rng(0)
    for name, load in files.items():
        path = tmp_path / name
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # Keras advises against .h5
            (model.save_weights if "weights" in name else model.save)(path)
        whole = path.read_bytes()
        for place in generator.integers(0, 8 * len(whole), 25):
            damaged = bytearray(whole)
            damaged[place // 8] ^= 1 << (place % 8)
            path.write_bytes(damaged)
            try:
                load(path)
            except (nns.errors.CorruptFileError, nns.errors.UnsupportedLayerError) as error:
                assert name in str(error)
