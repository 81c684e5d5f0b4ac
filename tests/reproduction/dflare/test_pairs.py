import numpy as np
import pytest

from nnslicer_tf import datasets, zoo
from nnslicer_tf.dflare import DFlare, find_deviations, verify
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.zoo import accuracy
from reproduction.dflare.pairs import load_pair, pair_names, seed_images, uint8_images


def test_digits_become_8_bit_images():
    images = uint8_images("digits", "test")
    assert images.shape == (360, 8, 8, 1) and images.dtype == np.uint8
    assert images.max() == 255 and images.min() == 0


@pytest.mark.parametrize("kind", ["dynamic", "integer", "pruned", "mutated10"])
def test_pairs_from_the_zoo(tmp_path, kind):
    pair = load_pair(f"digits_cnn-{kind}", work=tmp_path)
    seeds = seed_images(pair, 15, rng=0)
    np.testing.assert_array_equal(seeds, seed_images(pair, 15, rng=0))
    search = DFlare(max_queries=3000)
    found = find_deviations(pair.load(), seeds, search=search, progress=False)
    assert found.success_rate == 1 and len(seeds) == 15
    assert verify(pair.load(), found).all()


def test_retrained_copies_stay_sparse(tmp_path):
    pruned, retrained = (
        load_pair(f"digits_cnn-{kind}", work=tmp_path) for kind in ("pruned", "retrained")
    )
    original, copy = pruned.load_original(), retrained.load_compressed()
    data = datasets.load("digits", "train")
    for before, after in zip(original.get_weights(), copy.get_weights(), strict=True):
        if before.ndim > 1:
            assert np.sum(after == 0) == before.size // 2
            assert np.abs(before[after == 0]).max() <= np.abs(before[after != 0]).min()
    assert accuracy(copy, data) > accuracy(pruned.load_compressed(), data)


def test_a_model_trained_again_is_compressed_again(tmp_path, monkeypatch):
    old = load_pair("digits_cnn-pruned", work=tmp_path)
    other = zoo.load("digits_cnn")
    other.set_weights([2 * w for w in other.get_weights()])
    monkeypatch.setattr(zoo, "load", lambda name: other)
    new = load_pair("digits_cnn-pruned", work=tmp_path)
    for pair, factor in ((old, 1), (new, 2)):
        kept = pair.load_compressed().get_layer("conv1").kernel.numpy()
        whole = other.get_layer("conv1").kernel.numpy() / 2 * factor
        np.testing.assert_array_equal(kept, np.where(kept == 0, 0, whole))


def test_unknown_pairs(tmp_path):
    with pytest.raises(InvalidArgumentError, match="'lenet1', 'resnet20'"):
        load_pair("digits_cnn-squeezed")
    with pytest.raises(InvalidArgumentError, match=r"lenet1\.h5"):
        load_pair("lenet1", tmp_path)
    assert "lenet5-integer" in pair_names()
