import textwrap

import keras
import numpy as np
import pandas as pd
import pytest

import nnslicer_tf as nns
from nnslicer_tf import deepbase
from nnslicer_tf.deepbase import (
    AdditiveMeasure,
    Units,
    best_units,
    brightness,
    classes,
    edge_direction,
    inspect,
    per_record,
)
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import InputShapeError, InvalidArgumentError, NonFiniteActivationError

COLUMNS = ["model", "group", "unit", "hypothesis", "measure", "score", "error", "records"]
KEYS = COLUMNS[:5]


def by_unit(frame, group, hypothesis, measure="correlation"):
    """Scores of a group's units with a hypothesis, `(units,)`."""
    rows = frame.query("group == @group and hypothesis == @hypothesis and measure == @measure")
    return rows["score"].to_numpy()


def corrcoef(u, h):
    with np.errstate(invalid="ignore"):
        return np.array([np.corrcoef(column, h)[0, 1] for column in u.T])


def test_behaviours_per_record_and_per_position(im, digits, relu1):
    half = classes(digits.y, "0123456789")["3"]
    frame = inspect(
        im,
        digits.x,
        {"bright": brightness, "bright in all": per_record(brightness), "3": half},
        units=["relu1", "pool1"],
        block_size=100,
        progress=False,
    )
    assert list(frame) == COLUMNS and (frame["records"] == len(digits)).all()
    grey = digits.x[..., 0].astype(np.float64)
    flat = relu1.reshape(-1, 16)
    np.testing.assert_allclose(
        by_unit(frame, "relu1", "bright"), corrcoef(flat, grey.ravel()), rtol=1e-5
    )
    means = relu1.mean(axis=(1, 2))
    expected = corrcoef(means, grey.mean(axis=(1, 2)))
    np.testing.assert_allclose(by_unit(frame, "relu1", "bright in all"), expected, rtol=1e-4)
    expected = corrcoef(means, half)
    np.testing.assert_allclose(by_unit(frame, "relu1", "3"), expected, rtol=1e-4, atol=1e-6)
    # A hypothesis of 8×8 positions is averaged to the 4×4 of the pooling.
    pooled = im.capture(digits.x, of=["pool1"])["pool1"].reshape(-1, 16)
    coarse = grey.reshape(-1, 4, 2, 4, 2).mean(axis=(2, 4)).ravel()
    expected = corrcoef(pooled.astype(np.float64), coarse)
    np.testing.assert_allclose(by_unit(frame, "pool1", "bright"), expected, rtol=1e-5)


def test_probes_have_a_score_for_the_group_and_a_weight_for_each_unit(im, digits):
    frame = inspect(
        im,
        digits.x,
        classes(digits.y, "0123456789"),
        "logistic_probe",
        Units("relu2", range(8), "some"),
        progress=False,
    )
    group = frame[frame["unit"].isna()]
    assert list(group["measure"]) == ["logistic_probe"] * 10 and (group["group"] == "some").all()
    assert group["score"].between(0, 1).all() and group["score"].max() > 0.9
    weights = frame[frame["measure"] == "logistic_probe.weight"]
    assert len(weights) == 80 and list(weights["unit"].unique()) == list(range(8))


def test_early_scores_are_within_the_asked_error(im, digits):
    measures = ["correlation", "mutual_information", "difference_of_means", "linear_probe"]
    arguments = (digits.x, classes(digits.y, "0123456789"), measures, ["relu1", "relu2", "logits"])
    full = inspect(im, *arguments, progress=False)
    early = inspect(im, *arguments, error=0.15, block_size=64, progress=False)
    both = full.merge(early, on=KEYS, suffixes=("", "_early"))
    both = both[both["error"].notna() & ~both["measure"].str.endswith("weight")]
    stopped = both[both["records_early"] < len(digits)]
    assert len(stopped) > 0.5 * len(both) and stopped["records_early"].min() < len(digits) / 2
    assert (stopped["error_early"] <= 0.15).all()
    apart = (stopped["score"] - stopped["score_early"]).abs()
    assert (apart <= 0.15).mean() >= 0.95 and apart.max() < 0.3


def test_early_scores_do_not_depend_on_the_order(im, digits):
    """Class by class, the first records are of one class alone."""
    by_class = np.argsort(digits.y, kind="stable")
    x, y = digits.x[by_class], digits.y[by_class]
    arguments = ({"bright": per_record(brightness), **classes(y, "0123456789")}, ["correlation"])
    full = inspect(im, x, *arguments, units=["relu2", "logits"], progress=False)
    early = inspect(
        im, x, *arguments, units=["relu2", "logits"], error=0.15, block_size=64, progress=False
    )
    both = full.merge(early, on=KEYS, suffixes=("", "_early"))
    stopped = both[both["records_early"] < len(x)]
    assert len(stopped) > 0.4 * len(both)
    np.testing.assert_array_equal(both["score"].isna(), both["score_early"].isna())
    apart = (stopped["score"] - stopped["score_early"]).abs().dropna()
    assert (apart <= 0.15).mean() >= 0.95 and apart.max() < 0.3
    # Those that were read to the end have the scores of all records, whatever the order.
    rest = both[both["records_early"] == len(x)]
    np.testing.assert_allclose(rest["score"], rest["score_early"], rtol=1e-5)


def test_several_inputs_are_shuffled_together():
    a, b = keras.Input((3,), name="a"), keras.Input((2,), name="b")
    joined = keras.layers.Concatenate(name="joined")([a, b])
    im = nns.InstrumentedModel(keras.Model([a, b], keras.layers.Dense(2, name="out")(joined)))
    rng = np.random.default_rng(0)
    x = {"a": rng.normal(size=(600, 3)), "b": rng.normal(size=(600, 2))}
    h = np.sort(rng.normal(size=600))
    x["b"][:, 1] += 2 * h
    frame = inspect(im, x, {"h": h}, units="joined", error=1e-9, block_size=50, progress=False)
    units = np.concatenate([x["a"], x["b"]], axis=1)
    np.testing.assert_allclose(by_unit(frame, "joined", "h"), corrcoef(units, h), rtol=1e-4)


def test_what_is_undefined_in_a_stream_may_still_vary(im, digits):
    """A hypothesis that holds for the last records only, and a unit that is dead before."""
    rare = np.arange(600) >= 590
    x = digits.x[:600] * 0
    x[590:] = digits.x[590:600]
    stream = (x[i : i + 64] for i in range(0, 600, 64))
    frame = inspect(
        im, stream, {"rare": rare}, units="relu2", error=0.5, block_size=64, progress=False
    )
    full = inspect(im, x, {"rare": rare}, units="relu2", block_size=64, progress=False)
    assert (frame["records"] == 600).all() and full["score"].notna().any()
    np.testing.assert_allclose(frame["score"], full["score"], rtol=1e-6)


def test_rare_hypotheses_are_not_given_up(im, digits):
    """Two of all records: an early look may see neither, and there is a score nevertheless."""
    x = digits.x
    rare = np.zeros(len(x))
    rare[np.argsort(-x.mean(axis=(1, 2, 3)))[:2]] = 1
    frame = inspect(im, x, {"rare": rare}, units="relu1", error=0.2, block_size=64, progress=False)
    full = inspect(im, x, {"rare": rare}, units="relu1", progress=False)
    np.testing.assert_array_equal(frame["score"].isna(), full["score"].isna())


def test_padding_is_left_out_of_means(tmp_path):
    """Sentences of one to six words; the network gives padding a value of its own."""
    keras.utils.set_random_seed(0)
    words = keras.Input((6,), dtype="int32")
    x = keras.layers.Embedding(9, 4, mask_zero=True, name="embedding")(words)
    x = keras.layers.LSTM(3, return_sequences=True, name="lstm")(x)
    x = keras.layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(words, keras.layers.Dense(2, name="logits")(x))
    rng = np.random.default_rng(0)
    lengths = rng.integers(1, 7, 200)
    sentences = np.where(np.arange(6) < lengths[:, None], rng.integers(1, 9, (200, 6)), 0)
    h = rng.normal(size=200)
    im = nns.InstrumentedModel(model)
    values = im.capture(sentences, of=["embedding", "lstm:h"])
    arguments = (im, sentences, {"h": h}, "correlation", ["embedding", "lstm:h"])
    for cache in (None, tmp_path, tmp_path):
        frame = inspect(*arguments, cache=cache, progress=False)
        for name in ("embedding", "lstm:h"):
            means = [v[:n].mean(axis=0) for v, n in zip(values[name], lengths, strict=True)]
            expected = corrcoef(np.array(means, np.float64), h)
            np.testing.assert_allclose(by_unit(frame, name, "h"), expected, rtol=1e-4)


def test_the_example_of_the_package_runs():
    example = deepbase.__doc__.split("\n\n")[1]
    rng = np.random.default_rng(0)
    images = rng.random((400, 8, 8, 3), np.float32)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Conv2D(4, 3, padding="same", name="conv1")]
    )
    labels, names = rng.integers(2, size=400), ["cat", "dog"]
    found = {"inspect": inspect, "brightness": brightness, "classes": classes}
    found |= {"model": model, "images": images, "labels": labels, "names": names}
    exec(textwrap.dedent(example), found)
    assert set(found["frame"]["hypothesis"]) == {"bright", "red", "cat", "dog"}


def test_what_is_certain_ends_the_reading(im, digits):
    frame = inspect(
        im,
        digits.x,
        {"bright": per_record(brightness)},
        units="logits",
        error=0.5,
        block_size=64,
        progress=False,
    )
    assert frame.attrs["records"] == frame["records"].max() < len(digits) / 2
    assert frame.attrs["passes"] == {"digits_cnn": frame.attrs["records"] // 64}


def test_one_pass_serves_everything(im, digits):
    other = keras.Sequential(
        [keras.Input((8, 8, 1)), keras.layers.Flatten(), keras.layers.Dense(5, name="units")],
        name="other",
    )
    calls = []

    def counted(x):
        calls.append(len(x))
        return x.mean(axis=(1, 2, 3))

    frame = inspect(
        {"a": im, "b": other, "c": other},
        digits.x[:300],
        {"counted": counted, "8": digits.y[:300] == 8},
        ["correlation", "mutual_information"],
        units=["*"],
        block_size=100,
        progress=False,
    )
    assert frame.attrs["passes"] == {"a": 3, "b": 3, "c": 3}
    # Beside finding out what it gives, each block is evaluated once for all models.
    assert sum(calls) == 300 + 100 + 1
    b, c = (frame[frame["model"] == m].drop(columns="model") for m in "bc")
    pd.testing.assert_frame_equal(b.reset_index(drop=True), c.reset_index(drop=True))
    assert set(frame[frame["model"] == "a"]["group"]) == {
        *("conv1", "relu1", "pool1", "conv2", "relu2", "logits")
    }


def test_memory_does_not_hold_the_data(im, digits, tmp_path, monkeypatch):
    """No more than two blocks of behaviours are alive when the next is made."""
    import weakref

    alive = []

    def save(store, key, header, arrays):
        assert sum(ref() is not None for ref in alive) <= 2
        alive.append(weakref.ref(arrays["values"]))

    monkeypatch.setattr(Store, "save", save)
    inspect(
        im,
        (digits.x[i : i + 50] for i in range(0, 600, 50)),
        {"bright": brightness},
        units="relu1",
        block_size=50,
        cache=tmp_path,
        progress=False,
    )
    assert len(alive) == 12


@pytest.mark.whole  # starts a cluster
def test_workers_give_the_same(im, digits):
    arguments = (
        digits.x[:400],
        {"bright": brightness, **{n: h[:400] for n, h in classes(digits.y, "0123456789").items()}},
        "correlation",
        ["relu1"],
    )
    here = inspect(im, *arguments, error=0.2, block_size=64, progress=False)
    there = inspect(im, *arguments, error=0.2, block_size=64, workers=1, progress=False)
    pd.testing.assert_frame_equal(here, there)


def test_a_cache_spares_the_forward_pass(im, digits, tmp_path):
    arguments = (digits.x[:200], {"bright": brightness}, "correlation", ["relu1", "pool1"])
    plain = inspect(im, *arguments, progress=False)
    for passes in (1, 0):
        frame = inspect(im, *arguments, cache=tmp_path / "cache", progress=False)
        assert frame.attrs["passes"]["digits_cnn"] == passes
        pd.testing.assert_frame_equal(frame, plain, check_exact=True)
    # Other records, other weights: nothing stale is found.
    moved = nns.instrument.copy_model(im.model)
    moved.set_weights([1.1 * w for w in moved.get_weights()])
    frame = inspect(moved, *arguments, cache=tmp_path / "cache", progress=False)
    assert frame.attrs["passes"]["digits_cnn"] == 1
    # A damaged file is computed again.
    for path in (tmp_path / "cache").glob("*.npz"):
        path.write_bytes(path.read_bytes()[:50])
    frame = inspect(im, *arguments, cache=tmp_path / "cache", progress=False)
    assert frame.attrs["passes"]["digits_cnn"] == 1
    pd.testing.assert_frame_equal(frame, plain, check_exact=True)


def test_datasets_and_arrays_alike(im, digits):
    import tensorflow as tf

    stream = tf.data.Dataset.from_tensor_slices(digits.x[:150]).batch(40)
    arguments = ({"bright": brightness}, "correlation", "relu1")
    options = {"block_size": 64, "progress": False}
    expected = inspect(im, digits.x[:150], *arguments, **options)
    pd.testing.assert_frame_equal(inspect(im, stream, *arguments, **options), expected)


class Covariance(AdditiveMeasure):
    """The measure of the documentation."""

    name = "covariance"

    def statistics(self, units, hypotheses, calibration):
        return {
            "count": np.array(len(units)),
            "u": units.sum(axis=0)[:, None],
            "h": hypotheses.sum(axis=0),
            "uh": units.T @ hypotheses,
        }

    def score(self, sums, calibration):
        n = sums["count"]
        return sums["uh"] / n - sums["u"] / n * sums["h"] / n


def test_a_measure_of_ones_own(im, digits, relu1):
    frame = inspect(
        im, digits.x, {"b": per_record(brightness)}, Covariance(), "relu1", progress=False
    )
    u, h = relu1.mean(axis=(1, 2)), digits.x.mean(axis=(1, 2, 3))
    expected = [np.cov(column, h, ddof=0)[0, 1] for column in u.T]
    np.testing.assert_allclose(frame["score"], expected, rtol=1e-4)
    assert (frame["error"] > 0).all()


def test_image_hypotheses():
    x = np.zeros((1, 6, 6, 3), np.float32)
    x[:, :, 3:, 0] = 1  # the right half is red
    np.testing.assert_allclose(brightness(x)[0, 0], [0, 0, 0, 1 / 3, 1 / 3, 1 / 3])
    across, down = (edge_direction(angle)(x)[0] for angle in (0, 90))
    np.testing.assert_allclose(across, np.tile([0, 0, 4 / 3, 4 / 3, 0, 0], (6, 1)), atol=1e-6)
    np.testing.assert_allclose(down, 0, atol=1e-6)
    np.testing.assert_allclose(per_record(brightness)(x), [1 / 6], rtol=1e-6)
    assert {n: list(h) for n, h in classes([0, 1, 0], "ab").items()} == {
        "a": [1, 0, 1],
        "b": [0, 1, 0],
    }
    one_hot = classes(np.eye(2)[[0, 1, 0]], "ab")
    assert list(one_hot["a"]) == [1, 0, 1]
    with pytest.raises(InvalidArgumentError, match="There are 2 names"):
        classes([0, 2], "ab")
    with pytest.raises(InvalidArgumentError, match=r"one class index for each of 2 samples"):
        classes([[0, 0], [1, 1]], "ab")
    with pytest.raises(InvalidArgumentError, match="names must be unique"):
        classes([0, 1], "aab")


def test_findings():
    rows = [
        ("m", "g", u, h, "correlation", s)
        for u, h, s in [
            (0, "a", 0.9),
            (1, "a", -0.95),
            (2, "a", np.nan),
            (0, "b", 0.1),
            (1, "b", -0.2),
        ]
    ]
    frame = pd.DataFrame(rows, columns=COLUMNS[:6])
    best = best_units(frame, count=1)
    assert list(best["unit"]) == [1, 1] and list(best["score"]) == [-0.95, -0.2]
    joined = best_units(pd.concat([frame[:3], frame[3:].reset_index(drop=True)]), count=1)
    pd.testing.assert_frame_equal(joined, best)
    with pytest.raises(InvalidArgumentError, match="Unknown measure 'f1'"):
        best_units(frame, measure="f1")
    for count in (0, -1, 1.5):
        with pytest.raises(InvalidArgumentError, match="count"):
            best_units(frame, count=count)
    with pytest.raises(InvalidArgumentError, match="must be a result of inspect"):
        best_units(pd.DataFrame({"a": [1]}))


BAD = {
    "long": ({"a": np.arange(31)}, "relu1", "31 behaviours, but the data has 30"),
    "short": ({"a": lambda x: x[1:, 0, 0, 0]}, "relu1", "29 behaviours for 30 records"),
    "constant": ({"a": np.ones(30), "b": np.arange(30)}, "relu1", r"constant.*'a' \(always 1\)"),
    "constant function": ({"a": lambda x: 0 * x[:, 0, 0, 0]}, "relu1", "constant on the data"),
    "text": ({"a": np.array(["x"] * 30)}, "relu1", "must be a function, or an array of numbers"),
    "none": ({}, "relu1", "must map one or more names"),
    "unknown unit": ({"a": np.arange(30)}, "rlu*", "No operation .* Did you mean .*'relu1'"),
    "no such channel": ({"a": np.arange(30)}, Units("relu1", [16]), "channels 0 … 15"),
    "twice": ({"a": np.arange(30)}, ["relu1", "relu*"], "different names.*relu1"),
    "no positions": ({"a": brightness}, "logits", "per_record"),
    "other positions": ({"a": lambda x: x[:, :3, :, 0]}, "relu1", "must be a multiple"),
}


@pytest.mark.parametrize("case", BAD)
def test_wrong_hypotheses_and_units(im, digits, case):
    hypotheses, units, message = BAD[case]
    with pytest.raises(InvalidArgumentError, match=message):
        inspect(im, digits.x[:30], hypotheses, units=units, progress=False)


def test_other_wrong_input(im, digits):
    x, bright = digits.x[:30], {"a": per_record(brightness)}
    wide = keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten()], name="wide")
    with pytest.raises(InputShapeError, match=r"same shape. Received: .*\(4, 4, 1\)"):
        inspect([im, wide], x, bright)
    with pytest.raises(InputShapeError, match=r"data of shape \(samples, 8, 8, 1\)"):
        inspect(im, x[..., 0], bright)
    with pytest.raises(InvalidArgumentError, match="different names"):
        inspect([im, im], x, bright)
    with pytest.raises(InvalidArgumentError, match="values other than 0 and 1"):
        inspect(im, x, bright, "difference_of_means", progress=False)
    with pytest.raises(NonFiniteActivationError, match="'a' is NaN or infinite for record 7"):
        inspect(im, x, {"a": np.where(np.arange(30) == 7, np.nan, np.arange(30))})
    for options, message in (
        ({"error": 0}, "error must be above 0"),
        ({"confidence": 1}, "confidence must be"),
        ({"workers": -1}, "workers must be"),
        ({"block_size": 0}, "block_size must be"),
    ):
        with pytest.raises(InvalidArgumentError, match=message):
            inspect(im, x, bright, **options)
    with pytest.raises(InvalidArgumentError, match="empty"):
        inspect(im, x[:0], bright)
    for data in ([x[:20], x[20:]], (part for part in (x[:20], x[20:]))):
        with pytest.raises(InvalidArgumentError, match="300 behaviours, but the data has 30"):
            inspect(im, data, {"a": np.arange(300)}, units="relu1", progress=False)
    stream = (part for part in (x[:20], x[20:]))
    with pytest.raises(InvalidArgumentError, match="gives 0 behaviours for 10 records"):
        inspect(im, stream, {"a": np.arange(20)}, units="relu1", block_size=20, progress=False)


def test_operations_of_a_single_value_are_one_channel():
    inputs = keras.Input((4,))
    values = [inputs[:, 0] * inputs[:, 1], keras.ops.sum(inputs, axis=-1)]
    stacked = keras.ops.stack(values, axis=1)
    model = keras.Model(inputs, keras.layers.Dense(2, name="out")(stacked))
    x = np.random.default_rng(0).normal(size=(60, 4)).astype(np.float32)
    product = x[:, 0] * x[:, 1]
    table = inspect(model, x, {"product": product, "sum": x.sum(axis=1)}, "correlation")
    best = table[table["hypothesis"] == "product"].nlargest(1, "score").iloc[0]
    assert best["score"] == pytest.approx(1, abs=1e-5)
    single = table[(table["hypothesis"] == "sum") & (table["group"] == best["group"])]
    expected = np.corrcoef(product, x.sum(axis=1))[0, 1]
    assert single["score"].to_numpy() == pytest.approx([expected], abs=1e-5)


def test_a_probe_that_has_seen_few_positives_is_not_sure():
    """A rare class that one unit tells: no F1 of 0 with an error of 0, and no early stop on it."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, keras.layers.Dense(4, name="d")(inputs))
    x = np.random.default_rng(0).normal(size=(6000, 6)).astype(np.float32)
    unit = model.predict(x, verbose=0)[:, 0]
    rare = {"rare": (unit > np.quantile(unit, 0.995)).astype(np.float32)}
    for records in (1500, 3072, 6000):
        part = {"rare": rare["rare"][:records]}
        frame = inspect(model, x[:records], part, "logistic_probe", units="d", progress=False)
        (row,) = frame[frame["measure"] == "logistic_probe"].to_dict("records")
        positives = max(1, rare["rare"][:records].sum())
        assert row["score"] not in (0, 1) or row["error"] > 1 - 0.05 ** (1 / positives)
        assert row["error"] > 0
    frame = inspect(model, x, rare, "logistic_probe", units="d", error=0.1, progress=False)
    assert frame["records"].iloc[0] == len(x)


@pytest.mark.parametrize("size", [3, 4, 8])
def test_blocks_of_as_many_records_as_a_sum_has_channels(size):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2,))
    parts = keras.layers.Dense(4)(inputs), keras.layers.Dense(1)(inputs)
    total = keras.layers.Add(name="sum")(parts)
    model = keras.Model(inputs, keras.layers.Dense(2)(total))
    x, h = np.random.default_rng(0).normal(size=(8, 2)).astype(np.float32), np.arange(8.0) ** 2
    found = inspect(model, x, {"h": h}, "correlation", "sum", block_size=size, progress=False)
    u, c, v, d, *_ = model.get_weights()
    np.testing.assert_allclose(
        by_unit(found, "sum", "h"), corrcoef(x @ u + c + x @ v + d, h), atol=1e-5
    )


@pytest.mark.parametrize("units", ["*", "*h", "?re*"])
def test_patterns_match_no_preprocessing(units):
    keras.utils.set_random_seed(0)
    last = [keras.layers.Dense(3, name="pre_last")]
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, "tanh", name="h"), *last])
    x = np.random.default_rng(0).normal(size=(40, 6)).astype(np.float32)
    bound = nns.InstrumentedModel(model, preprocess=lambda x: keras.ops.tanh(x / 2))
    hypotheses = classes(np.arange(40) % 2, ["a", "b"])
    frames = [
        inspect(im, of, hypotheses, units=units, progress=False)
        for im, of in ((bound, x), (nns.InstrumentedModel(model), np.tanh(x / 2)))
    ]
    assert frames[0]["group"].tolist() == frames[1]["group"].tolist()
    np.testing.assert_allclose(frames[0]["score"], frames[1]["score"], atol=1e-5)
    (name,) = [n for n in bound.preprocessing if n.endswith("tanh")]
    assert set(inspect(bound, x, hypotheses, units=name, progress=False)["group"]) == {name}
