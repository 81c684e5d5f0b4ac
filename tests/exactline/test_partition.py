import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import LinearPartition, LineWalker


@pytest.fixture(scope="module")
def partition():
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [keras.Input((3,)), keras.layers.Dense(20, "relu"), keras.layers.Dense(4)]
    )
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(size=w.shape) for w in model.get_weights()])
    walker = LineWalker(nns.InstrumentedModel(model))
    return walker.line(rng.normal(size=3) * 5, rng.normal(size=3) * 5)


@pytest.mark.parametrize("lowest", [False, True])
def test_regions_are_those_of_dense_samples(partition, lowest):
    regions = partition.classify(lowest)
    t = np.linspace(0, 1, 20_001)
    best = np.argmin if lowest else np.argmax
    labels = best(partition.evaluate(t), axis=1)
    near = np.abs(t[:, None] - regions.ratios).min(axis=1) < 1e-9
    np.testing.assert_array_equal(regions.label_at(t)[~near], labels[~near])
    changes = t[1:][np.diff(labels) != 0]
    assert len(regions) == len(changes) + 1 > 1
    np.testing.assert_allclose(regions.ratios[1:-1], changes, rtol=0, atol=1e-4)
    assert (np.diff(regions.labels) != 0).all()


def test_boundaries_are_exact(partition):
    regions = partition.classify()
    for ratio, before, after in zip(
        regions.ratios[1:-1], regions.labels, regions.labels[1:], strict=False
    ):
        scores = partition.evaluate(ratio)[0]
        assert (
            abs(scores[before] - scores[after]) < 1e-12 and scores[before] >= scores.max() - 1e-12
        )


def test_single_output_is_cut_at_zero():
    partition = LinearPartition(
        np.zeros(1), np.ones(1), np.array([0, 0.5, 1]), np.array([[-1.0], [1.0], [-3.0]])
    )
    regions = partition.classify()
    np.testing.assert_allclose(regions.ratios, [0, 0.25, 0.625, 1])
    assert regions.labels.tolist() == [0, 1, 0]


def test_save_and_load(partition, tmp_path):
    partition.save(tmp_path / "line.npz")
    loaded = LinearPartition.load(tmp_path / "line.npz")
    for name in ("start", "end", "ratios", "outputs"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(partition, name))


def test_damaged_file_is_refused(partition, tmp_path):
    path = tmp_path / "line.npz"
    partition.save(path)
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(nns.errors.CorruptFileError, match=r"line.npz"):
        LinearPartition.load(path)
    with pytest.raises(FileNotFoundError, match=r"missing\.npz"):
        LinearPartition.load(tmp_path / "missing.npz")


def test_ratios_outside_are_refused(partition):
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"in \[0, 1\]"):
        partition.evaluate([0.5, 1.1])


def test_images_have_no_classes():
    partition = LinearPartition(np.zeros(1), np.ones(1), np.array([0, 1.0]), np.zeros((2, 3, 3)))
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"\(3, 3\)"):
        partition.classify()


def test_points_and_length(partition):
    np.testing.assert_array_equal(partition.at([0, 1]), [partition.start, partition.end])
    assert partition.length == pytest.approx(
        np.sqrt(((partition.start - partition.end) ** 2).sum())
    )
