"""Commands for compressed models, and for causes, semantic slices and planes."""

import json
import re

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, debugging, dflare, exactline, semantic, zoo
from support.deviating import mutated


@pytest.fixture(scope="module")
def pair(files):
    """The options that name a model and its 8-bit copy."""
    model = dflare.with_softmax(zoo.load("digits_cnn"))
    train = datasets.load("digits", "train[:100]").x
    (files / "int8.tflite").write_bytes(dflare.compress(model, "int8", train))
    return ("--original", files / "model.keras", "--compressed", files / "int8.tflite")


@pytest.fixture(scope="module")
def models(files, pair):
    return dflare.with_softmax(zoo.load("digits_cnn")), files / "int8.tflite"


def test_agreement(nnslicer, pair, models, tmp_path):
    data = ("--data", "digits:test", "--output", tmp_path / "a.csv")
    code, out, _ = nnslicer("agreement", *pair, *data)
    test = datasets.load("digits", "test")
    found = dflare.agreement(dflare.ModelPair(*models), test.x, test.y)
    assert code == 0 and repr(found) in out and "divided by 255 (--scale)" in out
    table = pd.read_csv(tmp_path / "a.csv")
    assert table["differs"].sum() == found.differs.sum() and len(table) == 360


def test_labels_of_arrays_count(nnslicer, pair, models, tmp_path):
    test = datasets.load("digits", "test[:60]")
    np.savez(tmp_path / "d.npz", x=test.x, y=test.y)
    np.savez(tmp_path / "bad.npz", x=test.x, y=test.y + 5)
    np.savez(tmp_path / "none.npz", x=test.x)
    code, out, _ = nnslicer("agreement", *pair, "--data", tmp_path / "d.npz")
    right = (models[0].predict(test.x, verbose=0).argmax(axis=1) == test.y).mean()
    assert code == 0 and f"accuracy {right:.2%}" in out
    code, _, error = nnslicer("agreement", *pair, "--data", tmp_path / "bad.npz")
    assert code == 2 and "Class labels must be in 0 … 9" in error
    code, out, _ = nnslicer("agreement", *pair, "--data", tmp_path / "none.npz")
    assert code == 0 and "accuracy" not in out


def answers(file, x):
    """The real numbers that a LiteRT file gives, one input at a time, by its interpreter alone."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(file))
    (entry,), (end,) = interpreter.get_input_details(), interpreter.get_output_details()
    interpreter.allocate_tensors()
    outputs = []
    for sample in x:
        if entry["dtype"] != np.float32:
            sample = np.round(sample / entry["quantization"][0]) + entry["quantization"][1]
            sample = np.clip(sample, -128, 127)
        interpreter.set_tensor(entry["index"], sample[None].astype(entry["dtype"]))
        interpreter.invoke()
        scale, zero = end["quantization"]
        outputs.append(
            (interpreter.get_tensor(end["index"])[0].astype(float) - zero) * (scale or 1)
        )
    return np.array(outputs)


@pytest.mark.parametrize("options", [("--classes", "3,5,8"), ("--classes", "3,5", "--other"), ()])
def test_a_smaller_model_in_8_bits(nnslicer, files, tmp_path, options):
    """The report is what the two files do, counted here; small labels are places of classes."""
    data = ("--model", files / "model.keras", "--data", "digits", "--test", "digits:test")
    more = ("--ratio", 0.5, "--quantise", "int8", "--output", tmp_path / "s.tflite")
    code, out, errors = nnslicer("prune", *data, *more, *options)
    assert code == 0, errors
    rows = dict(re.findall(r"^ *(\S.*?)  +((?:[\d.e+-]+ *){3})$", out, re.M))
    rows = {name: [float(value) for value in values.split()] for name, values in rows.items()}
    assert rows["LiteRT file, kB"][2] == pytest.approx((tmp_path / "s.tflite").stat().st_size / 1e3)
    assert rows["LiteRT file, kB"][0] > rows["LiteRT file, kB"][1] > rows["LiteRT file, kB"][2]
    for low, middle, high in zip(*(rows[f"LiteRT, ms, {n}"] for n in ("25 %", "median", "75 %"))):
        assert 0 < low <= middle <= high

    test = datasets.load("digits", "test")
    wanted = [3, 5, 8] if "3,5,8" in options else [3, 5] if options else list(range(10))
    original = keras.ops.softmax(zoo.load("digits_cnn").predict(test.x, verbose=0)).numpy()
    if "--other" in options:
        sums = [original[:, 3], original[:, 5], 1 - original[:, 3] - original[:, 5]]
        right = np.array([wanted.index(label) if label in wanted else 2 for label in test.y])
        original, kept = np.stack(sums, axis=1), np.ones(len(right), bool)
    else:
        kept = np.isin(test.y, wanted)
        right = np.searchsorted(wanted, test.y)
        original = original[:, wanted]
    small = keras.models.load_model(tmp_path / "s.keras").predict(test.x, verbose=0)
    labels = [
        one[kept].argmax(axis=1)
        for one in (original, small, answers(tmp_path / "s.tflite", test.x))
    ]
    for name, expected in (("accuracy", right[kept]), ("agreement", labels[0])):
        shares = [np.mean(one == expected) for one in labels]
        assert rows[name] == pytest.approx(shares, abs=1e-4), name


def test_what_cannot_be_quantised_is_said_before_anything_is_shrunk(
    nnslicer, tmp_path, monkeypatch
):
    from nnslicer_tf import pruning

    rng = np.random.default_rng(0)
    keras.utils.set_random_seed(0)
    dense = [layers.Dense(12, activation="relu"), layers.Dense(1)]
    price = keras.Sequential([keras.Input((3,)), *dense])
    price.compile(loss="mse")
    price.save(tmp_path / "price.keras")
    np.savez(tmp_path / "price.npz", x=rng.normal(size=(60, 3)), y=np.arange(60) % 5)
    words = [keras.Input((4,), dtype="int32"), layers.Embedding(9, 4), layers.Flatten()]
    words = keras.Sequential([*words, layers.Dense(6, activation="relu"), layers.Dense(2)])
    words.save(tmp_path / "words.keras")
    np.savez(tmp_path / "words.npz", x=rng.integers(0, 9, (40, 4)), y=np.arange(40) % 2)
    states = keras.Sequential([keras.Input((5, 2)), layers.LSTM(6), layers.Dense(2)])
    states.save(tmp_path / "states.keras")
    np.savez(tmp_path / "states.npz", x=rng.normal(size=(40, 5, 2)), y=np.arange(40) % 2)

    def run(name, *options):
        paths = ("--model", tmp_path / f"{name}.keras", "--data", tmp_path / f"{name}.npz")
        return nnslicer("prune", *paths, "--output", tmp_path / "small.keras", *options)

    int8 = ("--quantise", "int8", "--ratio", 0.4)
    monkeypatch.setattr(pruning, "shrink", None)
    for name, options, message in (
        ("price", int8, "Numbers need a tolerance"),
        ("words", int8, "The method 'dynamic' takes this model"),
        ("states", int8, "cannot convert model .* recurrent layers"),
        ("price", ("--quantise", "int4"), "Expected one of: 'int8', 'int16', 'dynamic'"),
        ("price", (*int8, "--output", tmp_path / "a.onnx"), "must end in .keras or .tflite"),
        ("price", (*int8, "--data", tmp_path / "none.npz"), "none.npz"),
    ):
        code, _, errors = run(name, *options)
        assert code == 2 and re.search(message, errors), (name, errors)
    assert not (tmp_path / "small.keras").exists()
    pair = ("--original", tmp_path / "price.keras", "--compressed", tmp_path / "price.keras")
    data = ("--data", tmp_path / "price.npz", "--tolerance", 0.1, "--suite", tmp_path / "suite")
    code, _, errors = nnslicer("deviations", *pair, *data)
    assert code == 2 and "--suite needs a classifier" in errors


def test_from_deviations_to_a_recipe(nnslicer, pair, models, tmp_path):
    file = tmp_path / "d.npz"
    data = ("--data", "digits:test[:20]", "--output", file, "--checkpoint", tmp_path / "parts")
    code, out, _ = nnslicer("deviations", *pair, *data)
    assert code == 0
    found = dflare.DeviationSet.load(file)
    assert found.found.sum() > 10 and any((tmp_path / "parts").iterdir())
    im, x = nns.InstrumentedModel(models[0]), found.images / np.float32(255)
    compared = debugging.compare_layers(im, models[1], x, progress=False)

    table = ("--output", tmp_path / "l.csv", "--picture", tmp_path / "l.png")
    code, out, _ = nnslicer("layers", *pair, "--deviations", file, *table)
    assert code == 0 and repr(compared) in out
    causes = pd.read_csv(tmp_path / "l.csv").set_index("operation")["cause"]
    for name, share in compared.causes.items():
        assert causes[name] == pytest.approx(share, abs=1e-4)
    assert (tmp_path / "l.png").read_bytes()[:4] == b"\x89PNG"

    options = ("--deviations", file, "--budget", 0.25, "--output", tmp_path / "r.json")
    code, out, _ = nnslicer("recipe", *pair, *options)
    recipe = debugging.recipe(compared, 0.25)
    written = json.loads((tmp_path / "r.json").read_text())
    assert code == 0 and repr(recipe) in out
    assert written == {
        "layers": list(recipe.layers),
        "tensors": list(recipe.tensors()),
        "ai_edge": recipe.ai_edge(),
    }

    code, out, _ = nnslicer("suite", file, "--output", tmp_path / "suite")
    assert code == 0
    with np.load(tmp_path / "suite/deviations.npz") as tests:
        np.testing.assert_allclose(tests["inputs"], x)
        np.testing.assert_array_equal(tests["labels"], found.labels[:, 0])


@pytest.fixture(scope="module")
def table(files):
    """Two models of one sigmoid on a table, and the table as a file."""
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"size": rng.normal(size=40), "count": rng.integers(0, 9, 40)})
    frame["label"] = (frame["size"] + 0.3 * frame["count"] > 1.3).astype(int)
    frame.to_csv(files / "table.csv", index=False)
    for name, bias in (("first", -1.3), ("second", -0.9)):
        model = keras.Sequential([keras.Input((2,)), layers.Dense(1, "sigmoid", name="one")])
        model.set_weights([np.array([[1.0], [0.3]]), np.array([bias])])
        model.save(files / f"{name}.keras")
    return ("--original", files / "first.keras", "--compressed", files / "second.keras")


def test_deviations_of_a_table(nnslicer, files, table, tmp_path):
    options = ("--data", files / "table.csv", "--output", tmp_path / "d.npz", "--minimise")
    options += ("--picture", tmp_path / "d.png", "--suite", tmp_path / "suite")
    code, _, errors = nnslicer("deviations", *table, *options)
    assert code == 0, errors
    found = dflare.DeviationSet.load(tmp_path / "d.npz")
    z = found.images @ [1.0, 0.3]
    assert len(z) > 20 and ((z > 0.9) & (z < 1.3)).all()
    assert (tmp_path / "d.png").exists() and (tmp_path / "suite/test_deviations.py").exists()
    code, out, _ = nnslicer("agreement", *table, "--data", files / "table.csv")
    accuracy = re.search(r"accuracy ([\d.]+)% → ([\d.]+)%", out)
    assert code == 0 and float(accuracy[1]) == 100 > float(accuracy[2])
    code, out, _ = nnslicer("layers", *table, "--data", files / "table.csv")
    assert code == 0 and "samples deviate" in out


def test_causes_of_wrong_answers(nnslicer, files):
    model = ("--model", files / "model.keras", "--data", "digits:train")
    code, out, _ = nnslicer("causes", *model, "--level", "layer", "--most", 40)
    im, train = nns.InstrumentedModel(zoo.load("digits_cnn")), datasets.load("digits", "train")
    runs = debugging.Runs.split(im, train.x, train.y).sampled(40, 0)
    parts = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    suspicion = debugging.suspicious(im, *parts, progress=False)
    assert code == 0 and repr(suspicion) in out


def test_semantic_slices(nnslicer, files, tmp_path):
    options = ("--data", "digits:train[:100]", "--test", "digits:test", "--threshold", 0.8)
    output = ("--output", tmp_path / "small.keras")
    code, out, _ = nnslicer("semantic", "--model", files / "model.keras", *options, *output)
    im, train = (
        nns.InstrumentedModel(zoo.load("digits_cnn")),
        datasets.load("digits", "train[:100]"),
    )
    critical = semantic.SemanticSlicer(im, train.x, train.y).semantic_slice(0.8)
    test = datasets.load("digits", "test")
    small = keras.models.load_model(tmp_path / "small.keras")
    right = (small.predict(test.x, verbose=0).argmax(axis=1) == test.y).mean()
    assert code == 0 and f"the critical neurons alone {right:.2%}" in out
    for name, mask in critical.items():
        assert re.search(rf"{name} +{len(mask)} +{mask.sum()} ", out)


def test_planes_between_points(nnslicer, files, tmp_path):
    corners = ("--corner", "-2,0", "--corner", "2,0", "--corner", "2,9", "--corner", "-2,9")
    picture = ("--picture", tmp_path / "p.png", "--output", tmp_path / "p.csv")
    keras.utils.set_random_seed(0)
    relu = layers.Dense(4, activation="relu")
    model = keras.Sequential([keras.Input((2,)), relu, layers.Dense(3)])
    model.save(tmp_path / "m.keras")
    code, out, errors = nnslicer("planes", "--model", tmp_path / "m.keras", *corners, *picture)
    assert code == 0, errors
    polygon = np.array([[-2, 0], [2, 0], [2, 9], [-2, 9]])
    plane = exactline.exact_plane(nns.InstrumentedModel(model), polygon)
    assert repr(plane) in out and (tmp_path / "p.png").exists()
    pd.testing.assert_frame_equal(
        pd.read_csv(tmp_path / "p.csv"), plane.classify().to_frame(), check_dtype=False
    )


def test_dense_activations_and_single_outputs(nnslicer, files, tmp_path):
    """A `Dense(activation="relu")` has activations, and one sigmoid can be covered."""
    model = keras.Sequential(
        [
            keras.Input((2,)),
            layers.Dense(3, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.save(tmp_path / "m.keras")
    common = ("--model", tmp_path / "m.keras", "--data", files / "table.csv")
    code, out, _ = nnslicer("inspect", *common)
    assert code == 0 and model.layers[0].name in out
    code, _, _ = nnslicer("cover", *common, "--output", tmp_path / "c.csv")
    table = pd.read_csv(tmp_path / "c.csv").set_index("operation")
    x = pd.read_csv(files / "table.csv")[["size", "count"]].to_numpy(np.float32)
    outputs = model.predict(x, verbose=0)
    assert code == 0 and table.loc[model.layers[1].name, "covered"] == (outputs > 0.25).any()


BAD = {
    "both": (("layers", "--data", "digits", "--deviations", "d.npz"), "either --data or"),
    "neither": (("recipe",), "either --data or --deviations"),
    "no file": (("layers", "--deviations", "nowhere.npz"), "nowhere.npz"),
    "scale": (("agreement", "--data", "digits:test[:9]", "--scale", -1), "equal to 0"),
    "distance": (
        ("deviations", "--data", "digits:test[:9]", "--max-distance", 0.5),
        "max_distance must be at least 1",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_input_leaves_no_folder(nnslicer, pair, tmp_path, monkeypatch, case):
    monkeypatch.chdir(tmp_path)
    (command, *options), message = BAD[case]
    if command == "deviations":
        options += ["--suite", tmp_path / "new/suite", "--output", tmp_path / "results/d.npz"]
    code, _, errors = nnslicer(command, *pair, *options)
    assert code == 2 and re.search(message, errors), errors
    assert not list(tmp_path.iterdir())


def test_other_bad_input(nnslicer, files, tmp_path):
    np.savez(tmp_path / "x.npz", x=np.full((9, 8, 8, 1), -0.5))
    pair = ("--original", files / "model.keras", "--compressed", files / "model.keras")
    scaled = ("--data", tmp_path / "x.npz", "--scale", 255)
    code, _, errors = nnslicer("deviations", *pair, *scaled)
    assert code == 2 and "Pass them before preprocessing" in errors
    model = ("--model", files / "model.keras")
    code, _, errors = nnslicer("planes", *model, "--corner", "0,1")
    assert code == 2 and "--corner has 2 values; a sample of the model has 64" in errors
    code, _, errors = nnslicer("causes", *model, "--data", "digits:test", "--method", "adjustmen")
    assert code == 2 and "adjustment" in errors
    code, _, errors = nnslicer("semantic", *model, "--data", "digits:test", "--metric", "taylr")
    assert code == 2 and "Did you mean 'taylor'" in errors


@pytest.mark.filterwarnings("default:Both models answered identically:UserWarning")
def test_a_warning_is_one_line(nnslicer, files, tmp_path):
    pair = ("--original", files / "model.keras", "--compressed", files / "model.keras")
    options = ("--data", "digits:test[:9]", "--max-queries", 2, "--output", tmp_path / "d.npz")
    code, _, errors = nnslicer("deviations", *pair, *options)
    (line,) = [one for one in errors.splitlines() if "identically" in one]
    assert code == 0 and line.startswith("nnslicer: Both models answered identically on all 9")


@pytest.mark.parametrize(
    ("first", "scale"),
    [
        ([], 255),
        ([layers.Rescaling(1 / 255)], 1),
        ([layers.ZeroPadding2D(1), layers.Rescaling(1 / 127.5, -1)], 1),
        ([layers.Resizing(4, 4), layers.Rescaling(1 / 255)], 1),
        ([layers.BatchNormalization()], 255),  # as of values from 0 to 1
        ([layers.Normalization(mean=120.0, variance=60.0**2)], 1),
    ],
)
def test_a_model_that_scales_its_pixels_is_recognised(nnslicer, tmp_path, first, scale):
    last = [layers.Conv2D(2, 3, activation="relu"), layers.Flatten(), layers.Dense(2, "softmax")]
    model = keras.Sequential([keras.Input((8, 8, 1)), *first, *last])
    model.save(tmp_path / "m.keras")
    x = np.random.default_rng(0).integers(0, 256, (3, 8, 8, 1), dtype=np.uint8)
    np.savez(tmp_path / "x.npz", x=x)
    pair = ("--original", tmp_path / "m.keras", "--compressed", tmp_path / "m.keras")
    _, out, _ = nnslicer("agreement", *pair, "--data", tmp_path / "x.npz")
    assert f"divided by {scale} (--scale)" in out


@pytest.mark.parametrize("factor", [1.0, 255.0, 51.0])
def test_the_scale_of_deviations_is_recorded(nnslicer, factor, tmp_path):
    """A model that scales its pixels by itself, as the commands guess, or in part, as they ask."""
    inner = zoo.load("digits_cnn")
    inputs = keras.Input(inner.input_shape[1:])
    scaled = keras.layers.Rescaling(factor / 255)(inputs) if factor < 255 else inputs
    whole = dflare.with_softmax(keras.Model(inputs, inner(scaled)))
    other = mutated(whole, 0.9)
    files = [tmp_path / "a.keras", tmp_path / "b.keras"]
    for model, file in zip((whole, other), files, strict=True):
        model.save(file)
    pair = ("--original", files[0], "--compressed", files[1])
    found = tmp_path / "d.npz"
    asked = ("--scale", factor) if factor == 51 else ()
    data = ("--data", "digits:test[:12]", "--output", found, "--max-queries", 200)
    assert nnslicer("deviations", *pair, *data, *asked)[0] == 0
    deviations = dflare.DeviationSet.load(found)
    assert deviations.scale == factor and deviations.found.any()
    x = deviations.images / np.float32(factor)
    compared = debugging.compare_layers(nns.InstrumentedModel(whole), other, x, progress=False)
    code, out, _ = nnslicer("layers", *pair, "--deviations", found)
    assert code == 0 and repr(compared) in out
    code, out, _ = nnslicer("suite", found, "--output", tmp_path / "suite")
    with np.load(tmp_path / "suite" / "deviations.npz") as suite:
        stored = [suite[name] for name in suite.files if suite[name].shape == x.shape]
    assert code == 0 and any(np.allclose(values, x) for values in stored)


@pytest.mark.parametrize("first", [[], [layers.Rescaling(1 / 255)]], ids=["plain", "rescaling"])
@pytest.mark.parametrize("kind", ["float", "dark", "dithered"])
@pytest.mark.parametrize("suffix", [".keras", ".tflite"])
def test_floats_between_bytes_are_not_rounded(nnslicer, first, kind, suffix, tmp_path):
    """Pixels of 0 … 1 that are no bytes / 255, against Keras or the interpreter itself."""
    rng = np.random.default_rng(2)
    model = keras.Sequential(
        [keras.Input((4, 4, 1)), *first, layers.Flatten(), layers.Dense(4, "softmax")]
    )
    kernel = rng.normal(size=(16, 4)) * 100
    model.set_weights([kernel - kernel.mean(axis=0), np.zeros(4)])
    other = mutated(model, 0.9)
    x = {"float": 1.0, "dark": 0.01, "dithered": 1.0}[kind] * rng.random((200, 4, 4, 1))
    if kind == "dithered":  # all but one are bytes
        x = np.rint(x * 255) / 255
        x[3, 0, 0, 0] = 0.1234
    x = x.astype(np.float32)
    read = x * np.float32(255) if first else x  # what the models are to be given
    paths = [tmp_path / "a.keras", tmp_path / f"b{suffix}"]
    model.save(paths[0])
    if suffix == ".keras":
        other.save(paths[1])
        answered = other.predict(read, verbose=0)
    else:
        paths[1].write_bytes(dflare.compress(other, "int8", read))
        answered = answers(paths[1], read)
    pair = ("--original", paths[0], "--compressed", paths[1])
    true = model.predict(read, verbose=0).argmax(axis=1)
    np.savez(tmp_path / "x.npz", x=x, y=true)
    data = ("--data", tmp_path / "x.npz")
    code, out, _ = nnslicer("agreement", *pair, *data)
    same = answered.argmax(axis=1) == true
    assert code == 0 and f"accuracy 100.00% → {same.mean():.2%}" in out and "unrounded" in out
    if suffix == ".keras":
        assert nnslicer("layers", *pair, *data)[0] == 0
    more = ("--output", tmp_path / "d.npz", "--max-queries", 100, "--suite", tmp_path / "suite")
    assert nnslicer("deviations", *pair, *data, *more)[0] == 0
    found = dflare.DeviationSet.load(tmp_path / "d.npz")
    np.testing.assert_array_equal(found.seeds, read)
    assert found.scale is None and found.found.any()
    assert read.min() <= found.images.min() and found.images.max() <= read.max()
    values = [one.predict(found.images, verbose=0) for one in (model, other)]
    if suffix == ".tflite":
        values[1] = answers(paths[1], found.images)
    np.testing.assert_array_equal(np.argmax(values, axis=2).T, found.labels)


@pytest.mark.parametrize("kind", ["float32", "uint8"])
def test_bytes_stay_images(nnslicer, kind, tmp_path):
    """Bytes, also divided by 255, are mutated as images, in steps of a byte."""
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((4, 4, 1)), layers.Flatten(), layers.Dense(4, "softmax")])
    paths = [tmp_path / "a.keras", tmp_path / "b.keras"]
    for one, path in zip((model, mutated(model, 0.9)), paths, strict=True):
        one.save(path)
    pixels = rng.integers(0, 256, (20, 4, 4, 1), dtype=np.uint8)
    x = pixels if kind == "uint8" else pixels / np.float32(255)
    np.savez(tmp_path / "x.npz", x=x)
    pair = ("--original", paths[0], "--compressed", paths[1], "--data", tmp_path / "x.npz")
    assert nnslicer("agreement", *pair, "--scale", "inf")[0] == 2
    code, out, _ = nnslicer("deviations", *pair, "--output", tmp_path / "d.npz")
    found = dflare.DeviationSet.load(tmp_path / "d.npz")
    assert code == 0 and "unrounded" not in out and found.images.dtype == np.uint8
    np.testing.assert_array_equal(found.seeds, pixels)


@pytest.mark.parametrize("kind", ["below 0", "above 1", "0 to 1"])
def test_spectrograms_are_used_as_they_are(nnslicer, kind, tmp_path):
    """Coefficients of sounds: what cannot be pixels is not divided; others need `--scale 0`."""
    keras.utils.set_random_seed(0)
    net = [keras.Input((12, 5, 1)), layers.Flatten(), layers.Dense(3, "softmax")]
    model = keras.Sequential(net)
    kernel, bias = model.get_weights()
    model.set_weights([kernel - kernel.mean(axis=0), bias])  # no class for being positive
    other = mutated(model, 0.4)
    x = np.random.default_rng(0).normal(size=(20, 12, 5, 1)).astype("float32") * 30
    x = {"below 0": x, "above 1": np.abs(x), "0 to 1": np.abs(x) / np.abs(x).max()}[kind]
    np.savez(tmp_path / "x.npz", x=x)
    paths = [tmp_path / "a.keras", tmp_path / "b.keras"]
    for one, path in zip((model, other), paths, strict=True):
        one.save(path)
    pair = ("--original", paths[0], "--compressed", paths[1])
    data = ("--data", tmp_path / "x.npz", *(("--scale", 0) if kind == "0 to 1" else ()))
    differs = [one.predict(x, verbose=0).argmax(axis=1) for one in (model, other)]
    code, out, _ = nnslicer("agreement", *pair, *data)
    assert code == 0 and f"Agreement({np.mean(differs[0] == differs[1]):.2%} of 20 inputs" in out
    assert ("used as they are, not as images" in out) == (kind != "0 to 1")

    more = ("--max-queries", 300, "--output", tmp_path / "d.npz", "--picture", tmp_path / "d.png")
    code, _, errors = nnslicer("deviations", *pair, *data, *more, "--suite", tmp_path / "one")
    found = dflare.DeviationSet.load(tmp_path / "d.npz")
    assert code == 0 and found.found.any() and (tmp_path / "d.png").exists(), errors
    answers = [one.predict(found.images, verbose=0).argmax(axis=1) for one in (model, other)]
    np.testing.assert_array_equal(np.stack(answers, axis=1), found.labels)
    assert nnslicer("suite", tmp_path / "d.npz", "--output", tmp_path / "two")[0] == 0
    for folder in ("one", "two"):
        with np.load(tmp_path / folder / "deviations.npz") as suite:
            np.testing.assert_array_equal(suite["inputs"], found.images)
    assert "deviate" in nnslicer("layers", *pair, "--deviations", tmp_path / "d.npz")[1]
