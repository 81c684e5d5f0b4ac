"""The headline results, read from the result tables beside what the papers report.

Every row is a function of the tables; a figure that falls short of the paper's or the goal is
shown unchanged.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pandas as pd

from nnslicer_tf.experiments.result import paper_frame
from nnslicer_tf.report import ResultTable

Tables = Mapping[str, ResultTable]

# Attackers who train all weights: over eight sets of target classes, and with the largest budgets
# over two.
_ALL_WEIGHTS = ("eight-sets/figure5", "figure5")

_FIFTH = "AlexNet, CIFAR-10, a fifth of the images"
_FIFTH_BY_64 = f"{_FIFTH}, 64 neurons at a time"


@dataclass(frozen=True)
class Headline:
    """One figure.

    Attributes:
        what: The quantity measured.
        case: The method, model or budget, if there are several.
        here: Our figure.
        published: The paper's.
        reached: Whether ours is at least as good as the paper's or the goal; None if the two
            cannot be compared.
        entry: Id in the catalogue.
    """

    what: str
    case: str
    here: str
    published: str
    reached: bool | None
    entry: str


def headlines(tables: Tables) -> list[Headline]:
    """Return the headlines of all available tables.

    Args:
        tables: Path below `data/results` without ending → table.
    """
    rows: list[Headline] = []
    for part in _PARTS:
        try:
            rows += part(tables)
        except (KeyError, IndexError):
            continue  # the table does not exist, or has no such row
    return rows


def headline_table(rows: list[Headline]) -> pd.DataFrame:
    """Return the headlines as a table."""
    said = {True: "yes", False: "no", None: ""}
    return pd.DataFrame(
        {
            "result": [row.what for row in rows],
            "of": [row.case for row in rows],
            "here": [row.here for row in rows],
            "paper": [row.published for row in rows],
            "as good": [said[row.reached] for row in rows],
        }
    )


# Presets whose figures are headlines, in this order.
_PRESETS = ("paper", "margin", "fused", "stable", "slices", "lean", "photos")


def _detection(model: str, title: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return the average F1 of each of our detectors, of one model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        table = tables[f"detection/{model}"]
        frame, rate = table.frame, table.head.get("false-positive rate asked", "")
        average = frame[frame["attack"] == "Average"].set_index("method")
        attacks = frame.loc[frame["attack"] != "Average", "attack"].nunique()
        ours = [m for m in _PRESETS if m in average.index]
        published = float(average.loc[ours[0], "paper_f1"])
        what = f"Detection, {title}: mean F1 over {attacks} attacks, of each preset"
        what += f" (nominal false-positive rate {float(rate):.0%})" if rate else ""
        for preset, score in average.loc[ours, "f1"].items():
            reached = bool(score >= published)
            shown = f"{score:.2f}", f"{published:.2f}"
            yield Headline(what, str(preset), *shown, reached, "nnslicer/table4")

    return rows


def _challenge(model: str, title: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return how much larger a change must be to evade the detector as well as the model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"detection/challenge/{model}"].frame
        what = (
            f"Detection, {title}: smallest change that evades model and detector, relative to "
            "the model alone (median)"
        )
        for _, row in frame[frame["attack"] == "model and detector"].iterrows():
            norm = {"linf": "L∞", "l2": "L2"}[row["norm"]]
            doubt = "" if row["verdict"] == "credible" else ", not credible"
            here = f"{row['ratio']:.2f} times{doubt}"
            # The goal is a credible challenge in which the change doubles.
            reached = bool(row["ratio"] >= 2 and not doubt)
            case = f"{row['method']}, {norm}"
            yield Headline(what, case, here, "2 times (goal)", reached, "nnslicer/table4-challenge")

    return rows


def _speed(tables: Tables) -> Iterator[Headline]:
    """Return the time of the backward walk per sample, for the paper's models."""
    frame = tables["benchmarks/slicing"].frame.set_index("model")
    paper = paper_frame("nnslicer/table3").set_index("model")["backward_batch"]
    for name, published in (("lenet", "LeNet"), ("resnet10", "ResNet10"), ("resnet18", "ResNet18")):
        if name in frame.index:
            here, theirs = frame.loc[name, "backward ms"], 1_000 * paper[published]
            what = "Slicing: milliseconds of CPU time per sample (backward walk alone, in batches)"
            shown = f"{here:.3g}", f"{theirs:,.0f}"
            yield Headline(what, published, *shown, bool(here <= theirs), "nnslicer/table3")


_SEARCHES = {"Algorithm 1": "the paper's search", "DFlare": "ours, with halving and patience"}
"""Method of a search → its name in headlines, the paper's own first."""


def _deviations(tables: Tables) -> Iterator[Headline]:
    """Return success and queries of DFlare on the published pairs."""
    frame = tables["dflare/search"].frame.set_index(["paper_pair", "method"])
    for pair in dict.fromkeys(frame.index.get_level_values("paper_pair").dropna()):
        for method, search in _SEARCHES.items():
            row, case = frame.loc[(pair, method)], f"{pair}: {search}"
            success, published = row["success_rate"], row["paper_success"]
            shown, good = (f"{success:.1%}", f"{published:.0%}"), bool(success >= published)
            what = "DFlare: share of successful searches"
            yield Headline(what, case, *shown, good, "dflare/table4")
            queries, published = row["mean_queries"], row["paper_queries"]
            shown, good = (f"{queries:.1f}", f"{published:.1f}"), bool(queries <= published)
            yield Headline("DFlare: mean queries per search", case, *shown, good, "dflare/table4")


def _repair(tables: Tables) -> Iterator[Headline]:
    """Return what repair mends of the deviations found."""
    frame = tables["dflare/repair"].frame.dropna(subset="paper_improvement_ratio")
    frame = frame.set_index(["pair", "method"])
    for pair in dict.fromkeys(frame.index.get_level_values("pair")):
        for method, search in _SEARCHES.items():
            row = frame.loc[(pair, method)]
            here, published = row["improvement_ratio"], row["paper_improvement_ratio"]
            what = "DRepair: deviations repaired, less those induced"
            shown, good = (f"{here:.0%}", f"{published:.0%}"), bool(here >= published)
            yield Headline(what, f"{pair}: found by {search}", *shown, good, "dflare/table7")


def _pruning(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy with 55 % pruned, by the paper's procedure and by ours."""
    frame = tables["pruning/figure3"].frame
    at = frame[frame["ratio"].round(3) == 0.55].set_index("method")["targets"]
    for name, title in (
        ("NNSlicer (targeted)", "the paper's procedure"),
        (
            "NNSlicer (targeted), renormalised",
            "by magnitudes, statistics of normalisations estimated anew",
        ),
        (
            "NNSlicer (targeted), ours",
            "by contributions' magnitudes × weights, smallest scores of the whole model",
        ),
    ):
        if name not in at.index:
            continue
        what = "Targeted pruning of 55 %: accuracy on four target classes, all sets"
        here = float(at[name])
        shown = f"{here:.1%}", "about 80 %"
        yield Headline(what, title, *shown, here >= 0.8, "nnslicer/figure3")


def _program_detection(tables: Tables) -> Iterator[Headline]:
    """Return how well the program's rule detects, by its own scoring and by an honest one."""
    frame = tables["program/detection-resnet10-cifar10-means"].frame.set_index("method")
    paper = paper_frame("nnslicer/table4").set_index(["attack", "method"])["f1"]
    what = "Detection by the rule of the paper's program (ResNet10): mean F1"
    for method, role in (("NNSlicer, θ = 0.2", "NNSlicer"), ("EffectivePath", "EffectivePath")):
        if method not in frame.index:
            continue
        row, published = frame.loc[method], f"{paper[('Average', role)]:.2f}"
        said = f"{role}, as the program scores (all adversarial inputs count as found)"
        yield Headline(
            what, said, f"{row['program_f1']:.2f}", published, None, "nnslicer/table4-program"
        )
        shown = f"{row['f1']:.2f}", published
        said, reached = f"{role}, scored honestly", bool(row["f1"] >= paper["Average", role])
        yield Headline(what, said, *shown, reached, "nnslicer/table4-program")


def _program_pruning(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy with 55 % pruned by the program's procedure, and in a fair comparison."""
    frame = tables["program/pruning-resnet10_preactivation-cifar10"].frame
    frame = frame[frame["ratio"].round(3) == 0.55].set_index(["treatment", "method"])
    treatments = {
        "program": "by the program's procedure",
        "fair": "all methods treated alike",
        "fair, whole model": "all alike, the smallest of the whole model first",
    }
    for treatment, said in treatments.items():
        what = (
            f"Targeted pruning of 55 %, {said}: accuracy on four target classes (among them alone)"
        )
        for method in ("NNSlicer (targeted)", "NNSlicer (all)", "Weight"):
            row = frame.loc[(treatment, method)]
            here = f"{row['targets']:.1%} ({row['among_targets']:.1%})"
            is_goal = treatment == "program" and method == "NNSlicer (targeted)"
            published = "about 80 %" if is_goal else ""
            reached = bool(row["targets"] >= 0.75) if is_goal else None
            yield Headline(what, method, here, published, reached, "nnslicer/figure3-program")


def _program_protection(ending: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return the accuracy of the program's attackers on the protected classes."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"program/protection-resnet10_preactivation-program-{ending}"].frame
        published = {"NNSlicer": "below 10 %", "EffectivePath": "about 90 %"}
        published |= dict.fromkeys(("Weight", "Random"), "above 30 %")
        for _, row in frame.iterrows():
            what = (
                f"Protection, the program's attackers with {row['budget']:,} images: targets, "
                f"{row['sets']} sets"
            )
            here, method = float(row["targets"]), str(row["method"])
            goal = published.get(method, "")
            reached = here < 0.1 if method == "NNSlicer" else None
            yield Headline(what, method, f"{here:.1%}", goal, reached, "nnslicer/figure5-program")

    return rows


def _protection(
    names: Sequence[str], method: str, attackers: str
) -> Callable[[Tables], Iterator[Headline]]:
    """Return the accuracy that attackers reach on protected classes, for a hiding method.

    Each budget's accuracy is that of the first of the named tables that has the budget.
    """

    def rows(tables: Tables) -> Iterator[Headline]:
        paths = [f"protection/{name}" for name in names]
        frames = [tables[path].frame for path in paths if path in tables]
        if not frames:
            return
        frame = pd.concat(frames)
        found = frame[frame["method"] == method].drop_duplicates("budget").sort_values("budget")
        what = f"Protection: accuracy on protected classes, attackers who {attackers}"
        for _, row in found.iterrows():
            case = f"{row['budget']:,} images, mean of {row['attacks']}"
            here, good = f"{row['targets']:.1%}", bool(row["targets"] < 0.1)
            yield Headline(what, case, here, "below 10 %", good, "nnslicer/figure5")

    return rows


def _protection_bound(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy of attackers who train all weights when all synapses are hidden."""
    for row in _protection(_ALL_WEIGHTS, "Everything", "have only images (all is hidden)")(tables):
        yield replace(row, published="", reached=None)


def _semantic(
    name: str, setting: str, title: str, metric: str = "taylor"
) -> Callable[[Tables], Iterator[Headline]]:
    """Return the gain of semantic slicing over the other slicing methods, of one model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"semantic/{name}"].frame
        frame = frame[(frame["settings"] == "all") & (frame["metric"] == metric)]
        if "counted" in frame:
            frame = frame[frame["counted"] == "weights in and out"]
        frame = frame.set_index(["method", "against"])
        published = paper_frame("neusemslice/table4").set_index("setting").loc[setting]
        for method, form in (("NeuSemSlice", "as printed"), ("NeuSemSlice, centred", "centred")):
            for other, column in (
                ("Global", "p_value_global"),
                ("Category-wise", "p_value_category"),
            ):
                row, theirs = frame.loc[(method, other)], published[column]
                if not row["repeats"]:  # the curves have no compression rate in common
                    continue
                what = f"Semantic slicing, {form} ({title}, Taylor): gain in area under the curve"
                doubt = "one model" if row["repeats"] == 1 else f"p = {row['p_value']:.2g}"
                here = f"{100 * row['gain']:+.1f} points ({doubt})"
                case, shown = f"over {other.lower()} slicing", f"p {theirs}"
                good = _is_as_good(row, theirs)
                yield Headline(what, case, here, shown, good, "neusemslice/table4")

    return rows


def _semantic_by_metric(name: str, title: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return the gains of semantic slicing over global slicing by all metrics, of one model.

    The paper states that semantic slices are better with every metric (section 5.2).
    """

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"semantic/{name}"].frame
        frame = frame[(frame["settings"] == "all") & (frame["against"] == "Global")]
        if "counted" in frame:
            frame = frame[frame["counted"] == "weights in and out"]
        what = f"Semantic slicing ({title}): gain in area over global slicing, points, by metric"
        for method, form in (("NeuSemSlice", "as printed"), ("NeuSemSlice, centred", "centred")):
            found = frame[frame["method"] == method].set_index("metric")
            here = ", ".join(f"{name} {100 * gain:+.1f}" for name, gain in found["gain"].items())
            good: bool | None = bool((found["gain"] > 0).all())
            if good and (found["repeats"] == 1).any():
                good = None  # one model can only say no
            yield Headline(what, form, here, "all above 0", good, "neusemslice/table4")

    return rows


def _is_as_good(row: pd.Series, published: str) -> bool | None:
    """Return whether a gain says what the paper's test says; one model can only say no."""
    if row["repeats"] == 1:
        return None if row["gain"] > 0 else False
    certain = row["p_value"] < 0.05
    worse = bool(row["gain"] < 0 and certain)
    return bool(row["gain"] > 0 and certain) or (published == "> 0.05" and not worse)


def _half_a_model(tables: Tables) -> Iterator[Headline]:
    """Return the accuracy of slices that remove half of MobileNetV3's parameters."""
    name = "semantic/section56-half-mobilenet_v3_small-cifar10"
    forms = {name: "", f"{name}-interval64": ", 64 neurons at a time"}
    what = "Slices without half of the parameters (MobileNetV3, CIFAR-10, Taylor): accuracy"
    for table, form in forms.items():
        frame = tables[table].frame
        frame = frame[(frame["metric"] == "taylor") & (frame["method"] != "whole")]
        for _, row in frame.iterrows():
            ours, theirs = row["accuracy"], row["paper accuracy"]
            semantic = row["method"].startswith("NeuSemSlice")
            if form and not semantic:  # the other slices do not depend on the interval
                continue
            # For the methods that it compares with, the paper's figures are not a goal.
            reached = bool(ours >= theirs) if semantic else None
            shown = f"{ours:.1%}", f"{theirs:.1%}"
            yield Headline(what, row["method"] + form, *shown, reached, "neusemslice/figure6")


def _restructuring(name: str, setting: str, title: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return the compression gained by slicing before LAMP, of one model."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"semantic/table5-10permille-{name}"].frame.set_index("method")
        tests = tables[f"semantic/table5-10permille-{name}-tests"].frame
        tests = tests[(tests["against"] == "LAMP") & (tests["figure"] == "CR")]
        p_values = tests.set_index("method")["p_value"]
        paper = paper_frame("neusemslice/table5").set_index(["setting", "method"])["CR"]
        theirs = paper[(setting, "NeuSemSlice+LAMP")] - paper[(setting, "LAMP")]
        for method in ("NeuSemSlice+LAMP", "NeuSemSlice, centred+LAMP"):
            ours = 100 * (frame.loc[method, "CR"] - frame.loc["LAMP", "CR"])
            what = f"Restructuring ({title}): parameters removed beyond LAMP alone"
            here = f"{ours:+.1f} points (p = {p_values[method]:.2g})"
            good = bool(ours >= theirs)
            yield Headline(what, method, here, f"{theirs:+.1f} points", good, "neusemslice/table5")

    return rows


def _development(name: str, setting: str, title: str) -> Callable[[Tables], Iterator[Headline]]:
    """Return the mean accuracy on old and new classes, with the new ones learned without replay."""

    def rows(tables: Tables) -> Iterator[Headline]:
        frame = tables[f"semantic/table7-{name}"].frame.set_index("method")
        paper = paper_frame("neusemslice/table7").set_index(["setting", "method"])["mean"]
        published = float(paper[(setting, "NeuSemSlice")]) / 100
        what = f"Incremental development without replay ({title}): mean accuracy"
        for column, said in (
            ("Avg", "old and new tasks, among all classes"),
            ("Avg known", "old and new tasks, each among its own classes"),
        ):
            ours = float(frame.loc["NeuSemSlice", column])
            shown, good = (f"{ours:.1%}", f"{published:.1%}"), ours >= published
            yield Headline(what, said, *shown, good, "neusemslice/table7")

    return rows


def _agreement(tables: Tables) -> Iterator[Headline]:
    """Return on how many of a data set's own inputs the published 8-bit models deviate."""
    frame = tables["dflare/agreement"].frame
    names = {"lenet1": "LeNet-1", "resnet20": "ResNet-20"}
    for _, row in frame[frame["pair"].isin(names)].iterrows():
        what = f"8-bit {names[row['pair']]}: inputs of its data set that it answers differently"
        case = {"train": "training images", "test": "test images"}[row["split"]]
        here = f"{row['deviations']} of {row['inputs']:,}"
        theirs = f"{row['paper_deviations']:.0f} of {row['paper_inputs']:,.0f}"
        yield Headline(what, case, here, theirs, None, "dflare/table1")


def _lines(tables: Tables) -> Iterator[Headline]:
    """Return errors and savings of approximate integrated gradients."""
    frame = tables["exactline/attributions"].frame
    frame = frame[frame["network"].str.contains("cifar10")]
    paper = paper_frame("exactline/table1")["error_percent"]
    errors = frame["error_percent_at_m_tilde"]
    what = "Integrated gradients, CIFAR-10: error of m̃ samples"
    here = f"{errors.min():.0f} … {errors.max():.0f} %"
    published = f"{paper.min():.0f} … {paper.max():.0f} %"
    yield Headline(what, "range over the networks", here, published, None, "exactline/table1")
    saving = tables["exactline/attributions"].frame["saving_of_trapezoid_percent"]
    what = "Integrated gradients: samples saved by trapezoid rule over left sum"
    here = f"{saving.min():.0f} … {saving.max():.0f} %"
    yield Headline(what, "range over the networks", here, "20 … 40 %", None, "exactline/table2")


def _lines_by_program(tables: Tables) -> Iterator[Headline]:
    """Return the same by the procedure of the paper's program, for networks of its shapes."""
    names = ("exactline/program_attributions", "exactline/convbig/program_attributions")
    frame = pd.concat([tables[name].frame for name in names])
    frame = frame[(frame["dataset"] == "cifar10") & (frame["training"] == "normal")]
    paper = paper_frame("exactline/table1").set_index("network")["error_percent"]
    for row in frame.itertuples():
        what = "Integrated gradients, CIFAR-10: error of m̃ samples, by the paper's program"
        here, published = f"{row.error_percent_at_m_tilde:.0f} %", f"{paper[row.network]:.0f} %"
        yield Headline(what, row.network, here, published, None, "exactline/table1-program")


def _density(tables: Tables) -> Iterator[Headline]:
    frame = tables["exactline/linearity_directions"].frame
    ours = frame[(frame["dataset"] == "mnist") & (frame["images"] == "right")]
    ours = ours.set_index("training")["median"]
    paper = paper_frame("exactline/table3").set_index("training")["median"]
    what = "Density of affine parts, FGSM / random neighbours: median, MNIST"
    published = f"{paper['normal']:.2f}"
    yield Headline(
        what, "trained normally", f"{ours['normal']:.2f}", published, None, "exactline/table3"
    )


def _differences(tables: Tables) -> Iterator[Headline]:
    frame = tables["deepxplore/differences"].frame.set_index("search")
    shares = frame.loc[["light", "occlusion", "blackout"], "found, share"]
    for constraint, share in shares.items():
        what = "DeepXplore: share of seeds changed into differences"
        yield Headline(what, str(constraint), f"{share:.0%}", "", None, "deepxplore/differences")


_PARTS: tuple[Callable[[Tables], Iterator[Headline]], ...] = (
    _detection("lenet5-mnist", "LeNet-5 on MNIST"),
    _detection("lenet5-mnist-from1500", "LeNet-5 on MNIST, images of no earlier table"),
    _detection("resnet10-cifar10", "ResNet10 on CIFAR-10"),
    _detection("resnet10-cifar10-from500", "ResNet10 on CIFAR-10, images of no earlier table"),
    _challenge("lenet5-mnist", "LeNet-5 on MNIST"),
    _challenge("lenet5-mnist-10-l2", "LeNet-5 on MNIST, ten images"),
    _challenge("resnet10-cifar10", "ResNet10 on CIFAR-10"),
    _program_detection,
    _speed,
    _pruning,
    _program_pruning,
    _protection(_ALL_WEIGHTS, "NNSlicer", "train all weights"),
    _protection_bound,
    _protection(("figure5-known",), "NNSlicer", "leave out hidden synapses"),
    _protection(("figure5-known",), "NNSlicer, θ = 0", "leave out hidden synapses (θ = 0)"),
    _program_protection("4x10-1000-5000"),
    _program_protection("4x10"),
    _program_protection("4x10-45000"),
    _agreement,
    _deviations,
    _repair,
    _lines,
    _lines_by_program,
    _density,
    _semantic("table4-mlp-mnist", "MLP-MNIST", "MLP, MNIST"),
    _semantic("table4-alexnet-cifar10", "AlexNet-CIFAR10", _FIFTH),
    _semantic(
        "intervals-alexnet-cifar10-tests",
        "AlexNet-CIFAR10",
        _FIFTH_BY_64,
        "taylor, i = 64",
    ),
    _semantic("all-images/table4-alexnet-cifar10", "AlexNet-CIFAR10", "AlexNet, CIFAR-10"),
    _semantic(
        "all-images/intervals-alexnet-cifar10-tests",
        "AlexNet-CIFAR10",
        "AlexNet, CIFAR-10, 64 neurons at a time",
        "taylor, i = 64",
    ),
    _semantic("table4-vgg16-cifar10", "VGG16-CIFAR10", "VGG-16, CIFAR-10"),
    _semantic(
        "intervals-vgg16-cifar10-tests",
        "VGG16-CIFAR10",
        "VGG-16, CIFAR-10, 64 neurons at a time",
        "taylor, i = 64",
    ),
    _semantic_by_metric("table4-mlp-mnist", "MLP, MNIST"),
    _semantic_by_metric("all-images/table4-alexnet-cifar10", "AlexNet, CIFAR-10"),
    _semantic_by_metric(
        "all-images/table4-alexnet-cifar10-interval64", "AlexNet, CIFAR-10, 64 neurons at a time"
    ),
    _semantic_by_metric("table4-vgg16-cifar10", "VGG-16, CIFAR-10"),
    _half_a_model,
    _restructuring("mlp-mnist", "MLP-MNIST", "MLP, MNIST"),
    _restructuring("alexnet-cifar10", "AlexNet-CIFAR10", _FIFTH),
    _restructuring(
        "alexnet-cifar10-interval64",
        "AlexNet-CIFAR10",
        _FIFTH_BY_64,
    ),
    _development("mlp-mnist", "MLP-MNIST", "MLP, MNIST"),
    _development(
        "alexnet-cifar10-interval64",
        "AlexNet-CIFAR10",
        _FIFTH_BY_64,
    ),
    _differences,
)
