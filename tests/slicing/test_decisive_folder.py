"""Decisive slices of many samples: a folder resumes, and is not shared by other runs."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.errors import CorruptFileError, InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import Samples, Weights
from nnslicer_tf.slicing import DecisiveSlices, _decisions, _shared_passes


@pytest.fixture(scope="module")
def network():
    """A slicer of a small classifier with random weights, and samples."""
    rng = np.random.default_rng(0)
    model = keras.Sequential(
        [keras.Input((6,)), layers.Dense(8, "relu"), layers.Dense(3, "softmax")]
    )
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    x = rng.normal(size=(50, 6)).astype(np.float32)
    profile = nns.Profile.from_data(model, x, progress=False)
    return nns.Slicer(model, profile, workers=0, progress=False), x[:7]


@pytest.fixture
def small_files(monkeypatch):
    monkeypatch.setattr(_decisions, "_STORED", 2)


@pytest.fixture
def searched(monkeypatch):
    """The samples that are searched, in their order."""
    samples, found = [], _decisions.Decisions.found

    def counted(self, item, *rest):
        samples.append(item.inputs[0])
        return found(self, item, *rest)

    monkeypatch.setattr(_decisions.Decisions, "found", counted)
    return samples


def assert_equal(one, other, rtol=0.0):
    """Members, answers and counts are equal; real numbers up to `rtol`."""
    assert one.info == other.info
    assert all(map(np.array_equal, one.members, other.members))
    for a, b in zip(one.contributions, other.contributions, strict=True):
        np.testing.assert_allclose(a, b, rtol=rtol)
    assert one.certificate.keys() == other.certificate.keys()
    for name, column in one.certificate.items():
        of = rtol if column.dtype.kind == "f" else 0
        np.testing.assert_allclose(column, other.certificate[name], rtol=of, err_msg=name)


def test_an_interrupted_run_resumes(network, small_files, searched, tmp_path, monkeypatch):
    slicer, x = network
    whole = slicer.decisive(x, rng=3)
    found = _decisions.Decisions.found

    def interrupted(self, item, *rest):
        if np.array_equal(item.inputs[0][0], x[5]):
            raise KeyboardInterrupt
        return found(self, item, *rest)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(_decisions.Decisions, "found", interrupted)
        slicer.decisive(x, folder=tmp_path, rng=3)
    searched.clear()
    assert_equal(whole, slicer.decisive(x, folder=tmp_path, rng=3))
    again = np.sort(np.concatenate(searched), axis=0)  # by threads, in any order
    np.testing.assert_array_equal(again, np.sort(x[4:], axis=0))  # files of two
    searched.clear()
    assert_equal(whole, slicer.decisive(x, folder=tmp_path, rng=3))
    assert not searched


def test_a_slice_of_all_samples_and_a_generator(network, searched, tmp_path):
    slicer, x = network
    answers = slicer.im.predict(x).argmax(axis=1)
    same = x[answers == np.bincount(answers).argmax()]
    for _ in range(2):
        rng = np.random.default_rng(1)
        stored = slicer.decisive(same, together=True, folder=tmp_path, rng=rng)
        assert_equal(stored, slicer.decisive(same, together=True, rng=1))
        assert rng.bit_generator.state != np.random.default_rng(1).bit_generator.state
    assert len(searched) == 3  # the second run found the file


@pytest.mark.parametrize(
    "settings",
    [
        {"level": "neuron"},
        {"reference": "zero"},
        {"reference": nns.instrument.Samples(np.ones((3, 6), np.float32))},
        {"max_divergence": 0.2},
        {"others": 1},
        {"scope": 20},
        {"rng": 1},
        {"outputs": {"target": None}},
    ],
    ids=lambda settings: next(iter(settings)),
)
def test_other_runs_are_refused(network, tmp_path, settings):
    slicer, x = network
    slicer.decisive(x[:2], folder=tmp_path)
    if "outputs" in settings:
        hidden = slicer.im.operations[1].name
        settings = {"outputs": {hidden: 2}}
    with pytest.raises(ProfileMismatchError, match="folder"):
        slicer.decisive(x[:2], folder=tmp_path, **settings)


def test_other_samples_are_refused(network, tmp_path):
    """More samples, too: the seed of each search depends on all of them."""
    slicer, x = network
    slicer.decisive(x[:4], folder=tmp_path)
    for other in (x[[0, 1, 3, 2]], x[:5], x[:3]):
        with pytest.raises(ProfileMismatchError, match="other data"):
            slicer.decisive(other, folder=tmp_path)


def test_damaged_files_and_arguments(network, tmp_path):
    slicer, x = network
    slicer.decisive(x[:2], folder=tmp_path)
    (file,) = tmp_path.glob("*.npz")
    file.write_bytes(file.read_bytes()[:-200])
    with pytest.raises(CorruptFileError, match="slices-00000000"):
        slicer.decisive(x[:2], folder=tmp_path)
    with pytest.raises(InvalidArgumentError, match="omit folder"):
        slicer.decisive(x[:1], together=True, against=x, at_least=0.5, folder=tmp_path)
    with pytest.raises(InvalidArgumentError, match=r"folder|path"):
        slicer.decisive(x[:1], folder=3)


@pytest.mark.parametrize(
    "settings",
    [{}, {"max_divergence": 0.1, "needed": True}, {"level": "channel", "minimal": True}],
    ids=str,
)
def test_searches_that_share_passes_give_what_they_give_alone(settings, monkeypatch):
    """Of 20 samples, 16 and then 4 share passes; one that ends leaves the others."""
    keras.utils.set_random_seed(2)
    model = keras.Sequential(
        [
            *(keras.Input((6, 6, 2)), layers.Conv2D(4, 3, 2, activation="relu")),
            *(layers.Flatten(), layers.Dense(9, "relu"), layers.Dense(4, "softmax")),
        ]
    )
    model.set_weights([2 * w for w in model.get_weights()])
    x = np.random.default_rng(0).normal(size=(20, 6, 6, 2)).astype(np.float32)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    passes = []
    run = _shared_passes.SharedPasses._answers
    monkeypatch.setattr(
        _shared_passes.SharedPasses,
        "_answers",
        lambda self, asked: (passes.append(len(asked)), run(self, asked))[1],
    )
    together = slicer.decisive(x, **settings)
    assert {16, 4} <= set(passes) and min(passes) < 4
    monkeypatch.setattr(_decisions, "_FLOATS_OF_PASS", 0)
    count = len(passes)
    alone = slicer.decisive(x, **settings)
    assert len(passes) == count and together.info == alone.info
    for a, b in zip(together.members, alone.members, strict=True):
        np.testing.assert_array_equal(a, b)
    for name, column in alone.certificate.items():
        np.testing.assert_allclose(together.certificate[name], column, 1e-4, 1e-5, err_msg=name)


def test_a_pass_that_fails_ends_all_searches_that_share_it(network, monkeypatch):
    slicer, x = network

    def fails(self, asked):
        raise MemoryError("no memory for this pass")

    monkeypatch.setattr(_shared_passes.SharedPasses, "_answers", fails)
    with pytest.raises(MemoryError, match="this pass"):
        slicer.decisive(x)


@pytest.mark.parametrize(
    "options", [{}, {"at_least": 0.8, "level": "neuron", "max_share": 1.0}], ids=["mean", "others"]
)
def test_a_slice_does_not_depend_on_the_other_samples_of_a_call(options):
    """Alone, in another order and among others, all is equal, scope and classes included."""
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((6,)), layers.Dense(12, "relu"), layers.Dense(4)])
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    data = rng.normal(size=(180, 6)).astype(np.float32)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, data, progress=False), progress=False)
    if options:
        options["reference"] = Samples(data[:160])
    x = data[160:168]
    whole, turned = (slicer.decisive(rows, **options) for rows in (x, x[::-1]))
    alone = [slicer.decisive(x[i : i + 1], **options) for i in range(8)]
    # Without AVX-512, products of matrices of other sizes are rounded otherwise.
    assert_equal(whole, DecisiveSlices.join(alone), rtol=1e-5)
    reordered = DecisiveSlices.join([one_of(turned, i) for i in range(7, -1, -1)])
    assert_equal(whole, reordered, rtol=1e-5)


def one_of(slices, index):
    """The slice of one sample, as from a call of its own."""
    row = {name: column[index : index + 1] for name, column in slices.certificate.items()}
    info = {**slices.info, "others": slices.info["others"][index : index + 1]}
    return DecisiveSlices(
        slices.shapes, [slices.members[index]], [slices.contributions[index]], row, info
    )


def test_slices_of_another_output_or_version_are_refused(tmp_path):
    """Also if both outputs read the same values, and versions differ in what one sample reads."""
    inputs = keras.Input((3,), dtype="int32")
    x = layers.GlobalAveragePooling1D()(layers.Embedding(9, 5, name="words")(inputs))
    scores = layers.Dense(4, name="scores")(layers.Dense(6, "relu")(x))
    heads = {
        n: layers.Activation(f, name=n)(scores) for n, f in (("p", "softmax"), ("q", "sigmoid"))
    }
    model = keras.Model(inputs, heads)
    tokens = np.array([[1, 2, 3], [4, 5, 6]])
    slicer = nns.Slicer(model, nns.Profile.from_data(model, tokens, progress=False), workers=0)
    options = {"level": "neuron", "scope": 0}
    slicer.decisive(tokens, {"p": "predicted"}, folder=tmp_path / "a", **options)
    with pytest.raises(ProfileMismatchError):
        slicer.decisive(tokens, {"q": "predicted"}, folder=tmp_path / "a", **options)

    def version(token):
        other = keras.models.clone_model(model)
        other.set_weights(model.get_weights())
        table = other.get_layer("words").embeddings
        table.assign(np.where(np.arange(9)[:, None] == token, 3.0, table.numpy()))
        return Weights(other)

    options |= {"outputs": {"p": "predicted"}, "folder": tmp_path / "b"}
    slicer.decisive(tokens, reference=version(8), **options)
    with pytest.raises(ProfileMismatchError):  # what the second sample reads is another
        slicer.decisive(tokens, reference=version(5), **options)
