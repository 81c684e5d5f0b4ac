"""The methods that the paper's experiments compare, their searches, and the paper's figures.

`DFlare` is this library's default; `Algorithm 1` is the paper to the letter. Each method after
them changes one thing in Algorithm 1; `as programmed` changes everything in which the authors'
program differs from the paper: `any_change`, `rank_only`, `wrapping_noise`. The program's
`DFlare_D` accepts no mutant, so that operators are drawn evenly.

All searches start from the same test images, on which both models agree; the deviations found are
replayed on freshly loaded models. An interrupted experiment continues from its working folder.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import pandas as pd

from nnslicer_tf import dflare
from nnslicer_tf.dflare.classifiers import Classifier
from nnslicer_tf.dflare.images import IMAGE_OPERATORS, noise_operator
from reproduction.dflare.diffchaser import DiffChaser
from reproduction.dflare.pairs import NamedPair, load_pair, seed_images
from reproduction.dflare.settings import SweepSettings
from reproduction.result import ExperimentTable, paper_frame, versions


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


def wrapping_noise(multiplies: bool, deviation: float) -> dflare.MutationOperator:
    """Return an operator whose noise is truncated and wraps around at 256."""

    def noise(rng: np.random.Generator, x: np.ndarray, strength: float) -> np.ndarray:
        drawn = rng.standard_normal(x.shape, np.float32) * np.float32(strength)
        changed = x * (1 + drawn) if multiplies else x + drawn
        return changed.astype(np.int64).astype(np.uint8)

    name = "multiplicative_noise" if multiplies else "gaussian_noise"
    return noise_operator(name, deviation, deviation, noise)


# The program's additive noise has a standard deviation of a third of a grey level.
_NOISE = {one.name: one for one in (wrapping_noise(False, 1 / 3), wrapping_noise(True, 1.0))}
_WRAPPING = dflare.ImageDomain([_NOISE.get(one.name, one) for one in IMAGE_OPERATORS])
_PAPER = dflare.DFlare(patience=None, bisections=0)
_PROGRAM = replace(_PAPER, fitness=any_change, radius=0.5**0.5, selection=rank_only)


@dataclass(frozen=True)
class Method:
    """A search with its mutation operators."""

    search: dflare.SearchAlgorithm
    domain: dflare.Domain = field(default_factory=dflare.ImageDomain)


METHODS: dict[str, Method] = {
    "DFlare": Method(dflare.DFlare()),
    "Algorithm 1": Method(_PAPER),
    "DFlare_D": Method(replace(_PAPER, fitness="distance")),
    "DFlare_R": Method(replace(_PAPER, selection="uniform")),
    "with patience": Method(dflare.DFlare(bisections=0)),
    "with bisection": Method(dflare.DFlare(patience=None)),
    "accepts any change": Method(replace(_PAPER, fitness=any_change, radius=0.5**0.5)),
    "ignores the last operator": Method(replace(_PAPER, selection=rank_only)),
    "noise wraps around": Method(_PAPER, _WRAPPING),
    "as programmed": Method(_PROGRAM, _WRAPPING),
    "DFlare_D as programmed": Method(
        replace(_PAPER, fitness=growth, selection="uniform"), _WRAPPING
    ),
    "DiffChaser": Method(DiffChaser()),
}

_EIGHT = "Quantization-8-bit"
SAME_AS = {"lenet1": ("LeNet-1", _EIGHT), "resnet20": ("ResNet-20", _EIGHT)}
"""The published pairs and their names in the paper's tables."""

_LARGE = {"plainnet20": "PlainNet-20", "resnet20": "ResNet-20", "vgg16": "VGG-16"}
_ALL = {"lenet4": "LeNet-4", "lenet5": "LeNet-5", "simplenet": "CNN", **_LARGE}
_KINDS = {
    "integer": ("Quantization", _ALL),
    "pruned": ("Prune", _ALL),
    "retrained": ("Prune", _ALL),
    "distilled": ("Knowledge Distillation", _LARGE),
    "dynamic": (_EIGHT, {"lenet5": "LeNet-5"}),
}

LIKE = {
    f"{model}-{kind}": (name, compression)
    for kind, (compression, models) in _KINDS.items()
    for model, name in models.items()
}
"""Our pairs of a kind that the paper has too, with other weights."""

_COLUMNS = {
    **dict.fromkeys(("DFlare", "Algorithm 1", "as programmed"), ("table4_search", "dflare")),
    "DiffChaser": ("table4_search", "diffchaser"),
    **dict.fromkeys(("DFlare_D", "DFlare_D as programmed"), ("table6_ablation", "dflare_d")),
    "DFlare_R": ("table6_ablation", "dflare_r"),
    **{
        f"{method}, {when} repair": ("table8_search_after_repair", when)
        for method in ("DFlare", "Algorithm 1")
        for when in ("without", "with")
    },
}
"""Method → the paper's table with its figures, and the prefix of its columns."""


def row_of(pair: NamedPair, method: str, repeat: int, found: dflare.DeviationSet) -> dict:
    """Return the row of one search, after a replay on freshly loaded models."""
    row = {"pair": pair.name, "method": method, "rng": repeat, **found.summary()}
    queries = found.queries[found.found]
    row["queries_90th_percentile"] = np.percentile(queries, 90) if len(queries) else np.nan
    held = dflare.verify(pair.load(METHODS[method].domain), found)
    return row | {"verified": int(held.sum())}


def means_beside_the_paper(runs: pd.DataFrame) -> pd.DataFrame:
    """Return the means over random seeds for each pair and method, with the paper's figures."""
    means = runs.drop(columns="rng").groupby(["pair", "method"], sort=False).mean().reset_index()
    published = map(paper_figures, means["pair"], means["method"])
    return pd.concat([means, pd.DataFrame(published)], axis=1)


def paper_figures(pair: str, method: str) -> dict[str, object]:
    """Return the published figures for a pair and a method, as far as there are any."""
    table, prefix = _COLUMNS.get(method, ("", ""))
    row = paper_row(table, pair) if table else None
    if row is None:
        return {}
    result = {"paper_pair": paper_pair(pair), "paper_success": row[f"{prefix}_success"] / 100}
    result |= {f"paper_{what}": row[f"{prefix}_{what}"] for what in ("seconds", "queries")}
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


class Sweep:
    """Searches of pairs by `METHODS`, with the settings' seeds, repeats and budget."""

    def __init__(self, settings: SweepSettings) -> None:
        self.settings = settings
        self._images: dict[str, np.ndarray] = {}
        self._loaded: tuple[str, Classifier, Classifier] | None = None

    def pair(self, name: str) -> NamedPair:
        """Return a pair by name; models that are made are kept."""
        return load_pair(name, self.settings.models, self.settings.work / "pairs")

    def search(self, pair: NamedPair, method: str, repeat: int, seeds: int) -> dflare.DeviationSet:
        """Return the result of a search; a stored search is read."""
        if pair.name not in self._images:
            self._images[pair.name] = seed_images(pair, self.settings.seeds, 0)
        if self._loaded is None or self._loaded[0] != pair.name:
            # Kept for the pair's next search, as Keras compiles models anew.
            models = map(dflare.as_classifier, (pair.load_original(), pair.load_compressed()))
            self._loaded = (pair.name, *models)
        images, chosen = self._images[pair.name][:seeds], METHODS[method]
        limit = self.settings.max_queries
        file = f"{pair.name}-{method}-{repeat}-{len(images)}-{limit}.npz"
        models = dflare.ModelPair(*self._loaded[1:], pair.preprocess, domain=chosen.domain)
        options = {"search": replace(chosen.search, max_queries=limit), "rng": repeat}
        options["checkpoint"] = self.settings.work / "searches" / file.replace(" ", "_")
        return dflare.find_deviations(models, images, **options)

    def searches(
        self, pair: NamedPair, method: str, seeds: int | None = None, repeats: int | None = None
    ) -> Iterator[dflare.DeviationSet]:
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
            rows.append(row_of(pair, method, repeat, found))
            print(rows[-1], flush=True)
        return rows

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
