"""Detection by the rule of the paper's program, with its scoring and with an honest one (Table 4).

The rule: a decision tree learns from normal images which contributions of one convolution belong
to which label; an input is flagged if the tree disagrees. For an adversarial input, the program
compares the tree's output with −1 instead of the model's prediction, so that every one of them is
flagged. Its recall is thus 1 by construction, and its precision n / (n + false positives), whatever
the n adversarial inputs look like.
"""

from collections.abc import Callable
from functools import partial

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._checks import check_name
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.detection.scorers import TreeDisagreement
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import Criterion
from reproduction.nnslicer.class_profiles import ClassProfiles
from reproduction.nnslicer.class_slicer import slice_each_by_class
from reproduction.nnslicer.detection import attacks_on, examples
from reproduction.nnslicer.effective_path import effective_paths
from reproduction.nnslicer.settings import ProgramDetectionSettings
from reproduction.result import ExperimentResult, ExperimentTable, note, paper_frame, versions
from reproduction.rows import RowStore
from reproduction.samples import choose
from reproduction.settings import DATA
from reproduction.tables import read_table
from reproduction.zoo.models import zoo

Vectors = Callable[[np.ndarray], np.ndarray]

METHODS = (
    *("NNSlicer, θ = 0.2", "NNSlicer, θ = 0.5", "NNSlicer, θ = 0.3, the paper's exclusion"),
    "EffectivePath",
)

_SYNAPSES = 4_096  # that a tree reads at most
_COUNTED = "resnet10"  # the model whose table of detectors counts the attacks not made here


def detect_by_program(s: ProgramDetectionSettings) -> ExperimentResult:
    """Measure the program's rule, with its scoring and with an honest one (Table 4)."""
    for name in s.method or ():
        check_name("method", name, METHODS)
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    # Normal images to learn from and to test on: those that the model classifies correctly.
    train = datasets.load(s.dataset, "train[:90%]")
    rows = np.concatenate([np.flatnonzero(train.y == c)[: s.train] for c in range(train.classes)])
    train = choose(train, np.sort(rows))
    test = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.images}]")
    train, test = (choose(d, im.logits(d.x).argmax(axis=1) == d.y) for d in (train, test))

    # Attack → the adversarial inputs, and which normal inputs they were made from.
    made = examples(im.model, attacks_on(s.dataset, s.attacks), test, s.work, rng=s.seed)
    adversarial = {spec.name: (one.x[one.success], one.success) for spec, one in made}
    # Attack → the adversarial inputs in the table of detectors, scaled to the normal inputs here.
    counts: dict[str, float] = {}
    path = DATA / "results" / "detection" / f"{_COUNTED}-{s.dataset}.csv"
    if path.exists():
        frame = read_table(path).frame
        by_attack = frame[frame["attack"] != "Average"].groupby("attack", sort=False)
        count = by_attack["examples"].first()
        counts = (count * len(test) / count.max()).to_dict()
    published = paper_frame("nnslicer/table4").set_index("attack").drop("Average")
    vectors_of = _methods(s, im, train)

    def rows_of(method: str) -> list[dict]:
        """Return a row for each attack."""
        vectors = vectors_of[method]
        tree = TreeDisagreement(s.seed).fit(vectors(train.x), train.y, train.y.max() + 1)
        wrong = tree.classify(vectors(test.x)) != test.y
        role = "EffectivePath" if method == "EffectivePath" else "NNSlicer"
        rows = []
        for attack, paper in published[published["method"] == role].iterrows():
            x, success = adversarial.get(attack, ((), ()))
            n = len(x) if attack in adversarial else counts.get(attack, np.nan)
            precision = n / (n + wrong.sum())
            row = {"attack": attack, "n": n, "flagged": wrong.sum(), "normal": len(wrong)}
            row |= {"program_precision": precision, "program_recall": 1.0}
            row["program_f1"] = 2 * precision / (1 + precision)
            if len(x):
                found = (tree.classify(vectors(x)) != im.logits(x).argmax(axis=1)).sum()
                false, recall = wrong[success].sum(), found / len(x)
                precision = found / (found + false) if found else 0.0
                f1 = 2 * precision * recall / (precision + recall) if found else 0.0
                row |= {"precision": precision, "recall": recall, "f1": f1}
                row["false_positives"] = false / len(x)
            rows.append(row | {f"paper_{f}": paper[f] for f in ("precision", "recall", "f1")})
        return rows

    made_from = {"weights": im.fingerprint, "attacks": list(adversarial), "counts": counts}
    made_from |= {"synapses": _SYNAPSES, "kernel": ""}
    fields = ("dataset", "train", "skip", "images", "seed")
    store = RowStore.of(s, f"program-{s.model}", ["method"], *fields, **made_from)
    table = store.fill([{"method": name} for name in s.method or METHODS], rows_of, "Methods")

    # Each method's means over the attacks.
    errors = table.assign(error=(table["program_precision"] - table["paper_precision"]).abs())
    by_method = errors.drop(columns="attack").groupby("method", sort=False)
    means = by_method.mean()
    fits = [fitting_false_positives(part) for _, part in by_method]
    means["flagged that fits"], means["error of the fit"] = zip(*fits, strict=True)
    means = means.rename(columns={"error": "error of program_precision"}).reset_index()
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(train)} training images to learn from, {len(test)} of "
        f"test[{s.skip}:{s.skip + s.images}], which the model is right on",
        "adversarial inputs": f"made here: {', '.join(adversarial)}",
        "synapses": f"at most {_SYNAPSES:,} of the convolution's, drawn at random",
        "theta of the paths": "0.5",
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
        "paper_*": "Zhang et al., ESEC/FSE 2020, Table 4 (ResNet10, CIFAR-10)",
    }

    name = f"detection-{s.model}-{s.dataset}"
    title = "Detection by the program's rule, with its scoring and with an honest one (Table 4)"
    text = note("program_detection")
    of_means = ExperimentTable(f"{name}-means", means, f"{title}: means", head, text)
    return ExperimentResult([ExperimentTable(name, table, title, head, text), of_means])


def _methods(
    s: ProgramDetectionSettings, im: InstrumentedModel, train: Dataset
) -> dict[str, Vectors]:
    """Return method → the features that its tree reads: of synapses of the last convolution."""
    last = [name for name, kernel in im.kernels.items() if len(kernel.shape) > 2][-1]
    profiles = ClassProfiles.from_data(im, train.x, train.y)
    order = np.random.default_rng(s.seed).permutation(im.kernels[last].size)
    columns = np.sort(order[:_SYNAPSES])

    def slices(theta: float, reading: dict[str, str], x: np.ndarray) -> np.ndarray:
        options = {"kernels": [last], "operations": (), "theta": theta, "workers": 0, **reading}
        found = slice_each_by_class(im, profiles, x, Criterion(until=last), **options)
        return found.to_array()[:, columns].astype(np.float32)

    def paths(x: np.ndarray) -> np.ndarray:
        return effective_paths(im, x, 0.5, kernels=[last])[:, columns].toarray().astype(np.float32)

    program = {"relative_to": "sum", "rectify": "pass"}
    readings = (0.2, program), (0.5, program), (0.3, {})
    return dict(zip(METHODS, (*(partial(slices, *one) for one in readings), paths), strict=True))


def fitting_false_positives(rows: pd.DataFrame) -> tuple[int, float]:
    """Return the false positives that best fit the published precision, and the mean error."""
    counts = np.arange(1, int(rows["normal"].max()) + 1)
    predicted = rows["n"].to_numpy() / (rows["n"].to_numpy() + counts[:, None])
    errors = np.abs(predicted - rows["paper_precision"].to_numpy()).mean(axis=1)
    return int(counts[errors.argmin()]), float(errors.min())
