"""Ablations against masked passes written in plain Keras and NumPy, layer by layer."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import Ablation, Samples, Weights, Zero

RNG = np.random.default_rng(0)

# Every layer with a kernel → shape of a sample. The layer is followed by another one.
LAYERS = {
    "dense": (lambda: layers.Dense(5, "relu"), (4,)),
    "dense on maps": (lambda: layers.Dense(3, "tanh"), (3, 4)),
    "conv1d": (lambda: layers.Conv1D(3, 3, padding="causal", dilation_rate=2), (7, 2)),
    "conv2d": (
        lambda: layers.Conv2D(4, 3, strides=2, padding="same", activation="relu"),
        (6, 5, 2),
    ),
    "groups": (lambda: layers.Conv2D(4, 2, groups=2, activation="relu"), (4, 4, 4)),
    "conv3d": (lambda: layers.Conv3D(2, 2), (3, 3, 3, 2)),
    "depthwise": (lambda: layers.DepthwiseConv2D(3, depth_multiplier=2), (5, 5, 2)),
    "transposed": (lambda: layers.Conv2DTranspose(3, 3, strides=2, activation="relu"), (3, 3, 2)),
    "einsum": (lambda: layers.EinsumDense("abc,cd->abd", (3, 5), bias_axes="d"), (3, 4)),
    "einsum of two": (lambda: layers.EinsumDense("abde,dec->abc", (3, 6)), (3, 2, 4)),
    "einsum by position": (lambda: layers.EinsumDense("abc,bcd->abd", (3, 5)), (3, 4)),
}
REFERENCES = ("mean", "zero", "samples", "weights")


def network(name, seed):
    make, shape = LAYERS[name]
    keras.utils.set_random_seed(seed)
    inputs = keras.Input(shape)
    first, last = make(), layers.Dense(3, name="last")
    model = keras.Model(inputs, last(layers.Flatten()(first(inputs))))
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    return model, first, last


def plain(layer, x, kernel):
    """The weighted sum of a layer with its bias and another kernel, by Keras itself."""
    old, activation = kernel_of(layer).numpy(), getattr(layer, "activation", None)
    kernel_of(layer).assign(kernel)
    layer.activation = keras.activations.linear
    y = ops.convert_to_numpy(layer(ops.convert_to_tensor(x, "float32")))
    kernel_of(layer).assign(old)
    layer.activation = activation
    return y


def kernel_of(layer):
    return getattr(layer, "depthwise_kernel", None) or layer.kernel


def flat(x):
    return x.reshape(len(x), -1)


def activated(layer, y):
    return ops.convert_to_numpy(layer.activation(ops.convert_to_tensor(y, "float32")))


def masked_sum(layer, x, mask, reference, other=None):
    """y = Σ w·m·x + Σ w·(1 − m)·r + b, or with another version's weights where m is 0."""
    kernel = kernel_of(layer).numpy()
    if other is not None:
        return plain(layer, x, mask * kernel + (1 - mask) * kernel_of(other).numpy())
    reference = np.broadcast_to(reference, x.shape)
    active, all_of = plain(layer, reference, mask * kernel), plain(layer, reference, kernel)
    return plain(layer, x, mask * kernel) + all_of - active


def references(name, layer, model, data, donor):
    """The reference, and its values of the two layers' inputs and sums, by plain Keras."""
    first = model.layers[1]
    if name == "weights":
        other, _, _ = network(layer, 7)
        return Weights(other), other
    x = {"mean": data, "samples": donor[None], "zero": data}[name]
    total = plain(first, x, kernel_of(first).numpy())
    hidden = flat(activated(first, total))
    values = [x, total, hidden]
    values = [v.mean(axis=0, keepdims=True) * (name != "zero") for v in values]
    made = {"mean": None, "zero": Zero(), "samples": Samples(donor[None])}[name]
    return made, values


@pytest.mark.parametrize("reference", REFERENCES)
@pytest.mark.parametrize("name", LAYERS)
def test_synapses_of_every_layer(name, reference):
    model, first, last = network(name, 1)
    data = RNG.normal(size=(40, *model.input_shape[1:])).astype(np.float32)
    x, donor = data[:4], data[9]
    made, values = references(reference, name, model, data, donor)
    made = made or nns.Profile.from_data(model, data, progress=False)
    ablation = Ablation(model, made)
    assert list(ablation.shapes.values()) == [
        tuple(kernel_of(layer).shape) for layer in (first, last)
    ]
    masks = [(RNG.random(shape) < 0.6).astype(np.float32) for shape in ablation.shapes.values()]
    by_name = dict(zip(ablation.shapes, masks, strict=True))
    found = ablation.outputs(by_name, x).reshape(4, -1)

    other = isinstance(made, Weights)
    r = [None, None] if other else [values[0], values[2]]
    twins = [values.layers[1], values.layers[-1]] if other else [None, None]
    hidden = flat(activated(first, masked_sum(first, x, masks[0], r[0], twins[0])))
    expected = masked_sum(last, hidden, masks[1], r[1], twins[1])
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)

    # The model computes the same, and so do masks of each sample, whose effects add up.
    np.testing.assert_allclose(ablation.model(by_name)(x), expected, rtol=1e-3, atol=1e-4)
    each = ablation.outputs({n: np.stack([m] * 4) for n, m in by_name.items()}, x).reshape(4, -1)
    np.testing.assert_allclose(each, expected, rtol=1e-3, atol=1e-4)
    if reference != "mean":
        return
    whole = np.concatenate([m.ravel() for m in masks])
    _, effects = ablation.effects(whole, x, target=1)
    _, rows = ablation.effects(np.stack([whole] * 4), x, target=1)
    np.testing.assert_allclose(rows.sum(axis=0), effects, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("reference", ["mean", "samples"])
@pytest.mark.parametrize("level", ["neuron", "channel", "input"])
@pytest.mark.parametrize("name", ["dense", "dense on maps", "conv2d", "depthwise", "einsum of two"])
def test_values_of_every_level(name, level, reference):
    model, first, last = network(name, 2)
    data = RNG.normal(size=(40, *model.input_shape[1:])).astype(np.float32)
    x, donor = data[:4], data[9]
    made, values = references(reference, name, model, data, donor)
    made = made or nns.Profile.from_data(model, data, progress=False)
    ablation = Ablation(model, made, level)
    ((name, shape),) = ablation.shapes.items()
    mask = (RNG.random(shape) < 0.5).astype(np.float32)
    total = plain(first, x, kernel_of(first).numpy())
    at = x if level == "input" else total
    here = mask if level == "neuron" or at.ndim == 2 else mask[..., None]
    here = mask if level == "channel" else here
    kept = values[0 if level == "input" else 1]
    changed = kept + here * (at - kept)
    if level == "input":
        changed = plain(first, changed, kernel_of(first).numpy())
    expected = plain(last, flat(activated(first, changed)), kernel_of(last).numpy())
    found = ablation.outputs({name: mask}, x).reshape(4, -1)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(ablation.model({name: mask})(x), expected, rtol=1e-3, atol=1e-4)

    # The effect of a unit on a logit, by finite differences.
    _, effects = ablation.effects({name: mask}, x[:1], target={"last": 2})
    unit, step = int(np.abs(effects).argmax()), 1e-2
    scores = []
    for sign in (1, -1):
        moved = mask.ravel().copy()
        moved[unit] += sign * step
        scores.append(ablation.outputs(moved, x[:1]).ravel()[2])
    slope = (scores[0] - scores[1]) / (2 * step)
    assert slope == pytest.approx(effects[unit], rel=0.05, abs=1e-3)


def test_each_sample_is_run_with_every_donor_or_with_the_other_version():
    model, *_ = network("conv2d", 3)
    other, *_ = network("conv2d", 4)
    data = RNG.normal(size=(9, 6, 5, 2)).astype(np.float32)
    for level in ("synapse", "neuron", "channel", "input"):
        ablation = Ablation(model, Samples(data[4:]), level, target=0)
        mask = RNG.random(ablation.units) < 0.5
        found = ablation.outputs(mask, data[:3])
        assert found.shape == (3, 5, 3)
        score, effects = ablation.effects(mask, data[:3])
        parts = []
        for i, donor in enumerate(data[4:]):
            alone = Ablation(model, Samples(donor[None]), level, target=0)
            np.testing.assert_allclose(
                found[:, i], alone.outputs(mask, data[:3]), rtol=1e-4, atol=1e-5
            )
            parts.append(alone.effects(mask, data[:3]))
        np.testing.assert_allclose(score, np.mean([p[0] for p in parts], axis=0), rtol=1e-4)
        np.testing.assert_allclose(
            effects, np.mean([p[1] for p in parts], axis=0), rtol=1e-3, atol=1e-4
        )
    # Neurons of another version: with none of its own, the model answers as the other's last layer.
    ablation = Ablation(model, Weights(other), "neuron")
    hidden = flat(other.layers[1](data).numpy())
    expected = hidden @ model.layers[-1].kernel.numpy() + model.layers[-1].bias.numpy()
    none = np.zeros(ablation.units)
    np.testing.assert_allclose(ablation.outputs(none, data), expected, rtol=1e-3, atol=1e-4)


def test_weights_are_all_variables_of_a_version():
    model, other = (zoo_like(seed) for seed in (0, 1))
    x = RNG.normal(size=(5, 6, 6, 2)).astype(np.float32)
    ablation = Ablation(model, Weights(other), "weight")
    assert ablation.units == model.count_params()
    mask = RNG.random(ablation.units) < 0.5
    mixed = keras.models.clone_model(model)
    parts = np.split(mask, np.cumsum([w.size for w in model.get_weights()])[:-1])
    pairs = zip(model.get_weights(), other.get_weights(), parts, strict=True)
    mixed.set_weights([np.where(m.reshape(a.shape), a, b) for a, b, m in pairs])
    np.testing.assert_allclose(ablation.outputs(mask, x), mixed(x), rtol=1e-4, atol=1e-5)
    made = ablation.model(mask)
    np.testing.assert_allclose(made(x), mixed(x), rtol=1e-5, atol=1e-6)
    assert ablation.model(~mask, into=made) is made
    with pytest.raises(nns.errors.InvalidArgumentError, match="different architectures: variable"):
        Ablation(model, Weights(network("dense", 0)[0]), "weight")


def zoo_like(seed):
    keras.utils.set_random_seed(seed)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(3, 3),
            layers.BatchNormalization(),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3),
        ]
    )
    for variable in model.variables:
        variable.assign(RNG.uniform(0.5, 1.5, variable.shape))
    return model


def test_shared_layers_residual_paths_and_several_inputs():
    """Σ over both calls of one layer, in NumPy."""
    a, b = keras.Input((4,), name="a"), keras.Input((4,), name="b")
    shared, last = layers.Dense(4, name="shared"), layers.Dense(2, name="last")
    model = keras.Model([a, b], last(layers.Add()([shared(a), shared(b), a])))
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    data = {n: RNG.normal(size=(30, 4)).astype(np.float32) for n in "ab"}
    profile = nns.Profile.from_data(model, data, progress=False)
    ablation = Ablation(model, profile)
    masks = {n: RNG.random(s) < 0.5 for n, s in ablation.shapes.items()}
    (w, c), (v, d) = (layer.get_weights() for layer in (shared, last))

    def summed(x, r, kernel, mask, bias):
        return x @ (kernel * mask) + r @ (kernel * ~mask) + bias

    means = {n: x.mean(axis=0) for n, x in data.items()}
    total = data["a"] + sum(summed(data[n], means[n], w, masks["shared"], c) for n in "ab")
    mean = (data["a"] + sum(data[n] @ w + c for n in "ab")).mean(axis=0)
    expected = summed(total, mean, v, masks["last"], d)
    np.testing.assert_allclose(ablation.outputs(masks, data), expected, rtol=1e-4, atol=1e-5)
    both = ablation.model(masks)([data["a"], data["b"]])
    np.testing.assert_allclose(both, expected, rtol=1e-4, atol=1e-5)


def test_groups_of_columns_go_together():
    model = keras.Sequential([keras.Input((5,), name="row"), layers.Dense(2)])
    data = RNG.normal(size=(20, 5)).astype(np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    groups = {"row": [[1, 3], [4]]}
    ablation = Ablation(model, profile, "input", groups=groups)
    assert ablation.shapes == {"row": (4,)}  # two groups, and columns 0 and 2 alone
    found = ablation.outputs({"row": np.array([0, 1, 1, 0])}, data)
    hidden = np.where([True, False, False, False, True], data, data.mean(axis=0))
    np.testing.assert_allclose(found, model(hidden), rtol=1e-4, atol=1e-5)
    for wrong, message in (([[0], [0]], "shares units"), ([[9]], "0 … 4")):
        with pytest.raises(nns.errors.InvalidArgumentError, match=message):
            Ablation(model, profile, "input", groups={"row": wrong})


@pytest.mark.parametrize("kind", ["self", "grouped", "cross"])
def test_heads_are_those_computed_by_hand(kind):
    """Softmax attention in NumPy; a masked head's result is its mean."""
    keras.utils.set_random_seed(3)
    words, memory = keras.Input((4, 6), name="words"), keras.Input((5, 6), name="memory")
    if kind == "grouped":
        attention = layers.GroupQueryAttention(3, 4, 2, name="attention")
    else:
        attention = layers.MultiHeadAttention(2, 3, value_dim=4, name="attention")
    read = attention(words, memory if kind == "cross" else words)
    hidden = layers.Dense(7, "relu", name="hidden")(layers.Add()([words, read]))
    outputs = layers.Dense(3, name="last")(layers.GlobalAveragePooling1D()(hidden))
    inputs = [words, memory] if kind == "cross" else words
    model = keras.Model(inputs, outputs)
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    x = RNG.normal(size=(30, 4, 6)).astype(np.float32)
    m = RNG.normal(size=(30, 5, 6)).astype(np.float32)
    data = {"words": x, "memory": m} if kind == "cross" else x

    parts = (attention._query_dense, attention._key_dense, attention._value_dense)
    weights = [[w.numpy() for w in part.weights] for part in (*parts, attention._output_dense)]
    source = m if kind == "cross" else x
    q, k, v = (
        np.einsum("btc,chd->bthd", of, w) + b
        for of, (w, b) in zip((x, source, source), weights, strict=False)
    )
    repeats = q.shape[2] // k.shape[2]
    k, v = (np.repeat(part, repeats, axis=2) for part in (k, v))
    scores = np.einsum("bqhd,bkhd->bhqk", q, k) / np.sqrt(q.shape[-1])
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    results = np.einsum("bhqk,bkhd->bqhd", chances, v)  # of each head

    heads = results.shape[2]
    ablation = Ablation(model, nns.Profile.from_data(model, data, progress=False), "head")
    context, dense = ablation.shapes
    assert ablation.shapes == {context: (heads,), dense: (7,)}  # no channels of projections
    mask = {context: np.arange(heads) == 1, dense: np.arange(7) != 2}
    masked = np.where(mask[context][:, None], results, results.mean(axis=0))
    (w, b) = weights[3]
    (hidden_w, hidden_b), (last_w, last_b) = (
        model.get_layer(n).get_weights() for n in ("hidden", "last")
    )
    usual = (x + np.einsum("bqhd,hdc->bqc", results, w) + b) @ hidden_w + hidden_b
    sums = (x + np.einsum("bqhd,hdc->bqc", masked, w) + b) @ hidden_w + hidden_b
    sums = np.where(mask[dense], sums, usual.mean(axis=0))
    expected = np.maximum(sums, 0).mean(axis=1) @ last_w + last_b
    found = ablation.outputs(mask, data)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)


def test_a_class_is_scored_less_its_rivals():
    """The score and its derivative in NumPy: the logit less ¾ of its rivals' weighted mean."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3)])
    x = RNG.normal(size=(1, 4)).astype(np.float32)
    ablation = Ablation(model, "zero", "input", target=2)
    score, effects = ablation.effects({}, x)
    logits = (x @ model.layers[0].kernel.numpy())[0].astype(np.float64)
    near = np.exp(logits / logits.std()) * (np.arange(3) != 2)
    near /= near.sum()
    assert score[0] == pytest.approx(logits[2] - 0.75 * (near * logits).sum(), rel=1e-4)
    slope = model.layers[0].kernel.numpy() @ (np.eye(3)[2] - 0.75 * near)
    np.testing.assert_allclose(effects, x[0] * slope, rtol=1e-3, atol=1e-5)
    # Without rivals: the difference of two classes, and a value.
    for target, weights in (
        (nns.instrument.target.resolve_target(ablation.im, 2, instead_of=0), [-1, 0, 1]),
        ({ablation.im.output_operations[0]: [0, 1]}, [0.5, 0.5, 0]),
    ):
        score, _ = ablation.effects({}, x, target)
        assert score[0] == pytest.approx(logits @ weights, rel=1e-4, abs=1e-5)


def test_what_does_not_fit_is_refused():
    model, *_ = network("dense", 0)
    profile = nns.Profile.from_data(model, RNG.normal(size=(9, 4)), progress=False)
    ablation = Ablation(model, profile)
    for mask, message in (
        ({"other": np.ones(3)}, "Unknown kernel 'other'"),
        ({"last": np.ones((2, 2))}, r"Received: float64 \(2, 2\)"),
        (np.ones(3), r"shape \(47,\)|shape \(35,\)"),
        (np.full(35, np.nan), "Received: NaN"),
        ({"last": np.full((5, 3), np.nan)}, "Received: NaN"),
    ):
        with pytest.raises(nns.errors.InvalidArgumentError, match=message):
            ablation.outputs(mask, np.zeros((2, 4), np.float32))
    with pytest.raises(nns.errors.InvalidArgumentError, match="Unknown level 'layer'"):
        Ablation(model, profile, "layer")
    with pytest.raises(nns.errors.InvalidArgumentError, match="A reference must be"):
        Ablation(model, "median")
    with pytest.raises(nns.errors.InvalidArgumentError, match="'weight' supports the references"):
        Ablation(model, profile, "weight")
    with pytest.raises(nns.errors.ProfileMismatchError):
        Ablation(network("dense", 1)[0], profile)
    with pytest.raises(nns.errors.InvalidArgumentError, match="needs a target"):
        ablation.effects({}, np.zeros((2, 4), np.float32))
    donors = Ablation(model, Samples(np.zeros((2, 4), np.float32)))
    with pytest.raises(nns.errors.InvalidArgumentError, match="has 2 donors"):
        donors.model({})


@pytest.mark.parametrize("reference", ["zero", "mean"])
def test_a_model_of_named_units_masks_those_of_other_outputs_too(reference):
    inputs = keras.Input((4,))
    hidden = layers.Dense(5, activation="relu", name="hidden")(inputs)
    outputs = {name: layers.Dense(2, name=name)(hidden) for name in ("first", "second")}
    model = keras.Model(inputs, outputs)
    x = RNG.normal(size=(9, 4)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    keep = {"first": np.ones((5, 2)), "second": RNG.random((5, 2)) > 0.5}
    ablation = Ablation(model, "zero" if reference == "zero" else profile, of=list(keep))
    found = ablation.model(keep).predict(x, verbose=0)
    found = found if isinstance(found, dict) else dict(zip(outputs, found, strict=True))
    kernel, bias = model.get_layer("second").get_weights()
    values = keras.Model(inputs, hidden).predict(x, verbose=0)
    rest = np.zeros(5) if reference == "zero" else values.mean(axis=0)
    expected = (values - rest) @ (kernel * keep["second"]) + rest @ kernel + bias
    np.testing.assert_allclose(found["second"], expected, atol=1e-5)
    first = model.predict(x, verbose=0)["first"]
    np.testing.assert_allclose(found["first"], first, atol=1e-5)
    np.testing.assert_allclose(ablation.outputs(keep, x), first, atol=1e-5)


def test_masks_between_0_and_1_in_a_model():
    """The model computes what the ablation does, also where constants could not express it."""
    model, *_ = network("dense", 0)
    x = RNG.normal(size=(9, 4)).astype(np.float32)
    ablation = Ablation(model, nns.Profile.from_data(model, x, progress=False))
    mask = RNG.uniform(size=ablation.units)
    found = ablation.model(mask).predict(x, verbose=0)
    np.testing.assert_allclose(found, ablation.outputs(mask, x), atol=1e-5)
    with pytest.raises(nns.errors.InvalidArgumentError, match="finite"):
        ablation.outputs(np.full(ablation.units, np.inf), x)


@pytest.mark.parametrize("reference", ["mean", "zero"])
def test_a_table_that_scores_words_too(reference):
    """A tied table: zeros are zero in both uses; at the mean, only the scores are ablated."""
    inputs = keras.Input((4,), dtype="int32")
    table, last = layers.ReversibleEmbedding(9, 5, name="table"), layers.Dense(5, name="last")
    mean = layers.GlobalAveragePooling1D()(last(table(inputs)))
    model = keras.Model(inputs, table(mean, reverse=True))
    for variable in model.variables:
        variable.assign(RNG.normal(size=variable.shape))
    tokens = RNG.integers(0, 9, size=(20, 4))
    profile = nns.Profile.from_data(model, tokens, progress=False)
    ablation = Ablation(model, profile if reference == "mean" else reference)
    masks = {name: RNG.uniform(size=shape) > 0.5 for name, shape in ablation.shapes.items()}
    values, (kernel, bias) = table.embeddings.numpy(), last.get_weights()
    if reference == "zero":
        read = (values * masks["table"])[tokens] @ (kernel * masks["last"]) + bias
        expected = read.mean(axis=1) @ (values * masks["table"]).T
    else:
        vectors, means = values[tokens], values[tokens].mean(axis=0)
        read = means @ kernel + (vectors - means) @ (kernel * masks["last"]) + bias
        usual = (vectors @ kernel + bias).mean(axis=(0, 1))
        change = (read.mean(axis=1) - usual) @ (values * masks["table"]).T
        expected = usual @ values.T + change
    np.testing.assert_allclose(ablation.outputs(masks, tokens), expected, atol=1e-4)
    found = ablation.model(masks).predict(tokens, verbose=0)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_a_model_of_units_that_do_not_reach_the_target_is_refused():
    inputs = keras.Input((5,))
    x = layers.Dense(6, "relu")(inputs)
    model = keras.Model(inputs, [layers.Dense(n, name=f"of_{n}")(x) for n in (3, 1)])
    ablation = Ablation(model, "zero")
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"'of_1' do not reach .* 'of_3'"):
        ablation.model({"of_1": np.zeros((6, 1))})


def test_sizes_groups_and_models_that_do_not_fit():
    keras.utils.set_random_seed(0)

    def built(units):
        return keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(5, "relu", name="h"), keras.layers.Dense(units)]
        )

    model, other, x = built(3), built(2), np.ones((2, 4), np.float32)
    for size in (0, -3):
        with pytest.raises(InvalidArgumentError, match="batch_size"):
            Ablation(model, Zero(), "neuron").outputs({}, x, batch_size=size)
    for group in ([0.5, 1.7], [], ["a"]):
        with pytest.raises(InvalidArgumentError, match="must name units in"):
            Ablation(model, Zero(), "neuron", groups={"h:pre": [group]})
    with pytest.raises(InvalidArgumentError, match="must be real numbers"):
        Ablation(model, Zero(), "neuron").outputs({"h:pre": ["a"] * 5}, x)
    before = other.get_weights()
    with pytest.raises(InvalidArgumentError, match="must be a copy of the model"):
        Ablation(model, Zero()).model({}, into=other)
    for kept, own in zip(other.get_weights(), before, strict=True):
        np.testing.assert_array_equal(kept, own)


def test_one_operation_by_name():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(4, name="h"), layers.Dense(2)])
    x = np.ones((2, 3), np.float32)
    ablation = Ablation(model, Zero(), "neuron", of="h")  # one name, and not its letters
    assert list(ablation.shapes) == ["h"]
    assert ablation.outputs({"h": np.full(4, 0.5)}, x).shape == (2, 2)


def of_tokens():
    inputs = keras.Input((5,), dtype="int32")
    hidden = layers.Dense(6, activation="gelu", name="d")(
        layers.Embedding(7, 6, name="emb")(inputs)
    )
    last = layers.Dense(3, name="last")(layers.GlobalAveragePooling1D()(hidden))
    model = keras.Model(inputs, {"answer": last, "other": layers.Dense(2, name="aside")(hidden)})
    tokens = RNG.integers(0, 7, size=(8, 5))
    return model, tokens, nns.Profile.from_data(model, tokens, progress=False)


@pytest.mark.parametrize("reference", ["zero", "mean"])
@pytest.mark.parametrize("level", ["synapse", "neuron", "channel"])
def test_masks_that_would_do_nothing_are_refused(level, reference):
    """An embedding has units only if it is named: its mask then acts as computed by hand."""
    model, tokens, profile = of_tokens()
    mean = reference == "mean"
    shape = {"synapse": (7, 6), "neuron": (5, 6), "channel": (6,)}[level]
    ablation = Ablation(model, profile if mean else "zero", level, target={"answer": 0})
    whole = ablation.outputs({}, tokens)
    for mask in (np.zeros(shape), np.eye(*shape) if len(shape) == 2 else np.arange(6) > 2):
        for call in (lambda m: ablation.outputs(m, tokens), ablation.masks, ablation.model):
            with pytest.raises(InvalidArgumentError, match=r"'emb' has no units.*of=\['emb'"):
                call({"emb": mask})
    for rubbish in ("rubbish", [None], [1j]):
        with pytest.raises(InvalidArgumentError, match="'emb' must be real numbers"):
            ablation.outputs({"emb": rubbish}, tokens)
    # A mask that keeps everything does nothing, as it says; neither do units of other outputs.
    for nothing in ({"emb": np.ones(shape)}, {"aside": np.zeros((6, 2))}):
        np.testing.assert_array_equal(ablation.outputs(nothing, tokens), whole)
    np.testing.assert_allclose(
        ablation.model({"emb": np.ones(shape)}).predict(tokens, verbose=0)["answer"],
        model.predict(tokens, verbose=0)["answer"],
        atol=1e-5,
    )
    if level != "synapse":
        for name in ("last", "d", ablation.im.input_operations[0]):
            with pytest.raises(InvalidArgumentError, match=f"'{name}' has no units"):
                ablation.outputs({name: np.zeros(ablation.im[name].shape)}, tokens)

    named = Ablation(model, profile if mean else "zero", level, of="emb", target={"answer": 0})
    keep = RNG.integers(0, 2, size=shape)
    values = model.get_layer("emb").embeddings.numpy()[tokens]
    kept = keep[tokens] if level == "synapse" else keep
    values = kept * values + (1 - kept) * (values.mean(axis=0) if mean else 0)
    rest = keras.Model(model.get_layer("d").input, model.get_layer("last").output)
    np.testing.assert_allclose(
        named.outputs({"emb": keep}, tokens), rest.predict(values, verbose=0), atol=1e-5
    )
    other = "last" if level == "synapse" else "d:pre"
    with pytest.raises(InvalidArgumentError, match=f"'{other}' has no units.*Those with.* emb"):
        named.outputs({other: np.zeros((6, 3) if level == "synapse" else (5, 6))}, tokens)


def test_masks_at_level_input_and_weight_name_what_has_units():
    model, tokens, profile = of_tokens()
    with pytest.raises(InvalidArgumentError, match=r"'d:pre' has no units.*units: emb\.$"):
        Ablation(model, profile, "input").outputs({"d:pre": np.zeros(5)}, tokens)
    weights = Ablation(model, "zero", "weight", of="d/kernel")
    with pytest.raises(InvalidArgumentError, match=r"'d/bias' has no units.*: d/kernel"):
        weights.outputs({"d/bias": np.zeros(6)}, tokens)
