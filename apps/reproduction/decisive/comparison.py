"""Keep only the largest synapses for a sample: which ranking keeps the model's answer?

Everything else is ablated to its mean over the profile. *Specificity*: each method is also asked
for another class, drawn at random; a ranking whose largest synapses then give that class can make
the model say anything.
"""

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from scipy.stats import binomtest

from nnslicer_tf._environment import available_cores
from nnslicer_tf._numerics import sigmoid
from nnslicer_tf.datasets import load, texts
from nnslicer_tf.instrument import Ablation, InstrumentedModel
from nnslicer_tf.instrument.ablated_network import Rows
from nnslicer_tf.kinds.weighted_sum import sample_gradients
from nnslicer_tf.slicing import Profile, Slicer
from nnslicer_tf.slicing.answers import Answers
from nnslicer_tf.slicing.search import counts_left, rounds_of_ablation
from reproduction.decisive.settings import DecisiveSettings, MapSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore
from reproduction.zoo.models import zoo

SHARES = (0.005, 0.01, 0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.5)
GOAL = 0.95
_BLOCK = 10
_ROUND = 3  # forward passes that a forward and a backward pass cost
_MARGIN, _PRICE, _RATE = 3.0, 30.0, 0.2

BOUNDS = {"decisive(): no bound": None, "decisive(): divergence at most 0.2": 0.2}
"""Method → its bound on the divergence."""

Score = Callable[[np.ndarray, np.ndarray], np.ndarray]


class Method(NamedTuple):
    """A ranking of synapses."""

    name: str
    score: Score  # maps samples and a class for each to scores `(samples, synapses)`
    passes: float = np.nan  # cost of a ranking in forward passes, if it can be counted
    samples: int | None = None  # to rank, if it is too slow for all


def compare(s: DecisiveSettings) -> ExperimentResult:
    """Compare rankings of a network's synapses."""
    # The network, its means, samples, their answers and other classes to ask for.
    rng, im, profile, x, head = drawn(s)
    network = Kept(im, profile)
    answers = network.answers(x)
    labels = answers.of(answers.full)
    count = im.classes.count
    others = (labels + rng.integers(1, count, len(labels))) % count

    # Each method for a block of samples at a time.
    rankings = {method.name: method for method in methods(network, s)}

    def measured(method: str, block: int) -> list[dict]:
        rows = slice(block, block + _BLOCK)
        if method in BOUNDS:
            return _certificates(network, x[rows], BOUNDS[method], s.seed)
        ranking = rankings[method]
        rows = slice(block, min(block + _BLOCK, ranking.samples or len(x)))
        return _measured(network, ranking, x[rows], labels[rows], others[rows])

    made_from = {"model": profile.fingerprint, "shares": SHARES, "rounds": network.counts}
    fields = ("split", "samples", "profile", "points", "learned", "steps", "seed")
    store = RowStore.of(s, s.model, ["method", "block"], *fields, **made_from)
    limits = {name: method.samples or len(x) for name, method in rankings.items()}
    parts = [
        {"method": name, "block": block}
        for name, limit in (limits | dict.fromkeys(BOUNDS, len(x))).items()
        for block in range(0, min(limit, len(x)), _BLOCK)
    ]
    found = store.fill(parts, measured, "Blocks")

    # Tables: one row for each method; for each method and share; for each certificate.
    is_certificate = found["method"].isin(list(BOUNDS))
    by_share = _by_share(found[~is_certificate])
    certificates = found[is_certificate].groupby("method", sort=False)
    certified = certificates.size().to_frame("samples")
    certified["median share"] = certificates["share"].median()
    certified["95 % of the samples below"] = certificates["share"].quantile(GOAL)
    means = ["kept", "probability", "KL", "other", "removed", "scope kept", "scope bound"]
    means += ["seconds", "passes"]
    certified = certified.join(certificates[means].mean()).round(4)
    certified = certified.rename_axis("procedure").reset_index()
    head |= {"synapses": f"{network.units:,}", "ablation": "mean"}
    head["samples"] += f", masks learned for {min(s.learned, len(x))}"
    title, named = f"{s.model}: synapses that decide", f"{s.model}: certificates of Slicer.decisive"
    shares = f"{s.model}: every share, with 95 % intervals"
    data = note_on(s.split)
    text = note("methods", shares=", ".join(f"{100 * share:g} %" for share in SHARES), data=data)
    of_certificates = note("certificates", scope=note("scope"), data=data)
    tables = [
        ExperimentTable(s.model, _summary(by_share), title, head, text),
        ExperimentTable(f"{s.model}_shares", by_share, shares, head),
        ExperimentTable(f"{s.model}_certificates", certified, named, head, of_certificates),
    ]
    return ExperimentResult(tables)


def drawn(
    s: MapSettings,
) -> tuple[np.random.Generator, InstrumentedModel, Profile, np.ndarray, dict[str, Any]]:
    """Return what both comparisons need: generator, network, profile, samples, table head."""
    rng = np.random.default_rng(s.seed)
    dataset = zoo.models.entry(s.model).dataset
    im = InstrumentedModel(zoo.load(s.model))
    profile = Profile.from_data(im, inputs(dataset, f"train[:{s.profile}]"))
    x = inputs(dataset, s.split)
    x = x[np.sort(rng.permutation(len(x))[: s.samples])]
    head = {"model": f"{s.model} on {dataset}", "samples": f"{len(x)} of {s.split}"}
    head |= {"profile": f"{s.profile} training samples", "seed": s.seed}
    return rng, im, profile, x, head


def note_on(split: str) -> str:
    """Return the sentence that says whether the networks were trained on the samples."""
    return note("unseen" if split.startswith("test") else "trained_on")


def inputs(dataset: str, split: str) -> np.ndarray:
    """Return the samples of a split; of sentences, the tokens."""
    if dataset == "sst2":
        return texts.vocabulary().encode(texts.load(dataset, split).text)
    return load(dataset, split).x


class Kept:
    """A network in which only some synapses are kept; what others carry is ablated to its mean."""

    def __init__(self, im: InstrumentedModel, profile: Profile) -> None:
        self.im = im
        self.profile = profile
        self._ablation = Ablation(im, profile)
        self._score = Answers(im, None, None).score
        self.kernels = list(self._ablation.shapes)
        self.units = self._ablation.units
        # How many the package's rounds leave, to just below the smallest share.
        self.counts = [n for n in counts_left(self.units) if n > SHARES[0] / 2 * self.units]

    def answers(self, x: np.ndarray) -> Answers:
        """Return what the outputs of the whole network say."""
        answers = Answers(self.im, None, None)
        answers.full = self.im.logits(x).astype(np.float64)
        return answers

    def logits(self, x: np.ndarray, members: np.ndarray) -> np.ndarray:
        """Return the logits of one sample, `(1, classes)`, with some synapses, by index."""
        mask = np.zeros(self.units, np.float32)
        mask[members] = 1
        return self._ablation.outputs(mask, self._rows(x))

    def effects(self, x: np.ndarray, mask: np.ndarray, label: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the logits of one sample, and the score's derivative by each mask entry."""
        return self._ablation.slopes(mask, self._rows(x), *self._score(label))

    def _rows(self, x: np.ndarray) -> Rows:
        # Tokens are floating-point numbers, too, as everywhere in the package.
        return self._ablation.unchecked([x[None].astype(np.float32)])


def methods(network: Kept, s: DecisiveSettings) -> Iterator[Method]:
    """Yield the rankings to compare."""

    def each(rank: Callable[..., np.ndarray], *options: int) -> Score:
        """Return the scores of samples that are ranked side by side."""

        def score(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
            with ThreadPoolExecutor(available_cores()) as pool:
                return np.stack(list(pool.map(partial(rank, network, *options), x, labels)))

        return score

    weights = [network.im.kernels[name].kernel() for name in network.kernels]
    sizes = np.abs(np.concatenate([kernel.ravel() for kernel in weights]))
    rng = np.random.default_rng(s.seed)
    yield Method("decisive", each(_rounds), _ROUND * (len(network.counts) + 1))
    whole = np.ones(network.units)
    yield Method("EAP", each(lambda _, x, y: np.abs(network.effects(x, whole, y)[1])), _ROUND)
    if zoo.models.entry(s.model).dataset != "sst2":  # no inputs between tokens
        yield Method("EAP-IG", each(path_effects, s.points), _ROUND * s.points)
    yield Method("amounts, θ = 0", partial(contributions, network, 0.0, "amount"))
    yield Method("slices, θ = 0.1", partial(contributions, network, 0.1, "count"))
    yield Method("slices, θ = 0.3", partial(contributions, network, 0.3, "count"))
    yield Method("|weight|", lambda x, labels: np.tile(sizes, (len(x), 1)), 0)
    yield Method("random", lambda x, labels: rng.random((len(x), network.units)), 0)
    yield Method("masks learned", each(_learned, s.steps), _ROUND * s.steps, s.learned)


def path_effects(network: Kept, points: int, x: np.ndarray, label: int) -> np.ndarray:
    """Return change × gradient, the mean over inputs between the mean and the sample."""
    im, means = network.im, network.profile.means
    sums = [im[o.name] for o in im.operations if getattr(o.params, "name", "") in network.kernels]
    usual = means[next(iter(im.input_operations))].astype(np.float32)
    steps = (np.arange(points, dtype=np.float32) + 0.5) / points
    between = usual + steps.reshape(-1, *(1,) * x.ndim) * (x - usual)
    slopes = im.gradients(between, of=[int(label)] * points, wrt=[o.name for o in sums])
    values = im.capture(x[None], of=[o.inputs[0] for o in sums])
    scores = {}
    for o in sums:
        change = (values[o.inputs[0]] - means[o.inputs[0]]).astype(np.float32)
        found = sample_gradients(o, change, slopes[o.name].mean(axis=0, keepdims=True))
        scores[o.params.name] = np.abs(np.ravel(found) * o.params.kernel().ravel())
    return np.concatenate([scores[name] for name in network.kernels])


def _rounds(network: Kept, x: np.ndarray, label: int) -> np.ndarray:
    """Return scores by the order in which synapses are removed in rounds: the last the highest."""
    scores = np.zeros(network.units)
    effects = partial(network.effects, x, label=label)
    for _, members, sizes, _ in rounds_of_ablation(effects, network.units, network.counts):
        # Above all that were ablated before, by the sizes of their effects.
        order = np.argsort(sizes, kind="stable")
        scores[members[order]] = network.units - len(members) + np.arange(len(members))
    return scores


def contributions(
    network: Kept, theta: float, kind: str, x: np.ndarray, labels: np.ndarray
) -> np.ndarray:
    """Return the sizes of contributions to the classes' outputs."""
    options = {"theta": theta, "contribution": kind, "workers": 0, "progress": False}
    slicer = Slicer(network.im, network.profile, **options)
    scores = np.zeros((len(x), network.units))
    for label in np.unique(labels):
        rows = labels == label
        found = slicer.slice_each(x[rows], [int(label)], network.kernels, operations=())
        if list(found.kernels) != network.kernels:
            raise AssertionError("slices and masks have different kernels")
        scores[rows] = np.abs(found.to_array())
    return scores


def _learned(network: Kept, steps: int, x: np.ndarray, label: int) -> np.ndarray:
    """Return a mask learned with Adam: raise the score to a margin, at a price per synapse."""
    place = np.zeros(network.units)
    first, second = np.zeros(network.units), np.zeros(network.units)
    for step in range(1, steps + 1):
        mask = sigmoid(place)
        logits, effects = network.effects(x, mask, label)
        scores = logits.ravel().astype(np.float64)
        odds = scores[label] - np.log(np.exp(np.delete(scores, label)).sum())
        slope = _PRICE / network.units - effects * (odds < _MARGIN)
        slope = slope * mask * (1 - mask)
        first = 0.9 * first + 0.1 * slope
        second = 0.999 * second + 0.001 * slope**2
        change = first / (1 - 0.9**step) / (np.sqrt(second / (1 - 0.999**step)) + 1e-12)
        place -= _RATE * change
    return place


def _measured(
    network: Kept, method: Method, x: np.ndarray, labels: np.ndarray, others: np.ndarray
) -> list[dict]:
    """Return a row for each sample and share."""
    start = time.perf_counter()
    rankings = {"own": method.score(x, labels)}
    seconds = (time.perf_counter() - start) / len(x)
    rankings["other"] = method.score(x, others)
    answers = network.answers(x)

    def rows_of(index: int) -> list[dict]:
        orders = {name: np.argsort(-scores[index]) for name, scores in rankings.items()}
        rows = []
        for share in SHARES:
            count = int(share * network.units)
            own = network.logits(x[index], orders["own"][:count])
            other = network.logits(x[index], orders["other"][:count])
            row = {"share": share, "kept": int(answers.of(own)[0] == labels[index])}
            row["probability"] = answers.probabilities(own)[0, labels[index]]
            row["KL"] = answers.divergence(own, slice(index, index + 1))[0]
            row["other"] = int(answers.of(other)[0] == others[index])
            rows.append(row | {"seconds": seconds, "passes": method.passes})
        return rows

    with ThreadPoolExecutor(available_cores()) as pool:
        return [row for rows in pool.map(rows_of, range(len(x))) for row in rows]


def _certificates(network: Kept, x: np.ndarray, bound: float | None, seed: int) -> list[dict]:
    """Return a row for each sample: what `Slicer.decisive` found."""
    slicer = Slicer(network.im, network.profile, workers=0, progress=False)
    start = time.perf_counter()
    table = slicer.decisive(x, max_divergence=bound, others=1, rng=seed).to_frame()
    seconds = (time.perf_counter() - start) / len(x)
    found = table[["share", "scope kept", "scope bound"]].copy()
    found["kept"] = (table["answer with slice alone"] == table["answer"]).astype(int)
    found["probability"], found["KL"] = table["probability with slice alone"], table["divergence"]
    asked = table["other classes asked"]
    found["other"] = table["other classes given"] / asked.where(asked > 0)
    found["removed"] = (table["answer with slice removed"] == table["answer"]).astype(int)
    found["seconds"], found["passes"] = seconds, table["passes"]
    return found.to_dict("records")


def _by_share(found: pd.DataFrame) -> pd.DataFrame:
    """Return means over samples for each method and share, with Wilson intervals."""
    rows = []
    for (method, share), group in found.groupby(["method", "share"], sort=False):
        row = {"method": method, "share": share, "samples": len(group)}
        for name in ("kept", "other"):
            successes = int(group[name].sum())
            low, high = binomtest(successes, len(group)).proportion_ci(method="wilson")
            row |= {name: successes / len(group), f"{name}, from": low, f"{name}, to": high}
        means = group[["probability", "KL", "seconds", "passes"]].mean()
        rows.append(row | means.to_dict())
    return pd.DataFrame(rows).round(4)


def _summary(by_share: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each method."""
    rows = []
    for method, group in by_share.groupby("method", sort=False):
        each = group.set_index("share")
        # From which share on the goal is always reached.
        enough = (each["kept"] >= GOAL)[::-1].cummin()[::-1]
        share = enough.idxmax() if enough.any() else np.nan
        reached = each.index[each["kept"] >= GOAL]
        row = {"method": method, "samples": each["samples"].iloc[0], "kept 95 % at": share}
        row["first at"] = reached.min() if len(reached) else np.nan
        row |= {f"kept, {100 * p:g} %": each["kept"][p] for p in (0.01, 0.02, 0.05, 0.1, 0.2)}
        row |= {f"KL, {100 * p:g} %": each["KL"][p] for p in (0.02, 0.05, 0.1)}
        row |= {f"other, {100 * p:g} %": each["other"][p] for p in (0.02, 0.05, 0.1)}
        row["other at 95 %"] = each["other"].get(share, np.nan)
        rows.append(row | each[["seconds", "passes"]].iloc[0].to_dict())
    return pd.DataFrame(rows)
