"""Training by a teacher's outputs, and by labels of models with probabilities."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import pruning


def _dense(seed, units=3, **options):
    keras.utils.set_random_seed(seed)
    inputs = keras.Input((4,))
    return keras.Model(inputs, keras.layers.Dense(units, **options)(inputs))


@pytest.fixture
def x():
    return np.random.default_rng(0).normal(size=(512, 4)).astype(np.float32)


def test_a_linear_model_becomes_its_teacher(x):
    """The outputs on blends of samples determine a linear map, whatever its weights were."""
    teacher, student = _dense(1), _dense(2)
    given = [w.copy() for w in teacher.get_weights()]
    found = pruning.imitate(
        *(student, teacher, x, 60), learning_rate=0.02, batch_size=64, progress=False
    )
    assert found is student
    for mine, theirs, before in zip(
        student.get_weights(), teacher.get_weights(), given, strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-2)
        np.testing.assert_array_equal(theirs, before)


def test_a_seed_gives_equal_weights(x):
    teacher, students = _dense(1), [_dense(2) for _ in range(3)]
    for student, seed in zip(students, (5, 5, 6), strict=True):
        pruning.imitate(student, teacher, x, 1, rng=seed, progress=False)
    first, second, other = (student.get_weights()[0] for student in students)
    np.testing.assert_allclose(first, second, atol=1e-7)
    assert np.abs(first - other).max() > 1e-5


@pytest.mark.parametrize("dtype", ["int32", "float32"])
def test_tokens_are_not_blended(dtype):
    """A blend of tokens 0 and 2 would be 1, which this teacher answers otherwise."""
    table = np.array([[0.0, 1.0], [9.0, 9.0], [1.0, 0.0]], np.float32)
    tokens = np.random.default_rng(0).choice([0, 2], (256, 1)).astype(np.int32)

    def model():
        inputs = keras.Input((1,), dtype=dtype)
        return keras.Model(
            inputs, keras.layers.Flatten()(keras.layers.Embedding(3, 2, name="e")(inputs))
        )

    teacher, student = model(), model()
    teacher.get_layer("e").set_weights([table])
    before = student.get_layer("e").get_weights()[0][1]
    pruning.imitate(student, teacher, tokens, 80, learning_rate=0.05, progress=False)
    after = student.get_layer("e").get_weights()[0]
    np.testing.assert_allclose(after[[0, 2]], table[[0, 2]], atol=1e-2)
    np.testing.assert_allclose(after[1], before)


def test_outputs_must_fit(x):
    with pytest.raises(nns.InvalidArgumentError, match="same shape"):
        pruning.imitate(_dense(1, 2), _dense(2, 3), x)
    with pytest.raises(nns.InputShapeError):
        pruning.imitate(_dense(1), _dense(2), x[:, :3])


def test_labels_train_probabilities(x):
    """Labels that one input decides are learnt by a model with a softmax."""
    y = (x[:, 0] > 0).astype(int)
    model = _dense(3, 2, activation="softmax")
    pruning.fine_tune(
        model, x, y, 30, learning_rate=0.05, batch_size=64, from_logits=False, progress=False
    )
    assert (model.predict(x, verbose=0).argmax(1) == y).mean() > 0.97


def test_models_of_several_inputs_are_refused(x):
    first, second = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([first, second], keras.layers.Dense(3)(keras.layers.Add()([first, second])))
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        pruning.fine_tune(model, x, np.zeros(len(x), int), progress=False)
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        pruning.imitate(model, model, x, progress=False)
