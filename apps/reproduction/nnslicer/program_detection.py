"""Detection by the rule of the paper's program, with its scoring and with an honest one (Table 4).

The rule: a decision tree learns from normal images which contributions of one convolution belong
to which label; an input is flagged if the tree disagrees. For an adversarial input, the program
compares the tree's output with −1 instead of the model's prediction, so that every one of them is
flagged. Its recall is thus 1 by construction, and its precision n / (n + false positives), whatever
the n adversarial inputs look like.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from nnslicer_tf import datasets, zoo
from nnslicer_tf._checks import check_name
from nnslicer_tf.baselines import effective_paths
from nnslicer_tf.detection.scorers import TreeDisagreement
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.slicing import ClassProfiles, Criterion, Profile, Slicer
from reproduction.nnslicer.adversarial import attacks_on, examples
from reproduction.nnslicer.class_slicer import ClassSlicer
from reproduction.nnslicer.settings import ProgramDetectionSettings
from reproduction.result import (
    ExperimentResult,
    ExperimentTable,
    ExperimentView,
    paper_frame,
    versions,
)
from reproduction.rows import RowStore
from reproduction.settings import DATA
from reproduction.tables import read_table
from reproduction.views import view_of_pairs

Vectors = Callable[[np.ndarray], np.ndarray]

METHODS = (
    *("NNSlicer, θ = 0.2", "NNSlicer, θ = 0.5", "NNSlicer, θ = 0.3, the paper's exclusion"),
    "EffectivePath",
)

_TEXT = (
    "`n`: adversarial inputs; `flagged`: flagged ones among all `normal` inputs. `program_*`: as "
    "the program scores, where every adversarial input counts as found: precision n / (n + "
    "flagged). `precision`, `recall`, `f1`: what the rule detects, measured on the adversarial "
    "inputs made here. Where an attack was not made here, n is that of the table of detectors "
    "(`detection/resnet10-cifar10.csv`), scaled to the number of normal inputs. The published "
    "figures are consistent with the program's scoring; that proves nothing. `flagged that fits`: "
    "the number of false positives for which n / (n + flagged) is nearest to the published figures."
)


@dataclass(frozen=True, eq=False)
class _Normal:
    """Normal inputs: those to learn from, and correctly classified ones to test on."""

    x: np.ndarray
    y: np.ndarray
    tested: np.ndarray
    labels: np.ndarray


def detect_by_program(s: ProgramDetectionSettings) -> ExperimentResult:
    """Measure the program's rule, with its scoring and with an honest one (Table 4)."""
    im = InstrumentedModel(zoo.load(s.model, s.dataset))
    train = datasets.load(s.dataset, "train[:90%]")
    chosen = [np.flatnonzero(train.y == c)[: s.train] for c in range(train.classes)]
    rows = np.sort(np.concatenate(chosen))
    rows = rows[im.logits(train.x[rows]).argmax(axis=1) == train.y[rows]]
    test = datasets.load(s.dataset, f"test[{s.skip}:{s.skip + s.images}]")
    right = im.logits(test.x).argmax(axis=1) == test.y
    normal = _Normal(train.x[rows], train.y[rows], test.x[right], test.y[right])
    # Attack → the adversarial inputs, and which normal inputs they were made from.
    specs = attacks_on(s.dataset, s.attacks)
    made = examples(im.model, specs, normal.tested, normal.labels, s.work, rng=s.seed)
    adversarial = {spec.name: (one.x[one.success], one.success) for spec, one in made}
    counts = _counts(s, len(normal.tested))
    store = RowStore.of(
        s.work,
        f"program-{s.model}",
        ["method"],
        {"weights": im.fingerprint, "attacks": list(adversarial), "counts": counts}
        | s.values("dataset", "train", "synapses", "kernel", "skip", "images", "seed"),
    )
    parts = []
    methods = _methods(s, im, normal)
    for name in s.method or METHODS:
        check_name("method", name, METHODS)

        def rows_of(name: str = name) -> list[dict]:
            vectors = methods[name]
            tree = TreeDisagreement(s.seed).fit(vectors(normal.x), normal.y, normal.y.max() + 1)
            found = _rows(name, im, tree, vectors, normal, adversarial, counts)
            return found.to_dict("records")

        parts.append(store.complete({"method": name}, rows_of))
        print(f"{name}: done", flush=True)
    rows = pd.concat(parts, ignore_index=True)
    head = {
        "model and data": f"{s.model} on {s.dataset}",
        "normal inputs": f"{len(normal.x)} training images to learn from, {len(normal.tested)} of "
        f"test[{s.skip}:{s.skip + s.images}], which the model is right on",
        "adversarial inputs": f"made here: {', '.join(adversarial)}",
        "synapses": f"at most {s.synapses:,} of the convolution's, drawn at random",
        "theta of the paths": "0.5",
        "seed": str(s.seed),
        "libraries": versions("scikit-learn", "foolbox"),
        "paper_*": "Zhang et al., ESEC/FSE 2020, Table 4 (ResNet10, CIFAR-10)",
    }
    name = f"detection-{s.model}-{s.dataset}"
    title = "Detection by the program's rule, with its scoring and with an honest one (Table 4)"
    return ExperimentResult(
        [
            ExperimentTable(name, rows, title, head, _TEXT),
            ExperimentTable(f"{name}-means", _means(rows), f"{title}: means", head, _TEXT),
        ],
        views=_views(s, im, normal, adversarial),
    )


def _views(
    s: ProgramDetectionSettings,
    im: InstrumentedModel,
    normal: _Normal,
    adversarial: dict[str, tuple[np.ndarray, np.ndarray]],
) -> Sequence[ExperimentView]:
    """Return a view of slices of normal inputs and of the first attack's versions of them."""
    if s.explore is None:
        return []
    made, rows = next(iter(adversarial.values()))
    slicer = Slicer(im, Profile.from_data(im, normal.x))
    return view_of_pairs(s.explore, slicer, normal.tested[rows], made)


def _counts(s: ProgramDetectionSettings, normal: int) -> dict[str, float]:
    """Return attack → its adversarial inputs in the table of detectors, scaled."""
    path = DATA / "results" / "detection" / f"{s.counted}-{s.dataset}.csv"
    if not path.exists():
        return {}
    frame = read_table(path).frame
    examples = frame[frame["attack"] != "Average"].groupby("attack", sort=False)["examples"].first()
    return (examples * normal / examples.max()).to_dict()


def _methods(
    s: ProgramDetectionSettings, im: InstrumentedModel, normal: _Normal
) -> dict[str, Vectors]:
    """Return method → the features that its tree reads."""
    convolutions = [name for name, kernel in im.kernels.items() if len(kernel.shape) > 2]
    last = s.kernel or convolutions[-1]
    check_name("kernel", last, im.kernels)
    profiles = ClassProfiles.from_data(im, normal.x, normal.y)
    size = im.kernels[last].size
    drawn = np.random.default_rng(s.seed).permutation(size)[: s.synapses]
    columns = np.sort(drawn)

    def slices(theta: float, **reading: str) -> Vectors:
        slicer = ClassSlicer(im, profiles, theta=theta, workers=0, **reading)
        criterion = Criterion(until=last)

        def vectors(x: np.ndarray) -> np.ndarray:
            found = slicer.slice_each(x, criterion, kernels=[last], operations=())
            return found.to_array()[:, columns].astype(np.float32)

        return vectors

    def paths(x: np.ndarray) -> np.ndarray:
        found = effective_paths(im, x, 0.5, kernels=[last])
        return found[:, columns].toarray().astype(np.float32)

    program = {"relative_to": "sum", "rectify": "pass"}
    found = slices(0.2, **program), slices(0.5, **program), slices(0.3), paths
    return dict(zip(METHODS, found, strict=True))


def _rows(
    name: str,
    im: InstrumentedModel,
    tree: TreeDisagreement,
    vectors: Vectors,
    normal: _Normal,
    adversarial: Mapping[str, tuple[np.ndarray, np.ndarray]],
    counts: Mapping[str, float],
) -> pd.DataFrame:
    """Return a row for each attack."""
    wrong = tree.classify(vectors(normal.tested)) != normal.labels
    role = "EffectivePath" if name == "EffectivePath" else "NNSlicer"
    published = paper_frame("nnslicer/table4")
    published = published[published["method"] == role].set_index("attack")
    rows = []
    for attack in published.index.drop("Average"):
        made = attack in adversarial
        n = len(adversarial[attack][0]) if made else counts.get(attack, np.nan)
        precision = n / (n + wrong.sum())
        row = {
            "method": name,
            "attack": attack,
            "n": n,
            "flagged": wrong.sum(),
            "normal": len(wrong),
            "program_precision": precision,
            "program_recall": 1.0,
            "program_f1": 2 * precision / (1 + precision),
        }
        if made and n:
            x, success = adversarial[attack]
            flagged = tree.classify(vectors(x)) != im.logits(x).argmax(axis=1)
            row |= _figures(flagged.sum(), wrong[success].sum(), len(x))
        for figure in ("precision", "recall", "f1"):
            row[f"paper_{figure}"] = published.loc[attack, figure]
        rows.append(row)
    return pd.DataFrame(rows)


def _figures(found: int, false: int, count: int) -> dict[str, float]:
    precision = found / (found + false) if found else 0.0
    recall = found / count
    f1 = 2 * precision * recall / (precision + recall) if found else 0.0
    return {"precision": precision, "recall": recall, "f1": f1, "false_positives": false / count}


def _means(rows: pd.DataFrame) -> pd.DataFrame:
    """Return each method's means over the attacks."""
    rows = rows.assign(error=(rows["program_precision"] - rows["paper_precision"]).abs())
    means = rows.drop(columns="attack").groupby("method", sort=False).mean()
    fits = {
        name: fitting_false_positives(part) for name, part in rows.groupby("method", sort=False)
    }
    means["flagged that fits"] = [fits[name][0] for name in means.index]
    means["error of the fit"] = [fits[name][1] for name in means.index]
    return means.rename(columns={"error": "error of program_precision"}).reset_index()


def fitting_false_positives(rows: pd.DataFrame) -> tuple[int, float]:
    """Return the false positives that best fit the published precision, and the mean error."""
    counts = np.arange(1, int(rows["normal"].max()) + 1)
    predicted = rows["n"].to_numpy() / (rows["n"].to_numpy() + counts[:, None])
    errors = np.abs(predicted - rows["paper_precision"].to_numpy()).mean(axis=1)
    return int(counts[errors.argmin()]), float(errors.min())
