"""The experiment on compressed models, whole, on a pair of the zoo."""

import pytest

from nnslicer_tf.errors import InvalidArgumentError
from reproduction.debugging import compression as module
from reproduction.debugging.compression import compression
from reproduction.debugging.settings import CompressionSettings


@pytest.fixture(scope="module")
def settings(tmp_path_factory):
    return CompressionSettings(
        pair="digits_cnn-integer",
        ways="integer",
        budget=0.25,
        seeds=6,
        max_queries=200,
        work=tmp_path_factory.mktemp("work"),
        shares=(1.0, 0.001),
    )


def test_the_pair_is_compared_mended_and_searched_again(settings, monkeypatch):
    found = compression(settings)
    name = "compression_digits_cnn-integer"
    layers = found.table(f"{name}_layers")
    assert layers["cause"].sum() == pytest.approx(1)
    with_kernel = layers[layers["weights"] > 0]
    assert with_kernel["same slice"].between(0.5, 1).all() and len(with_kernel) == 3
    recipes = found.table(name)
    assert recipes["search"].tolist() == 2 * ["DFlare"] + 2 * ["Algorithm 1"]
    assert recipes["recipe"].tolist() == 2 * ["none", "conv1, logits"]
    assert recipes["bytes"][1] > recipes["bytes"][0]
    assert recipes["weights in float"].max() < 0.25
    control = found.table(f"{name}_control").iloc[0]
    assert control["layers that cause most"] == "conv1, logits"
    assert control["layers that cause least"] == "no layer fits"
    shrunk = found.table(f"{name}_shrunk").set_index(["share", "search"])
    assert shrunk.loc[(1.0, "DFlare"), "harder"] == 0
    assert shrunk.loc[(0.001, "DFlare"), "harder"] > 0.5
    # What is finished is not computed again.
    monkeypatch.setattr(module, "recipe", None)
    again = compression(settings).table(name)
    assert again["median queries"].tolist() == recipes["median queries"].tolist()


def test_bad_settings(settings, monkeypatch):
    with pytest.raises(InvalidArgumentError, match="no LiteRT file"):
        compression(CompressionSettings(pair="digits_cnn-pruned", seeds=4, work=settings.work))
    with pytest.raises(InvalidArgumentError, match="Unknown way 'sparse'"):
        compression(CompressionSettings(pair=settings.pair, ways="sparse", work=settings.work))
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    with pytest.raises(InvalidArgumentError, match="pip install ai-edge-quantizer"):
        compression(CompressionSettings(pair=settings.pair, ways="weights", work=settings.work))
