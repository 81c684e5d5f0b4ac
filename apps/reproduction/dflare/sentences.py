"""Searches for deviations of text classifiers, from sentences of SST-2 (ours, not the paper's)."""

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

_PAIRS = ("text_transformer-dynamic", "text_transformer-pruned", "text_lstm-pruned")
_SHOWN = 5  # examples of a pair


def sentences(s: SentenceSettings) -> ExperimentResult:
    """Search pairs of text classifiers, and undo every edit that a deviation does not need."""
    texts.load("sst2", "test")  # where they are missing, it is said before models are compressed
    rows, examples = [], []
    for name in s.pairs or _PAIRS:
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
        for method in ("DFlare", "Algorithm 1"):
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
                edits, fewest = (one.to_frame()["words"].dropna() for one in (found, least))
                summary = found.summary()
                figures = ("seeds", "success_rate", "mean_queries", "median_queries")
                rows.append(
                    {
                        "pair": name,
                        "method": method,
                        "rng": repeat,
                        "sentences on which they agree": agreed,
                        **{figure: summary[figure] for figure in figures},
                        "verified": int(verify(fresh, found).sum()),
                        "median words edited": float(edits.median()),
                        "after undoing what is not needed": float(fewest.median()),
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
    shown = pd.DataFrame(examples)
    return ExperimentResult(
        [
            ExperimentTable(
                "sentences", pd.DataFrame(rows), "Deviations of text classifiers", head
            ),
            ExperimentTable("sentences_examples", shown, "The smallest changes found", head),
        ]
    )


def _examples(name: str, seeds: np.ndarray, least: DeviationSet) -> list[dict[str, object]]:
    """Return the sentences with the fewest edits, as text."""
    table, vocabulary = least.to_frame(), texts.vocabulary()
    rows = []
    for index in table["words"].dropna().sort_values(kind="stable").index[:_SHOWN]:
        deviation = least[index].deviation
        assert deviation is not None  # it has a number of edits
        seed, disagreed = (
            " ".join(vocabulary.decode(np.asarray(one))) for one in (seeds[index], deviation.image)
        )
        row = {"pair": name, "words edited": int(table["words"][index]), "seed": seed}
        row |= {"models disagree on": disagreed, "original": deviation.labels[0]}
        rows.append(row | {"compressed": deviation.labels[1]})
    return rows
