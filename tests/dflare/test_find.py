import dataclasses
import json

import keras
import numpy as np
import pytest

from nnslicer_tf import datasets
from nnslicer_tf.dflare import (
    DeviationSet,
    DFlare,
    ImageDomain,
    ModelPair,
    find_deviations,
    verify,
)
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
    PlausibilityWarning,
    ProfileMismatchError,
)
from support.deviating import find


def as_floats(images):
    """Leave images as they are, without the question whether they should be scaled."""
    return images.astype(np.float32)


SEARCHES = {
    "default": DFlare(),
    "paper": DFlare(patience=None, bisections=0),
    "DFlare_D": DFlare(fitness="distance", patience=None, bisections=0),
    "DFlare_R": DFlare(selection="uniform", patience=None, bisections=0),
}


def same(first, second):
    """Equal in everything but time."""
    return (
        first.status == second.status
        and first.queries == second.queries
        and np.array_equal(first.deviation.image, second.deviation.image)
        and first.deviation.trace == second.deviation.trace
    )


@pytest.mark.parametrize("search", SEARCHES.values(), ids=SEARCHES)
def test_found_images_lie_between_the_thresholds(pair, seeds, search):
    found = find(*pair, seeds, search=search, max_queries=20_000, progress=False)
    assert found.success_rate == 1
    means = found.images.reshape(len(seeds), -1).mean(axis=1)
    assert ((means > 128) & (means < 131)).all()
    np.testing.assert_array_equal(found.labels, [[1, 0]] * len(seeds))
    assert verify(ModelPair(*pair), found).all()


def test_queries_are_counted(pair, seeds):
    asked = []

    def original(x):
        asked.append(len(x))
        return pair[0](x)

    found = find(original, pair[1], seeds, as_floats, progress=False)
    # A look at the seeds, and confidences at the end.
    assert found.queries.sum() == sum(asked) - asked[0] - asked[-1]


def test_all_searches_begin_at_once(pair, seeds):
    asked = []

    def original(x):
        asked.append(len(x))
        return pair[0](x)

    options = {"preprocess": as_floats, "max_queries": 30, "progress": False}
    whole = find(original, pair[1], seeds, **options)
    assert asked[1] == 12
    asked.clear()
    parts = find(original, pair[1], seeds, together=5, **options)
    assert asked[1] == 5 == max(asked[1:-1])
    for first, second in zip(whole, parts, strict=True):
        assert first.queries == second.queries
        assert first.status != "found" or same(first, second)


def test_a_seed_does_not_depend_on_its_company(seeds):
    keras.utils.set_random_seed(1)
    original = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 255),
            keras.layers.Conv2D(4, 3, activation="relu"),
            keras.layers.Flatten(),
            keras.layers.Dense(5, activation="softmax", kernel_initializer="random_normal"),
        ]
    )
    compressed = keras.models.clone_model(original)
    compressed.set_weights([np.round(weight, 2) for weight in original.get_weights()])
    options = {"rng": 3, "progress": False, "batch_size": 4, "max_queries": 400}
    together = find(original, compressed, seeds, **options)
    backwards = find(original, compressed, seeds[::-1], together=5, **options)
    assert together.success_rate > 0.5
    for first, second in zip(together, list(backwards)[::-1], strict=True):
        assert first.queries == second.queries
        assert first.status != "found" or same(first, second)
    index = int(np.flatnonzero(together.found)[0])
    alone = find(original, compressed, seeds[[index]], rng=3, batch_size=4)
    assert same(alone[0], together[index])


def test_rng_decides(pair, seeds):
    first, again, other = (find(*pair, seeds, rng=rng, progress=False) for rng in (0, 0, 1))
    assert all(same(a, b) for a, b in zip(first, again, strict=True))
    assert not all(same(a, b) for a, b in zip(first, other, strict=True))
    twins = find(*pair, np.stack([seeds[0]] * 2), progress=False)
    assert not np.array_equal(twins.images[0], twins.images[1])


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_budgets_end_hopeless_searches(seeds, pair):
    options = {"progress": False, "search": DFlare()}
    limited = find(pair[0], pair[0], seeds, max_queries=30, **options)
    assert set(limited.status) == {"query_budget"} and set(limited.queries) == {30}
    assert limited.success_rate == 0
    assert np.isnan(limited.summary()["mean_queries"])
    timed = find(pair[0], pair[0], seeds, timeout=1e-3, **options)
    assert set(timed.status) == {"timeout"}


def test_seeds_that_deviate_are_reported(pair, seeds):
    seeds[4] = 130
    found = find(*pair, seeds, progress=False)
    assert found[4].status == "already_deviates" and found[4].queries == 1
    assert (found.status == "found").sum() == 11 and found.success_rate == 1
    assert len(found.images) == len(found.labels) == 11
    assert found[4].deviation.labels == (1, 0) and found[4].deviation.trace == ()


class Interrupted(Exception):
    """Stands for a process that is killed."""


@pytest.mark.filterwarnings("ignore:Both models answered identically:UserWarning")
def test_resumes_where_it_was(pair, seeds, tmp_path):
    path = tmp_path / "searches"
    whole = find(*pair, seeds, together=3, progress=False)
    calls = [0]

    def failing(x):
        calls[0] += 1
        if calls[0] > 60:
            raise Interrupted
        return pair[0](x)

    options = {"together": 3, "progress": False, "checkpoint": path, "preprocess": as_floats}
    with pytest.raises(InvalidArgumentError, match="`original` fails inside: Interrupted"):
        find(failing, pair[1], seeds, **options)
    asked = []

    def counting(x):
        asked.append(len(x))
        return pair[0](x)

    resumed = find(counting, pair[1], seeds, **options)
    assert all(same(a, b) for a, b in zip(whole, resumed, strict=True))
    assert sum(asked) < whole.queries.sum()
    with pytest.raises(ProfileMismatchError, match=r"different run \(rng="):
        find(*pair, seeds, rng=1, **options)
    with pytest.raises(ProfileMismatchError, match=r"different run \(models="):
        find(pair[0], pair[0], seeds, **options)
    part = max(path.glob("*.npz"), key=lambda p: p.stat().st_size)
    whole = part.read_bytes()
    with np.load(part) as archive:
        arrays = {name: archive[name] for name in archive.files}
    header = json.loads(str(arrays.pop("header")))
    indices, labels = header["seeds"], arrays["labels"]
    assert len(indices) > 1
    older = {name: array for name, array in arrays.items() if name != "checksum"}
    for kept in (arrays, older):  # files of older versions have no checksum
        for last in (indices[0], True, -1, 99, None, "1"):
            changed = {**header, "seeds": [*indices[:-1], last]}
            np.savez(part, header=json.dumps(changed), **kept)
            with pytest.raises(CorruptFileError, match="seeds are not those of this search"):
                find(*pair, seeds, **options)
    for changed, values in (
        ({"seeds": indices[::-1]}, {}),
        ({}, {"images": arrays["images"][::-1]}),
        ({}, {"labels": labels[::-1, ::-1]}),
        ({}, {"labels": np.full_like(labels, -1)}),
        ({}, {"status": np.full_like(arrays["status"], "query_budget")}),
    ):
        np.savez(part, header=json.dumps(header | changed), **(arrays | values))
        with pytest.raises(CorruptFileError, match=r"changed later|impossible"):
            find(*pair, seeds, **options)
    np.savez(part, header=json.dumps(header), **older)
    again = find(*pair, seeds, **options)
    assert all(same(a, b) for a, b in zip(resumed, again, strict=True))
    part.write_bytes(whole)
    part.write_bytes(part.read_bytes()[:200])
    with pytest.raises(CorruptFileError, match="damaged"):
        find(*pair, seeds, **options)


def test_save_and_load(pair, seeds, tmp_path):
    seeds[4] = 130
    found = find(*pair, seeds, max_queries=2000, progress=False)
    found.save(tmp_path / "found.npz")
    loaded = DeviationSet.load(tmp_path / "found.npz")
    assert len(loaded) == 12
    assert all(same(a, b) for a, b in zip(found, loaded, strict=True))
    np.testing.assert_array_equal(found.seconds, loaded.seconds)
    assert loaded.summary() == found.summary()
    (tmp_path / "other.npz").write_text(json.dumps({}))
    with pytest.raises(CorruptFileError, match="not a set of deviations"):
        DeviationSet.load(tmp_path / "other.npz")
    with pytest.raises(FileNotFoundError, match="nowhere"):
        DeviationSet.load(tmp_path / "nowhere.npz")


def test_verify_notices_what_is_wrong(pair, seeds):
    found = find(*pair, seeds, progress=False)
    first = found[0].deviation
    other_image = dataclasses.replace(first, image=seeds[0])
    other_trace = dataclasses.replace(first, trace=first.trace[:-1])
    other_labels = dataclasses.replace(first, labels=(0, 1))
    spoiled = [
        dataclasses.replace(found[0], deviation=deviation)
        for deviation in (first, other_image, other_trace, other_labels)
    ]
    held = verify(ModelPair(*pair), DeviationSet(spoiled, seeds[[0] * 4]))
    np.testing.assert_array_equal(held, [True, False, False, False])


def three_classes(x):
    return np.full((len(x), 3), 1 / 3)


def logits(x):
    return np.tile([[3.0, -1.0]], (len(x), 1))


def independent_labels(x):
    return np.tile([[0.9, 0.8]], (len(x), 1))


def broken(x):
    return np.full((len(x), 2), np.nan)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (three_classes, "same shape"),
        (logits, "softmax"),
        (independent_labels, "task=.multilabel"),
        (broken, "NaN"),
        (len, "batch, classes"),
    ],
)
def test_bad_models(pair, seeds, model, message):
    with pytest.raises((InvalidArgumentError, NonFiniteActivationError), match=message):
        find(pair[0], model, seeds, progress=False)


@pytest.mark.parametrize(
    "options", [{"timeout": 0}, {"max_queries": 0}, {"together": 0}, {"rng": "x"}]
)
def test_bad_arguments(pair, seeds, options):
    with pytest.raises(InvalidArgumentError, match=next(iter(options))):
        find(*pair, seeds, **options)


def test_the_models_are_one_argument(pair, seeds):
    with pytest.raises(InvalidArgumentError, match=r"ModelPair\(original, compressed\)"):
        find_deviations(*pair, seeds)


def test_bad_seeds(pair):
    with pytest.raises(InputShapeError, match="no seeds"):
        find(*pair, np.empty((0, 8, 8, 1), np.uint8))
    with pytest.raises(InputShapeError, match="uint8"):
        images = ModelPair(*pair, domain=ImageDomain())
        find_deviations(images, np.zeros((1, 8, 8, 1)))


REAL = {
    "lenet1": ("lenet1.h5", "lenet1-quan.lite", "mnist"),
    "resnet20": ("resnet.h5", "resnet-quan.lite", "cifar10"),
}
CIFAR_MEAN = np.array([125.30691805, 122.95039414, 113.86538318])
CIFAR_STD = np.array([62.99321928, 62.08870764, 66.70489964])
PREPROCESS = {
    "mnist": lambda x: (x / np.float32(255)).astype(np.float32),
    "cifar10": lambda x: ((x - CIFAR_MEAN) / CIFAR_STD).astype(np.float32),
}


@pytest.mark.parametrize("name", REAL)
def test_real_pairs(shared_data, name):
    import tensorflow_datasets as tfds

    model, lite, dataset = REAL[name]
    folder = shared_data / "models" / "diffchaser"
    # Named, as tests that ran before may have imported it with another folder in mind.
    data = tfds.load(dataset, split="test", data_dir=shared_data / "tfds", try_gcs=False)
    seeds = np.stack([row["image"] for row in tfds.as_numpy(data.take(8))])

    def load():
        return keras.models.load_model(folder / model, compile=False)

    preprocess = PREPROCESS[dataset]
    options = {"max_queries": 2000, "progress": False}
    found = find(load(), folder / lite, seeds, preprocess, **options)
    assert found.success_rate == 1
    assert found.summary()["distinct"] == found.found.sum()
    fresh = ModelPair(load(), folder / lite, preprocess)
    assert verify(fresh, found).all()
    fewer = find(load(), folder / lite, seeds[5:2:-1], preprocess, **options)
    assert all(same(a, b) for a, b in zip(list(found)[5:2:-1], fewer, strict=True))


def test_forgotten_preprocessing_is_noticed(shared_data):
    """LeNet-1 on images of 0 to 255 is certain of everything, and most findings are none."""
    folder = shared_data / "models" / "diffchaser"
    original = keras.models.load_model(folder / "lenet1.h5", compile=False)
    models = original, folder / "lenet1-quan.lite"
    images = np.round(datasets.load("mnist", "test[:20]").x * 255).astype(np.uint8)
    with (
        pytest.warns(PlausibilityWarning, match="trained on scaled images"),
        pytest.warns(PlausibilityWarning, match="answered identically"),
    ):
        find(*models, images[:8], max_queries=5, progress=False)
    for preprocess in (PREPROCESS["mnist"], as_floats):
        found = find(*models, images[:2], preprocess, max_queries=5, progress=False)
        assert len(found) == 2
