"""Explanations: what they say holds on models whose slices are known."""

import re

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.errors import CriterionError, InvalidArgumentError


@pytest.fixture(scope="module")
def digits():
    return datasets.load("digits", "train[:300]")


@pytest.fixture(scope="module")
def slicer(digits):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, digits.x, progress=False)
    return nns.Slicer(im, profile, theta=0.3, workers=0, progress=False)


@pytest.fixture(scope="module")
def explanation(slicer, digits):
    usual = digits.x[digits.y == digits.y[5]][:20]
    return slicer.explain(digits.x[5], classes=digits.class_names, usual=usual, compare=True)


def softmax(logits):
    odds = np.exp(logits.astype(np.float64) - logits.max())
    return odds / odds.sum()


def test_it_is_about_the_slice_of_the_sample(slicer, digits, explanation):
    x = digits.x[5:6]
    logits = slicer.im.logits(x)[0]
    np.testing.assert_allclose(explanation.whole, softmax(logits), rtol=1e-5)
    assert explanation.target.label == explanation.predicted == logits.argmax()
    assert explanation.slice == slicer.slice(x, outputs=[logits.argmax()])


def test_what_is_left_is_what_the_masked_models_give(slicer, digits, explanation):
    """By `Slice.apply`; what is removed by the slice of all other synapses."""
    x, model = digits.x[5:6], slicer.im.model
    kept = explanation.slice.apply(model, slicer.profile)
    np.testing.assert_allclose(explanation.kept, softmax(kept(x).numpy()[0]), rtol=1e-4, atol=1e-6)
    others = {n: (v == 0).astype(int) for n, v in explanation.slice.synapses.items()}
    rest = nns.Slice(explanation.slice.neurons, others, {}).apply(model, slicer.profile)
    expected = softmax(rest(x).numpy()[0])
    np.testing.assert_allclose(explanation.removed, expected, rtol=1e-4, atol=1e-6)


def test_the_certificate_of_a_decisive_slice_is_shown(slicer, digits, explanation, tmp_path):
    """Of the answer, checked by the masked copy; there is none for a class that lost."""
    one = explanation.decisive
    masks = one.masks()
    zeros = {name: np.where(mask, 1, 0) for name, mask in masks.items()}
    kept = nns.Slice({}, zeros, {}).apply(slicer.im.model, slicer.profile)
    alone = softmax(kept(digits.x[5:6]).numpy()[0])
    assert alone.argmax() == explanation.predicted
    found = one.certificate["probability with slice alone"][0]
    assert alone.max() == pytest.approx(found, rel=1e-2)
    assert one.summary(0, digits.class_names) in explanation.summary()
    # The bars are its own, not those of the slice by counts; text has the page's colour.
    rest = {name: np.where(mask, 0, 1) for name, mask in masks.items()}
    without = nns.Slice({}, rest, {}).apply(slicer.im.model, slicer.profile)(digits.x[5:6])
    axes = [a for a in explanation.figure().axes if a.get_title(loc="right")]
    expected = [explanation.whole.max(), alone.max(), softmax(without.numpy()[0])[alone.argmax()]]
    drawn = [bar.get_width() for bar in axes[0].patches][:3]
    assert drawn == pytest.approx(expected, rel=1e-2, abs=1e-3)
    explanation.save(tmp_path / "certified.html")
    page = (tmp_path / "certified.html").read_text(encoding="utf-8")
    assert "currentColor" in page and "#1d1f23;" in page.split("</style>")[0]
    assert "#1d1f23" not in page.split("</style>", 1)[1]
    other = slicer.explain(digits.x[5], target=(explanation.predicted + 1) % 10, compare=False)
    assert other.decisive is None


def test_one_class_and_not_another(slicer, digits, tmp_path):
    """The contributions to the difference of two logits, and a slice that keeps which one leads."""
    x, names = digits.x[5], digits.class_names
    logits = slicer.im.logits(digits.x[5:6])[0]
    first, second = np.argsort(-logits)[:2]
    why = slicer.explain(x, names[first], instead_of=names[second], classes=names, compare=False)
    both = [slicer.explain(x, int(k), compare=False, decisive=False) for k in (first, second)]
    expected = both[0].contributions - both[1].contributions
    np.testing.assert_allclose(why.contributions, expected, atol=1e-4)
    found = why.amounts.synapses["conv1"]
    expected = np.subtract(*(one.amounts.synapses["conv1"] for one in both))
    np.testing.assert_allclose(found, expected, atol=1e-4)
    assert why.question == f"{names[first]} rather than {names[second]}"
    kept = why.contrast[0].apply(slicer.im.model, slicer.profile)(digits.x[5:6]).numpy()[0]
    odds = kept[first] - kept[second]
    assert odds >= 0.49 * (logits[first] - logits[second]) > 0
    assert why.contrast.info["names"] == [first, second] and why.decisive is not None
    shared = int(
        (why.contrast[0].synapse_mask()["conv1"] & why.decisive[0].synapse_mask()["conv1"]).sum()
    )
    assert shared and "synapses in common" in why.summary()
    why.save(tmp_path / "why.html")
    # From the side of the class that lost, the same slice decides.
    other = slicer.explain(x, int(second), instead_of=int(first), compare=False)
    assert other.decisive is None and other.contrast.certificate["answer"][0] == 0
    np.testing.assert_allclose(other.contributions, -why.contributions, atol=1e-4)


def test_the_slice_keeps_half_of_the_log_odds_or_says_what_to_ask(slicer, digits, explanation):
    p = explanation.whole.max()
    least = explanation.decisive.info["min_probability"]
    assert least / (1 - least) == pytest.approx(np.sqrt(p / (1 - p)), rel=1e-3)
    other = (explanation.predicted + 1) % 10
    lost = slicer.explain(digits.x[5], other, compare=False)
    assert lost.decisive is None
    assert f"instead_of={str(explanation.predicted)!r}" in lost.summary()


def test_frequencies_are_counts_of_single_slices(slicer, digits, explanation):
    usual = digits.x[digits.y == digits.y[5]][:20]
    each = slicer.slice_each(usual, outputs=[explanation.target.label])
    for name, found in explanation.frequencies.items():
        expected = np.mean([one.synapses[name] != 0 for one in each], axis=0)
        np.testing.assert_allclose(found, expected)
    table = explanation.differences().set_index("layer")
    often = explanation.frequencies["conv2"] >= 0.5
    assert (
        table.loc["conv2", "missing"] == (often & (explanation.slice.synapses["conv2"] == 0)).sum()
    )


def test_channels_and_synapses_are_the_largest(slicer, digits, explanation):
    channels, synapses = explanation.channels(most=2), explanation.synapses(most=2)
    amounts = explanation.amounts
    at_mean = slicer.explain(digits.x[5], background="mean", compare=False, decisive=False)
    found = amounts.neurons[slicer.im.input_operation]
    np.testing.assert_allclose(found, at_mean.contributions, rtol=1e-3, atol=1e-5)
    by_channel = np.abs(amounts.neurons["conv2"]).sum(axis=(0, 1))
    of_layer = channels[channels["layer"] == "conv2"]
    np.testing.assert_allclose(by_channel[of_layer["channel"]], sorted(by_channel)[:-3:-1])
    assert of_layer["share"].iloc[0] == pytest.approx(by_channel.max() / by_channel.sum())
    first = synapses[synapses["layer"] == "conv1"].iloc[0]
    index = tuple(map(int, first["synapse"].split(", ")))
    values = amounts.synapses["conv1"]
    assert abs(values[index]) == np.abs(values).max() and first["contribution"] == values[index]


def test_other_methods_stand_beside_it(explanation):
    table = explanation.comparison.to_frame()
    assert {"amounts", "DeepLIFT", "occlusion", "random order"} <= set(table["method"])
    areas = table.set_index("method")
    difference = areas.iloc[:, 1] - areas.iloc[:, 0]
    assert difference["amounts"] > difference["random order"]
    assert difference.is_monotonic_decreasing and not explanation.comparison.left_out
    best = explanation.comparison.best
    assert best == table["method"][0] or difference.iloc[0] - difference[best] < 0.01
    assert f"{best}: {areas.loc[best].iloc[0]:.3f} and" in explanation.summary()


def test_it_is_written_as_a_page_and_as_a_picture(explanation, tmp_path):
    explanation.save(tmp_path / "why.html")
    page = (tmp_path / "why.html").read_text(encoding="utf-8")
    assert "data:image/png;base64," in page and "What is left" in page
    assert explanation.summary().splitlines()[1] in page
    assert "<h2" in explanation._repr_html_()
    explanation.save(tmp_path / "why.png")
    assert (tmp_path / "why.png").read_bytes()[:4] == b"\x89PNG"
    with pytest.raises(InvalidArgumentError, match=r"\.html"):
        explanation.save(tmp_path / "why.txt")


def test_bad_questions_are_refused(slicer, digits):
    with pytest.raises(InvalidArgumentError, match="Expected one sample"):
        slicer.explain(digits.x[:2])
    with pytest.raises(InvalidArgumentError, match="Unknown attribution 'lime'"):
        slicer.explain(digits.x[0], compare=["lime"])
    with pytest.raises(InvalidArgumentError, match="received 2 names"):
        slicer.explain(digits.x[0], classes=["a", "b"])
    with pytest.raises(InvalidArgumentError, match="must be unique"):
        slicer.explain(digits.x[0], classes=["a"] * 10)
    with pytest.raises(InvalidArgumentError, match="Give an index, or 'all'"):
        slicer.explain(digits.x[0], {next(iter(slicer.im.outputs)): True})
    with pytest.raises(InvalidArgumentError, match="one of 10 logits"):
        slicer.explain(digits.x[0], target=10)
    with pytest.raises(InvalidArgumentError, match="usual samples"):
        slicer.explain(digits.x[0]).differences()


def of(model, x, sample, theta=0.3):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    return nns.Slicer(im, profile, theta, workers=0, progress=False).explain(
        sample, compare=False, decisive=False
    )


def features(weights):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(3, activation="relu", name="hidden")])
    model.add(layers.Dense(3, name="logits"))
    model.set_weights(weights)
    return model


X = np.random.default_rng(0).normal(size=(20, 4)).astype(np.float32)


def test_an_empty_slice_names_the_dead_layer():
    dead = [np.ones((4, 3)), np.full(3, -100.0), np.ones((3, 3)), np.zeros(3)]
    found = of(features(dead), X, X[0])
    assert "The slice is empty: from 'hidden' on" in found.finding
    assert found.finding in found.summary()


def test_an_empty_slice_by_theta():
    linear = [np.eye(4, 3), np.full(3, 9.0), np.eye(3), np.zeros(3)]
    assert "θ = 2 excludes everything" in of(features(linear), X, X[0], theta=2).finding


@pytest.mark.parametrize(
    ("theta", "scale", "finding"),
    [
        (0, 1, "θ = 0 excludes nothing"),
        (1e-9, 1e-3, "look untrained"),
        (1e-9, 100, "Use a larger θ"),
    ],
)
def test_a_slice_of_nearly_everything_says_why(theta, scale, finding):
    """A wide hidden layer that is always active: hardly any synapse is of the other class."""
    model = keras.Sequential([keras.Input((40,)), layers.Dense(30, activation="relu")])
    model.add(layers.Dense(2, name="logits"))
    rng = np.random.default_rng(1)
    head = scale * rng.normal(size=(30, 2))
    model.set_weights([rng.normal(size=(40, 30)), np.full(30, 99.0), head, np.zeros(2)])
    x = rng.normal(size=(20, 40)).astype(np.float32)
    assert finding in of(model, x, x[0], theta).finding


def binary(weight, activation="sigmoid"):
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation=activation)])
    model.set_weights([np.array(weight, np.float32)[:, None], np.zeros(1, np.float32)])
    return model


@pytest.mark.parametrize("sign", [1, -1])
def test_one_sigmoid_stands_for_two_classes(sign):
    weight = [4.0, -1.0, 0.0, 0.1]
    sample = np.array([sign, 0, 0, 0], np.float32)
    im = nns.InstrumentedModel(binary(weight))
    around = np.array([[2] * 4, [-2] * 4], np.float32)
    profile = nns.Profile.from_data(im, around, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    found = slicer.explain(sample, classes=["cat", "dog"])
    p = 1 / (1 + np.exp(-4.0 * sign))
    np.testing.assert_allclose(found.whole, [1 - p, p], rtol=1e-5)
    np.testing.assert_allclose(found.kept, [1 - p, p], rtol=1e-5)
    np.testing.assert_allclose(found.removed, [0.5, 0.5], rtol=1e-5)
    winner = ["cat", "dog"][int(sign > 0)]
    assert found.predicted == found.target.label == int(sign > 0)
    assert found.summary().startswith(f"The model answers {winner} with 98.2%")
    np.testing.assert_allclose(found.contributions, [4, 0, 0, 0], atol=1e-5)
    other = slicer.explain(sample, target=1 - found.target.label, compare=True)
    assert other.slice == found.slice
    np.testing.assert_allclose(other.contributions, [-4, 0, 0, 0], atol=1e-5)
    first = other.comparison.deletion["occlusion"].answers
    np.testing.assert_allclose(first[[0, -1]], [1 / (1 + np.exp(4)), 0.5], rtol=1e-4)


def test_a_regression_is_explained_by_its_value():
    found = of(binary([1, -2, 0, 1], None), X, X[0])
    np.testing.assert_allclose(found.whole, [X[0] @ [1, -2, 0, 1]], rtol=1e-5)
    expected = np.array([1, -2, 0, 1]) * (X[0] - X.mean(axis=0))
    np.testing.assert_allclose(found.contributions, expected, rtol=1e-4, atol=1e-6)
    assert found.predicted is None and f"= {found.whole[0]:.4g}." in found.summary()


def test_probabilities_get_no_second_softmax():
    inputs = keras.Input((4,))
    p = layers.Dense(3, activation="softmax")(inputs)
    model = keras.Model(inputs, layers.Reshape((3,))(p))
    found = of(model, X, X[0])
    np.testing.assert_allclose(found.whole, model(X[:1])[0], rtol=1e-6)


def test_an_empty_slice_of_an_output_that_differs():
    """Every change is small against the output, and so is their sum."""
    linear = [np.eye(4, 3), np.full(3, 9.0), np.eye(3), np.full(3, 100.0)]
    found = of(features(linear), X, X[0], theta=0.9)
    assert "Use a smaller θ" in found.finding
    mean, value = re.search(r"output \d is (\S+), on average (\S+),", found.finding).groups()[::-1]
    logits = features(linear)(X)
    assert float(value) == pytest.approx(float(logits[0, found.target.label]), rel=1e-3)
    assert float(mean) == pytest.approx(float(np.mean(logits[:, found.target.label])), rel=1e-3)


# Any target and any input: the numbers themselves are checked in tests/attributions.


def slicer_of(model, x, theta=0.1):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    return nns.Slicer(im, profile, theta, workers=0, progress=False)


RNG = np.random.default_rng(5)


def transfer():
    """A new head on a base, as in transfer learning."""
    stack = [keras.Input((8, 8, 1)), layers.Conv2D(4, 3, activation="relu")]
    base = keras.Sequential([*stack, layers.GlobalAveragePooling2D()], name="base")
    inputs = keras.Input((8, 8, 1))
    head = layers.Dense(3, activation="softmax")(base(inputs))
    return keras.Model(inputs, head), RNG.normal(size=(20, 8, 8, 1)).astype(np.float32)


def mapped():
    inputs = keras.Input((6, 6, 1))
    h = layers.Conv2D(3, 3, padding="same", activation="relu", name="inner")(inputs)
    outputs = layers.Conv2D(2, 3, padding="same", activation="softmax", name="map")(h)
    return keras.Model(inputs, outputs), RNG.normal(size=(20, 6, 6, 1)).astype(np.float32)


def sequence(layer):
    model = keras.Sequential([keras.Input((6,)), layers.Embedding(9, 4, mask_zero=True), layer])
    model.add(layers.Dense(1, activation="sigmoid"))
    tokens = RNG.integers(1, 9, (20, 6))
    tokens[::2, 4:] = 0
    return model, tokens


@pytest.mark.parametrize(
    ("made", "target", "question"),
    [
        (transfer, None, None),
        (mapped, np.s_[2, 3, 1], "map[2, 3, 1]"),
        (mapped, np.s_[1:3, 2:5, 0], "the mean of 6 neurons of map"),
        (mapped, {"inner": [7]}, "inner[0, 2, 1]"),
        (lambda: sequence(layers.GlobalAveragePooling1D()), 0, "0"),
        (lambda: sequence(layers.LSTM(3)), 1, "1"),
    ],
    ids=["nested", "pixel", "region", "inner", "text", "lstm"],
)
def test_any_target_of_any_model(made, target, question, tmp_path):
    model, x = made()
    slicer = slicer_of(model, x)
    found = slicer.explain(x[0], target, compare=("occlusion",), decisive=False)
    assert found.question == (question or str(found.predicted))
    answers = slicer.im.capture(x[:1], of=[found.target.answer])[found.target.answer]
    shown = found.whole if found.predicted is None else found.whole[[found.target.label]]
    if found.predicted is None:
        expected = answers.ravel()[list(found.target.neurons)].mean()
    else:
        expected = slicer.im.classes.probabilities(answers)[0, found.target.label]
    np.testing.assert_allclose(shown, [expected], rtol=1e-5)
    for answer in (found.kept, found.removed):
        assert answer.shape == found.whole.shape and np.isfinite(answer).all()
    found.save(tmp_path / "why.png")
    change = found.amounts.neurons[found.target.operation].sum()
    if found.background is not None:  # the rows' scores, by the model
        values = slicer.im.capture(x, of=[found.target.operation])[found.target.operation]
        scores = values.reshape(len(x), -1) @ found.target.weights(values[0].size)
        change = scores[0] - scores.mean()
    assert found.contributions.sum() == pytest.approx(change, abs=1e-4)


def test_several_inputs_and_outputs(tmp_path):
    numbers, tokens = keras.Input((3,), name="numbers"), keras.Input((4,), name="ids")
    h = layers.Concatenate()([numbers, layers.Flatten()(layers.Embedding(9, 2)(tokens))])
    outputs = {name: layers.Dense(n, name=name)(h) for name, n in (("price", 1), ("kind", 3))}
    x = {"numbers": RNG.normal(size=(20, 3)), "ids": RNG.integers(0, 9, (20, 4))}
    slicer = slicer_of(keras.Model([numbers, tokens], outputs), x)
    one = {name: values[3] for name, values in x.items()}
    found = slicer.explain(one, {"price": "all"}, words=["a", "b", "c", "d"])
    assert {n: v.shape for n, v in found.contributions.items()} == {"numbers": (3,), "ids": (4,)}
    price = slicer.im.predict({n: v[None] for n, v in one.items()}, output="price")
    np.testing.assert_allclose(found.whole, price[0], rtol=1e-5)
    assert found.question == "price"
    found.save(tmp_path / "why.png")
    with pytest.raises(InvalidArgumentError, match="one of the outputs"):
        slicer.explain(one)
    with pytest.raises(InvalidArgumentError, match="it has 4"):
        slicer.explain(one, {"price": "all"}, words=["a"] * 5)


def test_columns_of_a_data_frame_keep_their_names(tmp_path):
    import pandas as pd

    frame = pd.DataFrame(X, columns=["age", "height", "weight", "income"])
    slicer = slicer_of(binary([1, -2, 0, 1]), frame)
    for row in (frame.iloc[[3]], frame.iloc[3]):
        assert slicer.explain(row).columns == ("age", "height", "weight", "income")
    axes = slicer.explain(frame.iloc[3]).figure().axes[0]
    for names in (["age"], [*frame.columns, "more"], ["age", "age", "weight", "income"]):
        with pytest.raises(InvalidArgumentError, match="must be 4 different names"):
            slicer.explain(X[3], columns=names)
    labels = [label.get_text().split(" = ")[0] for label in axes.get_yticklabels()]
    size = np.abs(np.array([1, -2, 0, 1]) * (X[3] - X.mean(axis=0)))
    assert labels == list(frame.columns[np.argsort(-size, kind="stable")])


def test_classes_of_a_sigmoid_are_those_of_slices():
    slicer = slicer_of(binary([1, -2, 0, 1]), X)
    labels = (X @ [1, -2, 0, 1] > 0).astype(int)
    assert slicer.slice_each(X).predicted.tolist() == labels.tolist()


@pytest.mark.parametrize("theta", [0.1, 0.5])
def test_a_mask_that_is_always_the_same_is_not_a_dead_network(theta):
    """A causal transformer with a large bias of the output, so that θ excludes all changes."""
    inputs = keras.Input((6,), dtype="int32")
    x = layers.Embedding(9, 4)(inputs)
    x = layers.MultiHeadAttention(1, 4, name="att")(x, x, use_causal_mask=True)
    model = keras.Model(inputs, layers.Dense(2, name="logits")(x[:, -1]))
    model.get_layer("logits").bias.assign([100.0, -100.0])
    x = np.random.default_rng(0).integers(1, 9, size=(20, 6))
    found = of(model, x, x[0], theta=theta)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    at_zero = nns.Slicer(im, profile, 0.0, workers=0, progress=False).slice(x[:1], outputs=[0])
    count = np.count_nonzero(at_zero.to_vector())
    assert "Use a smaller θ" in found.finding and "dead" not in found.finding
    assert f"at θ = 0 the slice has {count:,} synapses" in found.finding


def test_the_classes_of_a_single_sigmoid():
    """Amounts of a sample of class 0 are those of the logit; the explanation's, of the answer."""
    weight = np.array([-1.0, 2, 3, -4])
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid", name="o")])
    model.set_weights([weight[:, None], np.zeros(1)])
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, X, progress=False)
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False, contribution="amount")
    of_class_0 = X[X @ weight < 0][:1]
    expected = (of_class_0[0] - X.mean(axis=0)) * weight
    for outputs in ("predicted", [0]):
        amounts = slicer.slice(of_class_0, outputs).synapses["o"].ravel()
        np.testing.assert_allclose(amounts, expected, rtol=1e-4, atol=1e-5)
    found = slicer.explain(of_class_0[0], target=0, compare=False, decisive=False)
    np.testing.assert_allclose(found.contributions, -expected, rtol=1e-4, atol=1e-5)
    with pytest.raises(CriterionError, match=r"has 1 neuron, indexed 0\. .*explain\(x, target=0\)"):
        slicer.slice(of_class_0, [1])


def test_a_single_token_is_drawn(tmp_path):
    tokens = keras.Input((), dtype="int64")
    model = keras.Model(tokens, layers.Dense(3)(layers.Embedding(5, 4)(tokens)))
    slicer = slicer_of(model, np.arange(5))
    slicer.explain(np.int64(2)).save(tmp_path / "why.png")
    assert (tmp_path / "why.png").stat().st_size > 1000


def test_a_sigmoid_by_name():
    keras.utils.set_random_seed(0)
    hidden, last = layers.Dense(6, activation="relu"), layers.Dense(1, "sigmoid", name="out")
    model = keras.Sequential([keras.Input((6,)), hidden, last])
    x = np.random.default_rng(0).normal(size=(20, 6)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    for sample in x[:4]:
        why = nns.Slicer(model, profile, progress=False).explain(sample, {"out": 0})
        answer = float(model(sample[None])[0, 0])
        assert f"The model answers out = {answer:.4g}" in why.summary()
        assert f"class {int(answer > 0.5)}" in why.summary()


def test_words_are_those_of_the_samples_own_tokens():
    """With too many or too few, every word after the difference would get another's share."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((12,), dtype="int32"),
            layers.Embedding(20, 4, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2),
        ]
    )
    x = np.random.default_rng(0).integers(1, 20, (30, 12))
    x[:, 8:] = 0  # padding
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    text = ["the", "film", ",", "a", "bad", "film", ",", "is", "not", "good"]
    tokens = [word for word in text if word != ","]
    for words in (text, text[:3], tokens[:7], [*tokens, "end"], "the film"):
        with pytest.raises(InvalidArgumentError, match="it has 8"):
            slicer.explain(x[0], words=words, compare=False, decisive=False)
    for words in ([*tokens, *text[:4]], tokens[:7] + [""] * 5, [*tokens, "", "", "", "x"]):
        with pytest.raises(InvalidArgumentError, match="it has 8"):
            slicer.explain(x[0], words=words, compare=False, decisive=False)
    marked = [tokens + [pad] * 4 for pad in ("", "[PAD]", "<pad>")]
    for words in (tokens, *marked, ()):
        found = slicer.explain(x[0], words=words, compare=False, decisive=False)
        assert found.words == tuple(words)


@pytest.mark.parametrize("final", ["softmax", "sigmoid"])
def test_a_class_that_leads_by_less_than_rounding_is_explained(final):
    """Logits that differ by 1e-8 give equal probabilities in float32; the class is the logits'."""
    count = 300 if final == "softmax" else 1
    inputs = keras.Input((4,))
    hidden = keras.layers.Dense(5, activation="relu", name="hidden")(inputs)
    model = keras.Model(inputs, keras.layers.Dense(count, final, name="end")(hidden))
    rng = np.random.default_rng(0)
    kernel = np.zeros((5, count))
    kernel[:, -1] = 1e-9  # the last class, or class 1, leads where any unit is active
    model.set_weights([rng.normal(size=(4, 5)), np.ones(5), kernel, np.zeros(count)])
    x = rng.normal(size=(30, 4)).astype("float32")
    assert len(np.unique(model.predict(x, verbose=0))) == 1
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), 0.0, workers=0)
    why = slicer.explain(x[0], compare=False)
    expected = count - 1 if final == "softmax" else 1
    assert why.predicted == why.target.label == expected
    assert why.decisive is not None and len(slicer.decisive(x[:1], expected)) == 1
    other = slicer.explain(x[0], target=0, compare=False)
    assert other.decisive is None and f"the model answers {expected}" in other.withheld


@pytest.mark.parametrize("far", [True, False])
def test_a_mean_that_is_no_typical_sample_is_said(far):
    """|a| + |b| of values ±1 is 2, and 0 at their mean; the score of a + b is 0 at both."""
    hidden = layers.Dense(4, activation="relu" if far else None)
    model = keras.Sequential([keras.Input((2,)), hidden, layers.Dense(1)])
    model.compile(loss="mse")
    split = np.array([[1.0, -1, 0, 0], [0, 0, 1, -1]])
    end = np.ones((4, 1)) if far else np.array([[1.0], [0], [1], [0]])
    model.set_weights([split, np.zeros(4), end, np.zeros(1)])
    x = np.array([[a, b] for a in (-1, 1) for b in (-1, 1)] * 5, np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, 0.0, workers=0, progress=False)
    by_mean, by_rows = (slicer.explain(x[3], background=b, compare=False) for b in ("mean", None))
    assert ("score 0, far from its rows' mean score, 2: it is no" in by_mean.summary()) == far
    assert ("score 0, far from the rows' mean score: it is no" in by_rows.summary()) == far


def test_a_vectoriser_gives_the_words():
    text = "well - the film , though bad , moves one"  # 10 words, of which the vectoriser keeps 7
    vectoriser = layers.TextVectorization(output_sequence_length=10)
    vectoriser.adapt([text, "a good film"])
    size = vectoriser.vocabulary_size()
    embedding, mean = layers.Embedding(size, 4), layers.GlobalAveragePooling1D()
    model = keras.Sequential([keras.Input((10,)), embedding, mean, layers.Dense(2)])
    x = np.random.default_rng(0).integers(0, size, (30, 10))
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    sample = np.asarray(vectoriser([text]))
    expected = ("well", "the", "film", "though", "bad", "moves", "one")
    for words in ((vectoriser, text), vectoriser):
        found = slicer.explain(sample, words=words, compare=False, decisive=False)
        assert found.words == expected
    assert len(text.split()) == 10
    small = layers.TextVectorization(output_sequence_length=10)
    small.adapt(["a film"])  # the sample has tokens that it does not know
    for words in (text.split(), (vectoriser, "a good film"), small, set(expected), b"1234567"):
        with pytest.raises(InvalidArgumentError, match=r"it has 7|does not consist"):
            slicer.explain(sample, words=words, compare=False, decisive=False)


@pytest.mark.parametrize("argument", ["classes", "columns", "groups"])
def test_names_that_no_file_can_hold_are_refused(argument):
    slicer = slicer_of(binary([1, -2, 0, 1]), X)
    names = {
        "classes": ["no", "\ud800"],
        "columns": [*"abc", "d\udc80"],
        "groups": {"\udfff": [0, 1]},
    }
    with pytest.raises(InvalidArgumentError, match=f"{argument} must be text.*lone surrogate"):
        slicer.explain(X[0], **{argument: names[argument]}, compare=False, decisive=False)
    if argument != "groups":
        one = slicer.slice(X[:1])
        with pytest.raises(InvalidArgumentError, match=f"{argument} must be text"):
            nns.explore(one, slicer.im, X[:1], **{argument: names[argument]}, progress=False)


def layers_twice():
    x = keras.Input((4, 6))
    encoder = keras.Model(x, layers.Dense(6, "relu", name="e")(x), name="enc")
    shared, frames = layers.Dense(6, "tanh", name="d"), layers.Dense(6, "relu", name="q")
    each = layers.TimeDistributed(keras.Sequential([keras.Input((6,)), frames]), name="each")
    y = each(shared(encoder(each(shared(encoder(x))))))
    y = layers.SeparableConv1D(3, 2, activation="relu", name="two")(y)
    return keras.Model(x, layers.Dense(2, name="out")(layers.Flatten()(y)))


def attention_and_state():
    """As below, with fewer states: each one is a loop that every graph of a slice compiles."""
    x = keras.Input((4, 6))
    y = layers.MultiHeadAttention(2, 3, name="heads")(x, x)
    y = layers.AdditiveAttention(name="additive")([y, x])
    return keras.Model(x, layers.Dense(2, name="out")(layers.LSTM(4, name="lstm")(y)))


def both_ways():
    x = keras.Input((4, 6))
    y = layers.Bidirectional(layers.SimpleRNN(3), name="both")(x)
    return keras.Model(x, layers.Dense(2, name="out")(y))


def attention_and_states():
    x = keras.Input((4, 6))
    y = layers.MultiHeadAttention(2, 3, name="heads")(x, x)
    y = layers.AdditiveAttention(name="additive")([y, x])
    y = layers.Bidirectional(layers.GRU(3, return_sequences=True), name="both")(y)
    y = layers.SimpleRNN(3, name="last")(layers.LSTM(4, return_sequences=True, name="lstm")(y))
    return keras.Model(x, layers.Dense(2, name="out")(y))


LAYERS = {
    layers_twice: [
        *("enc/e:pre", "d:pre", "each/q:pre", "enc/e#1:pre", "d#1:pre", "each#1/q:pre"),
        *("two:depthwise", "two:pre", "out"),
    ],
    attention_and_state: [
        *("heads/query", "heads/key", "heads/value", "heads", "additive/scores:sum"),
        *("lstm:h", "out"),
    ],
    both_ways: ["both:forward:h", "both:backward:h", "out"],
    attention_and_states: [
        *("heads/query", "heads/key", "heads/value", "heads", "additive/scores:sum"),
        *("both:forward:h", "both:backward:h", "lstm:h", "last:h", "out"),
    ],
}


@pytest.mark.parametrize("make", LAYERS)
def test_each_call_of_each_layer_has_channels_once(make):
    keras.utils.set_random_seed(0)
    im = nns.InstrumentedModel(make())
    x = np.random.default_rng(0).normal(size=(30, 4, 6)).astype(np.float32)
    profile = nns.Profile.from_data(im, x, progress=False)
    slicer = nns.Slicer(im, profile, progress=False)
    why = slicer.explain(x[0], background="mean", compare=False, decisive=False)
    table = why.channels(most=1000)
    assert sorted(table["layer"].unique()) == sorted(LAYERS[make])
    for name, rows in table.groupby("layer"):
        amounts, kernels = why.amounts.neurons[name], im[name].kernels
        assert kernels or name.endswith(":h")
        sizes = np.abs(amounts).reshape(-1, amounts.shape[-1]).sum(axis=0)
        assert sorted(rows["channel"]) == np.flatnonzero(sizes).tolist()
        assert rows["contribution"].sum() == pytest.approx(amounts.sum(), abs=1e-5)
    assert why.channels(most=1)["layer"].is_unique
    # The table of a slice has the synapses of all kernels, too.
    found = why.slice
    cells = [line.split() for line in found.summary().splitlines()]
    sizes = {
        c[0]: int(c[5].replace(",", "")) for c in cells if len(c) == 7 and c[0] in found.neurons
    }
    assert sum(sizes.values()) == len(found.to_vector())
    assert {c[0] for c in cells if c} >= {
        *found.neurons
    }  # names as they are: "lstm:o:pre" is no emoji


def test_an_answer_that_is_off_stands_by_its_own_name():
    """Of independent labels the most probable one is below 50 %: the answer is "not" it."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((5,), name="x"),
            layers.Dense(9, activation="relu", name="h"),
            layers.Dense(3, activation="sigmoid", name="o"),
        ]
    )
    rng = np.random.default_rng(7)
    x = rng.normal(size=(300, 5)).astype(np.float32)
    for variable in model.trainable_variables:
        variable.assign(0.8 * rng.normal(size=variable.shape))
    model.layers[-1].bias.assign(np.full(3, -1.5))
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, progress=False)
    h, b, o, c = model.get_weights()
    usual = np.maximum(x @ h + b, 0).mean(axis=0) @ o + c  # every synapse at its mean
    off = 1 - 1 / (1 + np.exp(-usual))
    names, said = ["cat", "dog", "cow"], 0
    for sample in x[model.predict(x, verbose=0).max(axis=1) < 0.4][:4]:
        label = int(model.predict(sample[None], verbose=0)[0].argmax())
        lines = slicer.explain(sample, classes=names, compare=False).summary().splitlines()
        stands = [line for line in lines if line.startswith("The answer stands")]
        said += len(stands)
        for line in stands:
            assert f"not {names[label]} has {off[label]:.1%}" in line
    assert said


@pytest.mark.parametrize("units", [1, 2, 4])
def test_what_to_ask_for_the_class_that_lost(units):
    """One sigmoid has no contrast of two classes: the other class has the slice."""
    keras.utils.set_random_seed(8)
    final = "sigmoid" if units == 1 else "softmax"
    model = keras.Sequential(
        [keras.Input((5,)), layers.Dense(6, "relu"), layers.Dense(units, final)]
    )
    x = np.random.default_rng(8).normal(size=(50, 5)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    slicer = nns.Slicer(model, profile, theta=0.1, workers=0, progress=False)
    answers = model.predict(x[:1], verbose=0)[0]
    best = int(answers[0] > 0.5) if units == 1 else int(answers.argmax())
    lost = (best + 1) % max(units, 2)
    summary = slicer.explain(x[0], lost, compare=False).summary()
    remedy = re.search(r"because the model answers (\d)\. Ask for (.*)='(\d)'\.", summary)
    assert int(remedy[1]) == int(remedy[3]) == best
    if units == 1:
        assert remedy[2] == "target"
        followed = slicer.explain(x[0], best, compare=False)
        assert followed.decisive is not None and "Ask for" not in followed.summary()
        return
    assert remedy[2] == "a contrast: instead_of"
    followed = slicer.explain(x[0], lost, instead_of=best, compare=False)
    assert followed.contrast is not None and "Ask for" not in followed.summary()
    # The slice by counts is of the target alone, whatever it is compared with.
    alone = slicer.slice(x[:1], outputs=[lost])
    assert all((followed.slice.synapses[k] == v).all() for k, v in alone.synapses.items())
    assert f"The slice by counts for {lost} has" in followed.summary()


def test_an_empty_slice_of_class_0_tells_its_own_logit():
    """It told that of class 1, and that other parts suffice where the slice does not."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, "sigmoid", name="o")])
    weight = np.array([-1.0, 2, 3, -4])
    model.set_weights([weight[:, None], np.array([-30.0])])
    profile = nns.Profile.from_data(model, X, progress=False)
    slicer = nns.Slicer(model, profile, theta=0.9, workers=0, progress=False)
    logit, mean = (float(x @ weight - 30) for x in (X[0], X.mean(axis=0)))
    for label, sign in ((0, -1), (1, 1)):
        summary = slicer.explain(X[0], label, compare=False, decisive=False).summary()
        told = re.search(r"output (\d) is (\S+), on average (\S+), and", summary)
        assert int(told[1]) == label
        assert float(told[2]) == pytest.approx(sign * logit, rel=1e-3)
        assert float(told[3]) == pytest.approx(sign * mean, rel=1e-3)
        assert ("other parts suffice" in summary) == (label == 0)  # the model answers 0 always


def test_words_of_a_text_that_is_padded_in_front():
    """The words stood at the padding, and the tokens' contributions under "[PAD]"."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Embedding(9, 4, mask_zero=True),
            layers.GlobalAveragePooling1D(),
            layers.Dense(2, "softmax"),
        ]
    )
    x = np.random.default_rng(0).integers(1, 9, (40, 6))
    x[:20, :3] = 0
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)

    def found(words):
        why = slicer.explain(x[0], words=words, compare=False, decisive=False)
        return dict(zip(why.words, why.contributions.ravel(), strict=True))

    expected = found(["", "", "", "a", "b", "c"])
    assert found(["a", "b", "c"]) == expected
    assert expected[""] == 0 and all(expected[word] != 0 for word in "abc")
    for words in (["a", "b", "c", "", "", ""], [*"abcdef"], ["a", "b"]):
        with pytest.raises(InvalidArgumentError, match="it has 3"):
            found(words)
