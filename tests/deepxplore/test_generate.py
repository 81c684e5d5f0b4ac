from importlib import import_module

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.deepxplore import (
    Blackout,
    Constraint,
    Differences,
    NeuronCoverage,
    Occlusion,
    generate,
)
from nnslicer_tf.errors import (
    CorruptFileError,
    InputRangeError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
    PlausibilityWarning,
)
from nnslicer_tf.instrument.copies import copy_model
from support.known_models import brightness_model, identity_model

SMALL = {"light": "light", "occlusion": Occlusion((4, 4)), "blackout": Blackout((3, 3))}


@pytest.fixture(scope="module", params=SMALL)
def found(request, ims, digits):
    """The differences that each constraint finds from 60 digits, with the constraint's name."""
    constraint = SMALL[request.param]
    return request.param, generate(ims, digits.x[:60], constraint, batch_size=16, progress=False)


@pytest.mark.parametrize("constraint", ["light", Constraint(), lambda x, seeds: x])
def test_differences_lie_between_the_thresholds(constraint):
    models = [brightness_model(0.5, "a"), brightness_model(0.6, "b"), brightness_model(0.65, "c")]
    seeds = np.random.default_rng(0).uniform(0, 0.2, (10, 4, 4, 1)).astype(np.float32)
    seeds[5:] += 0.8
    found = generate(models, seeds, constraint, lambda1=3, lambda2=0, step=0.04, progress=False)
    assert sorted(found.seed_index) == list(range(10)) and found.generated.all()
    means = found.inputs.mean(axis=(1, 2, 3))
    expected = np.stack([means > 0.5, means > 0.6, means > 0.65], axis=1)
    np.testing.assert_array_equal(found.predictions, expected)
    assert ((means > 0.5) & (means <= 0.65)).all() and found.success_rate == 1


def one_sigmoid(threshold, name):
    """Class 1 for a mean above the threshold, as one sigmoid."""
    inputs = keras.Input((4, 4, 1))
    mean = keras.layers.GlobalAveragePooling2D()(inputs)
    model = keras.Model(inputs, keras.layers.Dense(1, "sigmoid", name="one")(mean), name=name)
    model.set_weights([np.array([[1.0]]), np.array([-threshold])])
    return model


def test_one_sigmoid_is_two_classes():
    models = [one_sigmoid(0.5, "a"), one_sigmoid(0.6, "b"), brightness_model(0.65, "c")]
    seeds = np.random.default_rng(0).uniform(0, 0.2, (10, 4, 4, 1)).astype(np.float32)
    seeds[5:] += 0.8
    labels = np.repeat([0, 1], 5)
    options = {"lambda1": 3, "lambda2": 0, "step": 0.04, "labels": labels, "progress": False}
    found = generate(models, seeds, **options)
    assert sorted(found.seed_index) == list(range(10)) and found.generated.all()
    means = found.inputs.mean(axis=(1, 2, 3))
    expected = np.stack([means > 0.5, means > 0.6, means > 0.65], axis=1)
    np.testing.assert_array_equal(found.predictions, expected)
    np.testing.assert_array_equal(found.labels, labels[found.seed_index])
    coverage = NeuronCoverage(nns.InstrumentedModel(models[0]), 0.5, of=["one"])
    assert coverage.update(seeds[:5]) == 0 and coverage.update(seeds[5:]) == 1


def test_the_models_disagree_indeed(found, models, digits):
    _, found = found
    assert found.generated.sum() > 5 and len(set(found.seed_index)) == len(found)
    asked = [np.argmax(m(found.inputs).numpy(), axis=1) for m in models]
    np.testing.assert_array_equal(found.predictions, np.stack(asked, axis=1))
    assert (found.predictions[:, 0] != found.predictions[:, 1]).all()
    assert found.inputs.min() >= 0 and found.inputs.max() <= 1
    assert found.tried == 60


def test_inputs_change_as_the_constraint_allows(found, digits):
    name, found = found
    seeds = digits.x[found.seed_index]
    np.testing.assert_array_equal(found.inputs[~found.generated], seeds[~found.generated])
    change = (found.inputs - seeds)[found.generated]
    if name == "light":
        inside = (found.inputs > 0) & (found.inputs < 1)
        for values, free in zip(change, inside[found.generated], strict=True):
            # Steps add up alike, but values that were clipped on the way are left behind.
            assert np.unique(np.sign(values[free & (values != 0)])).size <= 1
            assert np.ptp(values[free]) <= 0.05 * found.iterations.max() + 1e-6
    elif name == "occlusion":
        for values in change[..., 0]:
            rows, columns = np.nonzero(values)
            assert np.ptp(rows) < 4 and np.ptp(columns) < 4
    else:
        assert (change <= 0).all() and (change < 0).any(axis=(1, 2, 3)).all()
        assert (found.inputs[found.generated][change < 0] == 0).all()  # black at once


def test_seeds_on_which_models_disagree_are_reported(found, models, digits):
    _, found = found
    labels = [np.argmax(m(digits.x[:60]).numpy(), axis=1) for m in models]
    apart = np.flatnonzero(labels[0] != labels[1])
    assert len(apart) > 0
    np.testing.assert_array_equal(np.sort(found.seed_index[~found.generated]), apart)
    agreed = np.where(labels[0] == labels[1], labels[0], -1)
    np.testing.assert_array_equal(found.labels, agreed[found.seed_index])


def test_coverage_is_that_of_the_found_inputs(found, ims):
    _, found = found
    for im, coverage in zip(ims, found.coverage, strict=True):
        expected = NeuronCoverage(im)
        expected.update(found.inputs)
        for name, mask in expected.covered.items():
            np.testing.assert_array_equal(coverage.covered[name], mask)


def test_the_same_seed_finds_the_same(ims, digits):
    runs = [generate(ims, digits.x[:20], "light", rng=rng, progress=False) for rng in (3, 3, 4)]
    np.testing.assert_array_equal(runs[0].inputs, runs[1].inputs)
    np.testing.assert_array_equal(runs[0].seed_index, runs[1].seed_index)
    assert not np.array_equal(runs[0].inputs, runs[2].inputs)


class Recorded(Constraint):
    """Keeps the gradients of every step."""

    def __init__(self):
        self.gradients = []

    def direction(self, gradient, kept, rng):
        self.gradients.append(gradient)
        return gradient


def first_gradients(ims, seeds, uncovered, **weights):
    """The joint gradients at the seeds; per model, the neurons that are still uncovered."""
    coverage = [NeuronCoverage(im) for im in ims]
    for one, neurons in zip(coverage, uncovered, strict=True):
        for mask in one.covered.values():
            mask[...] = True
        one.covered["conv"][neurons] = False
    constraint = Recorded()
    generate(
        ims,
        seeds,
        constraint,
        coverage=coverage,
        max_iterations=1,
        step=1e-6,
        progress=False,
        **weights,
    )
    return constraint.gradients[0]


@pytest.fixture
def alike():
    """Two networks that agree on every input: the second's logits are larger by half."""
    keras.utils.set_random_seed(0)

    def network():
        conv = keras.layers.Conv2D(5, 3, activation="tanh", name="conv")
        classes = keras.layers.Dense(10, name="logits")
        return keras.Sequential(
            [keras.Input((8, 8, 1), name="input"), conv, keras.layers.Flatten(), classes]
        )

    first, second = network(), network()
    *weights, kernel, bias = first.get_weights()
    second.set_weights([*weights, 1.5 * kernel, 1.5 * bias])
    return [nns.InstrumentedModel(model) for model in (first, second)]


def test_the_gradient_is_that_of_the_joint_objective(alike, digits):
    """Against central differences of the objective, computed from captured values."""
    seeds, rows = digits.x[:8], np.arange(8)
    label = alike[0].predict(seeds).argmax(axis=1)
    gradient = first_gradients(alike, seeds, [3, 1], lambda1=2.0, lambda2=0.5)

    def objective(x, turned):
        values = [im.capture(x) for im in alike]
        logits = [v["logits"][rows, label] for v in values]
        neurons = [v["conv"].mean(axis=(1, 2))[:, n] for v, n in zip(values, [3, 1], strict=True)]
        return logits[1 - turned] - 2 * logits[turned] + 0.5 * (neurons[0] + neurons[1])

    apart = []
    for turned in (0, 1):
        numeric = []
        for pixel in [(1, 3), (4, 4), (6, 2)]:
            moved = np.zeros_like(seeds)
            moved[:, pixel[0], pixel[1], 0] = 1e-2
            change = objective(seeds + moved, turned) - objective(seeds - moved, turned)
            numeric.append(change / 2e-2 - gradient[:, pixel[0], pixel[1], 0])
        apart.append(np.abs(numeric).max(axis=0))
    fits = np.array(apart) < 1e-3
    assert (fits.sum(axis=0) == 1).all()  # one of the two is turned for each seed
    assert fits.any(axis=1).all()


def test_uncovered_neurons_are_pursued(alike, digits):
    same = [alike[0], alike[0]]  # with λ1 = 1 their logits cancel, the neurons remain
    seeds = np.repeat(digits.x[:1], 10, axis=0)
    neurons = [
        alike[0].gradients(seeds[:1], lambda v, n=n: keras.ops.mean(v["conv"][..., n], (1, 2)))
        for n in (1, 3, 4)
    ]
    one, three, four = (0.1 * gradient["input"][0] for gradient in neurons)
    found = first_gradients(same, seeds, [[1, 3], 4], lambda1=1.0, lambda2=0.1)
    which = [
        np.abs(found - expected).max(axis=(1, 2, 3)) < 1e-5
        for expected in (one + four, three + four)
    ]
    assert [mask.sum() for mask in which] == [5, 5]
    covered = first_gradients(same, seeds, [[], 4], lambda1=1.0, lambda2=0.1)
    assert len(np.unique(covered.round(6), axis=0)) == 10  # all are pursued, different ones


def test_pursuing_neurons_covers_more():
    """Unit k of the hidden layer lights up only where pixel k does; classes ask for pixel 0."""

    def model(bias):
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(6, name="hidden")(inputs)
        network = keras.Model(inputs, keras.layers.Dense(2, name="logits")(hidden))
        read = np.zeros((6, 2))
        read[0] = [-1, 1]
        network.set_weights([np.eye(6), np.zeros(6), read, np.array([bias, -bias])])
        return network

    models = [model(0.5), model(0.7)]
    seeds = np.zeros((12, 6), np.float32)
    shares = []
    for lambda2 in (0.0, 1.0):
        ims = [nns.InstrumentedModel(m) for m in models]
        coverage = [NeuronCoverage(im, 0.3, of=["hidden"]) for im in ims]
        generate(
            ims,
            seeds,
            Constraint(),
            lambda1=2,
            lambda2=lambda2,
            coverage=coverage,
            batch_size=3,
            progress=False,
        )
        shares.append(coverage[0].total())
    assert shares[0] == 1 / 6 and shares[1] == 1


def test_file_and_frame(found, digits, tmp_path):
    _, found = found
    found.save(tmp_path / "found.npz")
    again = Differences.load(tmp_path / "found.npz")
    for name in ("inputs", "seed_index", "predictions", "labels", "iterations"):
        np.testing.assert_array_equal(getattr(again, name), getattr(found, name))
    assert repr(again) == repr(found)
    frame = found.to_frame()
    assert list(frame) == ["seed", "label", "iterations", "model 0", "model 1"]
    assert len(frame) == len(found)
    (tmp_path / "found.npz").write_bytes(b"PK")
    with pytest.raises(CorruptFileError):
        Differences.load(tmp_path / "found.npz")


def test_plot_shows_seed_and_difference(found, digits):
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    _, found = found
    with pytest.raises(InvalidArgumentError, match=f"Pass the search's {found.tried} seeds"):
        found.plot(digits.x[:1])
    figure = found.plot(digits.x, most=3)
    first = np.flatnonzero(found.generated)[0]
    top, bottom = figure.axes[0], figure.axes[3]
    np.testing.assert_array_equal(
        top.images[0].get_array(), digits.x[found.seed_index[first], :, :, 0]
    )
    np.testing.assert_array_equal(bottom.images[0].get_array(), found.inputs[first, :, :, 0])
    pyplot.close("all")


def test_the_default_step_is_that_of_the_bounds(models, digits):
    """Models of 0 … 256 take the same way as those of 0 … 1, in steps 256 times as long."""
    of_bytes = [copy_model(model) for model in models]
    for model in of_bytes:
        kernel, *others = model.get_weights()
        model.set_weights([kernel / 256, *others])  # a power of two: nothing is rounded
    options = {"lambda2": 0, "max_iterations": 20, "progress": False}
    unit = generate(models, digits.x[:30], "light", **options)
    found = generate(of_bytes, digits.x[:30] * 256, "light", bounds=(0.0, 256.0), **options)
    assert unit.generated.sum() > 5
    np.testing.assert_array_equal(found.seed_index, unit.seed_index)
    np.testing.assert_array_equal(found.iterations, unit.iterations)
    np.testing.assert_allclose(found.inputs / 256, unit.inputs, atol=1e-5)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"step": -1}, "step must be at least 0"),
        ({"max_iterations": 0}, "max_iterations must be at least 1"),
        ({"constraint": "rain"}, "light, occlusion, blackout"),
        ({"rng": -1}, "rng must be"),
        ({"coverage": []}, "one entry for each of 2"),
        ({"bounds": "x"}, "bounds must be the smallest"),
        ({"bounds": (1, 0)}, "bounds must be the smallest"),
    ],
)
def test_wrong_arguments(ims, digits, arguments, message):
    with pytest.raises(InvalidArgumentError, match=message):
        generate(ims, digits.x[:3], progress=False, **arguments)


@pytest.mark.parametrize("constraint", [Occlusion, Blackout])
@pytest.mark.parametrize("size", ["ab", 3, (3,), (0, 2), (2.5, 2), (True, 2), (2, 3, 1)])
def test_sizes_of_rectangles(constraint, size):
    with pytest.raises(InvalidArgumentError, match="size must be"):
        constraint(size)


def test_the_bounds_of_an_instrumented_model_hold(ims, digits):
    im = nns.InstrumentedModel(ims[0].model, bounds=(0, 2))
    found = generate([ims[1], im], digits.x[:20] * 2, max_iterations=5, progress=False)
    assert found.inputs.max() > 1
    with pytest.raises(InputRangeError):
        generate([ims[1], im], digits.x[:3] * 2.1)


def test_tokens_are_refused():
    stack = [keras.Input((5,)), keras.layers.Embedding(9, 3), keras.layers.Flatten()]
    model = keras.Sequential([*stack, keras.layers.Dense(2)])
    with pytest.raises(InvalidArgumentError, match="take tokens"):
        generate([model, keras.models.clone_model(model)], np.ones((3, 5)))


def test_wrong_models_and_seeds(ims, digits):
    x = digits.x[:3]
    with pytest.raises(InvalidArgumentError, match="two or more models"):
        generate(ims[:1], x)
    with pytest.raises(InputShapeError, match=r"same shape. Received: .*\(4, 4, 1\)"):
        generate([ims[0], brightness_model(0.5, "small")], x)
    with pytest.raises(InvalidArgumentError, match="the same classes"):
        generate([ims[0], brightness_model(0.5, "two_classes", (8, 8, 1))], x)
    one = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(),
            keras.layers.Dense(1),
        ]
    )
    with pytest.raises(InvalidArgumentError, match="is not a classifier"):
        generate([one, one], x)
    with pytest.raises(InputShapeError, match="Sample 1 of the data ranges from"):
        generate(ims, x * np.array([1, 2, 1], np.float32).reshape(3, 1, 1, 1))
    with pytest.raises(InputShapeError, match="no seeds"):
        generate(ims, x[:0])
    with pytest.raises(InputShapeError, match="need larger images"):
        generate(ims, x, "occlusion")
    with pytest.raises(InputShapeError, match="need larger images"):
        generate([identity_model(5), identity_model(5)], np.zeros((2, 5)), "blackout")
    with pytest.raises(InputShapeError, match="must return inputs of shape"):
        generate(ims, x, lambda changed, seeds: changed[..., 0], progress=False)
    with pytest.raises(InvalidArgumentError, match=r"coverage\[1\] is not .* of models\[1\]"):
        generate(ims, x, coverage=[NeuronCoverage(ims[0]), NeuronCoverage(ims[0])])


def test_seeds_that_are_not_scaled_are_said():
    """Two models that agree on dark and bright images of 0 … 1, and on hardly any other."""
    models = [brightness_model(0.5, "one"), brightness_model(0.6, "two")]
    x = np.random.default_rng(0).uniform(0.5, 0.6, (20, 1, 1, 1)) * np.ones((1, 4, 4, 1))
    with pytest.warns(PlausibilityWarning, match="agree on 0% of 20 samples"):
        assert len(generate(models, x, progress=False)) == 20
    dark = np.full((10, 4, 4, 1), 0.1)
    with pytest.warns(PlausibilityWarning, match=r"models\[0\] is right on 0%"):
        generate(models, dark, labels=np.ones(10, int), progress=False)


def test_functions_are_compiled_once_for_each_model(models, digits, monkeypatch):
    module = import_module("nnslicer_tf.deepxplore.generation")
    ims = [nns.InstrumentedModel(copy_model(model)) for model in models]
    original, made = module.compiled_function, []

    def counted(function):
        made.append(function)
        return original(function)

    monkeypatch.setattr(module, "compiled_function", counted)
    options = {"constraint": "light", "max_iterations": 2, "progress": False}
    first = generate(ims, digits.x[:20], **options)
    again = generate(ims, digits.x[:20], **options)
    assert len(made) == 2
    np.testing.assert_array_equal(first.inputs, again.inputs)
    # Other weights: the functions are made anew, as a backend may have taken weights as constants.
    ims[0].model.set_weights([w * 2 for w in ims[0].model.get_weights()])
    generate(ims, digits.x[:20], **options)
    assert len(made) == 3


def test_projections_see_no_empty_batch_and_give_finite_values():
    models, seeds = [identity_model(4), copy_model(identity_model(4))], np.full((3, 4), 0.5)
    sizes = []

    def project(x, of):
        sizes.append(len(x))
        return np.clip(x, x.min(), x.max())

    generate(models, seeds, project, max_iterations=2, progress=False)
    assert sizes and min(sizes) > 0
    with pytest.raises(NonFiniteActivationError, match="NaN or infinity"):
        generate(models, seeds, lambda x, of: x * np.nan, max_iterations=2, progress=False)
