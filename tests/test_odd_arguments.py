"""Arguments and files that no analysis can use end in an error of the library, not in a raw one."""

import json
import os
import zipfile

import keras
import numpy as np
import pandas as pd
import pytest
from matplotlib.figure import Figure
from PIL import Image

import nnslicer_tf as nns
from nnslicer_tf import datasets, deepbase, deepxplore, detection, dflare, pruning, slicing
from nnslicer_tf._checks import check_count, check_name, check_number
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    NNSlicerError,
    SeveralInputsError,
)
from nnslicer_tf.exactline import acas
from nnslicer_tf.instrument import load_model
from nnslicer_tf.report import save_figure

ODD = (np.array(["a", "b"]), np.array([1, 2]), None, 3.5, ["a"], {"a": 1}, b"a", True, object())


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(
        keras.Sequential([keras.Input((3,), name="rows"), keras.layers.Dense(2)])
    )


@pytest.mark.parametrize("value", ODD, ids=lambda v: type(v).__name__)
def test_options_of_any_type(value):
    with pytest.raises(InvalidArgumentError, match="Unknown colour"):
        check_name("colour", value, ("a", "b"))
    if not isinstance(value, float):
        with pytest.raises(InvalidArgumentError, match="workers"):
            check_count("workers", value)
        with pytest.raises(InvalidArgumentError, match="theta"):
            check_number("theta", value, "[0, 1]")


@pytest.mark.parametrize("value", [10**400, -(10**400), 10**5000], ids=["large", "small", "long"])
@pytest.mark.parametrize("interval", ["[0, inf)", "(0, 1]"])
def test_integers_that_no_float_holds(value, interval):
    with pytest.raises(InvalidArgumentError, match=r"theta must be .* Received: -?inf"):
        check_number("theta", value, interval)


PATHS = ("", 3, None, b"x", ["x"], "x" * 300, "a\0b")
LOADERS = {
    "data": datasets.load_data,
    "model": load_model,
    "profile": nns.Profile.load,
    "slice": nns.Slice.load,
    "slice set": nns.SliceSet.load,
    "deviations": dflare.DeviationSet.load,
    "network": acas.load_nnet,
    "figure": lambda path: save_figure(Figure(), path),
}


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("path", PATHS, ids=lambda p: repr(p)[:8])
def test_paths_of_any_type(tmp_path, monkeypatch, loader, path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(NNSlicerError):
        LOADERS[loader](path)
    assert not list(tmp_path.iterdir())


def test_dicts_for_one_input(im):
    x = np.ones((2, 3), np.float32)
    for key in ("rows", "x", "Features"):
        np.testing.assert_array_equal(im.check({key: x}), x)
    for key in ("row", "label", 7):
        with pytest.raises(InvalidArgumentError, match=r"one input, 'rows'. Received the key"):
            im.check({key: x})


X = np.random.default_rng(0).normal(size=(12, 3)).astype(np.float32)


def own(*arguments):
    """A function of a user's with a mistake inside."""
    raise KeyError("mine")


def search(im, **options):
    seeds = np.random.default_rng(1).normal(size=(9, 3))
    model = dflare.with_softmax(im.model)
    other = dflare.compress(model, "prune", ratio=0.5)
    domain = options.pop("domain", None)
    pair = dflare.ModelPair(model, other, options.pop("preprocess", None), domain=domain)
    return dflare.find_deviations(pair, seeds, search=dflare.DFlare(**options), progress=False)


OWN = {
    "`of`": lambda im: im.gradients(X, of=own),
    "`hypotheses['one']`": lambda im: deepbase.inspect(im, X, {"one": own}, ["correlation"]),
    "`hypotheses['mean']`": lambda im: deepbase.inspect(
        im, X, {"mean": deepbase.per_record(own)}, ["correlation"]
    ),
    "`preprocess`": lambda im: nns.InstrumentedModel(im.model, preprocess=own),
    "`preprocess` of seeds": lambda im: search(im, preprocess=own),
    "`original`": lambda im: dflare.agreement(dflare.ModelPair(own, im), X),
    "`compressed`": lambda im: dflare.agreement(
        dflare.ModelPair(dflare.with_softmax(im.model), own), X
    ),
    "`fitness`": lambda im: search(im, fitness=own),
    "`selection`": lambda im: search(im, selection=own),
    "`operators['draws']`": lambda im: search(
        im, domain=dflare.TableDomain(X, [dflare.MutationOperator("draws", own, own)])
    ),
    "`constraint`": lambda im: deepxplore.generate(
        [im, im.copy()], abs(X[:2]) % 1, constraint=own, progress=False
    ),
}


@pytest.mark.filterwarnings("ignore::nnslicer_tf.errors.PlausibilityWarning")
@pytest.mark.parametrize("argument", OWN)
def test_an_own_function_that_fails_is_named_and_its_error_is_the_cause(im, argument):
    named = argument.rpartition("`")[0] + "`"
    with pytest.raises(InvalidArgumentError) as caught:
        OWN[argument](im)
    assert str(caught.value) == f"{named} fails inside: KeyError: 'mine'"
    assert isinstance(caught.value.__cause__, KeyError)


def test_one_sample_by_names(im):
    """A row as values by column, or under the input's name, is the row."""
    rows = [dict(zip("abc", map(float, row), strict=True)) for row in X[:2]]
    for clean, corrupt in (rows, [{"rows": row} for row in X[:2]], [{"x": r[None]} for r in X[:2]]):
        found = nns.slicing.patch(im, clean, corrupt, 0, operations=["rows"], sweep="channel")
        expected = nns.slicing.patch(im, *X[:2], 0, operations=["rows"], sweep="channel")
        pd.testing.assert_frame_equal(found.table, expected.table)
    with pytest.raises(InvalidArgumentError, match="Received the key 'row'"):
        nns.slicing.patch(im, {"row": X[0]}, {"row": X[1]})
    with pytest.raises(NNSlicerError, match=r"\(samples, 3\). Received shape \(1, 2\)"):
        nns.slicing.patch(im, {"a": 1.0, "b": 2.0}, X[1])


def test_dicts_for_the_explorer(im):
    slices = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), 0.0).slice_each(X[:2])
    with pytest.raises(InvalidArgumentError, match=r"x must have an entry for each .* for: rows"):
        nns.explore(slices, im, {"rows": X[:2]})
    both = {"a": keras.Input((1,), name="a"), "b": keras.Input((2,), name="b")}
    joined = keras.layers.Concatenate()(list(both.values()))
    several = keras.Model(both, keras.layers.Dense(2)(joined))
    parts = {"a": X[:, :1], "b": X[:, 1:]}
    slicer = nns.Slicer(several, nns.Profile.from_data(several, parts, progress=False), 0.0)
    with pytest.raises(SeveralInputsError, match="has 2 inputs; slices of models with one"):
        nns.explore(slicer.slice_each(parts), several, parts)


def test_scores_that_are_none(im):
    with pytest.raises(InvalidArgumentError, match="scores must map kernels' names"):
        pruning.prune(im.model, scores=None, ratio=0.5)


ODD_SCORES = {
    "another kernel": lambda scores: {"zz": np.ones(3)},
    "another shape": lambda scores: {name: score[:2] for name, score in scores.items()},
    "NaN": lambda scores: {name: np.full_like(score, np.nan) for name, score in scores.items()},
    "texts": lambda scores: {name: score.astype(str) for name, score in scores.items()},
    "none": lambda scores: {},
}


@pytest.mark.parametrize("odd", ODD_SCORES)
def test_scores_that_do_not_fit(im, odd):
    scores = ODD_SCORES[odd](pruning.scores(im, "weight"))
    calls = {
        "times_weight": lambda: pruning.times_weight(im, scores),
        "prune": lambda: pruning.prune(im, scores, 0.5),
        "global_ratios": lambda: pruning.global_ratios(scores, 0.5),
    }
    for name, call in calls.items():
        if name != "global_ratios" or odd not in ("another kernel", "another shape"):
            with pytest.raises(InvalidArgumentError):
                call()


def test_files_of_figures(tmp_path):
    for name in ("a.txt", "a", "a.keras"):
        with pytest.raises(InvalidArgumentError, match="Figures end in"):
            save_figure(Figure(), tmp_path / name)
    for name in ("a.pdf", "a.PNG", "a.svg"):
        save_figure(Figure(), tmp_path / name)
        assert (tmp_path / name).stat().st_size > 100


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="Linux has a disk that is full")
@pytest.mark.parametrize("ending", ["pdf", "png", "svg"])
def test_a_full_disk(tmp_path, monkeypatch, ending):
    def full(self, data):
        with open("/dev/full", "wb", buffering=0) as file:
            return file.write(data)

    monkeypatch.setattr("pathlib.Path.write_bytes", full)
    with pytest.raises(InvalidArgumentError, match="No space left"):
        save_figure(Figure(), tmp_path / f"a.{ending}")
    assert not list(tmp_path.iterdir())


def claim(shape, dtype="<f4"):
    """The header of an array of this shape, followed by 10 bytes."""
    text = repr({"descr": dtype, "fortran_order": False, "shape": shape}).encode()
    text += b" " * (117 - len(text)) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(10)


@pytest.mark.parametrize("shape", [(10**6, 10**6), (10**12, 3), (2**62, 2**62), (5, 3)])
def test_claims_of_size(tmp_path, shape):
    (tmp_path / "a.npy").write_bytes(claim(shape))
    with zipfile.ZipFile(tmp_path / "a.npz", "w") as file:
        file.writestr("x.npy", claim(shape))
    for name in ("a.npy", "a.npz"):
        with pytest.raises(CorruptFileError, match=name):
            datasets.load_data(tmp_path / name, labels=False)


def test_slices_without_synapses():
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(4), keras.layers.Dense(2)])
    slicer = nns.Slicer(model, nns.Profile.from_data(model, X, progress=False), progress=False)
    of_neurons = slicer.decisive(X[:1], level="neuron", scope=None, others=0)[0]
    bare = slicer.slice_each(X[:2], kernels=[])
    for one in (of_neurons, bare, bare[0]):
        with pytest.raises(InvalidArgumentError, match="hold no synapses"):
            one.plot()
    with pytest.raises(InvalidArgumentError, match="no units to compare"):
        bare[0].compare(bare[1])


@pytest.mark.parametrize("address", [5, b"auto", ["a"], "http://[x"])
def test_addresses_that_are_none(im, address):
    profile = nns.Profile.from_data(im, X, progress=False)
    with pytest.raises(InvalidArgumentError, match="ray_address"):
        nns.Slicer(im, profile, ray_address=address, progress=False).slice(X[:2])


def test_names_that_are_not_utf_8(im, tmp_path):
    slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.npz")
    one = slicer.slice(X[:2])
    one.save(path)
    assert nns.Slice.load(path) == one


def test_devices_are_no_files():
    for name in ("/dev/zero", "/dev/full"):
        with pytest.raises(CorruptFileError, match="not a regular file"):
            nns.Slice.load(name)


@pytest.mark.parametrize("damage", ["columns", "others"])
def test_damage_of_decisive_slices_is_found_when_loading(im, tmp_path, damage):
    slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    found = slicer.decisive(X[:1], scope=X)
    found.save(tmp_path / "a.npz")
    with np.load(tmp_path / "a.npz") as archive:
        arrays = dict(archive)
    header = json.loads(str(arrays.pop("header")))
    if damage == "columns":
        header["columns"][header["columns"].index("scope bound")] = "z"
    else:
        header["info"]["others"] = [[1]]
    np.savez(tmp_path / "b.npz", header=np.array(json.dumps(header)), **arrays)
    with pytest.raises(CorruptFileError, match=r"b\.npz"):
        type(found).load(tmp_path / "b.npz")


def test_a_picture_of_too_many_pixels(tmp_path, monkeypatch):
    Image.fromarray(np.zeros((30, 30), np.uint8)).save(tmp_path / "a.png")
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)  # 400 million are refused as a bomb
    with pytest.raises(CorruptFileError, match="not a readable image"):
        datasets.load_data(tmp_path / "a.png", labels=False)


@pytest.mark.parametrize("pair", ["12", [1], [1, "2"], [2, 1], 3, [1, 2, 3], [True, 2], {"a": 1}])
def test_ranges_in_profiles(im, tmp_path, pair):
    profile = nns.Profile.from_data(im, np.ones((2, 3)), progress=False)
    profile.input_range = pair
    profile.save(tmp_path / "p.npz")
    with pytest.raises(CorruptFileError, match="it has the range"):
        nns.Profile.load(tmp_path / "p.npz")


@pytest.fixture(scope="module")
def slicer():
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Dense(8, "relu", name="h1"), keras.layers.Dense(2, name="last")]
    im = nns.InstrumentedModel(keras.Sequential([keras.Input((3,)), *layers]))
    return nns.Slicer(
        im, nns.Profile.from_data(im, MANY, progress=False), 0.0, workers=0, progress=False
    )


MANY = np.random.default_rng(0).normal(size=(300, 3)).astype(np.float32)
NAMES = {
    "list": lambda names: list(names),
    "array": np.array,
    "objects": lambda names: np.array(names, object),
    "Index": pd.Index,
    "Series": pd.Series,
    "dict": dict.fromkeys,
    "iterator": iter,
}


@pytest.mark.parametrize("form", NAMES)
def test_names_in_any_collection(slicer, form):
    """Each call gives what it gives for a list, which a tuple of Python's own strings is."""
    named, x = NAMES[form], MANY[:3]
    rows = slicer.slice_each(x)
    for names in (("last",), ("h1", "last")):
        part = slicer.slice_each(x, kernels=named(names))
        sizes = {"h1": 24, "last": 16}
        assert part.matrix.shape == (3, sum(sizes[name] for name in names))
        np.testing.assert_array_equal(rows.columns(named(names)), rows.columns(list(names)))
        (parts,) = slicer.iterate(x, kernels=named(names))
        assert list(parts.synapses) == list(names)
    swept = slicing.patch(
        *(slicer.im, x[0], x[1]), target=0, operations=named(["h1", "h1:pre"]), progress=False
    )
    assert set(swept.table["operation"]) == {"h1", "h1:pre"}
    ablation = nns.instrument.Ablation(slicer.im, "zero", of=named(["last"]))
    assert list(ablation.shapes) == ["last"]
    if form != "iterator":  # a detector keeps its arguments
        found = detection.SliceDetector(slicer, "paper", kernels=named(["h1"])).fit(MANY)
        expected = detection.SliceDetector(slicer, "paper", kernels=("h1",)).fit(MANY)
        np.testing.assert_array_equal(found.score_samples(x), expected.score_samples(x))


def test_a_detector_with_an_array_of_kernels_is_saved(slicer, tmp_path):
    for kernels in (np.array(["h1", "last"]), pd.Index(["h1"]), "h1", None):
        one = detection.SliceDetector(slicer, "paper", kernels=kernels).fit(MANY)
        one.save(tmp_path / "detector.npz")
        again = detection.SliceDetector.load(tmp_path / "detector.npz", slicer)
        np.testing.assert_array_equal(again.score_samples(MANY[:5]), one.score_samples(MANY[:5]))


@pytest.mark.parametrize("names", [5, 1.5, np.array(1), object(), True])
def test_what_is_no_collection_of_names(slicer, names):
    x = MANY[:3]
    calls = (
        lambda: slicer.slice_each(x, kernels=names),
        lambda: list(slicer.iterate(x, kernels=names)),
        lambda: list(slicer.iterate(x, operations=names)),
        lambda: slicer.slice_each(x).columns(names),
        lambda: slicing.patch(slicer.im, x[0], x[1], target=0, operations=names, progress=False),
        lambda: nns.instrument.Ablation(slicer.im, "zero", of=names),
        lambda: detection.SliceDetector(slicer, kernels=names).fit(MANY),
    )
    for call in calls:
        with pytest.raises(InvalidArgumentError, match=r"must be names\. Received: "):
            call()


def test_names_that_are_empty_or_unknown(slicer):
    for names in ("", ["h1", ""], [5], np.array([1, 2])):
        for call in (
            lambda names=names: slicer.slice_each(MANY[:3], kernels=names),
            lambda names=names: detection.SliceDetector(slicer, kernels=names).fit(MANY),
        ):
            with pytest.raises(InvalidArgumentError, match="Unknown kernel"):
                call()
    for names in ((), [], np.array([]), pd.Index([])):
        with pytest.raises(InvalidArgumentError, match="kernels` is empty"):
            detection.SliceDetector(slicer, kernels=names).fit(MANY)
        with pytest.raises(InvalidArgumentError, match="operations is empty"):
            slicing.patch(slicer.im, MANY[0], MANY[1], target=0, operations=names, progress=False)


def test_a_detector_of_slices_needs_a_slicer(slicer):
    for one in (slicer.im, slicer.im.model, slicer.profile, "slicer", None):
        made = detection.SliceDetector(one, "margin")
        for call in (lambda made=made: made.fit(MANY), lambda made=made: made.votes()):
            with pytest.raises(InvalidArgumentError, match="slicer must be a Slicer of the model"):
                call()


@pytest.mark.parametrize("rate", [1e-320, 5e-324, 1e-300, 1e-9])
def test_false_alarms_that_no_number_of_inputs_shows(slicer, rate):
    with pytest.raises(InvalidArgumentError, match=r"needs at least \d[^ ]* held-out"):
        detection.LogitMargin(slicer.im, false_positive_rate=rate).fit(MANY)


@pytest.mark.parametrize("shape", [np.array([]), [], {}])
def test_shapes_of_no_input(slicer, shape):
    class Own(keras.Model):
        def call(self, x):
            return x

    for model in (slicer.im.model, Own()):
        with pytest.raises(InputShapeError):
            nns.InstrumentedModel(model, input_shape=shape)
