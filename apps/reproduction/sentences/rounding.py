"""Copies of a model whose weights differ by no more than rounding to half precision.

Each weight is multiplied by 1 + 2⁻¹¹·u, u uniform in [-1, 1]: half precision keeps 11 bits. A
method's explanation of a sentence should not depend on that.
"""

import keras
import numpy as np
import pandas as pd
from scipy.stats import spearmanr

from nnslicer_tf._checks import check_name
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Profile
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.sentences.settings import RoundingSettings
from reproduction.sentences.words import (
    MODELS,
    areas_under_curves,
    drawn_sentences,
    head_of,
    profiled_sentences,
    scorers,
)
from reproduction.zoo.models import zoo

METHODS = (
    *(f"slice, θ = {theta}" for theta in (0.0, 0.1, 0.3)),
    *(f"slice, midpoints, θ = {theta}" for theta in (0.0, 0.1, 0.3)),
    "gradient × input",
    "integrated gradients",
)
_LAST_BIT = 2.0**-11


def rounding(s: RoundingSettings) -> ExperimentResult:
    """Compare the orders of words between copies of a model."""
    check_name("model", s.model, MODELS)
    x, usual = drawn_sentences(s), profiled_sentences(s)
    im = InstrumentedModel(zoo.load(s.model))
    labels = im.logits(x).argmax(axis=1)

    def rows_of(copy: int) -> list[dict[str, object]]:
        """Return a row for each sentence and method: the area, and the words' scores."""
        im = InstrumentedModel(perturbed(zoo.load(s.model), copy, s.seed))
        by_name = scorers(im, Profile.from_data(im, usual, progress=False), s.seed)
        scores = {name: by_name[name](x, labels) for name in METHODS}
        areas = areas_under_curves(im, x, labels, scores)[["method", "sentence", "deletion"]]
        of_rows = (scores[row.method][row.sentence] for row in areas.itertuples())
        texts = [" ".join(f"{v:.9g}" for v in values) for values in of_rows]
        return areas.assign(scores=texts).to_dict("records")

    fields = ("sentences", "profile", "seed")
    store = RowStore.of(s, f"rounding-{s.model}", ["copy"], *fields, weights=im.fingerprint)
    found = store.fill([{"copy": copy} for copy in range(s.copies + 1)], rows_of, "Copies")
    found = found.astype({"sentence": int})
    together = areas_under_curves(im, x, labels, mean_scores(found))
    head = head_of(s, s.model, len(x), "test", copies=s.copies)
    title = f"Words of SST-2 deleted, {s.model} with other last bits of the weights"
    name, table = f"rounding_{s.model}", summary(found, together)
    return ExperimentResult([ExperimentTable(name, table, title, head, note("rounding"))])


def perturbed(model: keras.Model, copy: int, seed: int) -> keras.Model:
    """Change a model's weights in their last bits, in place, and return the model."""
    if copy:
        rng = np.random.default_rng([seed, copy])
        for variable in model.weights:
            value = keras.ops.convert_to_numpy(variable)
            if np.issubdtype(value.dtype, np.floating):
                variable.assign(value * (1 + _LAST_BIT * rng.uniform(-1, 1, value.shape)))
    return model


def mean_scores(found: pd.DataFrame) -> dict[str, np.ndarray]:
    """Return each method's scores of words, averaged over all copies, `(sentences, words)`."""

    def scores_of(rows: pd.DataFrame) -> np.ndarray:
        return np.array([text.split() for text in rows.sort_values("sentence")["scores"]], float)

    return {
        method: np.mean([scores_of(of_copy) for _, of_copy in rows.groupby("copy")], axis=0)
        for method, rows in found.groupby("method", sort=False)
    }


def summary(found: pd.DataFrame, together: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each method."""
    means = found.pivot_table("deletion", "method", "copy", sort=False)
    scores = found.pivot(index=["method", "sentence"], columns="copy", values="scores")
    correlations = scores.apply(_correlation, axis=1).groupby("method").mean()
    of_copies = means.drop(columns=0)
    least, largest = of_copies.min(axis=1), of_copies.max(axis=1)
    columns = {"deletion": means[0], "least": least, "largest": largest}
    columns["same order"] = correlations
    columns["together"] = together.groupby("method")["deletion"].mean()
    table = pd.DataFrame(columns)
    return table.loc[list(METHODS)].rename_axis("method").reset_index()


def _correlation(scores: pd.Series) -> float:
    """Return the mean rank correlation of one sentence's scores with those of copy 0."""
    first, *others = (np.array(values.split(), float) for values in scores)
    words = np.any([first != 0, *(other != 0 for other in others)], axis=0)
    if words.sum() < 2:
        return np.nan
    ranks = [spearmanr(first[words], other[words]).statistic for other in others]
    return float(np.nanmean(ranks)) if not np.isnan(ranks).all() else np.nan
