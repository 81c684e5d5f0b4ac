"""Searches without `domain=`: tables, signals, sentences; and seeds that do not suit the models."""

import json
import warnings

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

from nnslicer_tf import datasets, zoo
from nnslicer_tf.dflare import (
    DeviationSet,
    ImageDomain,
    ModelPair,
    SignalDomain,
    TableDomain,
    TextDomain,
    agreement,
    compress,
    export_suite,
    minimise,
    verify,
    with_softmax,
)
from nnslicer_tf.errors import InputShapeError, PlausibilityWarning
from support.deviating import find, mutated


def linear(weights, bias, final="sigmoid"):
    """A model of one layer with given weights `(inputs, outputs)`."""
    weights = np.asarray(weights, np.float32)
    model = keras.Sequential(
        [keras.Input((len(weights),)), layers.Dense(weights.shape[1], activation=final)]
    )
    model.set_weights([weights, np.asarray(bias, np.float32)])
    return model


@pytest.fixture
def table():
    """Rows with a fraction, a count and a flag."""
    rng = np.random.default_rng(0)
    columns = rng.normal(size=60), rng.integers(0, 9, 60), rng.integers(0, 2, 60)
    return np.stack(columns, axis=1)


@pytest.mark.parametrize("final", ["sigmoid", "softmax"])
def test_rows_of_a_table(table, final, tmp_path):
    weights, bias = np.array([[1.0], [0.3], [0.5]]), np.array([-1.3])
    other = bias + 0.4
    if final == "softmax":
        weights, bias, other = (np.concatenate([-v, v], -1) / 2 for v in (weights, bias, other))
    models = linear(weights, bias, final), linear(weights, other, final)
    frame = pd.DataFrame(table, columns=["size", "count", "flag"])
    found = find(*models, frame, progress=False)
    searched = found.status != "already_deviates"
    assert searched.sum() > 40 and found.found[searched].mean() > 0.9
    z = found.images @ [1.0, 0.3, 0.5] - 1.3
    assert ((z < 0) & (z > -0.4)).all()  # where one logit is positive and the other is not
    np.testing.assert_array_equal(found.labels, [[0, 1]] * len(z))
    assert (found.images >= table.min(axis=0)).all() and (found.images <= table.max(axis=0)).all()
    assert (found.images[:, 1:] == np.rint(found.images[:, 1:])).all()
    assert verify(ModelPair(*models), found).all()
    assert "SSIM" not in found.to_frame() and "L2" in found.to_frame()

    least = minimise(ModelPair(*models), found, progress=False)
    changed, before = ((d.images != table[d.found]).sum(axis=1) for d in (least, found))
    assert (changed <= before).all() and changed.sum() < before.sum() and changed.min() >= 1
    assert least.features == ("size", "count", "flag")
    least.save(tmp_path / "least.npz")
    labels = [
        t.get_text()
        for t in DeviationSet.load(tmp_path / "least.npz").figure().axes[0].get_yticklabels()
    ]
    assert all(label.split(":")[0] in least.features for label in labels)
    test = export_suite(least, tmp_path / "suite")
    with np.load(test.with_name("deviations.npz")) as file:
        np.testing.assert_allclose(file["inputs"], least.images, rtol=1e-6)


def test_tables_of_integers(table):
    rows = np.rint(10 * table).astype(np.int64)
    models = linear([[0.1], [0.03], [0.05]], [-1.5]), linear([[0.1], [0.03], [0.05]], [-1.0])
    found = find(*models, rows, progress=False)
    assert found.found.any() and found.seeds.dtype == np.float64
    assert (found.images == np.rint(found.images)).all()


def test_a_limit_holds_for_rows(table):
    models = linear([[1.0], [0.3], [0.5]], [-1.3]), linear([[1.0], [0.3], [0.5]], [-1.1])
    found = find(*models, table, max_distance=1, max_queries=200, progress=False)
    assert found.found.any()
    assert np.abs(found.images - table[found.found]).max() <= 1


def test_signals():
    rng = np.random.default_rng(1)
    signals = rng.normal(size=(20, 64, 2)).astype(np.float32).cumsum(axis=1) / 4

    def by_mean(threshold):
        return lambda x: 1 / (1 + np.exp(-(x[:, :, 0].mean(axis=1) - threshold)))

    models = by_mean(0.0), by_mean(0.1)
    found = find(*models, signals, progress=False)
    assert found.found.sum() >= 15
    means = found.images[..., 0].mean(axis=1)
    assert ((means > 0) & (means < 0.1)).all()
    assert verify(ModelPair(*models), found).all()
    least = minimise(ModelPair(*models), found, progress=False)
    changes = [np.abs(d.images - signals[d.found]).sum() for d in (least, found)]
    assert changes[0] < changes[1]


def test_every_operator_stays_in_range():
    rng = np.random.default_rng(0)
    signals = rng.normal(size=(5, 40)).astype(np.float32)
    for domain in (SignalDomain(signals), SignalDomain(signals[..., None]), TableDomain(signals)):
        seed = signals[0][:, None] if "(5, 40, 1)" in str(domain) else signals[0]
        for name in domain.operators:
            mutant, mutation = domain.mutate(seed, name, rng)
            assert mutant.dtype == np.float32 and mutant.shape == seed.shape
            assert mutant.min() >= signals.min() and mutant.max() <= signals.max()
            assert not np.array_equal(mutant, seed)
            again = domain.operators[name].apply(seed, mutation.parameters)
            np.testing.assert_array_equal(domain.blend(seed, again, 1.0), mutant)


def text_model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((6,), dtype="int32"),
            layers.Embedding(30, 4),
            layers.GlobalAveragePooling1D(),
            layers.Dense(1, activation="sigmoid", kernel_initializer="random_normal"),
        ]
    )


def test_sentences_use_the_embedding_of_the_model():
    model = text_model()
    sentences = np.random.default_rng(0).integers(2, 30, (12, 6))
    sentences[:, 4:] = 0
    assert isinstance(ModelPair(model, model).for_seeds(sentences).domain, TextDomain)
    function = ModelPair(lambda x: x, model).for_seeds(sentences)
    assert isinstance(function.domain, TableDomain)
    nested = keras.Sequential([keras.Input((6,), dtype="int32"), model])
    assert isinstance(ModelPair(nested, model).for_seeds(sentences).domain, TextDomain)
    other = mutated(model, 1.0)
    found = find(model, other, sentences, max_queries=300, progress=False)
    assert found.images.dtype.kind in "iu" and len(minimise(ModelPair(model, other), found)) == 12


@pytest.mark.parametrize(
    ("shape", "dtype", "kind"),
    [
        ((3, 8, 8, 1), np.uint8, ImageDomain),
        ((3, 8), np.float32, TableDomain),
        ((3, 8), bool, TableDomain),
        ((3, 2000), np.float32, SignalDomain),
        ((3, 50, 2), np.float64, SignalDomain),
    ],
)
def test_shape_and_dtype_decide(shape, dtype, kind):
    assert type(ModelPair(len, len).for_seeds(np.ones(shape, dtype)).domain) is kind


def test_seeds_without_a_domain():
    with pytest.raises(
        InputShapeError, match=r"No domain accepts seeds of shape \(2, 3, 4, 5, 6\)"
    ):
        ModelPair(len, len).for_seeds(np.zeros((2, 3, 4, 5, 6)))
    with pytest.raises(InputShapeError, match="Seed 1 has NaN"):
        find(len, len, np.array([[1.0, 2], [np.nan, 0]]))
    with pytest.raises(InputShapeError, match="Add an axis"):
        find(len, len, np.zeros((2, 8, 8), np.uint8))


def test_spectrograms_are_signals():
    """Coefficients (steps, bands, 1), some negative: mutants stay in each band's range."""
    seeds = np.random.default_rng(0).normal(size=(12, 9, 4, 1)) * [[1], [9], [1], [3]]
    domain = ModelPair(len, len).for_seeds(seeds).domain
    assert type(domain) is SignalDomain
    rng = np.random.default_rng(1)
    low, high = seeds.min(axis=(0, 1)), seeds.max(axis=(0, 1))
    for name in domain.operators:
        mutant, _ = domain.mutate(seeds[0], name, rng)
        assert mutant.shape == seeds[0].shape and not np.array_equal(mutant, seeds[0])
        assert (low <= mutant).all() and (mutant <= high).all()


@pytest.mark.parametrize(
    ("highest", "dtype", "remedy"),
    [(1, float, r"rint\(seeds \* 255\)"), (255, int, r"rint\(seeds\)")],
)
def test_what_could_be_images_is_a_guess(highest, dtype, remedy):
    seeds = np.random.default_rng(0).uniform(0, highest, (3, 8, 8, 1)).astype(dtype)
    pair = ModelPair(len, len)
    with pytest.warns(PlausibilityWarning, match=remedy):
        assert type(pair.for_seeds(seeds).domain) is SignalDomain
    for domain in (SignalDomain(seeds), ImageDomain()):  # no warning: one was chosen
        assert ModelPair(len, len, domain=domain).for_seeds(seeds).domain is domain


@pytest.mark.parametrize("kept", [0, 3])
def test_seeds_of_one_class_are_searched(scaled_model, digits, kept):
    """Images prepared as for training, all of one class, are no mistake."""
    scale = lambda x: x / np.float32(255)  # noqa: E731
    predicted = scaled_model.predict(scale(digits), verbose=0).argmax(axis=1)
    seeds = np.repeat(digits[predicted == kept], 4, axis=0)[:12]
    other = compress(scaled_model, "prune", ratio=0.6)
    found = find(scaled_model, other, seeds, scale, max_queries=3, progress=False)
    assert len(found) == len(seeds) >= 8


# --- do the seeds suit the models? ---------------------------------------------------------------


@pytest.fixture(scope="module")
def digits():
    return np.rint(datasets.load("digits", "test[:40]").x * 255).astype(np.uint8)


@pytest.fixture(scope="module")
def scaled_model():
    """A model that takes x / 255."""
    return with_softmax(zoo.load("digits_cnn"))


@pytest.fixture(scope="module")
def raw_model(scaled_model):
    """A model that takes 0 … 255 and scales by itself."""
    inputs = keras.Input((8, 8, 1))
    return keras.Model(inputs, scaled_model(layers.Rescaling(1 / 255)(inputs)))


def test_images_that_were_not_scaled(scaled_model, digits):
    other = compress(scaled_model, "prune", ratio=0.3)
    for seeds in (digits, digits[:1]):
        with pytest.warns(PlausibilityWarning, match=r"trained on scaled.*preprocess=lambda x"):
            find(scaled_model, other, seeds, max_queries=5, progress=False)


def soft(model):
    """Return a model with the same classes that is never certain, scaled or not."""
    inputs = keras.Input((8, 8, 1))
    return keras.Model(inputs, layers.Rescaling(0.85, offset=0.015)(model(inputs)))


def test_images_that_were_not_scaled_for_a_cautious_model(scaled_model, digits):
    cautious = soft(scaled_model)
    with pytest.warns(PlausibilityWarning, match="trained on scaled images"):
        find(cautious, mutated(cautious, 0.1), digits, max_queries=5)


def test_a_model_that_scales_by_itself(scaled_model, raw_model, digits):
    other = compress(raw_model, "prune", ratio=0.3)
    found = find(raw_model, other, digits, max_queries=20, progress=False)
    assert len(found) == 40
    twice = lambda x: x / np.float32(255)  # noqa: E731
    with pytest.warns(PlausibilityWarning, match=r"scales images by itself.*preprocess=None"):
        find(raw_model, other, digits, twice, max_queries=5, progress=False)
    assert len(find(raw_model, other, digits[:1], max_queries=5, progress=False)) == 1


def test_a_model_of_standardised_images_takes_any_scale(digits):
    inputs = keras.Input((8, 8, 1))
    flat = layers.LayerNormalization(epsilon=1e-9)(layers.Flatten()(inputs))
    rng = np.random.default_rng(0)
    model = keras.Model(inputs, layers.Dense(10, activation="softmax")(flat))
    model.layers[-1].set_weights([3 * rng.normal(size=(64, 10)), np.zeros(10)])
    other = mutated(model, 0.2)
    assert len(find(model, other, digits, max_queries=5, progress=False)) == 40


def test_a_compression_that_changes_nothing_is_said_at_once(table):
    model = linear([[1.0], [0.3], [0.5]], [-1.3])
    with pytest.warns(UserWarning, match="answered identically on all 60 seeds"):
        find(model, compress(model, "dynamic"), table, max_queries=2, progress=False)


def test_queries_are_limited_by_default(table):
    rows = table[:3]
    model = linear([[1.0], [0.3], [0.5]], [-1.3])
    found = find(model, model, rows, progress=False)
    assert found.queries.tolist() == [1000] * 3 and set(found.status) == {"query_budget"}
    limited = find(model, model, rows, timeout=0.2, max_queries=None, progress=False)
    assert set(limited.status) == {"timeout"}


def test_stop_and_resume_are_announced(table, tmp_path, capsys):
    model = linear([[1.0], [0.3], [0.5]], [-1.3])
    other = linear([[1.0], [0.3], [0.5]], [-1.1])
    calls = []

    def stopping(x):
        calls.append(len(x))
        if len(calls) > 40:
            raise KeyboardInterrupt
        return model.predict_on_batch(np.resize(x, (32, 3)))[: len(x)]

    def function(x):
        return model.predict_on_batch(np.resize(x, (32, 3)))[: len(x)]

    options = {"together": 2, "checkpoint": tmp_path / "kept", "progress": True}
    with pytest.raises(KeyboardInterrupt):
        find(stopping, other, table[:20], **options)
    said = capsys.readouterr().err
    assert "Stopped: " in said and "of 20 searches are in" in said
    find(function, other, table[:20], **options)
    assert "Resuming: " in capsys.readouterr().err


# --- agreement ------------------------------------------------------------------------------------


def test_agreement_on_a_test_set(scaled_model):
    test = datasets.load("digits", "test")
    other = mutated(scaled_model, 0.9)
    pair = ModelPair(scaled_model, other)
    found = agreement(pair, test)
    outputs = [m.predict(test.x, verbose=0) for m in (scaled_model, other)]
    labels = np.stack([o.argmax(axis=1) for o in outputs], axis=1)
    np.testing.assert_array_equal(found.labels, labels)
    np.testing.assert_array_equal(found.differs, labels[:, 0] != labels[:, 1])
    np.testing.assert_allclose(found.distance, np.abs(outputs[0] - outputs[1]).max(1), atol=1e-6)
    assert found.quality["accuracy"] == tuple((labels == test.y[:, None]).mean(axis=0))
    assert f"{1 - found.differs.mean():.2%} of 360 inputs" in repr(found)
    frame = found.to_frame()
    assert frame["differs"].sum() == found.differs.sum() and "true label" in frame
    assert not agreement(pair, test.x[:5]).quality
    json.dumps(found.quality)
    with pytest.raises(InputShapeError, match="no inputs"):
        agreement(pair, test.x[:0])


def test_agreement_counts_ties_as_a_device():
    """Of equal outputs the first counts, and differences from ties are marked."""
    original = np.array([[0.4, 0.6], [0.5, 0.5], [0.5, 0.5], [0.3, 0.7], [0.2, 0.8]])
    compressed = np.array([[0.5, 0.5], [0.5, 0.5], [0.4, 0.6], [0.9, 0.1], [0.1, 0.9]])
    pair = ModelPair(lambda x: original, lambda x: compressed)
    truth = np.array([1, 0, 0, 0, 1])
    found = agreement(pair, np.zeros((5, 3), np.float32), truth)
    assert found.differs.tolist() == [True, False, True, True, False]
    assert found.ties.tolist() == [True, False, True, False, False]
    assert found.by_kernels is None and "tie" in found.to_frame()
    assert found.quality["accuracy"] == (0.8, 0.6)
    assert "40.00% of 5 inputs" in repr(found) and "2 differences from ties" in repr(found)


def test_labels_that_depend_on_the_kernels_are_counted(scaled_model):
    """LiteRT's reference kernels, run by hand on the inputs on which the labels differ."""
    from ai_edge_litert.interpreter import Interpreter, OpResolverType

    test = datasets.load("digits", "test")
    content = compress(scaled_model, "int8", test.x[:50])
    rng = np.random.default_rng(0)
    x = rng.uniform(size=(300, *test.x.shape[1:])).astype(np.float32)  # near the boundaries
    found = agreement(ModelPair(scaled_model, content), x)
    assert found.differs.any()
    kind = OpResolverType.BUILTIN_REF
    reference = Interpreter(model_content=content, experimental_op_resolver_type=kind)
    reference.allocate_tensors()
    (given,), (answer,) = reference.get_input_details(), reference.get_output_details()
    for row in np.flatnonzero(found.differs):
        value = x[row : row + 1]
        if given["dtype"] != np.float32:
            scale, zero = given["quantization"]
            ends = np.iinfo(given["dtype"])
            value = np.clip(np.rint(value / scale + zero), ends.min, ends.max)
        reference.set_tensor(given["index"], value.astype(given["dtype"]))
        reference.invoke()
        label = reference.get_tensor(answer["index"])[0].argmax()
        assert found.by_kernels[row] == (label != found.labels[row, 1])
    assert not found.by_kernels[~found.differs].any()


@pytest.mark.parametrize("kind", [np.uint8, np.float32])
def test_agreement_warns_of_images_that_were_not_scaled(scaled_model, kind):
    test = datasets.load("digits", "test[:100]")
    images = np.rint(test.x * 255).astype(kind)
    pair = ModelPair(scaled_model, mutated(scaled_model, 0.9))
    with pytest.warns(PlausibilityWarning, match="If it was trained on scaled images"):
        agreement(pair, images, test.y)
    scaling = ModelPair(pair.original, pair.compressed, preprocess=lambda x: np.float32(x) / 255)
    with warnings.catch_warnings():
        warnings.simplefilter("error", PlausibilityWarning)
        agreement(pair, test.x, test.y)
        agreement(scaling, images, test.y)
