"""The methods that the paper's experiments compare, and the paper's figures for them.

`DFlare` is this library's default; `Algorithm 1` is the paper to the letter. Each method after
them changes one thing in Algorithm 1; `as programmed` changes everything in which the authors'
program differs from the paper: `any_change`, `rank_only`, `wrapping_noise`. The program's
`DFlare_D` accepts no mutant, so that operators are drawn evenly.
"""

from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from nnslicer_tf.dflare import (
    DeviationSet,
    DFlare,
    DiffChaser,
    Domain,
    ImageDomain,
    MutationOperator,
    SearchAlgorithm,
    verify,
)
from nnslicer_tf.dflare.images import IMAGE_OPERATORS, noise_operator
from reproduction.dflare.pairs import NamedPair
from reproduction.result import paper_frame


def any_change(distance: float, best: float, new: bool) -> bool:
    """Accept a mutant if D changes by more than δ, up or down, or its pair of vectors is new."""
    return abs(distance - best) > 1e-3 or new


def growth(distance: float, best: float, new: bool) -> bool:
    """Accept a mutant if D exceeds that of the last one, and 1, where the program starts: never."""
    return distance > max(best, 1.0)


def rank_only(values: np.ndarray, last: int | None, rng: np.random.Generator) -> int:
    """Select an operator as Algorithm 2 does, but without regard to the last one."""
    if last is None:
        return int(rng.integers(len(values)))
    ranks = np.argsort(np.argsort(-values, kind="stable"), kind="stable")
    while True:
        candidate = int(rng.integers(len(values)))
        if rng.random() < (1 - 1 / len(values)) ** int(ranks[candidate]):
            return candidate


def wrapping_noise(multiplies: bool, deviation: float) -> MutationOperator:
    """Return an operator whose noise is truncated and wraps around at 256."""

    def noise(rng: np.random.Generator, x: np.ndarray, strength: float) -> np.ndarray:
        drawn = rng.standard_normal(x.shape, np.float32) * np.float32(strength)
        changed = x * (1 + drawn) if multiplies else x + drawn
        return changed.astype(np.int64).astype(np.uint8)

    name = "multiplicative_noise" if multiplies else "gaussian_noise"
    return noise_operator(name, deviation, deviation, noise)


# The program's additive noise has a standard deviation of a third of a grey level.
_NOISE = {one.name: one for one in (wrapping_noise(False, 1 / 3), wrapping_noise(True, 1.0))}
_WRAPPING = ImageDomain([_NOISE.get(one.name, one) for one in IMAGE_OPERATORS])
_PAPER = DFlare(patience=None, bisections=0)
_PROGRAM = replace(_PAPER, fitness=any_change, radius=0.5**0.5, selection=rank_only)


@dataclass(frozen=True)
class Method:
    """A search with its mutation operators."""

    search: SearchAlgorithm
    domain: Domain = field(default_factory=ImageDomain)


METHODS: dict[str, Method] = {
    "DFlare": Method(DFlare()),
    "Algorithm 1": Method(_PAPER),
    "DFlare_D": Method(replace(_PAPER, fitness="distance")),
    "DFlare_R": Method(replace(_PAPER, selection="uniform")),
    "with patience": Method(DFlare(bisections=0)),
    "with bisection": Method(DFlare(patience=None)),
    "accepts any change": Method(replace(_PAPER, fitness=any_change, radius=0.5**0.5)),
    "ignores the last operator": Method(replace(_PAPER, selection=rank_only)),
    "noise wraps around": Method(_PAPER, _WRAPPING),
    "as programmed": Method(_PROGRAM, _WRAPPING),
    "DFlare_D as programmed": Method(
        replace(_PAPER, fitness=growth, selection="uniform"), _WRAPPING
    ),
    "DiffChaser": Method(DiffChaser()),
}

SAME_AS = {
    "lenet1": ("LeNet-1", "Quantization-8-bit"),
    "resnet20": ("ResNet-20", "Quantization-8-bit"),
}
"""The published pairs and their names in the paper's tables."""

_LARGE = {"plainnet20": "PlainNet-20", "resnet20": "ResNet-20", "vgg16": "VGG-16"}
_ALL = {"lenet4": "LeNet-4", "lenet5": "LeNet-5", "simplenet": "CNN", **_LARGE}
_KINDS = {
    "integer": ("Quantization", _ALL),
    "pruned": ("Prune", _ALL),
    "retrained": ("Prune", _ALL),
    "distilled": ("Knowledge Distillation", _LARGE),
    "dynamic": ("Quantization-8-bit", {"lenet5": "LeNet-5"}),
}

LIKE = {
    f"{model}-{kind}": (name, compression)
    for kind, (compression, models) in _KINDS.items()
    for model, name in models.items()
}
"""Our pairs of a kind that the paper has too, with other weights."""

_COLUMNS = {
    "DFlare": ("table4_search", "dflare"),
    "Algorithm 1": ("table4_search", "dflare"),
    "as programmed": ("table4_search", "dflare"),
    "DiffChaser": ("table4_search", "diffchaser"),
    "DFlare_D": ("table6_ablation", "dflare_d"),
    "DFlare_D as programmed": ("table6_ablation", "dflare_d"),
    "DFlare_R": ("table6_ablation", "dflare_r"),
    **{
        f"{method}, {when} repair": ("table8_search_after_repair", when)
        for method in ("DFlare", "Algorithm 1")
        for when in ("without", "with")
    },
}
"""Method → the paper's table with its figures, and the prefix of its columns."""


def figures(pair: NamedPair, found: DeviationSet, domain: Domain) -> dict:
    """Return the figures of one run, after a replay on freshly loaded models."""
    held = verify(pair.load(domain), found)
    queries = found.queries[found.found]
    return {
        **found.summary(),
        "queries_90th_percentile": float(np.percentile(queries, 90)) if len(queries) else np.nan,
        "verified": int(held.sum()),
    }


def means_beside_the_paper(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the means over random seeds for each pair and method, with the paper's figures."""
    means = runs.drop(columns="rng").groupby(["pair", "method"], sort=False).mean().reset_index()
    published = map(paper_figures, means["pair"], means["method"])
    return pd.concat([means, pd.DataFrame(published)], axis=1)


def paper_figures(pair: str, method: str) -> dict[str, object]:
    """Return the published figures for a pair and a method, as far as there are any.

    The keys are `paper_pair`, `paper_success` (a share), `paper_seconds`,
    `paper_queries`, and for the authors' program `program_seconds`,
    `program_mean_queries`, `program_median_queries`.
    """
    table, prefix = _COLUMNS.get(method, ("", ""))
    row = paper_row(table, pair) if table else None
    if row is None:
        return {}
    result = {
        "paper_pair": paper_pair(pair),
        "paper_success": row[f"{prefix}_success"] / 100,
        "paper_seconds": row[f"{prefix}_seconds"],
        "paper_queries": row[f"{prefix}_queries"],
    }
    program = paper_row("authors_program", pair)
    if prefix == "dflare" and program is not None:
        result |= {name: program[name] for name in program.index if name.startswith("program")}
    return result


def paper_timeouts(pair: str, method: str) -> dict[str, object]:
    """Return Table 10's shares for a pair; it leaves out pairs for which 5 s are always enough."""
    if method not in ("DFlare", "Algorithm 1") or paper_row("table4_search", pair) is None:
        return {}
    row = paper_row("table10_timeouts", pair)
    percents = {t: 100.0 if row is None else row[f"seconds_{t}"] for t in (15, 10, 5)}
    shares = {f"paper, within {t} s": percent / 100 for t, percent in percents.items()}
    return {"paper_pair": paper_pair(pair), **shares}


def paper_repair(pair: str) -> dict[str, object]:
    """Return Table 7's ratios for a pair, or nothing."""
    row = paper_row("table7_repair", pair)
    if row is None:
        return {}
    kinds = ("repair", "inducing", "improvement")
    ratios = {f"paper_{kind}_ratio": row[f"{kind}_count"] / 100 for kind in kinds}
    return {"paper_pair": paper_pair(pair), **ratios}


def paper_correlations(model: str) -> dict[str, object]:
    """Return section 5.4.1's correlations for an original model, or nothing."""
    name = {"lenet5": "LeNet-5", "resnet20": "ResNet-20"}.get(model)
    if name is None:
        return {}
    row = paper_frame("dflare/section54_dissemination").set_index("model").loc[name]
    kinds = ("seconds", "queries")
    return {"paper_model": name, **{f"paper_{kind}": row[f"correlation_{kind}"] for kind in kinds}}


def paper_pair(pair: str) -> str:
    """Return the paper's name of a pair, after "like" if it is not the same models."""
    return " ".join(SAME_AS[pair] if pair in SAME_AS else ("like", *LIKE[pair]))


def paper_row(table: str, pair: str) -> pd.Series | None:
    """Return the row of a pair, or of one that is like it, in one of the paper's tables."""
    model, compression = SAME_AS.get(pair) or LIKE.get(pair) or ("", "")
    rows = paper_frame(f"dflare/{table}")
    rows = rows[(rows["model"] == model) & (rows["compression"] == compression)]
    return rows.iloc[0] if len(rows) else None
