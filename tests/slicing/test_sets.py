"""Decisive slices, counted slices and their combinations as sets and tables of edges."""

import operator

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns

RNG = np.random.default_rng(0)


def made(model, shape):
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    data = RNG.normal(size=(40, *shape)).astype(np.float32)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, data, progress=False)
    return nns.Slicer(im, profile, theta=0.02, workers=0, progress=False), data


@pytest.fixture(scope="module")
def convolutional():
    inputs = keras.Input((6, 6, 2), name="image")
    x = layers.Conv2D(4, 3, activation="relu", name="conv")(inputs)
    x = layers.DepthwiseConv2D(2, depth_multiplier=2, name="depth")(layers.MaxPooling2D(2)(x))
    outputs = layers.Dense(3, name="last")(layers.Flatten(name="flat")(x))
    return made(keras.Model(inputs, outputs), (6, 6, 2))


@pytest.mark.parametrize("level", ["synapse", "neuron", "channel", "input"])
def test_decisive_slices_are_sets(convolutional, level, tmp_path):
    slicer, data = convolutional
    found = slicer.decisive(data[:3], level=level, max_share=1.0, others=0)
    one, other = found[0], found[1]
    masks = [found.masks(i) for i in range(3)]
    assert [s.level for s in found] == [level] * 3 and found[-1] == found[2]
    for operation, expected in (
        (one & other, lambda a, b: a & b),
        (one | other, lambda a, b: a | b),
        (one - other, lambda a, b: a & ~b),
        (one + one, lambda a, b: a),
    ):
        assert operation.level == level
        for name, values in operation.members.items():
            np.testing.assert_array_equal(values != 0, expected(masks[0][name], masks[1][name]))
    one.save(tmp_path / "one.npz")
    assert nns.Slice.load(tmp_path / "one.npz") == one
    assert "decisive, reference 'mean'" in repr(one)

    # The model of one slice gives what its certificate says.
    alone = one.apply(slicer.im, slicer.profile).predict(data[:1], verbose=0)[0].astype(float)
    chances = np.exp(alone) / np.exp(alone).sum()
    assert chances.argmax() == found.certificate["answer with slice alone"][0]
    chance = found.certificate["probability with slice alone"][0]
    assert chances[found.certificate["answer"][0]] == pytest.approx(chance, abs=1e-5)
    with pytest.raises(IndexError, match="3 slices"):
        found[3]


def test_decisive_and_counted_slices_together(convolutional):
    slicer, data = convolutional
    decided = slicer.decisive(data[:1], max_share=1.0, others=0)[0]
    counted = slicer.slice(data[:1])
    both = decided & counted
    for name, values in decided.synapses.items():
        here = (values != 0) & (counted.synapses[name] != 0)
        np.testing.assert_array_equal(both.synapses[name] != 0, here)
        np.testing.assert_array_equal(both.synapses[name][here], values[here])
    table = decided.compare(counted).set_index("name")
    sizes = [sum((v != 0).sum() for v in s.synapses.values()) for s in (decided, counted, both)]
    row = table.loc["total"]
    assert [row["left"], row["right"], row["both"]] == sizes
    overlap = sizes[2] / (sizes[0] + sizes[1] - sizes[2])
    assert row["from"] < row["overlap"] == overlap < row["to"]
    channels = slicer.decisive(data[:1], level="channel", max_share=1.0, others=0)[0]
    for wrong in (lambda: channels & decided, lambda: channels.compare(decided)):
        with pytest.raises(
            nns.errors.ProfileMismatchError, match="granularities, levels or columns"
        ):
            wrong()
    with pytest.raises(nns.errors.InvalidArgumentError, match="has no synapses"):
        channels.edges(slicer.im)


def test_the_overlap_of_random_slices_is_that_by_chance():
    rng = np.random.default_rng(1)
    first, second = (
        nns.Slice({}, {"k": (rng.random(20_000) < share).astype(int)}, {}) for share in (0.2, 0.1)
    )
    total = first.compare(second).iloc[-1]
    assert total["from"] < total["by chance"] < total["to"]
    same = first.compare(first).iloc[-1]
    assert same["overlap"] == 1 and same["by chance"] < 0.2
    empty = nns.Slice({}, {"k": np.zeros(20_000, int)}, {})
    assert np.isnan(empty.compare(empty)["overlap"]).all()


def test_edges_are_the_synapses_by_name(convolutional):
    """Every edge looked up in Keras's kernels."""
    slicer, data = convolutional
    one = slicer.slice(data[:1])
    table = one.edges(slicer.im)
    assert len(table) == sum((v != 0).sum() for v in one.synapses.values())
    model = slicer.im.model
    conv, last = model.get_layer("conv").kernel.numpy(), model.get_layer("last").kernel.numpy()
    depth = model.get_layer("depth").kernel.numpy()
    seen = set()
    for row in table.to_dict("records"):
        (start, a), (end, b) = (row[w].removesuffix("]").split("[") for w in ("from", "to"))
        a, b, (i, j) = int(a), int(b), divmod(row["tap"], 3 if row["kernel"] == "conv" else 2)
        seen.add((row["kernel"], start, end))
        if row["kernel"] == "conv":
            weight, index = conv[i, j, a, b], (i, j, a, b)
        elif row["kernel"] == "depth":
            assert a == b // 2  # a channel reads itself alone
            weight, index = depth[i, j, a, b % 2], (i, j, a, b % 2)
        else:  # a unit of the flattened map belongs to a channel of the depthwise convolution
            weights = last.reshape(1, 8, 3)[:, a, b]
            weight, index = weights[0], (a, b)
        assert row["weight"] == pytest.approx(weight)
        assert row["contribution"] == one.synapses[row["kernel"]][index] != 0
    assert seen == {
        ("conv", "image", "conv:pre"),
        ("depth", "conv:pre", "depth"),
        ("last", "depth", "last"),
    }


def test_edges_of_recurrent_layers_and_embeddings():
    inputs = keras.Input((4,), dtype="int32", name="tokens")
    x = layers.Embedding(7, 3, name="words")(inputs)
    model = keras.Model(inputs, layers.Dense(2, name="last")(layers.LSTM(2, name="lstm")(x)))
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    im = nns.InstrumentedModel(model)
    whole = nns.Slice({}, {n: np.ones(k.shape, int) for n, k in im.kernels.items()}, {})
    table = whole.edges(im)
    assert len(table) == sum(k.size for k in im.kernels.values())
    gates = table[table["kernel"] == "lstm/kernel"]
    kernel = model.get_layer("lstm").cell.kernel.numpy()
    assert set(gates["from"]) == {"words[0]", "words[1]", "words[2]"}
    np.testing.assert_allclose(np.sort(gates["weight"]), np.sort(kernel.ravel()))
    recurrent = table[table["kernel"] == "lstm/recurrent_kernel"]
    assert set(recurrent["from"]) == {"lstm:h[t-1][0]", "lstm:h[t-1][1]"}
    assert set(table[table["kernel"] == "words"]["from"]) == {f"token {i}" for i in range(7)}
    with pytest.raises(nns.errors.ProfileMismatchError, match="different model"):
        nns.Slice({}, {"last": np.ones((3, 3))}, {}).edges(im)


def test_sets_combine_with_slices_alone(convolutional):
    slicer, data = convolutional
    one = slicer.slice(data[:1])
    for other in (3, None, "a", np.ones(3), [one], slicer.slice_each(data[:1])):
        for combine in (operator.and_, operator.or_, operator.sub, operator.add):
            for pair in ((one, other), (other, one)):
                with pytest.raises(TypeError, match=r"unsupported operand|can only concatenate"):
                    combine(*pair)
        with pytest.raises(nns.errors.InvalidArgumentError, match="another slice"):
            one.compare(other)


def of_names(names, classes, seed=0):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((6,), name="features")
    hidden = layers.Dense(7, activation="relu", name=names[0])(inputs)
    model = keras.Model(inputs, layers.Dense(classes, name=names[1])(hidden))
    x = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    return nns.Slicer(model, profile, theta=0.2, progress=False).slice(x)


def test_slices_of_other_models_do_not_mix():
    """Only the input has the same name in both; versions of one model have all of them."""
    one, other, version = of_names("ab", 3), of_names("cd", 5), of_names("ab", 3, seed=1)
    for call in (
        lambda: one | other,
        lambda: one & other,
        lambda: one + other,
        lambda: one - other,
        lambda: one.compare(other),
    ):
        with pytest.raises(nns.errors.ProfileMismatchError, match="different models"):
            call()
    both = {n: (one.neurons[n] != 0) & (version.neurons[n] != 0) for n in one.neurons}
    assert all(np.array_equal((one & version).neurons[n] != 0, both[n]) for n in both)
    part = nns.Slice({}, {"a": one.synapses["a"]}, version.info)  # some kernels of a version
    assert (one & part).synapses.keys() == {"a"}


def test_an_equal_model_with_other_names_is_another(tmp_path):
    """Its input, which Keras numbers, would count as missing; weights of others are not listed."""

    def built(scale=1.0):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((6,)), layers.Dense(7, "relu", name="h"), layers.Dense(3, name="o")]
        )
        model.layers[0].set_weights([scale * w for w in model.layers[0].get_weights()])
        x = np.random.default_rng(1).normal(size=(40, 6)).astype(np.float32)
        profile = nns.Profile.from_data(model, x, progress=False)
        return model, nns.Slicer(model, profile, theta=0.2, progress=False).slice(x)

    (model, one), (_, again), (other, _) = built(), built(), built(2.0)
    for call in (lambda: one & again, lambda: one | again, lambda: one - again):
        with pytest.raises(nns.errors.ProfileMismatchError, match="differ in names"):
            call()
    assert set(one.edges(model)["kernel"]) <= {"h", "o"}
    with pytest.raises(nns.errors.ProfileMismatchError, match="not from the weights"):
        one.edges(other)


def test_slices_of_tables_in_two_orders_are_not_combined():
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(40, 3)), columns=[*"abc"])
    keras.utils.set_random_seed(0)
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, "relu"), layers.Dense(2)])

    def first(x):
        profile = nns.Profile.from_data(nns.InstrumentedModel(model), x, progress=False)
        return nns.Slicer(nns.InstrumentedModel(model), profile, progress=False).slice(x[:3])

    one, other, nameless = (first(x) for x in (table, table[[*"cab"]], table.to_numpy()))
    assert one & one == one == one | first(table)
    assert (one & nameless).neurons.keys() == one.neurons.keys()
    for wrong in (lambda: one & other, lambda: other + one, lambda: one.compare(other)):
        with pytest.raises(
            nns.errors.ProfileMismatchError, match="or their tables in the order of columns"
        ):
            wrong()


def test_the_origin_of_a_union_is_what_both_agree_on(im, profile, x):
    """It was that of the first slice, whatever the other was of."""
    loose, strict = (
        nns.Slicer(im, profile, theta, workers=0, progress=False) for theta in (0, 0.3)
    )
    one, other = loose.slice(x[:2]), strict.slice(x[:5], outputs=[3])
    for mixed in (one | other, one + other):
        assert mixed.info["fingerprint"] == im.fingerprint
        assert not {"theta", "outputs"} & mixed.info.keys()
    assert (one | other).info["samples"] is None and (one + other).info["samples"] == 7
    assert ((one | other) + one).info["samples"] is None
    # Contributions of the first alone have its origin.
    assert (one & other).info == (one - other).info == one.info
    names = nns.Slice(one.neurons, one.synapses, one.info | {"columns": ["a", "b"]})
    assert (one + names).info["columns"] == (names + one).info["columns"] == ["a", "b"]
    # A union of two models' slices can be explored with either.
    version = nns.Slice(other.neurons, other.synapses, other.info | {"fingerprint": "0" * 64})
    assert "fingerprint" not in (one | version).info
    nns.explore(one | version, im, x[:5], progress=False)


def test_counts_and_amounts_have_no_sum(im, profile, x):
    """They were added, in different units; their members can be compared."""
    counts = nns.Slicer(im, profile, 0.0, workers=0, progress=False).slice(x[:3])
    slicer = nns.Slicer(im, profile, contribution="amount", workers=0, progress=False)
    amounts = slicer.slice(x[:3])
    for wrong in (lambda: counts + amounts, lambda: amounts | counts):
        with pytest.raises(
            nns.errors.ProfileMismatchError, match="Counts and amounts cannot be combined"
        ):
            wrong()
    both = (counts.to_vector() != 0) & (amounts.to_vector() != 0)
    np.testing.assert_array_equal((counts & amounts).to_vector() != 0, both)
    assert (amounts + amounts).to_vector().dtype.kind == "f"
