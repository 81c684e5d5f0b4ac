import dataclasses

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf.dflare import DeviationSet, ModelPair, find_deviations
from nnslicer_tf.dflare.deviations import Deviation, SearchOutcome
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.methods import (
    LIKE,
    METHODS,
    SAME_AS,
    any_change,
    growth,
    means_beside_the_paper,
    paper_correlations,
    paper_figures,
    paper_repair,
    paper_timeouts,
    rank_only,
    row_of,
    wrapping_noise,
)
from reproduction.dflare.pairs import NamedPair
from reproduction.dflare.searches import cross_validate
from reproduction.settings import DATA


def test_papers_averages():
    """The averages that the paper's text states (sections 5.2, 5.3 and 5.5)."""
    folder = DATA / "paper" / "dflare"
    search = pd.read_csv(folder / "table4_search.csv", comment="#")
    assert len(search) == 21
    assert abs(search.dflare_queries.mean() - 24.99) < 0.1
    assert abs(search.diffchaser_queries.mean() - 3642.5) < 0.1
    assert abs(search.diffchaser_seconds.mean() - 52.23) < 0.1
    repair = pd.read_csv(folder / "table7_repair.csv", comment="#")
    assert abs(repair.repair_count.mean() - 32.73) < 0.05
    assert abs(repair.inducing_count.mean() - 4.17) < 0.05
    ablation = pd.read_csv(folder / "table6_ablation.csv", comment="#")
    assert abs(ablation.dflare_d_success.mean() - 83.14) < 0.1


def test_figures_of_the_paper():
    lenet = paper_figures("lenet1", "DFlare")
    assert (lenet["paper_seconds"], lenet["paper_queries"]) == (0.513, 83.97)
    assert (lenet["program_mean_queries"], lenet["program_median_queries"]) == (114, 68)
    assert paper_figures("resnet20", "DiffChaser")["paper_queries"] == 2323.58
    assert paper_figures("lenet1", "DFlare_D")["paper_success"] == pytest.approx(0.4144)
    assert paper_figures("lenet5-pruned", "DFlare, with repair")["paper_queries"] == 33.86
    assert paper_figures("lenet5-pruned", "DFlare")["paper_pair"] == "like LeNet-5 Prune"
    assert paper_figures("digits_cnn-pruned", "DFlare") == {}
    assert paper_figures("lenet1", "with patience") == {}
    assert paper_repair("resnet20")["paper_repair_ratio"] == pytest.approx(0.1504)
    assert paper_repair("resnet20")["paper_pair"] == "ResNet-20 Quantization-8-bit"
    for pair in (*SAME_AS, *LIKE):
        assert paper_figures(pair, "DFlare") and paper_repair(pair)


def test_correlations_of_the_paper():
    """Section 5.4.1."""
    expected = {"paper_model": "ResNet-20", "paper_seconds": -0.968, "paper_queries": -0.967}
    assert paper_correlations("resnet20") == expected
    assert paper_correlations("lenet5")["paper_queries"] == -0.972
    assert paper_correlations("digits_cnn") == {}


def test_timeouts_of_the_paper():
    assert paper_timeouts("plainnet20-integer", "DFlare") == {
        "paper_pair": "like PlainNet-20 Quantization",
        "paper, within 15 s": pytest.approx(0.7693),
        "paper, within 10 s": pytest.approx(0.4376),
        "paper, within 5 s": pytest.approx(0.109),
    }
    shares = paper_timeouts("lenet5-pruned", "Algorithm 1")
    assert shares.pop("paper_pair") == "like LeNet-5 Prune" and set(shares.values()) == {1}
    assert paper_timeouts("lenet5-pruned", "DiffChaser") == {}
    assert paper_timeouts("digits_cnn-pruned", "DFlare") == {}


@pytest.mark.parametrize(
    ("fitness", "distance", "best", "new", "accepted"),
    [
        (growth, 1.0, 0.0, True, False),  # as programmed: never
        (any_change, 0.3, 0.4, False, True),
        (any_change, 0.3995, 0.4, False, False),
        (any_change, 0.3995, 0.4, True, True),
    ],
)
def test_the_programs_fitness(fitness, distance, best, new, accepted):
    assert fitness(distance, best, new) is accepted


def test_the_program_ignores_the_last_operator():
    rng, last, counts = np.random.default_rng(0), None, np.zeros(3)
    for _ in range(20_000):
        last = rank_only(np.array([0.0, 0.5, 1.0]), last, rng)
        counts[last] += 1
    weights = (2 / 3) ** np.array([2, 1, 0])
    np.testing.assert_allclose(counts / counts.sum(), weights / weights.sum(), atol=0.02)


def test_the_programs_noise_wraps_around():
    image = np.full((32, 32, 1), 200, np.uint8)
    wild = wrapping_noise(True, 1.0).apply(image, {"strength": 1.0, "seed": 3})
    noise = np.random.Generator(np.random.SFC64(3)).standard_normal(image.shape, np.float32)
    np.testing.assert_array_equal(wild, np.trunc(image * (1 + noise)) % 256)
    white = np.full((32, 32, 1), 255, np.uint8)
    faint = wrapping_noise(False, 0.5).apply(white, {"strength": 0.5, "seed": 3})
    assert set(np.unique(faint)) >= {254, 255}


def test_repairs_are_scored_on_held_out_pairs():
    """The compressed model says 0 from 0.5 on, the original from 0.7 on."""
    rng = np.random.default_rng(0)

    def model(threshold):
        one = lambda x: 1 / (1 + np.exp(-10 * (np.asarray(x, float)[:, 0] - threshold)))  # noqa: E731
        return lambda x: np.stack([one(x), 1 - one(x)], axis=1)

    seeds = np.concatenate([rng.uniform(0.8, 1, (50, 1)), rng.uniform(0, 0.4, (50, 1))])
    outcomes = [
        SearchOutcome("found", 1, 0.1, Deviation(x, 1, 0.1, (1, 0), None))
        for x in rng.uniform(0.52, 0.68, (100, 1))
    ]
    pair, found = ModelPair(model(0.7), model(0.5)), DeviationSet(outcomes, seeds)
    table = cross_validate(pair, found, rng=1)
    assert len(table) == 5
    assert (table.repair_ratio > 0.9).all() and (table.inducing_ratio < 0.1).all()
    np.testing.assert_allclose(table.repair_count, table.repair_ratio * 20)
    np.testing.assert_allclose(table.improvement_ratio, table.repair_ratio - table.inducing_ratio)
    with pytest.raises(InvalidArgumentError, match="folds"):
        cross_validate(pair, found, folds=101)


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_is_verified(pair, seeds, method):
    named = NamedPair("made up", "none", lambda: pair[0], lambda: pair[1], None)
    chosen = METHODS[method]
    search = dataclasses.replace(chosen.search, max_queries=20_000)
    found = find_deviations(named.load(chosen.domain), seeds[:3], search=search, progress=False)
    row = row_of(named, method, 0, found)
    assert row["verified"] == row["distinct"] == found.found.sum()
    # The program's DFlare_D stays at the seed, too far from any deviation here.
    assert found.found.any() == (method != "DFlare_D as programmed")
    runs = pd.DataFrame(
        [{**row, "pair": "lenet1", "method": method, "rng": rng} for rng in range(2)]
    )
    table = means_beside_the_paper(runs)
    assert len(table) == 1
    np.testing.assert_equal(table.mean_queries[0], row["mean_queries"])
