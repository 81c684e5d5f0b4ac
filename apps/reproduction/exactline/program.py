"""Attributions and linearity by the procedure of the paper's program: tables 1 to 4, section 5.

Where the paper is silent, we follow its program (95616ARG/SyReNN):

- Attributions are for the label's logit. m̃ is the first number of samples, starting at 20, for
  which the left sum is within 1 % of the output's change. Samples stay within 5 % for five
  consecutive numbers, and the trapezoid sum counts its ends.
- Lines start at correctly classified images. FGSM changes a pixel by 3 % of its own value, in
  whole grey levels, towards the class after the label, so that black pixels stay black; four random
  neighbours change by as much, with random signs.
- Errors, of attributions and of gradients, are means of relative errors of single components.
"""

import numpy as np
import pandas as pd

from nnslicer_tf import datasets
from nnslicer_tf._environment import track
from nnslicer_tf.exactline import Attributor
from nnslicer_tf.exactline.gradients import RULES, PathGradients
from nnslicer_tf.instrument import InstrumentedModel
from reproduction.exactline.attributions import path_rows
from reproduction.exactline.linearities import directions, trainings
from reproduction.exactline.measures import (
    density,
    relative_change,
    relative_error,
    samples_for_completeness,
    samples_within,
)
from reproduction.exactline.networks import networks_of, trained_networks
from reproduction.exactline.robust_training import NETWORKS
from reproduction.exactline.settings import ProgramAttributionSettings, ProgramSettings
from reproduction.result import ExperimentResult, ExperimentTable, paper_text
from reproduction.rows import RowStore

_LEAST, _WITHIN = 20, 0.01  # samples, and share of the output's change
_CONSECUTIVE = 5
_SHARE = 0.03  # of a pixel's own value
_RANDOM = 4  # random neighbours of an image
_TEXT = (
    "Means over the images that the network gets right. `by norm`: ‖g - g₀‖₁ / ‖g₀‖₁; `by "
    "components`: the mean over the pixels of |g - g₀| / |g|, the program's; both along the line "
    "towards FGSM, weighted by the length of the parts, in percent. The paper states more than 250."
)


def attributions_by_program(s: ProgramAttributionSettings) -> ExperimentResult:
    """Compare exact integrated gradients with sampled sums by the program's procedure."""
    path = s.work / f"program-attributions-{s.most}.csv"
    store = RowStore(path, ("network", "dataset", "training", "weights", "image"))
    tables = []
    for (network, dataset, method), model in trained_networks(s.network or NETWORKS).items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        names = {"network": network, "dataset": dataset, "training": method}
        tables.append(path_rows(model, data.x, data.y, lambda p: _samples(p, s.most), names, store))
    table = pd.concat(tables, ignore_index=True)
    # Each network's means over images for which the samples tried were enough.
    rows, keys = [], ["network", "dataset", "training"]
    for key, group in table.groupby(keys, sort=False):
        kept = group.dropna()
        row = dict(zip(keys, key, strict=True)) | {"images": len(group), "counted": len(kept)}
        row |= {name: kept[name].mean() for name in ("exact", *RULES, "m_tilde")}
        errors = 100 * kept["error_at_m_tilde"]
        row |= {"error_percent_at_m_tilde": errors.mean(), "median_error_percent": errors.median()}
        rows.append(row)
    head = {"baseline": "black", "target": "the label", "most_samples": s.most}
    title = "By the program's procedure: integrated gradients, exact and by samples"
    text = paper_text("exactline/table1", "exactline/table2")
    return ExperimentResult(
        [
            ExperimentTable("program_attributions_images", table),
            ExperimentTable("program_attributions", pd.DataFrame(rows), title, head, text),
        ]
    )


def _samples(path: PathGradients, most: int) -> dict[str, float | None]:
    """Return the number of samples that an image needs, and the error at m̃ samples."""
    row: dict[str, float | None] = {"exact": len(path.partition), "error_at_m_tilde": None}
    row["m_tilde"] = count = samples_for_completeness(path, _WITHIN, most, _LEAST)
    if count is not None:
        error = relative_error(path.approximate(count), path.exact(), by="components")
        row["error_at_m_tilde"] = error
    for rule in RULES:
        row[rule] = samples_within(path, rule, 0.05, _CONSECUTIVE, most, by="components")
    if row["trapezoid"] is not None:
        row["trapezoid"] += 1
    return row


def linearities_by_program(s: ProgramSettings) -> ExperimentResult:
    """Compare lines to FGSM and random neighbours by the program's procedure."""
    tables = []
    for (dataset, method), model in networks_of(s.network).items():
        data = datasets.load(dataset, f"test[:{s.images}]")
        table = lines(InstrumentedModel(model), data.x, data.y, s.seed, f"{dataset} {method}")
        tables.append(table.assign(dataset=dataset, training=method))
    table = pd.concat(tables, ignore_index=True)
    head = {"network": s.network, "images": f"the first {s.images:,} test images", "seed": s.seed}
    first = table.drop_duplicates(["dataset", "training", "image"])
    # The mean and the median error of each network, by either measure.
    rows = []
    for (dataset, method), group in first.groupby(["dataset", "training"], sort=False):
        row = {"dataset": dataset, "training": method, "images": len(group)}
        for label, column in (("norm", "gradient"), ("components", "component")):
            errors = 100 * group[f"fgsm_{column}_error"]
            row |= {f"by {label}": errors.mean(), f"by {label}, median": errors.median()}
        rows.append(row)
    tables = {
        "directions": (
            directions(table),
            "density of FGSM lines / density of random lines",
            paper_text("exactline/table3"),
        ),
        "trainings": (
            trainings(first),
            "density of the normal network / density of the other",
            paper_text("exactline/table4"),
        ),
        "gradients": (pd.DataFrame(rows), "relative change of the gradient", _TEXT),
    }
    return ExperimentResult(
        [
            ExperimentTable(
                f"program_{name}", frame, f"By the program's procedure: {title}", head, text
            )
            for name, (frame, title, text) in tables.items()
        ]
    )


def lines(
    im: InstrumentedModel, x: np.ndarray, y: np.ndarray, seed: int, name: str
) -> pd.DataFrame:
    """Return a row for each correctly classified image and each random neighbour.

    Images `(images, *input shape)` are in [0, 1]; the classifier has ten classes. The seed draws
    the random neighbours, and the name labels the progress bar.
    """
    attributor = Attributor(im)
    predicted = im.logits(x).argmax(axis=1)
    rows = []
    for i in track(np.flatnonzero(predicted == y), name):
        target = (int(y[i]) + 1) % 10
        signs = np.sign(attributor.gradients(x[i : i + 1], target)[0])
        path = attributor.path(end := moved(x[i], signs), x[i], target)
        row = {
            "image": i,
            "label": y[i],
            "predicted": predicted[i],
            "fgsm_predicted": im.logits(end[None]).argmax(),
            "fgsm_parts": len(path.partition),
            "fgsm_density": density(path.partition),
            "fgsm_gradient_error": relative_change(path),
            "fgsm_component_error": relative_change(path, by="components"),
        }
        rng = np.random.default_rng([seed, int(i)])  # the same neighbours for all networks
        for _ in range(_RANDOM):
            line = attributor.walker.line(x[i], moved(x[i], rng.choice([-1.0, 1.0], x[i].shape)))
            rows.append({**row, "random_parts": len(line), "random_density": density(line)})
    return pd.DataFrame(rows)


def moved(image: np.ndarray, signs: np.ndarray) -> np.ndarray:
    """Return an image with pixels changed by 3 % of their values, in whole grey levels."""
    levels = np.round(255 * np.float64(image))
    return np.clip(levels + np.floor(_SHARE * levels) * signs, 0, 255) / 255
