import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.datasets import load
from nnslicer_tf.exactline import Attributor, LinearPartition
from reproduction.exactline import networks
from reproduction.exactline.measures import (
    approximate,
    density,
    fgsm,
    linearity,
    random_neighbours,
    relative_change,
    relative_error,
    samples_for_completeness,
    samples_within,
)

from ...exactline.lines import sums_of_gradients
from ...exactline.planes import relu_network, relu_of


@pytest.fixture(scope="module")
def classifier():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            keras.layers.Conv2D(5, 2, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(0.2, 0.8, (6, 4, 4, 1)).astype(np.float32)


LABELS = np.array([0, 1, 2, 0, 1, 2])


def test_fgsm_is_the_sign_of_a_numerical_gradient(classifier, images):
    changed = fgsm(nns.InstrumentedModel(classifier), images, LABELS, 0.1)
    assert np.allclose(np.abs(changed - images), 0.1, atol=1e-6)
    for image, label, neighbour in zip(images, LABELS, changed, strict=True):
        steps = 1e-2 * np.eye(16).reshape(16, 4, 4, 1)
        up, down = (classifier.predict(image + s * steps, verbose=0)[:, label] for s in (1, -1))
        slope = -(np.log(up) - np.log(down)).reshape(4, 4, 1)
        clear = np.abs(slope) > 1e-4
        assert clear.sum() > 8
        np.testing.assert_array_equal(np.sign(neighbour - image)[clear], np.sign(slope)[clear])


def test_neighbours_stay_in_the_box(classifier, images):
    for neighbours in (
        fgsm(nns.InstrumentedModel(classifier), images, LABELS, 0.5),
        random_neighbours(images, 0.5, rng=0),
    ):
        assert neighbours.min() >= 0 and neighbours.max() <= 1
        assert np.abs(neighbours - images).max() <= 0.5 + 1e-6
        assert (neighbours != images).mean() > 0.9


def test_density():
    line = LinearPartition(
        np.zeros((2, 1)), np.full((2, 1), 3.0), np.array([0, 0.1, 1]), np.zeros((3, 1))
    )
    assert density(line) == pytest.approx(2 / np.sqrt(18))


def test_gradient_error_is_the_mean_change(classifier, images):
    attributor = Attributor(nns.InstrumentedModel(classifier))
    line = attributor.walker.line(images[0] - 1, images[0] + 1)
    t = (np.arange(2_000) + 0.5) / 2_000
    gradients = attributor.gradients(line.at(t), 1).reshape(2_000, -1)
    changes = np.abs(gradients - gradients[0]).sum(axis=1) / np.abs(gradients[0]).sum()
    assert relative_change(attributor.path(line.end, line.start, 1)) == pytest.approx(
        changes.mean(), rel=0.02
    )
    assert changes.mean() > 0.1


def test_component_error_is_the_mean_of_the_components_own(classifier, images):
    """Along the line, by many gradients of points, each pixel's relative change by itself."""
    attributor = Attributor(nns.InstrumentedModel(classifier))
    line = attributor.walker.line(images[0] - 1, images[0] + 1)
    t = (np.arange(2_000) + 0.5) / 2_000
    gradients = attributor.gradients(line.at(t), 1).reshape(2_000, -1)
    changes = np.abs((gradients[0] - gradients) / gradients).mean()
    found = relative_change(attributor.path(line.end, line.start, 1), by="components")
    assert found == pytest.approx(changes, rel=0.03)
    assert abs(found - relative_change(attributor.path(line.end, line.start, 1))) > 0.05
    with pytest.raises(nns.errors.InvalidArgumentError, match="'norm', 'components'"):
        relative_change(attributor.path(line.end, line.start, 1), by="pixels")


def test_rows_are_the_lines(classifier, images):
    im = nns.InstrumentedModel(classifier)
    table = linearity(im, images, LABELS, 0.2, rng=3)
    walker = Attributor(im).walker
    for i, end in enumerate(random_neighbours(images, 0.2, rng=3)):
        partition = walker.line(images[i], end)
        assert table.random_parts[i] == len(partition)
        assert table.random_density[i] == pytest.approx(density(partition))
    assert (table.predicted == classifier.predict(images, verbose=0).argmax(axis=1)).all()
    with pytest.raises(nns.errors.InvalidArgumentError, match="each of 6 samples"):
        linearity(im, images, LABELS[:5], 0.2, rng=0)


@pytest.mark.parametrize("method", networks.METHODS)
def test_training_lowers_the_loss_the_same_way_each_time(method):
    digits = load("digits", "train[:256]")
    digits = type(digits)(
        np.pad(digits.x, ((0, 0), (3, 3), (3, 3), (0, 0))),
        *(getattr(digits, name) for name in ("y", "name", "split", "normalise", "classes")),
    )
    recipe = networks.RobustRecipe(method, 0.02, 4, batch_size=32, learning_rate=3e-3, steps=2)
    histories = []
    for _ in range(2):
        keras.utils.set_random_seed(0)
        model = networks.NETWORKS["convsmall"]((14, 14, 1))
        histories.append(networks.train_robustly(model, digits, recipe, rng=0, progress=False))
    assert histories[0] == pytest.approx(histories[1], rel=1e-3)
    assert histories[0][-1] < 0.98 * histories[0][0]


def test_box_bounds_hold():
    """The label's logit less any other's is nowhere in the box below the bound's."""
    keras.utils.set_random_seed(0)
    model = networks.NETWORKS["convsmall"]((14, 14, 1), classes=2)
    rng = np.random.default_rng(0)
    x, epsilon = rng.uniform(0.2, 0.8, (1, 14, 14, 1)).astype(np.float32), 0.05
    inside = np.clip(x + rng.choice([-epsilon, epsilon], (2_000, 14, 14, 1)), 0, 1)
    y = np.zeros(1, np.int64)
    loss = float(networks.box_loss(model, x, y, 0 * x, epsilon, 0))
    clean = float(networks.normal_loss(model, x, y, 0 * x, epsilon, 0))
    logits = np.asarray(model(inside.astype(np.float32)))
    worst = np.log1p(np.exp(logits[:, 1] - logits[:, 0])).max()
    assert 2 * loss - clean >= worst > clean


def constant_at_the_start():
    """Logits that begin to rise beyond x + y = 1, and do not move before."""
    hidden = keras.layers.Dense(4, "relu")
    inputs = keras.Input((2,))
    model = keras.Model(inputs, keras.layers.Dense(2)(hidden(inputs)))
    hidden.set_weights([np.ones((2, 4)), -np.ones(4)])
    return nns.InstrumentedModel(model)


def test_change_relative_to_no_gradient_is_not_a_number():
    attributor = Attributor(constant_at_the_start())
    line = attributor.walker.line(np.zeros(2), np.ones(2))
    assert len(line) == 2
    assert np.isnan(relative_change(attributor.path(line.end, line.start, 0)))


def test_an_image_that_fgsm_does_not_move_has_a_row():
    """Of the second image the classifier is so sure that the gradient of its loss is zero."""
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.set_weights([np.array([[50.0, -50], [50, -50]]), np.zeros(2)])
    images = np.array([[0.01, 0.01], [1, 1]], np.float32)
    table = linearity(nns.InstrumentedModel(model), images, [0, 0], 0.125, rng=0)
    assert table.fgsm_parts.tolist() == [1, 1]
    length = np.linalg.norm([0.01, 0.01])  # clipped at 0
    assert table.fgsm_density[0] == pytest.approx(1 / length)
    assert np.isnan(table.fgsm_density[1])
    assert table.random_density.notna().all()
    assert table.fgsm_gradient_error.tolist() == [0, 0]


def test_unknown_method_is_refused():
    recipe = networks.RobustRecipe("magic", 0.1, 1)
    with pytest.raises(nns.errors.InvalidArgumentError, match="'normal', 'pgd', 'box'"):
        networks.train_robustly(None, None, recipe, rng=0)


@pytest.mark.parametrize(
    ("name", "shape", "neurons"),
    [
        ("convsmall", (28, 28, 1), 3_604),
        ("convsmall", (32, 32, 3), 4_852),
        ("convmedium", (28, 28, 1), 5_704),
        ("convmedium", (32, 32, 3), 7_144),
        ("convbig", (28, 28, 1), 48_064),
        ("convbig", (32, 32, 3), 62_464),
    ],
)
def test_networks_have_the_neurons_that_their_publishers_count(name, shape, neurons):
    """ERAN's table of networks counts all ReLUs."""
    model = networks.NETWORKS[name](shape)
    relus = [layer for layer in model.layers if getattr(layer, "activation", None) is not None]
    relus = [layer for layer in relus if layer.activation is keras.activations.relu]
    assert sum(np.prod(layer.output.shape[1:]) for layer in relus) == neurons


def test_relative_errors():
    approximation, exact = np.array([[1.1, 2.0]]), np.array([[1.0, 4.0]])
    assert relative_error(approximation, exact) == pytest.approx(2.1 / 5)
    assert relative_error(approximation, exact, by="components") == pytest.approx((0.1 + 0.5) / 2)
    with pytest.raises(nns.errors.InvalidArgumentError, match="'norm', 'components'"):
        relative_error(approximation, exact, by="pixels")


def test_numbers_of_samples_of_a_function_that_is_affine_but_for_one_kink():
    """y = max(x, 0) from -0.3 to 0.7: the kink is at 0.3, and attributions are 0.7."""
    dense = keras.layers.Dense
    model = keras.Sequential(
        [keras.Input((4,)), dense(4, "relu", dtype="float64"), dense(2, dtype="float64")]
    )
    model.layers[0].set_weights([np.diag([1.0, 0, 0, 0]), np.zeros(4)])
    model.layers[1].set_weights([np.eye(4)[:, :2], np.zeros(2)])
    ends = np.array([0.7, 0, 0, 0]), np.array([-0.3, 0, 0, 0])
    path = Attributor(nns.InstrumentedModel(model)).path(*ends, 0)
    # m left samples give 1 - ⌈0.3 m⌉ / m: 10 is the first within 5 % of 0.7.
    assert samples_for_completeness(path) == 3
    assert samples_for_completeness(path, least=4) == 6  # 1 - 2/4 and 1 - 2/5 are too far
    errors = [abs(1 - np.ceil(0.3 * m - 1e-9) / m - 0.7) / 0.7 <= 0.05 for m in range(1, 200)]
    first = next(m for m in range(1, 190) if all(errors[m - 1 : m + 5]))
    assert samples_within(path, "left") == first
    assert samples_within(path, "left", error=1e-9, most=50) is None
    # Of four components one has an error: their mean is a quarter of it.
    errors = [abs(1 - np.ceil(0.3 * m - 1e-9) / m - 0.7) / 0.7 / 4 <= 0.05 for m in range(1, 200)]
    first = next(m for m in range(1, 190) if all(errors[m - 1 : m + 4]))
    assert samples_within(path, "left", consecutive=5, by="components") == first


@pytest.mark.parametrize(
    ("rule", "value"), [("left", 3 / 4), ("right", 1.0), ("trapezoid", 3.5 / 4)]
)
def test_sums_weigh_the_first_and_the_last_gradient(rule, value):
    """ReLU(u − 0.1) from 0 to 1: of the gradients at 0, ¼, ½, ¾ and 1, only the first is 0."""
    attributor = Attributor(relu_of([[1, 0]], [-0.1]))
    x, baseline = np.array([1.0, 0]), np.zeros(2)
    sums = sums_of_gradients(attributor, x, baseline, 0, 4, rule)
    np.testing.assert_allclose(sums, [value, 0], atol=1e-6)
    path = attributor.path(x, baseline, 0)
    np.testing.assert_allclose(approximate(path, 4, rule), [value, 0], atol=1e-6)
    np.testing.assert_allclose(attributor.exact(x, baseline, 0), [0.9, 0], atol=1e-6)
    with pytest.raises(nns.errors.InvalidArgumentError, match="'left', 'right', 'trapezoid'"):
        approximate(path, 4, "middle")


@pytest.mark.parametrize("rule", ["left", "right", "trapezoid"])
def test_sums_are_those_of_the_models_own_gradients(rule):
    attributor = Attributor(relu_network((8, 8), inputs=4))
    x, baseline = np.random.default_rng(0).normal(size=(2, 4))
    sums = sums_of_gradients(attributor, x, baseline, 1, 13, rule)
    found = approximate(attributor.path(x, baseline, 1), 13, rule)
    np.testing.assert_allclose(found, sums, atol=1e-12)
