"""Masks that travel, tokens, and profiles of sequences with padding."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns

WORDS, LENGTH = 6, 4
TOKENS = np.array([[1, 2, 0, 0], [3, 4, 5, 1], [2, 0, 0, 0]])


def classifier(*stack, mask=True):
    inputs = keras.Input((LENGTH,), dtype="int32", name="words")
    x = layers.Embedding(WORDS, 3, mask_zero=mask, name="embedding")(inputs)
    for layer in (*stack, layers.GlobalAveragePooling1D(name="average")):
        x = layer(x)
    return keras.Model(inputs, layers.Dense(2, name="logits")(x))


def sequential():
    inputs = keras.Input((LENGTH,), dtype="int32")
    embedding = layers.Embedding(WORDS, 3, mask_zero=True, name="embedding")
    pool = layers.GlobalAveragePooling1D(name="average")
    return keras.Sequential([inputs, embedding, layers.Dense(3), pool, layers.Dense(2)])


def test_a_mask_travels_to_the_layer_that_ends_it():
    im = nns.InstrumentedModel(classifier(layers.Dense(3, activation="relu", name="dense")))
    masks = {o.name: o.mask for o in im.operations}
    assert masks["embedding"] == masks["dense:pre"] == masks["dense"] == "embedding:mask"
    assert masks["average"] is None and masks["words"] is None
    assert im["average"].inputs == ("dense", "embedding:mask")
    np.testing.assert_array_equal(im.capture(TOKENS)["embedding:mask"], TOKENS > 0)


@pytest.mark.parametrize("build", [sequential, classifier])
def test_the_mean_is_over_the_words(build):
    model = build()
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(TOKENS), np.asarray(model(TOKENS)), atol=1e-6)


def test_masking_of_numbers():
    inputs = keras.Input((LENGTH, 2))
    h = layers.Dense(3, name="dense")(layers.Masking(-1.0, name="masking")(inputs))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(h))
    x = np.random.default_rng(0).normal(size=(3, LENGTH, 2)).astype(np.float32)
    x[0, 2:] = -1
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(x), np.asarray(model(x)), atol=1e-6)
    assert im["dense"].mask == "masking:mask"
    assert not im.capture(x)["masking"][0, 2:].any()


def test_a_mask_made_by_comparison_in_the_model():
    inputs = keras.Input((LENGTH,), dtype="int32")
    x = layers.Embedding(WORDS, 3)(inputs)
    mask = ops.logical_and(ops.not_equal(inputs, 0), ops.less(inputs, 5))
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(x, mask=mask))
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(TOKENS), np.asarray(model(TOKENS)), atol=1e-6)


def test_joined_sequences_have_a_joined_mask():
    inputs = keras.Input((LENGTH,), dtype="int32")
    first = layers.Embedding(WORDS, 3, mask_zero=True)(inputs)
    second = layers.Embedding(WORDS, 3)(inputs)
    joined = layers.Concatenate(axis=1, name="joined")([first, second])
    model = keras.Model(inputs, layers.GlobalAveragePooling1D()(joined))
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(TOKENS), np.asarray(model(TOKENS)), atol=1e-6)
    found = im.capture(TOKENS)[im["joined"].mask]
    np.testing.assert_array_equal(found, np.hstack([TOKENS > 0, np.ones_like(TOKENS)]))


@pytest.mark.parametrize("positions", ["pooled", "each", None])
def test_padding_enters_no_mean(positions, tmp_path):
    model = classifier()
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, TOKENS, progress=False, positions=positions)
    table = np.asarray(model.get_layer("embedding").embeddings, np.float64)
    rows = [table[column[column > 0]].mean(axis=0) for column in TOKENS.T]
    if positions != "each":
        rows = [table[TOKENS[TOKENS > 0]].mean(axis=0)] * LENGTH
    np.testing.assert_allclose(profile.means["embedding"], rows, rtol=1e-6)
    assert profile.positions == (positions or "pooled")
    profile.save(tmp_path / "profile.npz")
    assert nns.Profile.load(tmp_path / "profile.npz").positions == profile.positions


def test_a_position_that_is_always_padding_has_the_mean_of_all():
    im = nns.InstrumentedModel(classifier())
    x = np.where(np.arange(LENGTH) < 2, TOKENS, 0)
    means = nns.Profile.from_data(im, x, progress=False, positions="each").means["embedding"]
    present = im.capture(x)["embedding"][x > 0].mean(axis=0, dtype=np.float64)
    np.testing.assert_allclose(means[2:], [present] * 2, rtol=1e-5, atol=1e-8)  # some are near 0


def test_a_model_without_masks_has_a_mean_for_each_position():
    im = nns.InstrumentedModel(classifier(mask=False))
    profile = nns.Profile.from_data(im, TOKENS, progress=False)
    assert profile.positions == "each"
    expected = im.capture(TOKENS)["embedding"].mean(axis=0)
    np.testing.assert_allclose(profile.means["embedding"], expected, rtol=1e-5)


def test_another_word_for_the_positions_is_refused():
    im = nns.InstrumentedModel(classifier())
    with pytest.raises(nns.errors.InvalidArgumentError, match="pooled"):
        nns.Profile.from_data(im, TOKENS, progress=False, positions="all")


@pytest.mark.parametrize("granularity", ["activation", "channel"])
@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_padding_gets_nothing_and_changes_nothing(theta, granularity):
    """A sentence and its own end cut off have the same slice."""
    rng = np.random.default_rng(6)
    short, long = (
        keras.Sequential(
            [
                keras.Input((length,), dtype="int32"),
                layers.Embedding(WORDS, 3, mask_zero=True, name="embedding"),
                layers.Dense(4, activation="relu", name="dense"),
                layers.GlobalAveragePooling1D(name="average"),
                layers.Dense(2, name="logits"),
            ]
        )
        for length in (2, LENGTH)
    )
    for weight, other in zip(short.weights, long.weights, strict=True):
        weight.assign(rng.normal(size=weight.shape))
        other.assign(weight)
    words = np.array([[1, 2], [3, 4], [5, 2]])
    found = []
    for model, x in ((short, words), (long, np.pad(words, ((0, 0), (0, 2))))):
        im = nns.InstrumentedModel(model)
        profile = nns.Profile.from_data(im, x, progress=False)
        slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)
        found.append(slicer.slice(x[:1], outputs=[0]))
    ours, theirs = found
    for name, expected in ours.synapses.items():
        np.testing.assert_array_equal(theirs.synapses[name], expected)
    for name in ("embedding", "dense"):
        contributions, expected = theirs.neurons[name], ours.neurons[name]
        if granularity == "activation":
            assert not contributions[2:].any()
            contributions = contributions[:2]
        np.testing.assert_array_equal(contributions, expected)
    assert ours.synapses["embedding"].any() and not ours.synapses["embedding"][[0, 3, 4, 5]].any()


def test_a_lookup_hands_on_the_sign():
    model = classifier(mask=False)
    model.get_layer("embedding").embeddings.assign(np.arange(WORDS * 3).reshape(WORDS, 3))
    model.get_layer("logits").kernel.assign([[2, 0], [-1, 0], [1, 0]])
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, np.zeros((1, LENGTH)), progress=False)
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    one = slicer.slice(np.array([[2, 2, 0, 5]]), outputs=[0])
    expected = np.zeros((WORDS, 3), int)
    expected[2], expected[5] = [2, -2, 2], [1, -1, 1]
    np.testing.assert_array_equal(one.synapses["embedding"], expected)
    np.testing.assert_array_equal(one.neurons["words"], [1, 1, 0, 1])


def test_tokens_are_checked_for_their_range():
    im = nns.InstrumentedModel(classifier())
    assert im.bounds is None or im.bounds == (0.0, WORDS - 1.0)
    for wrong in (WORDS, -1):
        with pytest.raises(nns.errors.InputRangeError):
            im.capture(np.full((1, LENGTH), wrong))


def test_a_vocabulary_that_float32_cannot_count_is_refused():
    inputs = keras.Input((1,), dtype="int32")
    embedding = layers.Embedding((1 << 24) + 1, 1, embeddings_initializer="zeros")
    with pytest.raises(nns.errors.UnsupportedLayerError, match="smaller vocabulary"):
        nns.InstrumentedModel(keras.Model(inputs, embedding(inputs)))


def _series(marker, how):
    """A model of padded series, whose weights do not depend on the marker of padding."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((LENGTH, 2), name="series")
    if how == "explicit":
        mask = ops.any(ops.not_equal(inputs, marker), axis=-1)
        h = layers.SimpleRNN(4)(inputs, mask=mask)
    elif how == "scaled, nested":
        inner = keras.Input((LENGTH, 2))
        masked = keras.Model(inner, layers.Masking(2 * marker)(inner))
        h = layers.Dense(4, activation="relu")(masked(layers.Rescaling(2.0)(inputs)))
        h = layers.GlobalAveragePooling1D()(h)
    else:
        h = layers.Masking(marker)(inputs)
        h = layers.Dense(4, activation="relu")(h)
        pooled = layers.SimpleRNN(4) if how == "recurrent" else layers.GlobalAveragePooling1D()
        h = pooled(h)
    return keras.Model(inputs, layers.Dense(3)(h))


@pytest.mark.parametrize("how", ["pooled", "recurrent", "explicit", "scaled, nested"])
def test_the_marker_of_padding_means_nothing(how):
    """Means of an input that `Masking` reads had the markers in them, and so had all amounts."""
    rng = np.random.default_rng(0)
    x = rng.normal(2, 1, (30, LENGTH, 2)).astype(np.float32)
    lengths = np.where(np.arange(30) % 2, LENGTH, LENGTH - 2)
    present = np.arange(LENGTH) < lengths[:, None]
    found = []
    for marker in (0.0, -99.0):
        x[~present] = marker
        im = nns.InstrumentedModel(_series(marker, how))
        profile = nns.Profile.from_data(im, x, progress=False)
        if how != "explicit":  # whose means are of each position
            mean = np.broadcast_to(x[present].mean(axis=0), (LENGTH, 2))
            np.testing.assert_allclose(profile.means["series"], mean, rtol=1e-5)
        each = nns.Profile.from_data(im, x, positions="each", progress=False).means["series"]
        expected = [x[present[:, i], i].mean(axis=0) for i in range(LENGTH)]
        np.testing.assert_allclose(each, expected, rtol=1e-5)
        slicer = nns.Slicer(im, profile, contribution="amount", workers=0, progress=False)
        one = slicer.slice(x[:2], outputs=[1])
        counts = nns.Slicer(im, profile, 0, workers=0, progress=False)
        decisive = counts.decisive(x[:3], level="input", others=0)
        # Padding stays what it is, also where it is not kept: like a word's.
        for i in range(3):
            for kept, column in (
                (decisive.masks(i)["series"], "probability with slice alone"),
                (np.zeros(LENGTH, bool), "probability of empty answer"),
            ):
                stays = (kept | ~present[i])[:, None]
                mixed = np.where(stays, x[i], profile.means["series"])[None]
                answer = np.asarray(keras.ops.softmax(im.model(mixed)))[0].max()
                np.testing.assert_allclose(answer, decisive.certificate[column][i], rtol=1e-5)
        methods = "occlusion", "integrated gradients, 50 samples"
        why = counts.explain(x[0], target=1, compare=methods, decisive=False)
        values = why.comparison.values.values()
        assert all(np.abs(of[~present[0]]).max() < 1e-6 for of in values)
        size = decisive.certificate["size"]
        found.append((im.logits(x), one.neurons["series"], size, *values))
    for parts in zip(*found, strict=True):
        np.testing.assert_allclose(*parts, rtol=1e-3, atol=1e-5)


def test_padding_that_something_reads_counts():
    inputs = keras.Input((LENGTH, 2), name="series")
    pooled = layers.GlobalAveragePooling1D()(layers.Masking(-1.0)(inputs))
    joined = layers.Concatenate()([pooled, layers.Flatten()(inputs)])
    im = nns.InstrumentedModel(keras.Model(inputs, layers.Dense(2)(joined)))
    assert im["series"].mask is None


@pytest.mark.parametrize("share", [0.2, 0.8])
def test_a_mask_that_is_an_input_stays(share):
    """Its mean is neither a mask, nor may it show the markers of padding to the network."""
    rng = np.random.default_rng(0)
    x = rng.normal(2, 1, (30, LENGTH, 2)).astype(np.float32)
    present = np.arange(LENGTH) < np.where(rng.random(30) < share, LENGTH, LENGTH - 2)[:, None]
    present[:2] = np.arange(LENGTH) < [[LENGTH - 2], [LENGTH]]
    found = []
    for marker in (0.0, -99.0):
        x[~present] = marker
        keras.utils.set_random_seed(3)
        series, mask = keras.Input((LENGTH, 2), name="series"), keras.Input((LENGTH,), dtype="bool")
        h = layers.GlobalAveragePooling1D()(layers.Dense(4, "relu")(series), mask=mask)
        im = nns.InstrumentedModel(keras.Model([series, mask], layers.Dense(3)(h)))
        data = {"series": x, im.input_operations[1]: present}
        profile = nns.Profile.from_data(im, data, progress=False)
        slicer = nns.Slicer(im, profile, 0, workers=0, progress=False)
        decisive = slicer.decisive({n: v[:2] for n, v in data.items()}, level="input", others=0)
        why = slicer.explain({n: v[0] for n, v in data.items()}, target=1, decisive=False)
        for i in range(2):
            mixed = np.where(present[i, :, None], profile.means["series"], x[i])[None]
            answer = np.asarray(keras.ops.softmax(im.model([mixed, present[i : i + 1]])))[0].max()
            empty = decisive.certificate["probability of empty answer"][i]
            np.testing.assert_allclose(answer, empty, rtol=1e-5)
        columns = [v for n, v in decisive.certificate.items() if "probability" in n]
        found.append((profile.means["series"], *columns, why.contributions["series"]))
    for parts in zip(*found, strict=True):
        np.testing.assert_allclose(*parts, rtol=1e-3, atol=1e-5)
