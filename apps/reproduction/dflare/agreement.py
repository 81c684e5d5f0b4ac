"""Agreement of compressed models with their originals on the data's own inputs: Tables 1 and 2."""

from typing import Any

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf.instrument.fingerprint import model_fingerprint
from reproduction.dflare.methods import LIKE, SAME_AS, paper_pair, paper_row
from reproduction.dflare.pairs import PUBLISHED, NamedPair, load_pair, uint8_images
from reproduction.dflare.settings import AgreementSettings
from reproduction.result import ExperimentResult, ExperimentTable, note, versions
from reproduction.rows import RowStore


def agreement(s: AgreementSettings) -> ExperimentResult:
    """Ask both models about every input of a data set (Tables 1 and 2)."""
    path = s.work / f"agreement-{s.images or 'all'}.csv"
    store = RowStore(path, ("pair", "split", "weights"))
    # The names are checked, and models are made, before long work.
    pairs = [load_pair(name, s.models, s.work / "pairs") for name in s.pairs or PUBLISHED]
    names = []
    for pair in pairs:
        weights = model_fingerprint(pair.load_original())[:12]  # models may be trained again
        for split in ("train", "test"):
            names.append({"pair": pair.name, "split": split, "weights": weights})
    of_name = {pair.name: pair for pair in pairs}

    def counted(pair: str, split: str, weights: str) -> list[dict[str, float]]:
        return [count_deviations(of_name[pair], split, s.images)]

    table = store.fill(names, counted, "agreement").drop(columns="weights")
    published = [paper_agreement(*row) for row in table[["pair", "split"]].itertuples(index=False)]
    table = pd.concat([table, pd.DataFrame(published)], axis=1)
    head = {
        "inputs": f"the first {s.images:,} of each split" if s.images else "all of each split",
        "libraries": versions("ai-edge-litert"),
    }
    title = "Deviations among the data sets' own inputs, and accuracies (Tables 1 and 2)"
    return ExperimentResult([ExperimentTable(s.name, table, title, head, note("agreement"))])


def count_deviations(pair: NamedPair, split: str, images: int = 0) -> dict[str, float]:
    """Return deviations and accuracies of a pair on a split, or on its first images."""
    part = f"{split}[:{images}]" if images else split
    y = datasets.load(pair.dataset, part, normalise="none").y
    answers = pair.load().ask(uint8_images(pair.dataset, part))
    original, compressed = (answers.labels == y[:, None]).mean(axis=0).tolist()
    counts = {"deviations": int(answers.deviates.sum()), "inputs": len(y)}
    counts["share"] = float(np.mean(answers.deviates))
    return counts | {"original": original, "compressed": compressed}


def paper_agreement(pair: str, split: str) -> dict[str, Any]:
    """Return the published figures for a pair and a split, as far as there are any."""
    if pair not in SAME_AS | LIKE:
        return {}
    found: dict[str, Any] = {"paper_pair": paper_pair(pair)}
    counted, accurate = paper_row("table1_triggering", pair), paper_row("table2_accuracy", pair)
    if counted is not None:
        kind = {"train": "training", "test": "test"}[split]
        # Whole numbers with decimals are what a column with gaps would make of them.
        found["paper_deviations"] = str(counted[f"{kind}_count"])
        found["paper_inputs"] = str(counted[f"{kind}_size"])
    if accurate is not None and split == "test":
        found["paper_original"] = accurate["original_accuracy"] / 100
        found["paper_compressed"] = accurate["compressed_accuracy"] / 100
    return found
