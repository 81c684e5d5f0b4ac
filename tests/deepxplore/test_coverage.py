import pickle

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.deepxplore import (
    BoundaryCoverage,
    KMultisectionCoverage,
    NeuronCoverage,
    NeuronRanges,
    TopKCoverage,
)
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    ProfileMismatchError,
)
from support.known_models import identity_model


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(identity_model(4))


def rows(*values):
    return np.array(values, np.float32)


def test_keras_models_are_instrumented():
    model, x = identity_model(4), rows([1, 0, 2, 0], [0, 0, 3, 1])
    im = nns.instrument.instrumented(model)
    for criterion in (NeuronCoverage, TopKCoverage):
        coverages = [criterion(model), criterion(im)]
        for coverage in coverages:
            coverage.update(x)
        assert coverages[0].to_frame().equals(coverages[1].to_frame())
    ranges = [NeuronRanges.from_data(one, x, progress=False).digest for one in (model, im)]
    assert ranges[0] == ranges[1]


def test_outputs_are_scaled_by_the_layer(im):
    cov = NeuronCoverage(im, threshold=0.5)
    assert cov.update(rows([0, 10, 5, 6])) == 2  # scaled to 0, 1, 0.5, 0.6
    np.testing.assert_array_equal(cov.covered["same"], [False, True, False, True])
    assert cov.update(rows([3, 2, 2, 2])) == 1  # 1, 0, 0, 0
    assert cov.total() == 0.75 and cov.samples == 2
    assert cov.update(rows([7, 7, 7, 7])) == 0  # nothing stands out


@pytest.mark.parametrize("granularity", ["channel", "activation"])
@pytest.mark.parametrize("threshold", [0.0, 0.25, 0.75])
def test_neuron_coverage_by_hand(ims, digits, granularity, threshold):
    """One sample and one neuron after the other, from what the network computes."""
    x = digits.x[:7]
    cov = NeuronCoverage(ims[0], threshold, granularity)
    cov.update(x, batch_size=3)
    values = ims[0].capture(x, of=cov.covered)
    assert list(cov.covered) == ["conv1", "relu1", "pool1", "conv2", "relu2", "logits"]
    for name, mask in cov.covered.items():
        expected = np.zeros(mask.shape, bool)
        for sample in values[name].astype(np.float64):
            scaled = (sample - sample.min()) / (sample.max() - sample.min())
            if granularity == "channel" and scaled.ndim == 3:
                channels = range(scaled.shape[-1])
                scaled = np.array([scaled[:, :, c].mean() for c in channels])
            expected |= scaled > threshold
        np.testing.assert_array_equal(mask, expected, name)
        assert cov.to_frame().set_index("operation")["share"][name] == expected.mean()


def test_merged_parts_are_the_whole(ims, digits, tmp_path):
    whole, first, second = (NeuronCoverage(ims[0], 0.6) for _ in range(3))
    whole.update(digits.x[:40])
    first.update(digits.x[:15])
    second.update(digits.x[15:40], batch_size=7)
    assert first.total() < whole.total()
    second.save(tmp_path / "second.npz")
    first.restore(tmp_path / "second.npz")
    for name in whole.covered:
        np.testing.assert_array_equal(whole.covered[name], first.covered[name])
    assert first.samples == 40 and first.total() == whole.total()

    first.save(tmp_path / "coverage.npz")
    again = NeuronCoverage(ims[0], 0.6).restore(tmp_path / "coverage.npz")
    assert again.total() == first.total() and again.samples == 40
    assert repr(again) == repr(first)
    assert again.to_frame()["covered"].sum() == round(again.total() * len(again.neurons))
    assert f"{again.total():.1%}" in again.summary()


def test_coverage_of_something_else_is_refused(ims, im, tmp_path):
    cov = NeuronCoverage(ims[0], 0.6)
    path = tmp_path / "coverage.npz"
    cov.save(path)
    with pytest.raises(ProfileMismatchError, match="different model, criterion or settings"):
        NeuronCoverage(ims[0], 0.1).restore(path)
    other = identity_model(4)
    other.set_weights([2 * np.eye(4), np.zeros(4)])
    NeuronCoverage(im, of=["same"]).save(path)
    with pytest.raises(ProfileMismatchError, match="different model"):
        NeuronCoverage(nns.InstrumentedModel(other), of=["same"]).restore(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(CorruptFileError, match="not a coverage"):
        cov.restore(path)


def test_sections_of_a_range(im):
    ranges = NeuronRanges.from_data(im, rows([0, 0, 0, 5], [10, 1, 4, 5]), progress=False)
    np.testing.assert_array_equal(ranges.low["same"], [0, 0, 0, 5])
    np.testing.assert_array_equal(ranges.high["same"], [10, 1, 4, 5])
    cov = KMultisectionCoverage(ranges, sections=4)
    cov.update(rows([2.5, -1, 0, 5], [10, 2, 0.5, 6], [2.4, 0.5, 3.9, 4]))
    expected = np.array(
        [
            [1, 1, 0, 1],  # 2.4 | 2.5 | 10, the upper end
            [0, 0, 1, 0],  # 0.5; -1 and 2 are outside
            [1, 0, 0, 1],
            [1, 0, 0, 0],  # an empty range has its first section alone
        ]
    )
    np.testing.assert_array_equal(cov.covered["same"], expected)
    assert cov.total() == 7 / 16


def test_corners(im):
    ranges = NeuronRanges.from_data(im, rows([0, 0, 0, 0], [1, 1, 1, 1]), progress=False)
    x = rows([0, 1, 2, -1], [0.5, 0.5, 0.5, 3])
    boundary, strong = BoundaryCoverage(ranges), BoundaryCoverage(ranges, "upper")
    boundary.update(x)
    strong.update(x)
    below, above = [0, 0, 0, 1], [0, 0, 1, 1]
    np.testing.assert_array_equal(boundary.covered["same"], np.stack([below, above], axis=1))
    np.testing.assert_array_equal(strong.covered["same"], above)
    assert (boundary.total(), strong.total()) == (3 / 8, 1 / 2)


@pytest.mark.parametrize("granularity", ["channel", "activation"])
def test_training_data_stays_within_its_ranges(ims, digits, granularity):
    x = digits.x[:60]
    ranges = NeuronRanges.from_data(ims[0], x, granularity, batch_size=13, progress=False)
    boundary = BoundaryCoverage(ranges)
    assert boundary.update(x, batch_size=60) == 0
    assert boundary.update(10 * x) > 0
    sections = KMultisectionCoverage(ranges, sections=5)
    sections.update(x)
    for name, mask in sections.covered.items():
        assert mask[..., 0].all(), name  # the least output itself
        varies = ranges.high[name] > ranges.low[name]
        assert mask[..., -1][varies].all(), name


def test_rounding_is_not_beyond_a_range(im):
    """An output is off by at most 2⁻²⁰ of the largest one, whatever the batch."""
    ranges = NeuronRanges.from_data(im, rows([0, 0, 1, 0], [1, 1, 4, 0]), progress=False)
    step = 2.0**-20
    for x, beyond in (
        ([-3 * step, 1 + 3 * step, 4, 0], 0),
        ([-6 * step, 1, 1 - 6 * step, 0], 2),
        ([0, 1 + 6 * step, 4 + 6 * step, 6 * step], 3),
    ):
        boundary = BoundaryCoverage(ranges)
        assert boundary.update(np.array([x])) == beyond
    sections = KMultisectionCoverage(ranges, 2)
    sections.update(np.array([[-3 * step, 1 + 3 * step, 1 - 6 * step, 0]]))
    expected = [[True, False], [False, True], [False, False], [True, False]]
    np.testing.assert_array_equal(sections.covered["same"], expected)


def test_the_k_largest(im):
    cov = TopKCoverage(im, k=2)
    cov.update(rows([5, 1, 3, 2]))
    np.testing.assert_array_equal(cov.covered["same"], [True, False, True, False])
    cov.update(rows([0, 0, 0, 0]))  # of equals the first
    np.testing.assert_array_equal(cov.covered["same"], [True, True, True, False])


def test_neurons_do_not_depend_on_where_they_are_averaged(ims, digits):
    import keras

    neurons = NeuronCoverage(ims[0]).neurons
    values = dict(ims[0].capture(digits.x[:5], of=neurons.names))
    tensors = {name: keras.ops.convert_to_tensor(v) for name, v in values.items()}
    vector = keras.ops.convert_to_numpy(neurons.vector(tensors))
    expected = np.concatenate([neurons.reduce(v).reshape(5, -1) for v in values.values()], axis=1)
    assert vector.shape == (5, len(neurons))
    np.testing.assert_allclose(vector, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda im: NeuronCoverage(im, threshold=1.0), r"threshold must be in \[0, 1\)"),
        (
            lambda im: NeuronCoverage(im, threshold="half"),
            r"must be a number in \[0, 1\)",
        ),
        (lambda im: NeuronCoverage(im, granularity="filter"), "'channel', 'activation'"),
        (lambda im: NeuronCoverage(im, of=["sane"]), "Did you mean 'same'"),
        (lambda im: NeuronCoverage(im, of=[]), "There is no operation"),
        (lambda im: TopKCoverage(im, k=0), "k must be a positive int"),
        (
            lambda im: KMultisectionCoverage(
                NeuronRanges.from_data(im, rows([0, 0, 0, 0]), progress=False), 1
            ),
            "sections must be an integer of at least 2",
        ),
    ],
)
def test_wrong_arguments(im, make, message):
    with pytest.raises(InvalidArgumentError, match=message):
        make(im)


def test_wrong_inputs(im):
    cov = NeuronCoverage(im)
    with pytest.raises(InputShapeError, match=r"data of shape \(samples, 4\)"):
        cov.update(np.zeros((3, 5)))
    with pytest.raises(InvalidArgumentError, match="empty"):
        cov.update(np.zeros((0, 4)))


def test_coverage_belongs_to_the_weights_that_were_measured(tmp_path):
    im = nns.InstrumentedModel(identity_model(4))
    ranges = NeuronRanges.from_data(im, rows([0, 0, 0, 0], [1, 1, 1, 1]), progress=False)
    cov = NeuronCoverage(im)
    cov.update(rows([1, 0, 0, 0]))
    cov.save(tmp_path / "c.npz")
    layer = im.model.layers[0]
    layer.set_weights([2 * w for w in layer.get_weights()])
    changed = (
        lambda: cov.update(rows([1, 0, 0, 0])),
        lambda: cov.save(tmp_path / "d.npz"),
        lambda: KMultisectionCoverage(ranges, 4).update(rows([1, 0, 0, 0])),
        lambda: NeuronCoverage(im).restore(tmp_path / "c.npz"),
    )
    for call in changed:
        with pytest.raises(ProfileMismatchError):
            call()
    again = NeuronCoverage(im)  # of the present weights, whose largest output is the same neuron's
    again.update(rows([1, 0, 0, 0]))
    np.testing.assert_array_equal(again.covered["same"], [True, False, False, False])


def test_another_number_of_sections_is_another_setting(im, tmp_path):
    ranges = NeuronRanges.from_data(im, rows([0, 0, 0, 0], [1, 1, 1, 1]), progress=False)
    cov = KMultisectionCoverage(ranges, 10)
    cov.update(rows([0.5, 0, 0, 0]))
    cov.save(tmp_path / "k.npz")
    assert KMultisectionCoverage(ranges, 10).restore(tmp_path / "k.npz").total() == cov.total()
    with pytest.raises(ProfileMismatchError, match="settings"):
        KMultisectionCoverage(ranges, 11).restore(tmp_path / "k.npz")


@pytest.mark.parametrize("sections", [10**12, 10**15])
def test_more_sections_than_there_is_memory(sections):
    ranges = NeuronRanges.from_data(identity_model(3), np.eye(3), progress=False)
    with pytest.raises(InvalidArgumentError, match=f"sections={sections} takes about .* GiB"):
        KMultisectionCoverage(ranges, sections)


def _nested(x):
    steps = [keras.Input((6,)), layers.Rescaling(0.5, -0.5), layers.Activation("tanh")]
    return keras.Sequential(steps, name="scaling")(x)


PREPROCESS = {
    "operators": lambda x: keras.ops.tanh((x - 1) / 2),
    "layers": lambda x: layers.Activation("tanh")(layers.Rescaling(0.5, -0.5)(x)),
    "a nested model": _nested,
    "a Normalization": lambda x: keras.ops.tanh(layers.Normalization(mean=1.0, variance=4.0)(x)),
    "weights": lambda x: keras.ops.tanh(
        layers.Dense(6, kernel_initializer=keras.initializers.Identity(0.5), name="prep")(x - 1)
    ),
}


def _hidden():
    keras.utils.set_random_seed(0)
    hidden = [layers.Dense(8, "relu", name=f"h{i}") for i in range(2)]
    return keras.Sequential([keras.Input((6,), name="inp"), *hidden, layers.Dense(3, name="out")])


@pytest.mark.parametrize("granularity", ["channel", "activation"])
@pytest.mark.parametrize("form", PREPROCESS)
def test_preprocessing_has_no_neurons(form, granularity):
    """The model alone, on inputs that NumPy prepares, has the same coverage."""
    model, x = _hidden(), np.random.default_rng(3).normal(1, 2, (60, 6)).astype(np.float32)
    raw = nns.InstrumentedModel(model)
    bound = nns.InstrumentedModel(model, preprocess=PREPROCESS[form])
    prepared = np.tanh((x - 1) / 2)
    pairs = [(raw, prepared), (bound, x), (bound.copy(), x)]

    def coverages(im, inputs):
        ranges = NeuronRanges.from_data(im, inputs[:40], granularity, progress=False)
        yield NeuronCoverage(im, 0.25, granularity)
        yield TopKCoverage(im, 2, granularity)
        yield KMultisectionCoverage(ranges, 10)
        yield BoundaryCoverage(ranges)

    for one, *others in zip(*(coverages(*pair) for pair in pairs), strict=True):
        one.update(prepared)
        assert list(one.covered) == ["h0", "h1", "out"] and len(one.neurons) == 19
        for other in others:
            other.update(x)
            assert other.total() == pytest.approx(one.total(), abs=0.02)  # rounding, at edges
            frames = [c.to_frame()[["operation", "items"]] for c in (one, other)]
            assert frames[0].equals(frames[1])
    assert pickle.loads(pickle.dumps(raw)).preprocessing == {"inp"}
    if form != "operators":  # Keras saves no functions
        assert pickle.loads(pickle.dumps(bound)).preprocessing == bound.preprocessing
    inner = [o.name for o in bound.operations if o.name in bound.preprocessing]
    assert len(inner) > 1 and NeuronCoverage(bound, of=inner[1:2]).neurons.names == (inner[1],)


def test_preprocessing_of_a_model_with_two_outputs():
    inputs = keras.Input((6,))
    x = layers.Dense(4, "relu", name="h")(inputs)
    model = keras.Model(inputs, [layers.Dense(2, name="a")(x), layers.Dense(3, name="b")(x)])
    im = nns.InstrumentedModel(model, preprocess=lambda x: keras.ops.tanh(x / 2))
    assert {*NeuronCoverage(im).covered} == {"h", "a", "b"}
    assert {*NeuronCoverage(im.of_output("b")).covered} == {"h", "b"}
