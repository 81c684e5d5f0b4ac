"""Searches of pairs with several random seeds, stored on disk, and tables of them.

All searches start from the same test images, on which both models agree; the deviations found are
replayed on freshly loaded models. An interrupted experiment continues from its working folder.
"""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pandas as pd

from nnslicer_tf.dflare import DeviationSet, ModelPair, as_classifier, find_deviations
from nnslicer_tf.dflare.classifiers import Classifier
from reproduction.dflare.methods import METHODS, figures, means_beside_the_paper
from reproduction.dflare.pairs import NamedPair, load_pair, seed_images
from reproduction.dflare.settings import SweepSettings
from reproduction.result import ExperimentTable, versions


class Sweep:
    """Searches of pairs by `METHODS`, with the settings' seeds, repeats and budget."""

    def __init__(self, settings: SweepSettings) -> None:
        self.settings = settings
        self._images: dict[str, np.ndarray] = {}
        self._loaded: tuple[str, Classifier, Classifier] | None = None

    def pair(self, name: str) -> NamedPair:
        """Return a pair by name; models that are made are kept."""
        return load_pair(name, self.settings.models, self.settings.work / "pairs")

    def search(self, pair: NamedPair, method: str, repeat: int, seeds: int) -> DeviationSet:
        """Return the result of a search; a stored search is read."""
        if pair.name not in self._images:
            self._images[pair.name] = seed_images(pair, self.settings.seeds, 0)
        if self._loaded is None or self._loaded[0] != pair.name:
            # Kept for the pair's next search, as Keras compiles models anew.
            models = map(as_classifier, (pair.load_original(), pair.load_compressed()))
            self._loaded = (pair.name, *models)
        images, chosen = self._images[pair.name][:seeds], METHODS[method]
        limit = self.settings.max_queries
        file = f"{pair.name}-{method}-{repeat}-{len(images)}-{limit}.npz"
        return find_deviations(
            ModelPair(*self._loaded[1:], pair.preprocess, domain=chosen.domain),
            images,
            search=replace(chosen.search, max_queries=limit),
            rng=repeat,
            checkpoint=self.settings.work / "searches" / file.replace(" ", "_"),
        )

    def searches(
        self, pair: NamedPair, method: str, seeds: int | None = None, repeats: int | None = None
    ) -> Iterator[DeviationSet]:
        """Search with every random seed, or the first `repeats`, from all or some seed images."""
        seeds = min(seeds or self.settings.seeds, self.settings.seeds)
        for repeat in range(repeats or self.settings.repeats):
            yield self.search(pair, method, repeat, seeds)

    def measure(
        self, name: str, method: str, seeds: int | None = None, repeats: int | None = None
    ) -> list[dict]:
        """Return a row for each of the `searches` of a pair."""
        pair, rows = self.pair(name), []
        for repeat, found in enumerate(self.searches(pair, method, seeds, repeats)):
            rows.append(self.row(pair, method, repeat, found))
            print(rows[-1], flush=True)
        return rows

    def row(self, pair: NamedPair, method: str, repeat: int, found: DeviationSet) -> dict:
        """Return the row of one search."""
        said = figures(pair, found, METHODS[method].domain)
        return {"pair": pair.name, "method": method, "rng": repeat, **said}

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
