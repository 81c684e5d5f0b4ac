"""Searches for deviations of text classifiers, from sentences of SST-2 (ours, not the paper's)."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pandas as pd

from nnslicer_tf.datasets import texts
from nnslicer_tf.dflare import DeviationSet, ModelPair, find_deviations, minimise, verify
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.dflare.methods import METHODS
from reproduction.dflare.pairs import load_pair
from reproduction.dflare.settings import SentenceSettings
from reproduction.result import ExperimentResult, ExperimentTable, versions

_COMPARED = ("DFlare", "Algorithm 1")
_SHOWN = 5


def sentences(s: SentenceSettings) -> ExperimentResult:
    """Search pairs of text classifiers, and undo every edit that a deviation does not need."""
    texts.load("sst2", "test")  # where they are missing, it is said before models are compressed
    rows, examples = [], []
    for name in s.pairs or s.published:
        pair = load_pair(name, work=s.work / "pairs")
        if pair.dataset not in texts.NAMES:
            raise InvalidArgumentError(f"'{name}' is no pair of text classifiers.")
        encoded = texts.vocabulary().encode(texts.load("sst2", "test").text)
        models, fresh = (ModelPair(pair.load_original(), pair.load_compressed()) for _ in range(2))
        # Words are similar if the original has learned similar vectors for them.
        models = models.for_seeds(encoded)
        # Sentences on which both models agree, and the share of all that these are.
        agreed = np.flatnonzero(~models.ask(encoded).deviates)
        chosen = np.sort(np.random.default_rng(0).permutation(agreed)[: s.seeds])
        seeds, agreed = encoded[chosen], len(agreed) / len(encoded)
        for method in _COMPARED:
            for repeat in range(s.repeats):
                file = f"{name}-{method}-{repeat}-{len(seeds)}-{s.max_queries}"
                found = find_deviations(
                    models,
                    seeds,
                    search=replace(METHODS[method].search, max_queries=s.max_queries),
                    rng=repeat,
                    checkpoint=s.work / "searches" / file.replace(" ", "_"),
                )
                least = minimise(models, found)
                rows.append(
                    {
                        "pair": name,
                        "method": method,
                        "rng": repeat,
                        "sentences on which they agree": agreed,
                        **_figures(fresh, found, least),
                    }
                )
                print(rows[-1], flush=True)
                if method == "DFlare" and repeat == 0:
                    examples += _examples(name, seeds, least)
    head = {
        "seeds": f"{s.seeds} sentences of GLUE's SST-2 dev on which both models agree, drawn once",
        "random seeds": f"0 ... {s.repeats - 1}",
        "queries": f"at most {s.max_queries} a search",
        "libraries": versions("ai-edge-litert"),
    }
    return ExperimentResult(
        [
            ExperimentTable(
                "sentences", pd.DataFrame(rows), "Deviations of text classifiers", head
            ),
            ExperimentTable(
                "sentences_examples", pd.DataFrame(examples), "The smallest changes found", head
            ),
        ]
    )


def _figures(fresh: ModelPair, found: DeviationSet, least: DeviationSet) -> dict[str, float]:
    held = verify(fresh, found)
    edits, fewest = (one.to_frame()["words"].dropna() for one in (found, least))
    summary = found.summary()
    return {
        **{
            key: summary[key] for key in ("seeds", "success_rate", "mean_queries", "median_queries")
        },
        "verified": int(held.sum()),
        "median words edited": float(edits.median()),
        "after undoing what is not needed": float(fewest.median()),
    }


def _examples(name: str, seeds: np.ndarray, least: DeviationSet) -> list[dict[str, object]]:
    """Return the sentences with the fewest edits, as text."""
    table = least.to_frame()
    order = table["words"].dropna().sort_values(kind="stable").index[:_SHOWN]
    rows = []
    for index in order:
        deviation = least[index].deviation
        assert deviation is not None  # it has a number of edits
        rows.append(
            {
                "pair": name,
                "words edited": int(table["words"][index]),
                "seed": _text(seeds[index]),
                "models disagree on": _text(deviation.image),
                "original": deviation.labels[0],
                "compressed": deviation.labels[1],
            }
        )
    return rows


def _text(sentence: Sequence[int] | np.ndarray) -> str:
    return " ".join(texts.vocabulary().decode(np.asarray(sentence)))
