import numpy as np
import pandas as pd
import pytest

from nnslicer_tf.dflare.find import find_deviations
from reproduction.dflare.methods import (
    LIKE,
    METHODS,
    SAME_AS,
    figures,
    means_beside_the_paper,
    paper_correlations,
    paper_figures,
    paper_repair,
    paper_timeouts,
)
from reproduction.dflare.pairs import NamedPair
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


@pytest.mark.parametrize("method", METHODS)
def test_every_method_runs_and_is_verified(pair, seeds, method):
    named = NamedPair("made up", "none", lambda: pair[0], lambda: pair[1], None)
    chosen = METHODS[method]
    found = find_deviations(
        *pair,
        seeds[:3],
        search=chosen.search,
        domain=chosen.domain,
        together=chosen.together,
        max_queries=20_000,
        progress=False,
    )
    row = figures(named, seeds[:3], found, chosen.domain)
    assert row["verified"] == row["distinct"] == found.found.sum()
    # The program's DFlare_D stays at the seed, too far from any deviation here.
    assert found.found.any() == (method != "DFlare_D as programmed")
    runs = pd.DataFrame(
        [{"pair": "lenet1", "method": method, "rng": rng, **row} for rng in range(2)]
    )
    table = means_beside_the_paper(runs)
    assert len(table) == 1
    np.testing.assert_equal(table.mean_queries[0], row["mean_queries"])
