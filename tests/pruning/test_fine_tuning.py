"""Training by a teacher's outputs, and by labels of models with probabilities."""

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import pruning
from nnslicer_tf.pruning.fine_tuning import imitate


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
    found = imitate(student, teacher, x, 60, learning_rate=0.02, batch_size=64, progress=False)
    assert found is student
    for mine, theirs, before in zip(
        student.get_weights(), teacher.get_weights(), given, strict=True
    ):
        np.testing.assert_allclose(mine, theirs, atol=1e-2)
        np.testing.assert_array_equal(theirs, before)


def test_a_seed_gives_equal_weights(x):
    teacher, students = _dense(1), [_dense(2) for _ in range(3)]
    for student, seed in zip(students, (5, 5, 6), strict=True):
        imitate(student, teacher, x, 1, rng=seed, progress=False)
    first, second, other = (student.get_weights()[0] for student in students)
    np.testing.assert_allclose(first, second, atol=1e-7)
    assert np.abs(first - other).max() > 1e-5


def test_a_seed_determines_dropout(x):
    def student(state):
        keras.utils.set_random_seed(2)
        inputs = keras.Input((4,))
        dropout = keras.layers.Dropout(0.5)
        model = keras.Model(inputs, keras.layers.Dense(3)(dropout(keras.layers.Dense(8)(inputs))))
        dropout.seed_generator.state.assign([state, state])
        return model

    teacher, y = _dense(1), np.arange(512) % 3
    for train in (
        lambda model: pruning.fine_tune(model, x, y, rng=5, progress=False),
        lambda model: imitate(model, teacher, x, rng=5, progress=False),
    ):
        first, second = (train(student(state)).get_weights()[0] for state in (3, 4))
        np.testing.assert_allclose(first, second, atol=1e-7)


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
    imitate(student, teacher, tokens, 80, learning_rate=0.05, progress=False)
    after = student.get_layer("e").get_weights()[0]
    np.testing.assert_allclose(after[[0, 2]], table[[0, 2]], atol=1e-2)
    np.testing.assert_allclose(after[1], before)


def test_outputs_must_fit(x):
    with pytest.raises(nns.errors.InvalidArgumentError, match="same shape"):
        imitate(_dense(1, 2), _dense(2, 3), x)
    with pytest.raises(nns.errors.InputShapeError):
        imitate(_dense(1), _dense(2), x[:, :3])


def test_tokens_of_a_nested_model_are_not_blended():
    """As above, with the table in a model of its own, whose input says nothing of tokens."""
    tokens = np.random.default_rng(0).choice([0, 2], (256, 1)).astype(np.float32)

    def model():
        table = keras.layers.Embedding(3, 2, name="e")
        inner = keras.Sequential([keras.Input((1,)), table, keras.layers.Flatten()])
        inputs = keras.Input((1,))
        return keras.Model(inputs, inner(inputs)), table

    (teacher, of_teacher), (student, table) = model(), model()
    of_teacher.set_weights([np.array([[0.0, 1.0], [9.0, 9.0], [1.0, 0.0]])])
    before = table.get_weights()[0][1]
    imitate(student, teacher, tokens, 2, progress=False)
    np.testing.assert_array_equal(table.get_weights()[0][1], before)


class Linear(keras.Model):
    """A subclassed model that draws noise in training."""

    def __init__(self):
        super().__init__()
        self.noise = keras.layers.GaussianNoise(0.1)
        self.last = keras.layers.Dense(3)

    def call(self, x, training=False):
        return self.last(self.noise(x, training=training))


def test_subclassed_models_are_trained_in_place(x):
    teacher, student = _dense(1), Linear()
    student(x[:1])
    options = {"learning_rate": 0.02, "batch_size": 64, "progress": False}
    assert imitate(student, teacher, x, 60, **options) is student
    kernel = teacher.layers[1].kernel
    np.testing.assert_allclose(student.last.kernel, kernel, atol=0.05)
    assert np.abs(student.last.kernel - kernel).max() > 1e-4  # there was noise
    y = (x[:, 0] > 0).astype(int)
    assert pruning.fine_tune(student, x, y, 30, **options) is student
    assert (student(x).numpy().argmax(1) == y).mean() > 0.95


def test_a_model_without_a_shape_is_trained_with_one(x):
    y = (x[:, 0] > 0).astype(int)
    model = keras.Sequential([keras.layers.Dense(2)])
    with pytest.raises(nns.errors.InputShapeError, match=r"InstrumentedModel\(model, input_shape"):
        pruning.fine_tune(model, x, y)
    im = nns.InstrumentedModel(model, (4,))
    options = {"learning_rate": 0.05, "batch_size": 64, "progress": False}
    assert pruning.fine_tune(im, x, y, 20, **options) is model
    assert (model(x).numpy().argmax(1) == y).mean() > 0.95


def test_images_of_any_size_train_a_model_of_no_fixed_one():
    x = np.random.default_rng(0).normal(size=(256, 5, 5, 1)).astype(np.float32)
    x[::2] += 0.5
    inputs = keras.Input((None, None, 1))
    model = keras.Model(inputs, keras.layers.Dense(2)(keras.layers.GlobalMaxPooling2D()(inputs)))
    y = (x.max(axis=(1, 2, 3)) > 2.4).astype(int)
    options = {"learning_rate": 0.1, "batch_size": 64, "progress": False}
    pruning.fine_tune(model, x, y, 60, **options)
    assert (model(x).numpy().argmax(1) == y).mean() > 0.9


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda m, x, y: pruning.fine_tune(m, x, y, batch_size=0), "batch_size"),
        (lambda m, x, y: imitate(m, m, x, batch_size=0), "batch_size"),
        (lambda m, x, y: imitate(m, m, x[:0]), "no samples"),
        (lambda m, x, y: pruning.fine_tune(m, x[:0], y[:0]), "no samples"),
        (lambda m, x, y: pruning.fine_tune(m, x, y + 1), "labels must be in 0 … 2"),
    ],
)
def test_bad_arguments_are_refused(x, call, message):
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        call(_dense(1), x, np.arange(len(x)) % 3)


def test_labels_train_probabilities(x):
    """Labels that one input decides are learnt by a model with a softmax."""
    y = (x[:, 0] > 0).astype(int)
    model = _dense(3, 2, activation="softmax")
    pruning.fine_tune(
        model, x, y, 30, learning_rate=0.05, batch_size=64, from_logits=False, progress=False
    )
    assert (model(x).numpy().argmax(1) == y).mean() > 0.97


def test_models_of_several_inputs_are_refused(x):
    first, second = keras.Input((4,)), keras.Input((4,))
    model = keras.Model([first, second], keras.layers.Dense(3)(keras.layers.Add()([first, second])))
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        pruning.fine_tune(model, x, np.zeros(len(x), int), progress=False)
    with pytest.raises(nns.errors.SeveralInputsError, match="has 2 inputs"):
        imitate(model, model, x, progress=False)


def test_what_may_change_is_named_by_the_models_own_variables(x):
    """Each once, with a mask of its shape; anything else was broadcast, or trained nothing."""
    model, y = _dense(1), np.arange(len(x)) % 3
    kernel = model.layers[-1].kernel
    mask = np.zeros(kernel.shape, bool)
    mask[0] = True
    before = [v.numpy() for v in model.variables]
    pruning.fine_tune(model, x, y, free=[(kernel, mask)], epochs=2, progress=False)
    after = [v.numpy() for v in model.variables]
    assert (before[0] != after[0]).any(axis=1).tolist() == mask.any(axis=1).tolist()
    assert all(np.array_equal(*pair) for pair in zip(before[1:], after[1:]))
    for free in (
        [(kernel, mask[0])],
        [(kernel, mask), (kernel, mask)],
        [("kernel", mask)],
        [(_dense(1).layers[-1].kernel, mask)],
    ):
        with pytest.raises(nns.errors.InvalidArgumentError, match="free must name"):
            pruning.fine_tune(model, x, y, free=free, progress=False)
