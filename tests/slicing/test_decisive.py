"""Decisive slices: planted synapses are found, and certificates hold when computed otherwise."""

import itertools

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import instrument
from nnslicer_tf.slicing.search import counts_left, rounds_of_ablation
from support.sequence_models import LENGTH, TOKENS, random_sequence_model


def slicer_of(model, data):
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, data, progress=False)
    return nns.Slicer(im, profile, workers=0, progress=False)


@pytest.fixture(scope="module")
def network():
    """A classifier of images with random weights, and samples."""
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [
            keras.Input((6, 6, 2)),
            layers.Conv2D(4, 3, activation="relu", name="conv"),
            layers.MaxPooling2D(2),
            layers.Flatten(),
            layers.Dense(8, activation="relu", name="hidden"),
            layers.Dense(4, activation="softmax", name="classes"),
        ]
    )
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    x = rng.normal(size=(64, 6, 6, 2)).astype(np.float32)
    return slicer_of(model, x), np.clip(rng.normal(size=(5, 6, 6, 2)), -2, 2).astype(np.float32)


def test_finds_planted_synapses():
    """Only one input speaks for each class; the other weights are noise that cancels."""
    model = keras.Sequential([keras.Input((6,)), layers.Dense(3)])
    rng = np.random.default_rng(0)
    kernel = 0.01 * rng.normal(size=(6, 3))
    kernel[:3] += 5 * np.eye(3)
    model.layers[0].set_weights([kernel, np.zeros(3)])
    slicer = slicer_of(model, rng.normal(size=(32, 6)))
    x = np.array([[2.0, 0, 0, 0, 0, 0], [0, 2, 0, 0, 0, 0]], np.float32)
    found = slicer.decisive(x, others=0)
    for index in (0, 1):
        (mask,) = found.masks(index).values()
        assert mask.sum() == 1 and mask[index, index]


def test_units_that_stand_in_for_each_other_are_not_ablated_together():
    """The score is min(1, m₀ + m₁) + 0.2·m₂ + 0.1·m₃: in the whole model, m₀ and m₁ do nothing."""

    def effects(mask):
        missing = float(mask[0] + mask[1] < 1)
        return np.zeros((1, 2)), np.array([missing, missing, 0.2, 0.1])

    left = [members.tolist() for _, members, *_ in rounds_of_ablation(effects, 4, [2, 1])]
    assert left == [[0, 1, 2, 3], [0, 1], [0]]


def test_sizes_beside_those_of_an_exhaustive_search():
    """Eight neurons, all 256 subsets: no slice is below the smallest, nine of ten are as small."""
    rng = np.random.default_rng(3)
    model = keras.Sequential([keras.Input((5,)), layers.Dense(8, "relu"), layers.Dense(3)])
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    slicer = slicer_of(model, rng.normal(size=(64, 5)).astype(np.float32))
    x = rng.normal(size=(30, 5)).astype(np.float32)
    found = slicer.decisive(x, level="neuron", max_share=1.0, others=0)

    first, bias, last, last_bias = model.get_weights()
    usual = next(iter(slicer.profile.means[name] for name in found.shapes))
    subsets = np.array(list(itertools.product([0, 1], repeat=8)))
    least = []
    for one, answer in zip(x, found.certificate["answer"], strict=True):
        hidden = np.maximum(usual + subsets * (one @ first + bias - usual), 0)
        keeps = (hidden @ last + last_bias).argmax(axis=1) == answer
        least.append(max(1, subsets[keeps].sum(axis=1).min()))
    assert (found.certificate["size"] >= least).all()
    assert (found.certificate["size"] == least).mean() >= 0.9


@pytest.mark.parametrize("units", [1, 2, 3, 10, 999, 1000, 61470])
def test_rounds_leave_ever_fewer_units_and_at_last_almost_none(units):
    counts = counts_left(units)
    assert all(1 <= after < before for before, after in itertools.pairwise([units, *counts]))
    assert units == 1 or counts[-1] <= max(1, 1.5e-4 * units)


@pytest.mark.parametrize("reference", ["mean", "zero"])
def test_certificate_is_what_the_masked_model_gives(network, reference):
    slicer, x = network
    x = x[:2]
    found = slicer.decisive(x, reference=reference, others=0)
    table = found.to_frame()
    assert (table["answer"] == slicer.im.predict(x).argmax(axis=1)).all()
    for index, one in enumerate(x):
        masks = found.masks(index)
        sides = {"alone": masks, "removed": {name: ~mask for name, mask in masks.items()}}
        for side, kept in sides.items():
            synapses = {name: mask.astype(np.int64) for name, mask in kept.items()}
            piece = nns.Slice({}, synapses, {})
            means = slicer.profile if reference == "mean" else "zero"
            (output,) = piece.apply(slicer.im.model, means).predict(one[None], verbose=0)
            answer = int(table["answer"][index])
            expected = table[f"probability with slice {side}"][index]
            assert output[answer] == pytest.approx(expected, abs=1e-4)
            assert output.argmax() == table[f"answer with slice {side}"][index]
        full = slicer.im.predict(one[None])[0].astype(np.float64)
        alone = nns.Slice({}, {n: m.astype(int) for n, m in masks.items()}, {})
        means = slicer.profile if reference == "mean" else "zero"
        (output,) = alone.apply(slicer.im.model, means).predict(one[None], verbose=0)
        divergence = float((full * (np.log(full) - np.log(output))).sum())
        assert divergence == pytest.approx(table["divergence"][index], abs=1e-3)
        assert table["size"][index] == sum(mask.sum() for mask in masks.values())


@pytest.mark.parametrize("level", ["synapse", "input"])
def test_a_unit_that_speaks_against_the_answer_is_not_kept(level):
    """The logit is 1 + 3 − 3.2 − 0.5 > 0: without −3.2, the largest, 3 alone is enough."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, "sigmoid")])
    model.set_weights([np.array([[1.0], [3], [-3.2]]), np.array([-0.5])])
    x = np.array([[1, 1, 1], [-1, -1, -1]], np.float32)
    found = slicer_of(model, x).decisive(x[:1], level=level, max_share=0.5)
    (mask,) = found.masks().values()
    assert found.certificate["found"][0] and mask.ravel().tolist() == [False, True, False]


@pytest.mark.parametrize("level", ["synapse", "neuron", "channel", "input"])
def test_levels_keep_the_answer(network, level):
    slicer, x = network
    table = slicer.decisive(x, level=level, max_share=1.0, others=1).to_frame()
    assert (table["answer with slice alone"] == table["answer"]).all()
    assert table["share"].median() < 0.7 and table["found"].all()
    assert (table["other classes asked"][table["share"] < 1] == 1).all()


def test_bounds_on_probability_and_divergence(network):
    slicer, x = network
    full = slicer.im.predict(x).max(axis=1)
    x = x[full > 0.6]
    sure = slicer.decisive(x, min_probability=0.5, others=0).to_frame()
    assert (sure["probability with slice alone"] >= 0.5).all()
    near = slicer.decisive(x, max_divergence=0.05, others=0).to_frame()
    assert (near["divergence"] <= 0.05).all()
    plain = slicer.decisive(x, others=0).to_frame()
    assert (plain["size"] <= near["size"]).mean() > 0.5


def test_a_probability_that_the_whole_model_does_not_reach(network):
    slicer, x = network
    full = slicer.im.predict(x).max(axis=1)
    index = int(full.argmin())
    bound = float((full[index] + 1) / 2)
    # A slice may be surer than the whole model.
    with pytest.warns(UserWarning, match=rf"1 of 1 samples: 0 \({100 * full[index]:.1f} %\)"):
        slices = slicer.decisive(x[index : index + 1], min_probability=bound, max_share=1.0)
    row = slices.to_frame().iloc[0]
    assert row["kept"] == row["found"] == (row["probability with slice alone"] >= bound)

    # All weights say the same thing: no slice is surer than the whole model.
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
    model.layers[0].set_weights([np.full((4, 1), 0.25), np.zeros(1)])
    data = np.concatenate([np.ones((4, 4)), -np.ones((4, 4))]).astype(np.float32)
    with pytest.warns(UserWarning, match=r"1 of 1 samples: 0 \(73.1 %\)"):
        slices = slicer_of(model, data).decisive(data[:1], min_probability=0.9, max_share=1.0)
    assert not slices.certificate["found"][0] and not slices.certificate["kept"][0]
    assert slices.summary() == (
        "No slice was found that keeps the answer class 1 with a probability of at least 0.9 "
        "(min_probability). The whole model gives it a probability of 0.731; pass a lower "
        "min_probability."
    )
    slices = slicer_of(model, data).decisive(data[:1], min_probability=0.7, max_share=0.5)
    text = slices.summary()
    assert text.startswith("With only the slice active, 4 synapses (100.00 %), the model answers")
    assert "Not found, because it has more than 50 % of the synapses; a larger max_share" in text


def test_one_slice_for_a_class(network):
    slicer, x = network
    answers = slicer.im.predict(x).argmax(axis=1)
    label = np.bincount(answers).argmax()
    samples = x[answers == label]
    found = slicer.decisive(samples, together=True, others=0, max_share=1.0)
    assert len(found.members) == 1 and len(found) == len(samples)
    kept = found.to_frame()
    own = kept["answer with slice alone"] == label
    assert own.mean() >= 0.95 and (kept["kept"] == own).all()
    assert f"one slice for {len(samples)} samples, and keeps the answers of {own.sum()};" in (
        found.summary()
    )
    with pytest.raises(nns.errors.CriterionError, match="samples of one class"):
        slicer.decisive(x, together=True)


def test_files_and_words(network, tmp_path):
    slicer, x = network
    # NumPy's scalars are arguments, too.
    found = slicer.decisive(
        x[:2], max_share=np.float32(1), max_divergence=np.float32(9), together=np.bool_(False)
    )
    found.save(tmp_path / "slices.npz")
    loaded = type(found).load(tmp_path / "slices.npz")
    assert loaded.to_frame().equals(found.to_frame()) and loaded.info == found.info
    for index in (0, 1):
        for name, mask in found.masks(index).items():
            np.testing.assert_array_equal(loaded.masks(index)[name], mask)
    text = found.summary(0, ["cat", "dog", "bird", "fish"])
    name = ["cat", "dog", "bird", "fish"][int(found.certificate["answer"][0])]
    odds = 100 * found.certificate["probability with slice alone"][0]
    assert f"the model answers {name} with {odds:.1f} %" in text
    assert "DecisiveSlices(2 of 2 found" in repr(found)


def test_says_when_none_is_found(network):
    slicer, x = network
    found = slicer.decisive(x[:1], max_share=1e-6, others=0)
    assert not found.certificate["found"][0]
    assert "Not found, because it has more than 0.0001 % of the synapses" in found.summary()


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_one_sigmoid(sign):
    """Class 0 is the answer of a negative logit."""
    model = keras.Sequential([keras.Input((4,)), layers.Dense(1, activation="sigmoid")])
    model.layers[0].set_weights([np.array([[4.0], [0.1], [0.1], [0.1]]), np.zeros(1)])
    rng = np.random.default_rng(0)
    slicer = slicer_of(model, rng.normal(size=(32, 4)))
    found = slicer.decisive(np.array([[sign, 0.1, 0.1, 0.1]], np.float32), max_share=0.5)
    row = {name: column[0] for name, column in found.certificate.items()}
    assert row["answer"] == row["answer with slice alone"] == (sign > 0)
    assert found.masks(0)["dense" if "dense" in found.shapes else next(iter(found.shapes))][0, 0]
    # No search is needed to see that nothing active gives the other class.
    assert row["other classes asked"] == (row["empty answer"] == row["answer"])


def test_a_unit_that_nothing_needs_is_not_minimal():
    """With nothing active the answer is the same: the one unit that is left can go, too."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1, "sigmoid")])
    model.set_weights([np.array([[1.0], [3], [2]]), np.array([-5.0])])
    x = np.array([[-1, -1, -1], [1, 1, 1], [0.9, 1, 1], [1, 0.9, 1]], np.float32)
    table = slicer_of(model, x).decisive(x[[0, 1]], minimal=True).to_frame()
    assert table["empty kept"].tolist() == [True, False]
    assert table["minimal"].tolist() == [False, True] and table["size"][0] == 1


def test_says_what_the_empty_slice_and_single_synapses_answer():
    """All masks of at most one synapse of a small network are run in NumPy."""
    model = keras.Sequential(
        [
            keras.Input((5,)),
            layers.Dense(4, activation="tanh"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    rng = np.random.default_rng(4)
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    model.layers[1].bias.assign([0.6])
    data = rng.normal(size=(64, 5)).astype(np.float32)
    slicer = slicer_of(model, data)
    x = data[slicer.im.predict(data)[:, 0] < 0.4][:4]
    slices = slicer.decisive(x, max_share=1.0)
    table = slices.to_frame()

    first, bias, second, constant = (np.float64(w.numpy()) for w in model.weights)
    mean = data.mean(axis=0)
    hidden_mean = np.tanh(data @ first + bias).mean(axis=0)

    def probability(sample, kept):
        masks = np.split(kept, [first.size])
        sums = mean @ first + bias + (sample - mean) @ (first * masks[0].reshape(first.shape))
        change = (np.tanh(sums) - hidden_mean) * masks[1]
        return 1 / (1 + np.exp(-(hidden_mean @ second + constant + change @ second)[0]))

    units = first.size + second.size
    for index, sample in enumerate(x):
        empty = probability(sample, np.zeros(units))
        assert table["empty answer"][index] == (empty > 0.5) == 1
        assert table["probability of empty answer"][index] == pytest.approx(empty, abs=1e-5)
        of_answer = table["probability with nothing active"][index]
        assert table["answer"][index] == 0 and of_answer == pytest.approx(1 - empty, abs=1e-5)
        kept = np.concatenate([mask.ravel() for mask in slices.masks(index).values()])
        alone = table["probability with slice alone"][index]
        assert alone == pytest.approx(1 - probability(sample, kept), abs=1e-5)
        # The class of the empty slice would be found at every size, as brute force agrees.
        assert any(probability(sample, one) > 0.5 for one in np.eye(units))
        assert table["other classes asked"][index] == 0
        text = slices.summary(index)
        assert f"with none active, the model answers class 1 with {100 * empty:.1f} %" in text
        assert "same search" not in text


def test_names_the_other_classes_and_their_slices(network):
    slicer, x = network
    slices = slicer.decisive(x, max_share=1.0, others=None)
    table = slices.to_frame()
    for index, pairs in enumerate(slices.info["others"]):
        given = {label for label, is_given in pairs if is_given}
        own = {table["answer"][index], table["empty answer"][index]}
        assert {label for label, _ in pairs} == set(range(4)) - own
        assert len(given) == table["other classes given"][index]
        text = slices.summary(index, ["cat", "dog", "bird", "fish"])
        alike = table["empty answer"][index] == table["answer"][index]
        assert ("without any of them, so the slice says little" in text) == alike
        names = ", ".join(["cat", "dog", "bird", "fish"][label] for label, _ in pairs)
        found_none = f"for {len(pairs)} other classes ({names}) found no slice as small."
        assert (found_none in text) == (not given)
        assert ("this slice is not specific" in text) == bool(given)


def test_a_number_is_kept_within_the_tolerance():
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(6, activation="relu"), layers.Dense(1)]
    )
    rng = np.random.default_rng(1)
    slicer = slicer_of(model, rng.normal(size=(32, 4)))
    x = rng.normal(size=(3, 4)).clip(-1.5, 1.5)
    found = slicer.decisive(x, tolerance=0.2, max_share=1.0)
    table = found.to_frame()
    mean = float(slicer.profile.means[slicer.im.logit_operation][0])
    full = slicer.im.predict(x)[:, 0]
    change = np.abs(table["answer with slice alone"] - full)
    assert (change <= 0.2 * np.abs(full - mean) + 1e-5).all()
    assert "the model gives" in found.summary()
    assert f"The whole model gives {full[0]:.4g}." in found.summary()
    assert found.info["tolerance"] == 0.2
    with pytest.raises(nns.errors.InvalidArgumentError, match="no probability"):
        slicer.decisive(x, max_divergence=0.1)


@pytest.mark.parametrize("activation", ["sigmoid", "tanh", "clip"])
def test_a_number_is_the_models_output_not_its_logit(activation):
    inputs = keras.Input((4,))
    value = layers.Dense(1)(layers.Dense(6, activation="relu")(inputs))
    value = ops.clip(value, 0, 1) if activation == "clip" else layers.Activation(activation)(value)
    rng = np.random.default_rng(1)
    model = keras.Model(inputs, value)
    model.compile(loss="mse")
    im = nns.InstrumentedModel(model, task="regression")
    profile = nns.Profile.from_data(im, rng.normal(size=(32, 4)), progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    x = rng.normal(size=(3, 4)).clip(-1.5, 1.5).astype(np.float32)
    table = slicer.decisive(x, max_share=1.0).to_frame()
    np.testing.assert_allclose(table["answer"], model(x)[:, 0], rtol=1e-5)
    if activation != "tanh":
        for part in ("slice alone", "slice removed"):
            assert table[f"answer with {part}"].between(0, 1).all()


def test_several_outputs():
    rng = np.random.default_rng(0)
    inputs = keras.Input((5,))
    h = layers.Dense(8, activation="relu")(inputs)
    outputs = [layers.Dense(3, name=name)(h) for name in ("first", "second")]
    slicer = slicer_of(keras.Model(inputs, outputs), rng.normal(size=(32, 5)))
    x = rng.normal(size=(4, 5)).clip(-1.5, 1.5)
    table = slicer.decisive(x, {"second": "predicted"}, others=0).to_frame()
    expected = slicer.im.predict(x, output="second").argmax(axis=1)
    assert (table["answer with slice alone"] == expected).all()


@pytest.mark.parametrize("level", ["synapse", "channel", "input"])
def test_transformers(level):
    rng = np.random.default_rng(3)
    slicer = slicer_of(random_sequence_model(rng), rng.integers(1, TOKENS, (32, LENGTH)))
    x = rng.integers(1, TOKENS, (3, LENGTH))
    table = slicer.decisive(x, level=level, max_share=1.0, others=0).to_frame()
    assert (table["answer with slice alone"] == slicer.im.predict(x).argmax(axis=1)).all()


def test_bad_arguments(network):
    slicer, x = network
    with pytest.raises(nns.errors.InvalidArgumentError, match="Unknown level 'layer'"):
        slicer.decisive(x, level="layer")
    with pytest.raises(nns.errors.InvalidArgumentError, match="max_share"):
        slicer.decisive(x, max_share=0)
    with pytest.raises(nns.errors.InvalidArgumentError, match="A reference must be 'mean', 'zero'"):
        slicer.decisive(x[:1], reference="resample")
    for name, value in {"others": 2.5, "rng": "a", "together": "yes"}.items():
        with pytest.raises(nns.errors.InvalidArgumentError, match=f"{name} must be"):
            slicer.decisive(x, **{name: value})
    with pytest.warns(nns.errors.InputRangeWarning, match="Scale inputs as for the profile"):
        slicer.decisive(255 * x[:1], others=0)
    answers = slicer.im.predict(x).argmax(axis=1)
    with pytest.raises(nns.errors.CriterionError, match="Sample 0 is classified as"):
        slicer.decisive(x[:1], outputs=int(answers[0] + 1) % 4)


@pytest.mark.parametrize("level", ["synapse", "channel", "input"])
def test_other_samples_as_the_reference(network, level):
    """With nothing active, the model answers what it does for the donor; alone, for each donor."""
    slicer, x = network
    donors = np.random.default_rng(5).normal(size=(4, 6, 6, 2)).astype(np.float32)
    answers = slicer.im.predict(donors).argmax(axis=1)
    for reference in (donors[:1], donors):
        samples = instrument.Samples(reference)
        found = slicer.decisive(x[:2], level=level, reference=samples, max_share=1.0, others=0)
        table = found.to_frame()
        most = np.bincount(answers[: len(reference)]).argmax()
        assert found.info["donors"] == len(reference) and (table["empty answer"] == most).all()
        for index in (0, 1):
            kept = []
            for donor in reference:  # one after the other
                ablation = instrument.Ablation(
                    slicer.im, instrument.Samples(donor[None]), level, of=list(found.shapes)
                )
                model = ablation.model(found.masks(index))
                kept.append(model.predict(x[index : index + 1], verbose=0)[0].argmax())
            share = np.mean(np.array(kept) == table["answer"][index])
            assert share >= 0.95
            if len(reference) > 1:
                assert table["donors kept"][index] == pytest.approx(share)


ENDS = {
    "mean of softmaxes": lambda s: (keras.ops.softmax(s) + keras.ops.softmax(-2 * s)) / 2,
    "some of a softmax": lambda s: keras.ops.softmax(s)[:, :3],
    "sparsemax": keras.layers.Activation("sparsemax"),
    "hard sigmoids": keras.ops.hard_sigmoid,
    "mean of sigmoids": lambda s: (keras.ops.sigmoid(s) + keras.ops.sigmoid(2 * s - 1)) / 2,
    "one of a softmax": lambda s: keras.ops.softmax(s)[:, :1],
}


@pytest.mark.parametrize("name", ENDS)
def test_certificates_have_the_probabilities_that_the_model_gives(name):
    keras.utils.set_random_seed(1)
    x = keras.Input((5,))
    scores = keras.layers.Dense(4)(keras.layers.Dense(8, activation="relu")(x))
    model = keras.Model(x, ENDS[name](scores))
    data = np.random.default_rng(0).normal(size=(6, 5)).astype(np.float32)
    outputs = model.predict(data, verbose=0).astype(np.float64)
    if outputs.shape[1] == 1:
        outputs = np.concatenate([1 - outputs, outputs], axis=1)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, data, progress=False), progress=False)
    certificate = slicer.decisive(data, level="neuron").certificate
    np.testing.assert_array_equal(certificate["answer"], outputs.argmax(axis=1))
    np.testing.assert_allclose(certificate["probability"], outputs.max(axis=1), atol=1e-6)
    # With the slice alone: the same computed in NumPy, up to the end of the model.
    slices = slicer.decisive(data[:1], level="neuron")
    (w1, b1, w2, b2), masks = model.get_weights(), slices.masks(0)
    names = [f"{model.layers[1].name}:pre", model.layers[2].name]
    assert set(masks) <= set(names)
    hidden = data @ w1 + b1
    scores = np.maximum(hidden, 0) @ w2 + b2
    mean_scores = scores.mean(axis=0)
    hidden = np.where(masks[names[0]], hidden[0], hidden.mean(axis=0))
    scores = np.maximum(hidden, 0) @ w2 + b2
    scores = np.where(masks.get(names[1], True), scores, mean_scores)
    given = np.asarray(ENDS[name](keras.ops.convert_to_tensor(scores[None])), np.float64)
    given = np.concatenate([1 - given, given], axis=1) if given.shape[1] == 1 else given
    answer = int(slices.certificate["answer"][0])
    assert slices.certificate["answer with slice alone"][0] == given[0].argmax()
    np.testing.assert_allclose(
        slices.certificate["probability with slice alone"][0], given[0, answer], atol=1e-5
    )


def test_of_several_outputs_one_is_named():
    x = keras.Input((5,))
    outputs = {name: layers.Dense(3, name=name)(x) for name in ("first", "second")}
    im = nns.InstrumentedModel(keras.Model(x, outputs))
    data = np.random.default_rng(0).normal(size=(9, 5)).astype(np.float32)
    slicer = nns.Slicer(im, nns.Profile.from_data(im, data, progress=False), progress=False)
    with pytest.raises(nns.errors.CriterionError, match=r"Name one: \{'first': 'predicted'\}"):
        slicer.decisive(data[:1])
    with pytest.raises(nns.errors.InvalidArgumentError, match="need a model with one output"):
        nns.exactline.exact_line(im, data[0], data[1])
    found = slicer.decisive(data[:1], {"second": "predicted"})
    assert found.certificate["answer"][0] == np.argmax(im.model(data[:1])["second"])


SCALED = {
    "divided": lambda z: layers.Softmax()(z / 2),
    "Rescaling": lambda z: layers.Softmax()(layers.Rescaling(0.5)(z)),
    "negative": lambda z: layers.Softmax()(-z),
    "reshaped": lambda z: layers.Softmax()(layers.Reshape((3,))(z)),
    "falling sigmoid": lambda z: 1 - keras.ops.sigmoid(z[:, :1]),
}


@pytest.mark.parametrize("ending", SCALED)
@pytest.mark.parametrize("level", ["neuron", "channel"])
def test_what_is_only_scaled_to_give_the_logits_is_no_unit(ending, level):
    keras.utils.set_random_seed(0)
    inputs = keras.Input((6,))
    units = 1 if "sigmoid" in ending else 3
    z = layers.Dense(units, name="out")(layers.Dense(10, "relu", name="h")(inputs))
    model = keras.Model(inputs, SCALED[ending](z))
    x = np.random.default_rng(0).normal(size=(50, 6)).astype(np.float32)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    found = slicer.decisive(x[:2], level=level, scope=None, others=0)
    assert list(found.shapes) == ["h:pre"]
