"""Decisive words: slices compared with gradients, integrated gradients and attention.

Words are deleted in the order of a method's scores, those that most support the predicted class
first, and inserted in the same order. With a good order, the class's lead falls fast under
deletion and rises fast under insertion: a small area under the first curve, a large one under the
second (Petsiuk et al., "RISE", BMVC 2018).
"""

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import numpy as np
import pandas as pd
from keras import ops
from matplotlib.figure import Figure
from scipy.stats import wilcoxon

from nnslicer_tf import explore
from nnslicer_tf._checks import check_name
from nnslicer_tf._environment import track
from nnslicer_tf._numerics import runner_up_margin
from nnslicer_tf.datasets import texts
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.backend import compiled_function, vector_jacobian_product
from nnslicer_tf.report import plot_words
from nnslicer_tf.report.explorer.explorer import Explorer
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.amounts import amounts
from reproduction.plots import put_finding
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note
from reproduction.sentences.settings import SentenceSettings, WordSettings
from reproduction.zoo.models import zoo


def drawn_sentences(s: SentenceSettings, split: str = "test") -> np.ndarray:
    """Return the sentences to measure on, `(sentences, words)` tokens, in the split's order."""
    sentences = texts.load("sst2", split)
    drawn = np.sort(np.random.default_rng(s.seed).permutation(len(sentences))[: s.sentences])
    return texts.vocabulary().encode([sentences.text[i] for i in drawn])


def profiled_sentences(s: SentenceSettings) -> np.ndarray:
    """Return the training sentences of the profile, `(sentences, words)` tokens."""
    return texts.vocabulary().encode(texts.load("sst2", f"train[:{s.profile}]").text)


def head_of(s: SentenceSettings, model: str, count: int, split: str, **more: object) -> dict:
    """Return the head of a table: the model, its sentences, the profile's, and the seed."""
    head = {"model": model, "sentences": f"{count} of {split}"}
    return head | {"profile": f"{s.profile} training sentences", **more, "seed": s.seed}


def lead(logits: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return each class's logit minus the largest other one, `(samples,)`."""
    return -runner_up_margin(logits, labels)


def p_values(values: pd.DataFrame, methods: Iterable[str], best: str) -> list[float]:
    """Return those of two-sided Wilcoxon signed-rank tests of columns against the best one."""
    tests = {name: wilcoxon(values[name], values[best]) for name in methods if name != best}
    return [tests[name].pvalue if name != best else np.nan for name in methods]


def rose(im: InstrumentedModel, profile: Profile, x: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Return whether the classes' logits are above their means (1) or below (-1).

    Contributions explain the change of a logit, whereas scores measure support for the class.
    """
    change = im.logits(x) - profile.means[im.logit_operation]
    return np.sign(change[np.arange(len(x)), labels])


MODELS = ("text_transformer", "text_lstm")
_EMBEDDING = "embedding"
_STEPS = 32  # steps of integrated gradients
_SHARES = np.linspace(0, 1, 11)
_DRAWN = 6
_DRAWN_THETA = 0.3
_CLASSES = ("negative", "positive")

Scorer = Callable[[np.ndarray, np.ndarray], np.ndarray]
"""Maps sentences `(n, words)` and classes `(n,)` to scores of the words `(n, words)`."""


def words(s: WordSettings) -> ExperimentResult:
    """Compare orders of words, and draw some sentences."""
    check_name("model", s.model, MODELS)
    im = InstrumentedModel(zoo.load(s.model))
    x = drawn_sentences(s, s.split)
    labels = im.logits(x).argmax(axis=1)
    profile = Profile.from_data(im, profiled_sentences(s))
    methods = track(list(scorers(im, profile, s.seed).items()), "Methods")
    scores = {name: score(x, labels) for name, score in methods}
    areas = areas_under_curves(im, x, labels, scores)
    head = head_of(s, s.model, len(x), s.split)
    means = areas.groupby("method", sort=False)[["deletion", "insertion"]].mean()
    best = means["deletion"].idxmin()
    by_method = areas.pivot(index="sentence", columns="method", values="deletion")
    means["p"] = p_values(by_method, means.index, best)
    name, title = f"words_{s.model}", f"Words of SST-2 deleted and kept, {s.model}"
    table = ExperimentTable(name, means.reset_index(), title, head, note("words"))
    tables = [ExperimentTable(f"{name}_areas", areas), table]

    # Some sentences, their predicted classes, and the contributions of their words.
    sentences = [texts.vocabulary().decode(row) for row in x[:_DRAWN]]
    drawn = {
        "model": np.array(s.model),
        "sentences": np.array([" ".join(words) for words in sentences]),
        "labels": labels[:_DRAWN],
        "values": scores[f"slice, θ = {_DRAWN_THETA}"][:_DRAWN],
    }
    figure = ExperimentFigure(name, plot(drawn), drawn=drawn)

    def view() -> Explorer:
        slices = Slicer(im, profile, _DRAWN_THETA).slice_each(x[:_DRAWN], outputs="predicted")
        options = {"words": sentences, "title": f"Sentences of SST-2, {s.model}"}
        named, first = {f"θ = {_DRAWN_THETA}": slices}, x[:_DRAWN]
        return explore(named, im, first, profile=profile, classes=_CLASSES, **options)

    return ExperimentResult(tables, [figure], view=view)


def scorers(im: InstrumentedModel, profile: Profile, seed: int) -> Mapping[str, Scorer]:
    """Return the methods by name; each scores how much words support a class."""
    found: dict[str, Scorer] = {}
    for product, name in (("value", "slice"), ("midpoint", "slice, midpoints")):
        for theta in (0.0, 0.1, _DRAWN_THETA):
            slicer = Slicer(im, profile, theta, progress=False, product=product)
            found[f"{name}, θ = {theta}"] = _by_slice(slicer)
            found[f"{name}, × |Δ|, θ = {theta}"] = _by_slice(slicer, sized=True)
    of_words = partial(amounts, im, profile, neurons=[_EMBEDDING])
    found["amounts"] = lambda x, labels: of_words(x, labels)[_EMBEDDING].sum(axis=-1)
    found["gradient × input"] = _by_gradient(im, profile, 1)
    found["integrated gradients"] = _by_gradient(im, profile, _STEPS)
    if any(operation.kind == "softmax" for operation in im.operations):
        found["attention"] = by_attention(im)
    rng = np.random.default_rng(seed)
    found["random"] = lambda x, labels: rng.random(x.shape)
    return found


def _by_slice(slicer: Slicer, sized: bool = False) -> Scorer:
    """Score words by their contributions, with the sign reversed for a logit that fell.

    `sized`: by those of their embedded values, times the sizes of Δ.
    """

    def score(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        im = slicer.im
        name = _EMBEDDING if sized else im.input_operation
        found = slicer.slice_each(x, kernels=(), operations=[name]).neuron_matrix.toarray()
        if sized:
            delta = im.capture(x, of=[name])[name] - slicer.profile.means[name]
            found = (found.reshape(delta.shape) * np.abs(delta)).sum(axis=-1)
        return found * rose(im, slicer.profile, x, labels)[:, None]

    return score


def _by_gradient(im: InstrumentedModel, profile: Profile, steps: int) -> Scorer:
    """Score words by gradient × (embedding − its mean), averaged over steps from the mean."""
    mean = profile.means[_EMBEDDING].astype(np.float32)

    @compiled_function
    def gradient(x: np.ndarray, embedded: np.ndarray, chosen: np.ndarray) -> np.ndarray:
        def logits(embedded: np.ndarray) -> np.ndarray:
            def change(name: str, value: object) -> object:
                return embedded if name == _EMBEDDING else value

            return im.graph.run(x, [im.logit_operation], change)[im.logit_operation]

        return vector_jacobian_product(logits, [embedded], chosen)[0]

    def score(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        embedded = im.capture(x, of=[_EMBEDDING])[_EMBEDDING]
        chosen = np.eye(im[im.logit_operation].size, dtype=np.float32)[labels]
        x, chosen = (ops.convert_to_tensor(value) for value in (x.astype(np.float32), chosen))
        total = np.zeros_like(embedded)
        # For one step at the sentence itself, for several at the midpoints of equal parts.
        places = [1.0] if steps == 1 else (np.arange(steps) + 0.5) / steps
        for place in places:
            at = mean + np.float32(place) * (embedded - mean)
            slope = gradient(x, ops.convert_to_tensor(at), chosen)
            total += ops.convert_to_numpy(slope) / len(places)
        return (total * (embedded - mean)).sum(axis=-1)

    return score


def by_attention(im: InstrumentedModel) -> Scorer:
    """Score words by attention rollout (Abnar and Zuidema, ACL 2020), averaged over positions.

    It does not depend on the class.
    """
    names = [o.name for o in im.operations if o.kind == "softmax"]

    def score(x: np.ndarray, labels: np.ndarray) -> np.ndarray:
        found = im.capture(x, of=names)
        rolled = np.broadcast_to(np.eye(x.shape[1]), (len(x), x.shape[1], x.shape[1]))
        for name in names:
            heads = found[name].mean(axis=1)
            rolled = (heads + np.eye(x.shape[1])) / 2 @ rolled
        there = (x != texts.PADDING)[:, :, None]
        return (rolled * there).sum(axis=1) / there.sum(axis=1)

    return score


def areas_under_curves(
    im: InstrumentedModel, x: np.ndarray, labels: np.ndarray, scores: Mapping[str, np.ndarray]
) -> pd.DataFrame:
    """Return the areas under both curves of the classes' leads, by sentence and method."""
    rows = []
    whole = lead(im.logits(x), labels)
    for name, values in scores.items():
        curves: dict[str, list[np.ndarray]] = {"deletion": [], "insertion": []}
        for share in _SHARES:
            first = first_words(x, values, share)
            curves["deletion"].append(lead(im.logits(compact_words(x, ~first)), labels))
            curves["insertion"].append(lead(im.logits(compact_words(x, first)), labels))
        means = {c: np.trapezoid(np.stack(of), _SHARES, axis=0) for c, of in curves.items()}
        for i in range(len(x)):
            sentence = {"sentence": i, "method": name, "lead": whole[i]}
            rows.append(sentence | {curve: mean[i] / whole[i] for curve, mean in means.items()})
    return pd.DataFrame(rows)


def first_words(x: np.ndarray, values: np.ndarray, share: float) -> np.ndarray:
    """Return which words are among each sentence's top share by score, bool."""
    there = x != texts.PADDING
    ordered = np.where(there, values, -np.inf)
    place = np.argsort(np.argsort(-ordered, axis=1, kind="stable"), axis=1)
    return there & (place < np.ceil(share * there.sum(axis=1, keepdims=True) - 1e-9))


def compact_words(x: np.ndarray, kept: np.ndarray) -> np.ndarray:
    """Return sentences of only the kept words; an empty one becomes a single unknown word."""
    kept = kept & (x != texts.PADDING)
    order = np.argsort(~kept, axis=1, kind="stable")
    rows = np.arange(len(x))[:, None]
    shorter = np.where(kept, x, texts.PADDING)[rows, order]
    empty = ~kept.any(axis=1)
    shorter[empty, 0] = texts.UNKNOWN
    return shorter


def plot(drawn: Mapping[str, np.ndarray]) -> Figure:
    """Draw the words of some sentences with the contributions of slices."""
    sentences = [str(sentence).split() for sentence in drawn["sentences"]]
    figure = Figure(figsize=(8, 0.9 * len(sentences) + 0.3), layout="constrained")
    axes = figure.subplots(len(sentences), 1)
    first = []
    parts = zip(axes, sentences, drawn["values"], drawn["labels"], strict=True)
    for axis, own, values, label in parts:
        first.append(own[int(np.argmax(values[: len(own)]))])
        plot_words(values, own, axis)
        axis.set_title(_CLASSES[label], fontsize=8, loc="left", color="grey")
    return put_finding(
        figure,
        f"{drawn['model']}: what speaks most for the class is {', '.join(first)} (slices, θ = "
        f"{_DRAWN_THETA}; blue: for the class, red: against it)",
    )
