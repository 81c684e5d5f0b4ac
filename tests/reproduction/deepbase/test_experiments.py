"""The experiments with DeepBase, whole, on few records."""

from reproduction.deepbase import units as module
from reproduction.deepbase.settings import (
    ExplorationSettings,
    PruningSettings,
    UnitSettings,
)
from reproduction.deepbase.units import CLASSES, prune, units


def test_units(shared_data):
    found = units(UnitSettings(records=128, error=0.2))
    table = found.table("units")
    assert table.groupby("hypothesis", sort=False).size().tolist() == [3] * (11 + len(CLASSES))
    brightest = table[table["hypothesis"] == "brightness"]["score"].abs()
    assert brightest.max() > 0.6
    assert "CIFAR-10 train[:128]" in found.tables[0].head["records"]


def test_pruning_by_affinity(shared_data):
    table = prune(PruningSettings(records=128, least=(0.3,))).table("prune")
    assert table["removed"].tolist() == [
        *("none", "without affinity", "drawn by chance", "with most affinity")
    ]
    assert table["parameters"].iloc[1:].nunique() == 1
    assert table["parameters"].iloc[1] < table["parameters"].iloc[0]
    assert table["accuracy"].iloc[0] > table["accuracy"].iloc[1:].max()


def test_exploration(shared_data, monkeypatch):
    two = {name: module.HYPOTHESES[name] for name in ("brightness", "slant")}
    monkeypatch.setattr(module, "HYPOTHESES", two)
    table = module.explore(ExplorationSettings(seeds=2, records=100)).table("explore")
    assert set(table["seeds where strong"]) == {"drawn by chance", *two}
    assert table["best |correlation|"].iloc[1:].is_monotonic_increasing
    assert table[["found, light", "found, blackout"]].stack().between(0, 1).all()
