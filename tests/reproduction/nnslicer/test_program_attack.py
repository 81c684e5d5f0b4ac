"""The attacker of the paper's program."""

import keras
import numpy as np
import pytest
from keras import layers

from reproduction.nnslicer.program_protection import ProgramAttacker, protect_by_program, zeroed
from reproduction.nnslicer.settings import ProgramProtectionSettings


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(0)
    return keras.Sequential(
        [
            keras.Input((4, 4, 1)),
            layers.Conv2D(2, 3, name="conv"),
            layers.ReLU(),
            layers.Conv2D(2, 1, name="shortcut"),
            layers.Flatten(),
            layers.Dense(3, name="logits"),
        ]
    )


def softmax(z):
    e = np.exp(z - z.max(axis=1, keepdims=True))
    return e / e.sum(axis=1, keepdims=True)


def loss(model, kernel, x, y, twice):
    """The loss in NumPy's float64, for a kernel of the first convolution; y are probabilities."""
    bias = np.asarray(model.get_layer("conv").bias, np.float64)
    windows = np.lib.stride_tricks.sliding_window_view(x[..., 0], (3, 3), axis=(1, 2))
    h = np.maximum(np.einsum("nijkl,klo->nijo", windows, kernel[:, :, 0]) + bias, 0)
    one, two = model.get_layer("shortcut"), model.get_layer("logits")
    h = h @ np.asarray(one.kernel, np.float64)[0, 0] + np.asarray(one.bias)
    z = h.reshape(len(x), -1) @ np.asarray(two.kernel, np.float64) + np.asarray(two.bias)
    if twice:
        z = softmax(z)
    return -(y * np.log(softmax(z))).sum(axis=1).mean()


def differences(model, kernel, x, y, twice):
    """The gradient of the loss by central differences."""
    gradient = np.zeros_like(kernel)
    for index in np.ndindex(*kernel.shape):
        step = np.zeros_like(kernel)
        step[index] = 1e-5
        up, down = (loss(model, kernel + d, x, y, twice) for d in (step, -step))
        gradient[index] = (up - down) / 2e-5
    return gradient


@pytest.mark.parametrize("twice", [True, False])
def test_a_step_is_that_of_the_formula(model, twice):
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 4, 4, 1)).astype(np.float32)
    y = rng.integers(0, 3, 8)
    hidden = {"conv": rng.random((3, 3, 1, 2)) < 0.5}
    attacker = ProgramAttacker(1, 0.5, decay=0.01, softmax_twice=twice)
    start = np.asarray(zeroed(model, hidden).get_layer("conv").kernel, np.float64)
    assert not start[hidden["conv"]].any() and start[~hidden["conv"]].all()
    *_, stolen = attacker.retrain(model, hidden, x, y, rng=0)
    gradient = differences(model, start, x, np.eye(3)[y], twice)
    expected = start - 0.5 * (gradient + 0.01 * start)
    np.testing.assert_allclose(stolen.get_layer("conv").kernel, expected, rtol=1e-3, atol=1e-5)
    for name in ("shortcut", "logits"):
        for ours, theirs in zip(
            stolen.get_layer(name).weights, model.get_layer(name).weights, strict=True
        ):
            np.testing.assert_array_equal(ours, theirs)


def test_distillation_descends_to_the_victims_probabilities(model):
    """The first step of Adam is the learning rate against the gradient's sign."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 4, 4, 1)).astype(np.float32)
    attacker = ProgramAttacker(
        1, 1e-3, decay=0.0, softmax_twice=False, trains_all=True, adam=True, distils=True
    )
    y = attacker.labels(rng.normal(size=(8, 3)).astype(np.float32))
    np.testing.assert_allclose(y.sum(axis=1), 1, rtol=1e-6)
    start = np.asarray(model.get_layer("conv").kernel, np.float64)
    *_, stolen = attacker.retrain(model, {}, x, y, rng=0)
    moved = np.asarray(stolen.get_layer("conv").kernel) - start
    gradient = differences(model, start, x, y, twice=False)
    clear = np.abs(gradient) > 1e-3
    assert clear.sum() > 9
    np.testing.assert_allclose(moved[clear], -1e-3 * np.sign(gradient[clear]), rtol=1e-2)


def test_stronger_attackers_train_everything(model):
    x, y = np.ones((6, 4, 4, 1), np.float32), np.array([0, 1, 2, 0, 1, 2])
    attacker = ProgramAttacker(2, 0.1, trains_all=True)
    stages = [[np.asarray(w) for w in m.weights] for m in attacker.retrain(model, {}, x, y, 0)]
    assert len(stages) == 3
    assert sum((a != b).any() for a, b in zip(stages[0], stages[2], strict=True)) >= 4


def test_the_programs_protection_is_measured(tmp_path):
    settings = ProgramProtectionSettings(
        model="digits_cnn",
        dataset="digits",
        samples=3,
        profiled=50,
        subsets=2,
        budget=[100],
        method=["NNSlicer", "Weight", "Random"],
        work=tmp_path,
    )
    name = "protection-digits_cnn-program-4x2-100"
    found = protect_by_program(settings).table(name).set_index("method")
    assert found["sets"].tolist() == [2, 2, 2]
    assert (found["best targets"] >= found["targets"]).all()
    assert (found["best targets"] >= found["untrained"]).all()
    again = protect_by_program(settings).table(name).set_index("method")
    np.testing.assert_allclose(again["all"], found["all"])
