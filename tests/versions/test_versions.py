"""Two versions of a model, against plain Keras, NumPy and all subsets of changes."""

from itertools import combinations

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import versions
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.versions.between import Between


def changed(model: keras.Model, size: float, seed: int) -> keras.Model:
    """Return a copy whose weights have other values; variances stay positive."""
    copy = keras.models.clone_model(model)
    rng = np.random.default_rng(seed)
    for variable, own in zip(copy.variables, model.variables, strict=True):
        value = ops.convert_to_numpy(own)
        if not np.issubdtype(value.dtype, np.floating):
            variable.assign(value)
            continue
        value = value + rng.normal(0, size, value.shape)
        variable.assign(np.abs(value) + 0.1 if "variance" in variable.name else value)
    return copy


def convolutional() -> keras.Model:
    return keras.Sequential(
        [
            layers.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.DepthwiseConv2D(2, depth_multiplier=2, name="depthwise"),
            layers.BatchNormalization(name="norm"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, name="logits"),
        ]
    )


def recurrent() -> keras.Model:
    stack = [layers.Input((3, 3)), layers.LSTM(4, name="lstm")]
    return keras.Sequential([*stack, layers.Dense(1, activation="sigmoid", name="out")])


def attentive() -> keras.Model:
    x = inputs = layers.Input((4, 6))
    x = layers.MultiHeadAttention(2, 3, name="attention")(x, x) + x
    x = layers.Dense(3, name="logits")(layers.GlobalAveragePooling1D()(x))
    return keras.Model(inputs, layers.Softmax()(x))


def classes_of(model: keras.Model, x: np.ndarray) -> np.ndarray:
    outputs = model.predict(x, verbose=0)
    return (outputs[:, 0] > 0.5).astype(int) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


BUILDERS = (convolutional, recurrent, attentive)


@pytest.mark.parametrize("build", BUILDERS)
def test_certificates_are_what_keras_answers(build):
    keras.utils.set_random_seed(3)
    first = build()
    second = changed(first, 0.4, seed=1)
    old, new = nns.InstrumentedModel(first), nns.InstrumentedModel(second)
    x = np.random.default_rng(0).normal(size=(60, *first.input_shape[1:])).astype("float32")
    before, after = classes_of(first, x), classes_of(second, x)
    result = versions.compare(old, new, x, before)
    assert result.answers.tolist() == np.stack([before, after], axis=1).tolist()
    assert result.negative.tolist() == np.flatnonzero(before != after).tolist()
    assert not len(result.positive)

    flips = result.changed[:3]
    for level in ("weight", "channel", "layer"):
        causes = versions.explain_flips(old, new, x[flips], level=level, progress=False)
        assert len(causes) == 3
        for i, flip in enumerate(flips):
            one = x[flip : flip + 1]
            row = {name: column[i] for name, column in causes.certificate.items()}
            assert row["enough"] and row["needed"]
            assert classes_of(causes.with_changes(i), one)[0] == after[flip]
            assert classes_of(causes.without_changes(i), one)[0] == before[flip]
            assert len(causes.units[i]) == row["size"] == len(causes.changes(i))
            said = f"Sample {i}: class {before[flip]} became class {after[flip]}"
            assert said in causes.summary(i)


@pytest.mark.parametrize("build", BUILDERS)
def test_effects_are_derivatives_of_models_between(build):
    """Against models whose weights NumPy mixes, for units of several weights."""
    keras.utils.set_random_seed(1)
    old = build()
    new = changed(old, 0.2, seed=2)
    x = np.random.default_rng(1).normal(size=(2, *old.input_shape[1:])).astype("float32")
    between = Between(old, new, "channel")
    rng = np.random.default_rng(2)
    active = rng.uniform(0.2, 0.8, between.units).astype("float32")
    logits = between.logits(0.0, x).shape[1]
    weights = rng.normal(size=(2, logits))  # those of each sample
    effects = between.effects(active, between.rows(x), weights)
    for unit in rng.permutation(between.units)[:6]:
        step = np.zeros(between.units, "float32")
        step[unit] = 0.02
        ends = [(between.logits(active + s, x) * weights).sum() for s in (step, -step)]
        assert effects[unit] == pytest.approx((ends[0] - ends[1]) / 0.04, abs=2e-3)
    mixed = between.model(active)
    parts = [[ops.convert_to_numpy(v) for v in m.variables] for m in (old, new, mixed)]
    shares = between.mask(active)
    for before, after, between_them in zip(*parts, strict=True):
        if np.issubdtype(before.dtype, np.floating):
            share, shares = np.split(shares, [before.size])
            expected = before + share.reshape(before.shape) * (after - before)
            np.testing.assert_allclose(between_them, expected, atol=1e-6)


def test_no_smaller_set_of_changes_does_it():
    """Against all subsets, in linear classifiers of few weights."""
    rng, smallest, found = np.random.default_rng(0), [], []
    inputs = layers.Input((3,))
    old = keras.Model(inputs, layers.Dense(3, use_bias=False, name="dense")(inputs))
    pair = [nns.InstrumentedModel(m) for m in (old, keras.models.clone_model(old))]
    subsets = [s for n in range(1, 10) for s in combinations(range(9), n)]

    def does_it(units, x, kernels, answers):
        mask = np.zeros(9, bool)
        mask[list(units)] = True
        sets = mask.reshape(3, 3), ~mask.reshape(3, 3)
        mixed = [np.where(one, kernels[1], kernels[0]) for one in sets]
        return [int((x @ kernel).argmax()) for kernel in mixed] == answers[::-1]

    while len(found) < 12:
        kernels = [rng.normal(size=(3, 3)).astype("float32") for _ in range(2)]
        x = rng.normal(size=(1, 3)).astype("float32")
        answers = [int((x @ kernel).argmax()) for kernel in kernels]
        if answers[0] == answers[1]:
            continue
        for im, kernel in zip(pair, kernels, strict=True):
            im.model.layers[-1].set_weights([kernel])
        causes = versions.explain_flips(*pair, x, progress=False)
        assert does_it(causes.units[0], x, kernels, answers)
        found.append(len(causes.units[0]))
        smallest.append(next(len(s) for s in subsets if does_it(s, x, kernels, answers)))
    assert np.mean(np.array(found) == smallest) > 0.7
    assert np.max(np.array(found) - smallest) <= 1


@pytest.fixture(scope="module")
def digits_and_fault() -> tuple[keras.Model, keras.Model, np.ndarray, np.ndarray]:
    """A classifier of digits; and one that has learned to shift, and has a fault beside."""
    from sklearn.datasets import load_digits

    data = load_digits()
    x, y = (data.images / 16).astype("float32"), data.target
    keras.utils.set_random_seed(0)
    inputs = layers.Input((8, 8))
    hidden = layers.Dense(32, activation="relu", name="hidden")(layers.Flatten()(inputs))
    old = keras.Model(inputs, layers.Dense(10, name="logits")(hidden))
    old.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    old.fit(x, y, epochs=15, verbose=0)
    new = keras.models.clone_model(old)
    new.set_weights(old.get_weights())
    kernel, bias = new.get_layer("logits").get_weights()
    kernel[:, 3] += 0.5  # class 3 takes over
    new.get_layer("logits").set_weights([kernel, bias + 0.01])
    return old, new, x, y


def test_reversion_takes_back_the_fault(digits_and_fault):
    old, new, x, y = digits_and_fault
    result = versions.revert(old, new, x, y, max_share=0.9, progress=False)
    accuracies = [(classes_of(m, x) == y).mean() for m in (old, new, result.model)]
    assert accuracies[1] < 0.4 and accuracies[2] > accuracies[0] - 0.02
    places = [result.change(unit) for unit in result.reverted]
    assert {name for name, _ in places} <= {"logits/kernel", "logits/bias"}
    assert np.mean([index[-1] == 3 for _, index in places]) > 0.9
    # A step's row is what Keras measures on the held-out samples.
    held = np.random.default_rng(0).permutation(len(x))[: round(0.3 * len(x))]
    row = result.to_frame().set_index("share").loc[result.share]
    answers = classes_of(result.model, x[held])
    assert row["accuracy"] == pytest.approx((answers == y[held]).mean())
    right = classes_of(old, x[held]) == y[held]
    assert row["negative flips"] == pytest.approx((right & (answers != y[held])).mean())
    np.testing.assert_allclose(
        result.model_at(0.0).predict(x[:5], verbose=0), new.predict(x[:5], verbose=0), rtol=1e-5
    )


@pytest.mark.parametrize("level", ["weight", "channel"])
def test_no_more_is_taken_back_than_allowed(digits_and_fault, level):
    old, new, x, y = digits_and_fault
    units = len(versions.rank_changes(old, new, x, y, level=level, progress=False))
    for most in (1, 2, 3, 7):
        for share in (most / units, (most + 0.9) / units):
            options = {"level": level, "max_share": min(share, 1), "progress": False}
            result = versions.revert(old, new, x, y, **options)
            assert result.steps["share"].max() * units <= most + 1e-6
            assert len(result.reverted) <= most and result.steps["share"].max() > 0


def test_the_faulty_channel_does_most_harm(digits_and_fault):
    old, new, x, y = digits_and_fault
    noisy = keras.models.clone_model(new)
    rng = np.random.default_rng(0)
    noisy.set_weights([w + rng.normal(0, 0.01, w.shape) for w in new.get_weights()])
    ranked = versions.rank_changes(old, noisy, x, y, progress=False)
    assert ranked.iloc[0][["name", "index"]].tolist() == ["logits", (3,)]
    # Harms add up to the rise of the loss, as integrals of derivatives do.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    rise = float(loss(y, noisy(x))) - float(loss(y, old(x)))
    assert ranked["harm"].sum() == pytest.approx(rise, rel=0.1)


def test_layers_and_intervals(digits_and_fault):
    old, new, x, y = digits_and_fault
    result = versions.compare(old, new, x, y)
    layer = result.layers.set_index("layer")
    assert layer.loc["hidden", ["changed", "change", "new answer with"]].tolist() == [0, 0, 0]
    assert layer.loc["logits", "old answer without"] == 1
    kernels = [m.get_layer("logits").get_weights() for m in (old, new)]
    before, after = (np.concatenate([part.ravel() for part in k]) for k in kernels)
    expected = np.linalg.norm(after - before) / np.linalg.norm(before)
    assert layer.loc["logits", "change"] == pytest.approx(expected, rel=1e-5)
    frame = result.to_frame().set_index("class")
    assert frame.loc["all", "negative flips"] == len(result.negative)
    assert frame.loc[:9, "samples"].tolist() == np.bincount(y).tolist()
    # Clopper and Pearson's bounds: the tails beyond them have 2.5 % (5 % for one side).
    from scipy.stats import binom

    low, high = result.interval(40)
    assert binom.sf(39, len(x), low) == pytest.approx(0.025, rel=1e-4)
    assert binom.cdf(40, len(x), high) == pytest.approx(0.025, rel=1e-4)
    assert binom.cdf(40, len(x), result.upper_bound(40)) == pytest.approx(0.05, rel=1e-4)


def test_other_architectures_are_compared_where_they_match(digits_and_fault):
    old, _, x, y = digits_and_fault
    inputs = layers.Input((8, 8))
    hidden = layers.Dense(40, activation="relu", name="hidden")(layers.Flatten()(inputs))
    new = keras.Model(inputs, layers.Dense(10, name="logits")(hidden))
    result = versions.compare(old, new, x, y)
    assert result.not_compared == ["hidden/bias", "hidden/kernel", "logits/kernel"]
    assert result.layers["layer"].tolist() == ["logits"]  # its bias
    assert result.answers[:, 1].tolist() == classes_of(new, x).tolist()
    with pytest.raises(InvalidArgumentError, match="different architectures"):
        versions.explain_flips(old, new, x)


class Gate(layers.Layer):
    """An own layer, whose inner layers Keras numbers anew for each model."""

    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Dense(6, activation="sigmoid")

    def build(self, shape):
        self.inner.build(shape)
        self.built = True

    def call(self, x):
        return x * self.inner(x)


def gated(activation: str = "relu") -> keras.Model:
    hidden = [layers.Dense(6, activation=activation, name="hidden"), Gate(name="gate")]
    dropout = layers.Dropout(0.1)  # its state is no weight
    return keras.Sequential([layers.Input((4,)), *hidden, dropout, layers.Dense(3, name="logits")])


def test_versions_that_were_built_anew_are_matched_in_order():
    keras.utils.set_random_seed(0)
    old, new = gated(), gated()
    x = np.random.default_rng(0).normal(size=(80, 4)).astype("float32")
    result = versions.compare(old, new, x)
    assert result.not_compared == []
    assert len(result.layers) == 3 and (result.layers["changed"] > 0).all()
    assert result.layers["old answer without"].max() > 0
    causes = versions.explain_flips(old, new, x[result.changed[:2]], progress=False)
    for i, flip in enumerate(result.changed[:2]):
        one = x[flip : flip + 1]
        assert classes_of(causes.with_changes(i), one)[0] == result.answers[flip, 1]
        assert classes_of(causes.without_changes(i), one)[0] == result.answers[flip, 0]


def test_versions_that_differ_in_more_than_weights():
    keras.utils.set_random_seed(0)
    old, new = gated(), gated("tanh")
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    y = classes_of(old, x)
    for call in (versions.explain_flips, versions.revert, versions.rank_changes):
        labels = () if call is versions.explain_flips else (y,)
        with pytest.raises(InvalidArgumentError, match="differ in more than their weights"):
            call(old, new, x, *labels, progress=False)
    assert "old answer without" not in versions.compare(old, new, x).layers


def test_independent_labels_and_several_inputs():
    x = np.random.default_rng(0).normal(size=(40, 4)).astype("float32")
    inputs = layers.Input((4,))
    labels = keras.Model(inputs, layers.Dense(3, activation="sigmoid")(inputs))
    labels.compile(loss="binary_crossentropy")
    for call in (versions.compare, versions.explain_flips):  # a label that flips is no class
        with pytest.raises(InvalidArgumentError, match="exclude each other"):
            call(labels, changed(labels, 0.5, seed=1), x)
    other = layers.Input((2,))
    joined = layers.Concatenate()([layers.Dense(5, activation="relu")(inputs), other])
    two = keras.Model([inputs, other], layers.Dense(3, activation="softmax")(joined))
    pair = two, changed(two, 0.5, seed=2)
    both = [x, x[:, :2]]
    assert len(versions.compare(*pair, both).changed)
    causes = versions.explain_flips(*pair, both, progress=False)
    for i, flip in enumerate(causes.samples[:3]):
        one = [part[flip : flip + 1] for part in both]
        answers = [classes_of(model, one)[0] for model in pair]
        assert classes_of(causes.with_changes(i), one)[0] == answers[1]
        assert classes_of(causes.without_changes(i), one)[0] == answers[0]


def test_a_set_that_is_not_smaller_is_said():
    keras.utils.set_random_seed(0)
    inputs = layers.Input((1,))
    outputs = layers.Dense(2, use_bias=False, kernel_initializer="zeros", name="d")(inputs)
    old = keras.Model(inputs, outputs)
    new = keras.models.clone_model(old)
    old.set_weights([np.array([[1.0, 0.0]])])
    new.set_weights([np.array([[1.0, 2.0]])])  # one weight changed: all of the changes
    causes = versions.explain_flips(old, new, np.ones((1, 1), "float32"), progress=False)
    assert causes.certificate["share"].tolist() == [1.0]
    assert "No set smaller than all changes was found" in causes.summary()
    with pytest.raises(nns.errors.InvalidArgumentError, match="has 2 classes; received 3 names"):
        causes.summary(classes=["cat", "dog", "ox"])


def test_a_litert_file_stands_for_its_weights(tmp_path, digits_and_fault):
    from nnslicer_tf.dflare import compress

    old, _, x, _ = digits_and_fault
    path = tmp_path / "quantised.tflite"
    path.write_bytes(compress(old, "int8", x[:100]))
    result = versions.compare(old, str(path), x)
    assert (result.layers["changed"] > 0).all() and (result.layers["change"] < 0.02).all()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda o, n, x, y: versions.explain_flips(o, o, x), "nothing changed"),
        (lambda o, n, x, y: versions.explain_flips(o, n, x[:0]), "no samples|empty"),
        (lambda o, n, x, y: versions.explain_flips(o, n, x, level="neuron"), "Unknown level"),
        (lambda o, n, x, y: versions.revert(n, o, x, y), "nothing to take back"),
        (lambda o, n, x, y: versions.revert(o, n, x, y, held_out=1.0), "held_out"),
        (
            lambda o, n, x, y: versions.revert(o, n, x, y, level="layer"),
            "of 1 change at level .layer. is less",
        ),
        (lambda o, n, x, y: versions.compare(o, n, x).interval(len(x) + 1), "count must be in"),
        (lambda o, n, x, y: versions.compare(o, n, x).upper_bound(-1), "count must be in"),
        (lambda o, n, x, y: versions.compare(o, n, x).negative, "pass y"),
    ],
)
def test_errors(call, message, digits_and_fault):
    old, new, x, _ = digits_and_fault
    y = classes_of(old, x)
    with pytest.raises(Exception, match=message) as caught:
        call(old, new, x, y)
    assert type(caught.value).__module__ == "nnslicer_tf.errors"


def test_weights_that_are_nan_are_refused():
    """A ReLU may hide them from the answers, but not from the change of the layer."""
    old, new = (
        keras.Sequential(
            [keras.Input((4,)), keras.layers.Dense(6, "relu", name="hidden"), keras.layers.Dense(3)]
        )
        for _ in range(2)
    )
    kernel, *others = old.get_weights()
    kernel[0, 0] = np.nan
    new.set_weights([kernel, *others])
    with pytest.raises(nns.errors.NonFiniteActivationError, match="hidden' has weights"):
        versions.compare(old, new, np.eye(4, dtype=np.float32))


def test_margins_of_one_sigmoid_are_those_of_two_classes():
    """Its logit is the difference of the two classes' logits."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 5)).astype(np.float32)
    old = [rng.normal(size=(5, 1)), np.zeros(1)]
    new = [w + 0.4 * rng.normal(size=w.shape) for w in old]
    found = []
    for units in (1, 2):
        pair = []
        for weights in (old, new):
            final = "sigmoid" if units == 1 else "softmax"
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(units, final)])
            two = [np.concatenate([0 * w, w], axis=-1) for w in weights]
            model.set_weights(weights if units == 1 else two)
            pair.append(model)
        found.append(versions.explain_flips(*pair, x, progress=False))
    one, two = found
    logits = x[one.samples] @ new[0][:, 0] + new[1]
    np.testing.assert_allclose(one.certificate["margin"], np.abs(logits), atol=1e-5)
    for column in ("old answer", "new answer", "margin", "margin with", "margin without"):
        np.testing.assert_allclose(one.certificate[column], two.certificate[column], atol=1e-5)
    # A weight of one sigmoid is that of class 1; the other class's does not change.
    effects = [causes.changes(0).effect.to_numpy() for causes in found]
    size = min(map(len, effects))
    np.testing.assert_allclose(effects[0][:size], effects[1][:size], atol=1e-5)


def conv(layer, shape=(4, 4, 2)):
    inputs = keras.Input(shape)
    values = layer(inputs, inputs) if "attention" in layer.name else layer(inputs)
    return keras.Model(inputs, keras.layers.Dense(3)(keras.layers.Flatten()(values)))


# What changes, and the channels of which layers or variables these are.
CHANNELS = {
    "transposed": (
        lambda: conv(keras.layers.Conv2DTranspose(5, 2, name="up")),
        {"up/kernel": (slice(None), slice(None), 3)},
        [("up", (3,))],
    ),
    "depthwise": (
        lambda: conv(keras.layers.DepthwiseConv2D(2, depth_multiplier=2, name="dw")),
        {"dw/kernel": (slice(None), slice(None), 1, 1)},
        [("dw", (3,))],
    ),
    "separable": (
        lambda: conv(keras.layers.SeparableConv2D(5, 2, name="sep"), (4, 4, 4)),
        {"depthwise": (slice(None), slice(None), 3), "pointwise": (..., 3)},
        [("sep", (3,)), ("sep/depthwise_kernel", (3,))],
    ),
    "a head's feature, with its bias": (
        lambda: conv(keras.layers.MultiHeadAttention(2, 3, name="attention"), (4, 6)),
        {"value/kernel": (slice(None), 1, 2), "value/bias": (1, 2)},
        [("attention/value", (5,))],
    ),
    "one feature of two heads": (
        lambda: conv(keras.layers.MultiHeadAttention(2, 3, name="attention"), (4, 6)),
        {"query/kernel": (slice(None), slice(None), 2)},
        [("attention/query", (2,)), ("attention/query", (5,))],
    ),
    "a filter with its bias": (
        lambda: conv(keras.layers.Conv2D(5, 2, name="cv")),
        {"cv/kernel": (..., 3), "cv/bias": (3,)},
        [("cv", (3,))],
    ),
}


@pytest.mark.parametrize("name", CHANNELS)
def test_channels_are_those_of_the_layers_outputs(name):
    build, changes, expected = CHANNELS[name]
    keras.utils.set_random_seed(0)
    old, new = build(), build()
    new.set_weights(old.get_weights())
    for part, place in changes.items():
        (variable,) = (v for v in new.weights if part in v.path)
        values = variable.numpy()
        values[place] += 3
        variable.assign(values)
    x = np.random.default_rng(0).normal(size=(50, *old.input_shape[1:])).astype(np.float32)
    labels = old.predict(x, verbose=0).argmax(axis=1)
    table = versions.rank_changes(old, new, x, labels, progress=False)
    assert sorted(zip(table.name, table["index"], strict=True)) == expected


def test_no_layer_matters_most_where_none_brings_answers_nearer():
    """Two layers whose signs both changed compute the same; either alone makes it worse."""
    rng = np.random.default_rng(0)
    old, new = (
        keras.Sequential(
            [keras.Input((3,)), layers.Dense(3, "tanh", name="a"), layers.Dense(3, name="b")]
        )
        for _ in range(2)
    )
    weights = old.get_weights()
    noise = [rng.normal(0, 0.1, w.shape) for w in weights]
    new.set_weights([*(n - w for n, w in zip(noise[:3], weights[:3], strict=True)), weights[3]])
    for model in (old, new):
        model.compile("adam", "mse")
    found = versions.compare(old, new, rng.normal(size=(40, 3)), tolerance=0.05)
    assert found.layers["old answer without"].max() < 0
    assert "With no single layer's old weights are the answers nearer" in found.summary()
    assert "matters most" not in found.summary()
