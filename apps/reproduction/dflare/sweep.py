"""Searches of pairs with several random seeds, stored on disk, and tables of them.

All searches start from the same test images, on which both models agree; the deviations found are
replayed on freshly loaded models. An interrupted experiment continues from its working folder.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nnslicer_tf.dflare import DeviationSet, ModelPair, as_classifier, find_deviations
from nnslicer_tf.dflare.classifiers import Classifier
from reproduction.dflare.methods import METHODS, figures, means_beside_the_paper, paper_timeouts
from reproduction.dflare.pairs import NamedPair, load_pair, seed_images
from reproduction.dflare.settings import SweepSettings
from reproduction.result import ExperimentTable, versions


class Sweep:
    """Searches of pairs.

    Args:
        settings: Seeds, repeats, budget, working folder.
    """

    def __init__(self, settings: SweepSettings) -> None:
        self.settings = settings
        self._images: dict[str, np.ndarray] = {}
        self._loaded: tuple[str, Classifier, Classifier] | None = None

    def pair(self, name: str) -> NamedPair:
        """Return a pair by name; models that are made are kept."""
        return load_pair(name, self.settings.models, self.settings.work / "pairs")

    def measure(
        self, name: str, method: str, seeds: int | None = None, repeats: int | None = None
    ) -> list[dict]:
        """Search a pair with every random seed.

        Args:
            name: The pair's name.
            method: A key of `METHODS`.
            seeds: From how many seed images; all by default.
            repeats: With how many random seeds; all by default.
        """
        pair, rows = self.pair(name), []
        for repeat, found in enumerate(self._all(pair, method, seeds, repeats)):
            rows.append(_row(pair, method, repeat, found))
            print(rows[-1], flush=True)
        return rows

    def found_within(
        self,
        name: str,
        method: str,
        timeouts: Sequence[float],
        seeds: int | None = None,
        repeats: int | None = None,
    ) -> dict[str, object]:
        """Return the shares of the searches that found a deviation within times (Table 10).

        Args:
            name: The pair's name.
            method: A key of `METHODS`.
            timeouts: Seconds; a search's are its share of the time of all that run beside it.
            seeds: From how many seed images; all by default.
            repeats: With how many random seeds; all by default.
        """
        found = list(self._all(self.pair(name), method, seeds, repeats))
        seconds = np.concatenate([np.where(one.found, one.seconds, np.inf) for one in found])
        shares = {f"within {t:g} s": np.mean(seconds <= t) for t in timeouts}
        slowest = seconds[np.isfinite(seconds)].max(initial=0)
        said = {"pair": name, "method": method, "searches": len(seconds)}
        return {**said, **shares, "slowest found, s": slowest, **paper_timeouts(name, method)}

    def _all(
        self, pair: NamedPair, method: str, seeds: int | None, repeats: int | None
    ) -> Iterator[DeviationSet]:
        """Yield the search with every random seed."""
        seeds = min(seeds or self.settings.seeds, self.settings.seeds)
        for repeat in range(repeats or self.settings.repeats):
            yield self.search(pair, method, repeat, seeds)

    def search(self, pair: NamedPair, method: str, repeat: int, seeds: int) -> DeviationSet:
        """Return the result of a search; a stored search is read."""
        if pair.name not in self._images:
            self._images[pair.name] = seed_images(pair, self.settings.seeds, 0)
        images, chosen = self._images[pair.name][:seeds], METHODS[method]
        limit = self.settings.max_queries
        file = f"{pair.name}-{method}-{repeat}-{len(images)}-{limit}.npz"
        return find_deviations(
            ModelPair(*self._models(pair), pair.preprocess, domain=chosen.domain),
            images,
            search=replace(chosen.search, max_queries=limit),
            rng=repeat,
            checkpoint=self.settings.work / "searches" / file.replace(" ", "_"),
        )

    def queries(self, pair: NamedPair, method: str) -> np.ndarray:
        """Return the queries of each seed, the mean over random seeds; all if nothing was found."""
        s, counts = self.settings, []
        for repeat in range(s.repeats):
            found = self.search(pair, method, repeat, s.seeds)
            counts.append(np.where(found.found, found.queries, s.max_queries))
        return np.mean(counts, axis=0)

    def row(self, pair: NamedPair, method: str, repeat: int, seeds: int) -> dict:
        """Return the row of one search."""
        return _row(pair, method, repeat, self.search(pair, method, repeat, seeds))

    def _models(self, pair: NamedPair) -> tuple[Classifier, Classifier]:
        """Return the models of a pair, kept for its next search, as Keras compiles them anew."""
        if self._loaded is None or self._loaded[0] != pair.name:
            original, compressed = pair.load_original(), pair.load_compressed()
            self._loaded = pair.name, as_classifier(original), as_classifier(compressed)
        return self._loaded[1:]

    def tables(self, name: str, rows: list[dict]) -> list[ExperimentTable]:
        """Return tables of all runs, and of means over random seeds beside the paper's figures."""
        runs = pd.DataFrame(rows)
        return [self.table(f"{name}_runs", runs), self.table(name, means_beside_the_paper(runs))]

    def table(self, name: str, frame: pd.DataFrame) -> ExperimentTable:
        """Return a table with its settings in the head."""
        s = self.settings
        head = {
            "seed images": s.seeds,
            "random seeds": f"0 ... {s.repeats - 1}",
            "queries": f"at most {s.max_queries} a search",
            "libraries": versions("ai-edge-litert", "opencv-python-headless"),
        }
        return ExperimentTable(name, frame, f"DFlare: {name.replace('_', ' ')}", head)


def _row(pair: NamedPair, method: str, repeat: int, found: DeviationSet) -> dict:
    said = figures(pair, found, METHODS[method].domain)
    return {"pair": pair.name, "method": method, "rng": repeat, **said}
