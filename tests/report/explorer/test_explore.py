"""`explore`: the document holds the slices, the values, and what the model says."""

import re

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import zoo
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.report.explorer import document
from support.documents import unpack


def read(view):
    return unpack(view.data)


def exhibit(header, place=0):
    return header["exhibits"][place]


def test_the_slices_are_in_it(digits):
    im, profile, slices, x = digits
    header, arrays = read(nns.explore(slices, im, x, profile=profile, progress=False))
    names = [operation["name"] for operation in header["operations"]]
    assert names == [o.name for o in im.operations]
    assert len(exhibit(header)["parts"]) == len(slices) and exhibit(header)["each"]
    for one, part in zip(slices, exhibit(header)["parts"], strict=True):
        for o, reference in part["neurons"].items():
            assert np.array_equal(arrays[reference], one.neurons[names[int(o)]])
        for k, reference in part["synapses"].items():
            kernel = list(im.kernels.values())[int(k)]
            matrix = kernel.layout.from_kernel(one.synapses[kernel.name])
            assert np.array_equal(arrays[reference], matrix)
            assert part["kept"][k] == np.count_nonzero(matrix)
        assert len(part["neurons"]) == len(names) and len(part["synapses"]) == 3


def test_it_says_where_it_comes_from(digits):
    im, profile, slices, x = digits
    header, _ = read(nns.explore(slices, im, x, profile=profile, title="Why?", progress=False))
    assert header["title"] == "Why?" and header["versions"]["keras"] == keras.__version__
    (model,) = header["models"]
    assert model["fingerprint"] == im.fingerprint and model["name"] == "digits_cnn"
    stated = {key: exhibit(header)[key] for key in ("theta", "granularity", "outputs")}
    assert stated == {"theta": 0.3, "granularity": "activation", "outputs": "predicted"}
    assert not header["rounded"]


@pytest.mark.parametrize("level", ["synapse", "neuron", "channel", "input"])
def test_decisive_slices_with_their_certificates(digits, level):
    im, profile, _, x = digits
    found = nns.Slicer(im, profile, progress=False).decisive(x[:2], level=level)
    header, arrays = read(nns.explore(found, im, x[:2], classes=[*"abcdefghij"], progress=False))
    names = [o.name for o in im.operations]
    for i, part in enumerate(exhibit(header)["parts"]):
        assert part["certificate"] == found.summary(i, [*"abcdefghij"])
        assert part["says"].keys() == {"whole"}
        for name, mask in found.masks(i).items():
            if level == "synapse":
                place = list(im.kernels).index(name)
                assert part["kept"][str(place)] == mask.sum()
                stored = arrays[part["synapses"][str(place)]]
                assert np.array_equal(stored, im.kernels[name].layout.from_kernel(mask))
                (name,) = [n for n in names if getattr(im[n].params, "name", "") == name]
                marked = arrays[part["neurons"][str(names.index(name))]]
                assert np.array_equal(marked != 0, mask.any(axis=tuple(range(mask.ndim - 1))))
                continue
            stored = arrays[part["neurons"][str(names.index(name))]]
            assert np.array_equal(stored.reshape(mask.shape) != 0, mask)
        # The slice of one sample is shown alike, as a slice.
        own, of_slice = read(nns.explore(found[i], im, x[i : i + 1], profile=profile))
        alone = exhibit(own)["parts"][0]
        for place, at in alone["neurons"].items() if level != "synapse" else ():
            shown = of_slice[at] != 0
            assert np.array_equal(shown, arrays[part["neurons"][place]] != 0)


def test_values_and_means(digits):
    im, profile, slices, x = digits
    header, arrays = read(nns.explore(slices, im, x, profile=profile, progress=False))
    captured = im.capture(x)
    for i, part in enumerate(exhibit(header)["parts"]):
        row = header["rows"][part["row"]]
        for o, operation in enumerate(header["operations"]):
            name = operation["name"]
            stored = arrays[row["values"]["activation"][str(o)]]
            np.testing.assert_allclose(stored, captured[name][i], rtol=1e-5, atol=1e-6)
            mean = arrays[header["models"][0]["means"]["activation"][str(o)]]
            assert np.array_equal(mean, profile.means[name])
        picture = arrays[row["picture"]] / 255 * (row["high"] - row["low"]) + row["low"]
        assert np.abs(picture - x[i]).max() < 1 / 255


def test_what_the_model_says(digits):
    im, profile, slices, x = digits
    header, _ = read(nns.explore(slices, im, x, profile=profile, progress=False))
    for i, (one, part) in enumerate(zip(slices, exhibit(header)["parts"], strict=True)):
        rest = {name: (values == 0).astype(int) for name, values in one.synapses.items()}
        models = {"whole": im.model, "kept": one.apply(im.model, profile)}
        models["removed"] = nns.Slice({}, rest, {}).apply(im.model, profile)
        for said, model in models.items():
            shares = keras.ops.softmax(model.predict(x[i : i + 1], verbose=0))[0].numpy()
            expected = np.argsort(-shares)[: document.MAX_CLASSES]
            assert [c for c, _ in part["says"][said]] == expected.tolist()
            np.testing.assert_allclose(
                [p for _, p in part["says"][said]], shares[expected], atol=1e-5
            )


def test_the_model_is_not_changed(digits):
    im, profile, slices, x = digits
    before = im.fingerprint
    nns.explore(slices, im, x, profile=profile, progress=False)
    assert im.fingerprint == before


def test_slices_of_the_same_samples_share_their_values(digits):
    im, profile, slices, x = digits
    twice = {"one": slices, "two": slices}
    once = nns.explore({"one": slices}, im, x, profile=profile, progress=False)
    both = nns.explore(twice, im, x, profile=profile, progress=False)
    assert len(read(both)[0]["rows"]) == len(x)
    assert len(both.data) < 1.2 * len(once.data)


def test_a_slice_of_several_samples(digits):
    im, profile, slices, x = digits
    header, arrays = read(nns.explore(slices.sum(), im, x, profile=profile, progress=False))
    (part,) = exhibit(header)["parts"]
    assert part["samples"] == 8 and not exhibit(header)["each"]
    row = header["rows"][part["row"]]
    mean = arrays[row["values"]["activation"]["1"]]
    np.testing.assert_allclose(mean, im.capture(x)["conv1"].mean(axis=0), rtol=1e-4, atol=1e-6)


def test_channel_granularity(mixed):
    im, profile, x = mixed
    slicer = nns.Slicer(im, profile, granularity="channel", workers=0, progress=False)
    slices = slicer.slice_each(x)
    header, arrays = read(nns.explore(slices, im, x, profile=profile, progress=False))
    row = header["rows"][0]
    values = im.capture(x[:1])
    for o, operation in enumerate(im.operations):
        mean = values[operation.name][0].reshape(-1, operation.shape[-1]).mean(axis=0)
        np.testing.assert_allclose(
            arrays[row["values"]["channel"][str(o)]], mean, rtol=1e-4, atol=1e-6
        )
    # The mean over all windows of what the middle tap reads, less its mean in the profile.
    first = next(o for o, operation in enumerate(im.operations) if operation.synapses)
    changes = arrays[row["changes"][str(first)]]
    change = (x[0] - profile.means[im.input_operation]).mean(axis=(0, 1))
    np.testing.assert_allclose(changes[4], change, rtol=1e-4, atol=1e-6)


def test_large_documents_are_rounded(digits, monkeypatch):
    im, profile, slices, x = digits
    exact = nns.explore(slices, im, x, profile=profile, progress=False)
    monkeypatch.setattr(document, "EXACT_VALUES", 1000)
    rounded = nns.explore(slices, im, x, profile=profile, progress=False)
    header, arrays = read(rounded)
    assert header["rounded"] and len(rounded.data) < 0.75 * len(exact.data)
    values = header["rows"][0]["values"]["activation"]
    stored = {header["operations"][int(o)]["name"] for o in values}
    assert stored == {"input", "relu1", "pool1", "flatten", "logits"}
    for k, reference in exhibit(header)["parts"][0]["synapses"].items():
        kernel = list(im.kernels.values())[int(k)]
        members = kernel.layout.from_kernel(slices[0].synapses[kernel.name]) != 0
        assert np.array_equal(arrays[reference], members)
    captured = im.capture(x[:1])
    names = [operation["name"] for operation in header["operations"]]
    for o, reference in values.items():
        expected = captured[names[int(o)]][0]
        off = np.abs(arrays[reference] - expected).max()
        assert off <= 0.02 * np.abs(expected).max()


def test_of_large_kernels_the_strongest_weights_are_stored(digits, monkeypatch):
    im, profile, slices, x = digits
    monkeypatch.setattr(document, "DENSE_WEIGHTS", 1000)
    monkeypatch.setattr(document, "STRONGEST", 5)
    header, arrays = read(nns.explore(slices, im, x, profile=profile, progress=False))
    for stored, kernel in zip(header["models"][0]["weights"], im.kernels.values(), strict=True):
        matrix = kernel.matrix()
        by_output = matrix.reshape(-1, matrix.shape[-1]).T
        expected = np.sort(np.abs(by_output), axis=1)[:, -5:]
        close = {"rtol": 0, "atol": 0.02 * np.abs(matrix).max()}
        found = arrays[stored["values"]]
        np.testing.assert_allclose(np.sort(np.abs(found), axis=1), expected, **close)
        at = np.take_along_axis(by_output, arrays[stored["chosen"]].astype(int), axis=1)
        np.testing.assert_allclose(found, at, **close)
    assert header["rounded"]


def test_many_synapses_are_only_counted(digits, monkeypatch):
    im, profile, slices, x = digits
    monkeypatch.setattr(document, "STORED_SYNAPSES", 10)
    header, _ = read(nns.explore(slices, im, x, profile=profile, progress=False))
    part = exhibit(header)["parts"][0]
    assert part["synapses"] == {}
    counts = [np.count_nonzero(v) for v in slices[0].synapses.values()]
    assert list(part["kept"].values()) == counts


def test_without_samples_and_profile(digits):
    im, _, slices, _ = digits
    header, _ = read(nns.explore(slices[0], im, progress=False))
    assert header["rows"] == [] and header["models"][0]["means"] == {}
    assert "says" not in exhibit(header)["parts"][0]


def test_marks_of_other_analyses(digits):
    im, _, _, x = digits
    coverage = nns.deepxplore.NeuronCoverage(im, threshold=0.0)
    coverage.update(x)
    masks = {name: np.asarray(mask) for name, mask in coverage.covered.items()}
    score = {"conv2": np.linspace(-1, 1, 32, dtype=np.float32)}
    kernel = {"conv1": np.ones(im.kernels["conv1"].shape, bool)}
    given = {"coverage": masks, "suspicious": score, "pruning": kernel}
    header, arrays = read(nns.explore(given, im, progress=False))
    by_name = {e["name"]: e["parts"][0] for e in header["exhibits"]}
    names = [operation["name"] for operation in header["operations"]]
    assert {names[int(o)] for o in by_name["coverage"]["neurons"]} == set(masks)
    for o, reference in by_name["coverage"]["neurons"].items():
        assert np.array_equal(arrays[reference], masks[names[int(o)]])
    (reference,) = by_name["suspicious"]["neurons"].values()
    assert np.array_equal(arrays[reference], score["conv2"])
    assert list(by_name["pruning"]["kept"].values()) == [kernel["conv1"].size]
    assert [e["theta"] for e in header["exhibits"]] == [None] * 3


def test_results_of_other_analyses_are_marks_as_they_are(digits):
    """Suspicious neurons, pruning masks, and the deviations of two models."""
    im, _, _, x = digits
    labels = im.logits(x).argmax(axis=1)
    failing, passing = (x[:2], (labels[:2] + 1) % 10), (x[2:], labels[2:])
    found = nns.debugging.suspicious(im, failing, passing, "gradient", progress=False)
    masks = nns.pruning.keep_masks(nns.pruning.scores(im, "weight"), 0.5)
    copy = nns.dflare.compress(im.model, "prune")
    own, other = im.capture(x), nns.InstrumentedModel(copy).capture(x)
    differ = {name: np.abs(own[name] - other[name]).mean(axis=0) for name in ("relu1", "relu2")}
    given = {"suspicious": dict(found.neurons), "pruned": dict(masks), "deviation": differ}
    header, arrays = read(nns.explore(given, im, progress=False))
    parts = {e["name"]: e["parts"][0] for e in header["exhibits"]}
    names = [operation["name"] for operation in header["operations"]]
    for name, expected in (("suspicious", found.neurons), ("deviation", differ)):
        for o, reference in parts[name]["neurons"].items():
            wanted = np.asarray(expected[names[int(o)]], np.float32).ravel()
            tolerance = 0.02 * np.abs(wanted).max()
            np.testing.assert_allclose(arrays[reference].ravel(), wanted, atol=tolerance)
    kept = list(parts["pruned"]["kept"].values())
    assert kept == [int(np.count_nonzero(mask)) for mask in masks.values()]


def test_critical_neurons_are_marks(digits):
    im, _, _, _ = digits
    critical = nns.semantic.CriticalNeurons({"conv2": np.arange(32) % 3 == 0})
    header, arrays = read(nns.explore(critical, im, progress=False))
    (reference,) = exhibit(header)["parts"][0]["neurons"].values()
    assert arrays[reference].sum() == 11
    assert exhibit(header)["granularity"] == "channel"


def test_two_models(digits):
    im, profile, slices, x = digits
    keras.utils.set_random_seed(1)
    other = nns.InstrumentedModel(zoo.build("digits_cnn"))
    profiles = {"before": nns.Profile.from_data(other, x, progress=False), "after": profile}
    slicer = nns.Slicer(other, profiles["before"], workers=0, progress=False)
    given = {"before": slicer.slice_each(x), "after": slices}
    models = {"before": other, "after": im}
    header, _ = read(nns.explore(given, models, x, profile=profiles, progress=False))
    assert [m["fingerprint"] for m in header["models"]] == [other.fingerprint, im.fingerprint]
    assert [e["model"] for e in header["exhibits"]] == [0, 1] and len(header["rows"]) == 16


def test_the_page_loads_nothing(digits):
    im, profile, slices, x = digits
    title = "</title><script>alert(1)</script>"
    html = nns.explore(slices, im, x, profile=profile, title=title, progress=False).html()
    assert title not in html and "&lt;script&gt;alert(1)" in html
    assert html.count("</script") == 2  # the data and the page's own
    assert "default-src 'none'" in html
    assert not re.search(r"""(src|href)\s*=\s*["']?(https?:)?//""", html)
    assert not re.search(r"@import|url\(\s*['\"]?http", html)


def test_saving_replaces_and_refuses(digits, tmp_path):
    im, _, slices, _ = digits
    view = nns.explore(slices, im, progress=False)
    path = tmp_path / "new" / "slices.html"
    view.save(path)
    assert path.read_text(encoding="utf-8") == view.html()
    for other in (tmp_path, tmp_path / "picture.png"):
        with pytest.raises(InvalidArgumentError, match=r"saved as \.html files"):
            view.save(other)


def test_bad_input_is_refused_before_any_work(digits, mixed):
    im, _, slices, x = digits
    with pytest.raises(InvalidArgumentError, match="of 8 samples; x has 7"):
        nns.explore(slices, im, x[:7])
    with pytest.raises(InvalidArgumentError, match="of 8 samples; x has 1"):
        nns.explore(slices.sum(), im, x[:1])
    with pytest.raises(InvalidArgumentError, match="nothing to explore"):
        nns.explore([], im)
    with pytest.raises(InvalidArgumentError, match=r"'a'.*int"):
        nns.explore({"a": 3, "b": slices}, im)
    with pytest.raises(InputShapeError):
        nns.explore(slices, im, np.zeros((8, 3)))
    with pytest.raises(ProfileMismatchError, match="another model"):
        nns.explore(slices, mixed[0])
    with pytest.raises(ProfileMismatchError):
        nns.explore(slices, im, x, profile=mixed[1])
    with pytest.raises(InvalidArgumentError, match=r"im must have an entry for .* such as 'b'"):
        nns.explore({"b": slices}, {"a": im})
    with pytest.raises(InvalidArgumentError, match="Keras model is needed"):
        nns.explore(slices, "model.keras")
    with pytest.raises(InvalidArgumentError, match="Did you mean 'conv1'"):
        nns.explore({"conf1": np.ones(16, bool)}, im)
    with pytest.raises(InvalidArgumentError, match="expected"):
        nns.explore({"conv1": np.ones(17, bool)}, im)
    with pytest.raises(InvalidArgumentError, match="different operations"):
        marks = {"a": {"conv1": np.ones(16, bool)}, "b": {"first": np.ones(8, bool)}}
        nns.explore(marks, {"a": im, "b": mixed[0]})
    with pytest.raises(InvalidArgumentError, match="words has 2 lists, x 8 rows"):
        nns.explore(slices, im, x, words=[["a"], ["b"]])


def test_a_keras_model_is_instrumented(digits):
    im, profile, slices, x = digits
    views = [nns.explore(slices, one, x, profile=profile, progress=False) for one in (im, im.model)]
    assert views[0].data == views[1].data


def test_columns_of_a_table_have_their_names():
    inputs = keras.Input((3,))
    im = nns.InstrumentedModel(keras.Model(inputs, keras.layers.Dense(2)(inputs)))
    frame = pd.DataFrame(np.arange(6, dtype=np.float32).reshape(2, 3), columns=["age", "b", "c"])
    profile = nns.Profile.from_data(im, frame, progress=False)
    slices = nns.Slicer(im, profile, workers=0, progress=False).slice_each(frame)
    header, _ = read(nns.explore(slices, im, frame, profile=profile, progress=False))
    assert header["rows"][1]["words"] == ["age = 3", "b = 4", "c = 5"]
    with pytest.raises(InvalidArgumentError, match="columns has 2 names"):
        nns.explore(slices, im, frame, columns=["a", "b"], progress=False)


def test_neurons_of_very_large_operations_are_counted(digits, monkeypatch):
    im, profile, slices, x = digits
    monkeypatch.setattr(document, "MAX_NEURONS", len(slices) * 1000)
    header, _ = read(nns.explore(slices, im, x, profile=profile, progress=False))
    part, names = exhibit(header)["parts"][0], [o["name"] for o in header["operations"]]
    assert {names[int(o)] for o in part["members"]} >= {"conv1", "relu1"}
    assert {names[int(o)] for o in part["neurons"]} >= {"logits", "input"}
    for o, (members, size) in part["members"].items():
        values = slices[0].neurons[names[int(o)]]
        assert (members, size) == (np.count_nonzero(values), values.size)
        assert "taps" not in header["operations"][int(o)]


def test_several_inputs_are_refused():
    inputs = [keras.Input((3,)), keras.Input((2,))]
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.Concatenate()(inputs)))
    im = nns.InstrumentedModel(model)
    x = [np.random.default_rng(i).normal(size=(3, n)) for i, n in enumerate((3, 2))]
    profile = nns.Profile.from_data(im, x, progress=False)
    slices = nns.Slicer(im, profile, theta=0.1, progress=False).slice_each(x)
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        nns.explore(slices, im, x)


@pytest.mark.parametrize("task", ["multilabel", "regression", "binary", "multiclass"])
def test_answers_are_those_of_the_models_task(task):
    """Independent labels have sigmoids, numbers no share of a class."""
    keras.utils.set_random_seed(0)
    final = {"multilabel": "sigmoid", "binary": "sigmoid", "multiclass": "softmax"}.get(task)
    units = 1 if task == "binary" else 3
    hidden = keras.layers.Dense(6, "relu")
    model = keras.Sequential([keras.Input((5,)), hidden, keras.layers.Dense(units, final)])
    x = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
    im = nns.InstrumentedModel(model, task=task)
    profile = nns.Profile.from_data(im, x, progress=False)
    slices = nns.Slicer(im, profile, progress=False).slice_each(x[:4], outputs=[0])
    header, _ = read(nns.explore(slices, im, x[:4], profile=profile, progress=False))
    for part, output in zip(exhibit(header)["parts"], model.predict(x[:4], verbose=0), strict=True):
        if task == "regression":
            assert part["says"] is None and "predicted" not in part
            continue
        expected = np.array([1 - output[0], output[0]]) if task == "binary" else output
        for index, share in part["says"]["whole"]:
            assert share == pytest.approx(expected[index], abs=1e-5)
        assert part["predicted"] == part["says"]["whole"][0][0] == expected.argmax()


@pytest.mark.parametrize("masked", [True, False])
def test_words_are_those_of_each_samples_tokens(masked):
    """Only their number of samples was compared; those of a text padded in front were displaced."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(20, 4, mask_zero=masked)(inputs)
    model = keras.Model(inputs, layers.Dense(2)(layers.GlobalAveragePooling1D()(x)))
    data = np.random.default_rng(0).integers(1, 20, (40, 6))
    profile = nns.Profile.from_data(model, data, progress=False)
    slicer = nns.Slicer(model, profile, progress=False)
    x = np.array([[0, 0, 0, 5, 6, 7], [3, 4, 5, 6, 0, 0]])
    first = ["", "", "", *"abc"] if masked else [*"uvwabc"]
    slices = slicer.slice_each(x)

    def rows(given, slices=slices, x=x):
        view = nns.explore(slices, slicer.im, x, profile=profile, words=given, progress=False)
        return [row["words"] for row in unpack(view.data)[0]["rows"]]

    own = first[3:] if masked else first
    assert rows([own, [*"defg"]]) == [first, [*"defg"]]
    padded = [first, [*"defg", "[PAD]", ""]]
    assert rows(padded) == padded
    # Marks of units belong to no sample in particular; one sample has its words all the same.
    marks = {slicer.im.operations[-1].name: np.ones(2)}
    assert rows([first], marks, x[:1]) == [first]

    for wrong in ([[*"ab"], [*"defg"]], [own, [*"defgh"]], [own], [own, "defg"], [own, [1]]):
        with pytest.raises(InvalidArgumentError, match="words"):
            rows(wrong)


def test_words_need_tokens(digits):
    im, _, slices, x = digits
    with pytest.raises(InvalidArgumentError, match="takes no tokens"):
        nns.explore(slices, im, x, words=[["a"] * 784] * len(x), progress=False)
