"""The headline results: figures of the result tables beside what the papers report.

A function for each, in the order of the page: it reads tables below `data/results` and returns what
was measured, of which case, our figure, the published one, and whether ours is as good as the
paper's or the goal (None if the two cannot be compared). To add one, write such a function and
decorate it with the id of its entry in the catalogue. A figure that falls short is shown unchanged;
tables that do not exist, or that lack a column, as in a trial, give no rows.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import pandas as pd

from reproduction.result import paper_frame
from reproduction.tables import ResultTable

Tables = Mapping[str, ResultTable]
"""Path below `data/results` without ending → table."""


class Figure(NamedTuple):
    """One figure, ours and the published one, of a `case` if there are several."""

    what: str
    case: str
    here: str
    published: str = ""
    reached: bool | None = None  # is ours as good as the paper's or the goal? None: incomparable


@dataclass(frozen=True)
class Headline:
    """A figure with its entry in the catalogue; attributes as those of `Figure`."""

    what: str
    case: str
    here: str
    published: str
    reached: bool | None
    entry: str


HEADLINES: list[tuple[str, Callable[[Tables], Iterator[Figure]]]] = []
"""Id in the catalogue and function, in the order of the page."""


def _headline(entry: str) -> Callable[[Any], Any]:
    return lambda function: HEADLINES.append((entry, function)) or function


def headlines(tables: Tables) -> list[Headline]:
    """Return the headlines of all available tables."""
    rows = []
    for entry, function in HEADLINES:
        for *texts, reached in function(tables):
            rows.append(Headline(*texts, None if reached is None else bool(reached), entry))
    return rows


def headline_table(rows: Sequence[Headline]) -> pd.DataFrame:
    """Return the headlines as a table."""
    words = {True: "yes", False: "no", None: ""}
    cells = [(row.what, row.case, row.here, row.published, words[row.reached]) for row in rows]
    return pd.DataFrame(cells, columns=["result", "of", "here", "paper", "as good"])


def _frame(tables: Tables, *names: str, columns: Sequence[str]) -> pd.DataFrame:
    """Return the rows of the tables that exist; none if one of the `columns` is missing."""
    frames = [tables[name].frame for name in names if name in tables]
    frame = pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()
    return frame if set(columns) <= set(frame.columns) else pd.DataFrame(columns=list(columns))


def _rows(frame: pd.DataFrame, **orders: Sequence[str]) -> list[dict[str, Any]]:
    """Return rows as dictionaries, sorted by columns: by the values in order, () as they appear."""
    for column, values in reversed(orders.items()):
        ranks = {value: rank for rank, value in enumerate(values or frame[column].unique())}
        frame = frame.sort_values(column, key=lambda c, r=ranks: c.map(r), kind="stable")
    return frame.to_dict("records")


# --- NNSlicer --------------------------------------------------------------------------------

NORMS = {"linf": "L∞", "l2": "L2"}
PRESETS = ("paper", "margin", "fused", "stable", "slices", "lean", "photos")


@_headline("nnslicer/table4")
def _detection(tables: Tables) -> Iterator[Figure]:
    for model, of in {
        "lenet5-mnist": "LeNet-5 on MNIST: mean F1 over 17 attacks",
        "lenet5-mnist-from1500": "LeNet-5 on MNIST, images of no earlier table: mean F1 over 17 "
        "attacks",
        "resnet10-cifar10": "ResNet10 on CIFAR-10: mean F1 over 17 attacks",
        "resnet10-cifar10-from500": "ResNet10 on CIFAR-10, images of no earlier table: mean F1 "
        "over 16 attacks",
    }.items():
        columns = ("attack", "method", "f1", "paper_f1")
        frame = _frame(tables, f"detection/{model}", columns=columns)
        frame = frame[(frame["attack"] == "Average") & frame["method"].isin(PRESETS)]
        what = f"Detection, {of}, of each preset (nominal false-positive rate 5%)"
        for row in _rows(frame, method=PRESETS):
            ours, theirs = row["f1"], row["paper_f1"]
            here = f"{ours:.2f}{_on_fresh_images(tables, model, row['method'])}"
            yield Figure(what, row["method"], here, f"{theirs:.2f}", ours >= theirs)


def _on_fresh_images(tables: Tables, model: str, method: str) -> str:
    """Say that the last vote of `stable` was added after seeing test images of CIFAR-10."""
    if (model, method) != ("resnet10-cifar10", "stable"):
        return ""
    fresh = _frame(tables, f"detection/{model}-from500", columns=("attack", "method", "f1"))
    fresh = fresh[(fresh["attack"] == "Average") & (fresh["method"] == method)]["f1"]
    found = f"{fresh.iloc[0]:.2f} on fresh ones with 16 attacks" if len(fresh) else "no fresh ones"
    return f" (its last vote was added after seeing test images, {found})"


@_headline("nnslicer/table4-challenge")
def _adaptive_attacks(tables: Tables) -> Iterator[Figure]:
    for model, of in {
        "lenet5-mnist": "LeNet-5 on MNIST",
        "lenet5-mnist-10-l2": "LeNet-5 on MNIST, ten images",
        "resnet10-cifar10": "ResNet10 on CIFAR-10",
    }.items():
        columns = ("attack", "method", "norm", "ratio", "verdict")
        frame = _frame(tables, f"detection/challenge/{model}", columns=columns)
        what = (
            f"Detection, {of}: smallest change that evades model and detector, relative to the "
            "model alone (median)"
        )
        for row in _rows(frame[frame["attack"] == "model and detector"]):
            is_credible = row["verdict"] == "credible"
            case = f"{row['method']}, {NORMS.get(row['norm'], '')}"
            here = f"{row['ratio']:.2f} times{'' if is_credible else ', not credible'}"
            yield Figure(what, case, here, "2 times (goal)", row["ratio"] >= 2 and is_credible)


def _by_the_program(tables: Tables) -> Iterator[tuple[str, dict[str, Any], float]]:
    """Yield method, our row, and the paper's F1."""
    columns = ("method", "f1", "program_f1")
    name = "program/detection-resnet10-cifar10-means"
    frame, paper = _frame(tables, name, columns=columns), paper_frame("nnslicer/table4")
    for method, role in {"NNSlicer, θ = 0.2": "NNSlicer", "EffectivePath": "EffectivePath"}.items():
        (f1,) = paper[(paper["attack"] == "Average") & (paper["method"] == role)]["f1"]
        for row in _rows(frame[frame["method"] == method]):
            yield role, row, f1


BY_THE_PROGRAM = "Detection by the rule of the paper's program (ResNet10): mean F1"


@_headline("nnslicer/table4-program")
def _detection_as_the_program_scores(tables: Tables) -> Iterator[Figure]:
    for role, row, theirs in _by_the_program(tables):
        case = f"{role}, as the program scores (all adversarial inputs count as found)"
        yield Figure(BY_THE_PROGRAM, case, f"{row['program_f1']:.2f}", f"{theirs:.2f}")


@_headline("nnslicer/table4-program")
def _detection_scored_honestly(tables: Tables) -> Iterator[Figure]:
    for role, row, theirs in _by_the_program(tables):
        reached = row["f1"] >= theirs
        case = f"{role}, scored honestly"
        yield Figure(BY_THE_PROGRAM, case, f"{row['f1']:.2f}", f"{theirs:.2f}", reached)


@_headline("nnslicer/table3")
def _times(tables: Tables) -> Iterator[Figure]:
    frame = _frame(tables, "benchmarks/slicing", columns=("model", "backward ms"))
    paper = paper_frame("nnslicer/table3")
    what = "Slicing: one thread's CPU milliseconds per sample (backward walk alone, in batches)"
    for model, role in {"lenet": "LeNet", "resnet10": "ResNet10", "resnet18": "ResNet18"}.items():
        (seconds,) = paper[paper["model"] == role]["backward_batch"]
        for row in _rows(frame[frame["model"] == model]):
            ours, theirs = row["backward ms"], 1000 * seconds
            yield Figure(what, role, f"{ours:.3g}", f"{theirs:,.0f}", ours <= theirs)


@_headline("nnslicer/figure3")
def _targeted_pruning(tables: Tables) -> Iterator[Figure]:
    cases = {
        "NNSlicer (targeted)": "the paper's procedure",
        "NNSlicer (targeted), renormalised": "by magnitudes, statistics of normalisations "
        "estimated anew",
        "NNSlicer (targeted), ours": "by contributions' magnitudes × weights, smallest scores of "
        "the whole model",
    }
    frame = _frame(tables, "pruning/figure3", columns=("ratio", "method", "targets"))
    frame = frame[(frame["ratio"].round(3) == 0.55) & frame["method"].isin(cases)]
    what = "Targeted pruning of 55 %: accuracy on four target classes, all sets"
    for row in _rows(frame, method=list(cases)):
        case, ours = cases[row["method"]], row["targets"]
        yield Figure(what, case, f"{ours:.1%}", "about 80 %", ours >= 0.8)


@_headline("nnslicer/figure3-program")
def _targeted_pruning_by_the_program(tables: Tables) -> Iterator[Figure]:
    treatments = {
        "program": "by the program's procedure",
        "fair": "all methods treated alike",
        "fair, whole model": "all alike, the smallest of the whole model first",
    }
    methods = ("NNSlicer (targeted)", "NNSlicer (all)", "Weight")
    columns = ("ratio", "treatment", "method", "targets", "among_targets")
    frame = _frame(tables, "program/pruning-resnet10_preactivation-cifar10", columns=columns)
    is_row = frame["treatment"].isin(treatments) & frame["method"].isin(methods)
    frame = frame[is_row & (frame["ratio"].round(3) == 0.55)]
    for row in _rows(frame, treatment=list(treatments), method=methods):
        treatment, method, ours = row["treatment"], row["method"], row["targets"]
        what = (
            f"Targeted pruning of 55 %, {treatments[treatment]}: accuracy on four target classes "
            "(among them alone)"
        )
        here = f"{ours:.1%} ({row['among_targets']:.1%})"
        is_goal = treatment == "program" and method == methods[0]
        goal = ("about 80 %", ours >= 0.75) if is_goal else ("", None)
        yield Figure(what, method, here, *goal)


def _attackers(
    tables: Tables, what: str, method: str, *names: str, goal: bool = True
) -> Iterator[Figure]:
    """Yield the attackers' accuracy for each number of images; the first table counts."""
    columns = ("method", "budget", "targets", "attacks")
    frame = _frame(tables, *names, columns=columns)
    for row in _rows(frame[frame["method"] == method].drop_duplicates("budget")):
        case, ours = f"{row['budget']:,} images, mean of {row['attacks']}", row["targets"]
        reached = ("below 10 %", ours < 0.1) if goal else ("", None)
        yield Figure(
            f"Protection: accuracy on protected classes, attackers who {what}",
            case,
            f"{ours:.1%}",
            *reached,
        )


FIGURE5 = "protection/eight-sets/figure5", "protection/figure5"


@_headline("nnslicer/figure5")
def _protection(tables: Tables) -> Iterator[Figure]:
    return _attackers(tables, "train all weights", "NNSlicer", *FIGURE5)


@_headline("nnslicer/figure5")
def _protection_of_everything(tables: Tables) -> Iterator[Figure]:
    what = "have only images (all is hidden)"
    return _attackers(tables, what, "Everything", *FIGURE5, goal=False)


@_headline("nnslicer/figure5")
def _protection_that_is_known(tables: Tables) -> Iterator[Figure]:
    for method, which in {"NNSlicer": "", "NNSlicer, θ = 0": " (θ = 0)"}.items():
        what = f"leave out hidden synapses{which}"
        yield from _attackers(tables, what, method, "protection/figure5-known")


@_headline("nnslicer/figure5-program")
def _protection_by_the_program(tables: Tables) -> Iterator[Figure]:
    goals = {"NNSlicer": "below 10 %", "EffectivePath": "about 90 %"}
    goals |= dict.fromkeys(("Weight", "Random"), "above 30 %")
    for sets in ("4x10-1000-5000", "4x10", "4x10-45000"):
        name = f"program/protection-resnet10_preactivation-program-{sets}"
        for row in _rows(_frame(tables, name, columns=("method", "budget", "targets", "sets"))):
            method, ours = row["method"], row["targets"]
            what = (
                f"Protection, the program's attackers with {row['budget']:,} images: targets, "
                f"{row['sets']} sets"
            )
            reached = ours < 0.1 if method == "NNSlicer" else None
            yield Figure(what, method, f"{ours:.1%}", goals.get(method, ""), reached)


# --- DFlare ----------------------------------------------------------------------------------

SEARCHES = {"Algorithm 1": "the paper's search", "DFlare": "ours, with halving and patience"}


@_headline("dflare/table1")
def _agreement(tables: Tables) -> Iterator[Figure]:
    columns = ("pair", "split", "deviations", "inputs", "paper_deviations", "paper_inputs")
    frame = _frame(tables, "dflare/agreement", columns=columns)
    for pair, of in {"lenet1": "LeNet-1", "resnet20": "ResNet-20"}.items():
        what = f"8-bit {of}: inputs of its data set that it answers differently"
        for row in _rows(frame[frame["pair"] == pair]):
            case = {"train": "training images", "test": "test images"}.get(row["split"], "")
            here = f"{row['deviations']} of {row['inputs']:,}"
            theirs = f"{row['paper_deviations']:.0f} of {row['paper_inputs']:,.0f}"
            yield Figure(what, case, here, theirs)


def _searches(tables: Tables) -> list[dict[str, Any]]:
    columns = ("method", "paper_pair", "success_rate", "mean_queries", "paper_success")
    frame = _frame(tables, "dflare/search", columns=(*columns, "paper_queries"))
    frame = frame[frame["paper_pair"].notna() & frame["method"].isin(SEARCHES)]
    return _rows(frame, paper_pair=(), method=list(SEARCHES))


@_headline("dflare/table4")
def _successful_searches(tables: Tables) -> Iterator[Figure]:
    for row in _searches(tables):
        case, ours = f"{row['paper_pair']}: {SEARCHES[row['method']]}", row["success_rate"]
        theirs = row["paper_success"]
        what = "DFlare: share of successful searches"
        yield Figure(what, case, f"{ours:.1%}", f"{theirs:.0%}", ours >= theirs)


@_headline("dflare/table4")
def _queries(tables: Tables) -> Iterator[Figure]:
    for row in _searches(tables):
        case, ours = f"{row['paper_pair']}: {SEARCHES[row['method']]}", row["mean_queries"]
        theirs = row["paper_queries"]
        what = "DFlare: mean queries per search"
        yield Figure(what, case, f"{ours:.1f}", f"{theirs:.1f}", ours <= theirs)


REPAIRS = ("", "_more", "_further", "_quantised", "_vgg16", "_vgg16_integer")


@_headline("dflare/table7")
def _repairs(tables: Tables) -> Iterator[Figure]:
    ratio = "improvement_ratio"
    for ending in REPAIRS:
        columns = ("pair", "method", ratio, f"paper_{ratio}")
        frame = _frame(tables, f"dflare/repair{ending}", columns=columns)
        frame = frame[frame[f"paper_{ratio}"].notna() & frame["method"].isin(SEARCHES)]
        for row in _rows(frame, pair=(), method=list(SEARCHES)):
            ours, theirs = row[ratio], row[f"paper_{ratio}"]
            case = f"{row['pair']}: found by {SEARCHES[row['method']]}"
            what = "DRepair: deviations repaired, less those induced"
            yield Figure(what, case, f"{ours:.0%}", f"{theirs:.0%}", ours >= theirs)


@_headline("dflare/table8")
def _searches_after_repair(tables: Tables) -> Iterator[Figure]:
    for ending in REPAIRS:
        name, columns = f"dflare/repair{ending}_search", ("pair", "method", "mean_queries")
        frame = _frame(tables, name, columns=columns)
        if "paper_queries" not in frame:
            frame = frame.assign(paper_queries=float("nan"))
        # One row for each pair of models and search, before and after the repair.
        parts = [method.partition(", ") for method in frame["method"]]
        frame = frame.assign(search=[p[0] for p in parts], when=[p[2] for p in parts])
        after, before = (frame[frame["when"] == f"{w} repair"] for w in ("with", "without"))
        frame = after[after["search"].isin(SEARCHES)].merge(
            before, on=["pair", "search"], suffixes=("", " before")
        )
        for row in _rows(frame, pair=(), search=list(SEARCHES)):
            ours, first = row["mean_queries"], row["mean_queries before"]
            theirs, their_first = row["paper_queries"], row["paper_queries before"]
            # The paper says "harder" of all; it measured other pairs.
            is_known = pd.notna(theirs) and pd.notna(their_first)
            yield Figure(
                "DRepair makes searches harder: mean queries before → after repair",
                f"{row['pair']}: {SEARCHES[row['search']]}",
                f"{first:.1f} → {ours:.1f}",
                f"{their_first:.1f} → {theirs:.1f}" if is_known else "harder",
                ours > first,
            )


# --- ExactLine -------------------------------------------------------------------------------


def _range(values: pd.Series) -> str:
    return f"{values.min():.0f} … {values.max():.0f} %"


@_headline("exactline/table1")
def _errors_of_sampling(tables: Tables) -> Iterator[Figure]:
    columns = ("network", "error_percent_at_m_tilde")
    frame = _frame(tables, "exactline/attributions", columns=columns)
    errors = frame[frame["network"].astype(str).str.contains("cifar10")][columns[1]]
    if len(errors):
        theirs = paper_frame("exactline/table1")["error_percent"]
        what = "Integrated gradients, CIFAR-10: error of m̃ samples"
        yield Figure(what, "range over the networks", _range(errors), _range(theirs))


@_headline("exactline/table2")
def _savings(tables: Tables) -> Iterator[Figure]:
    column = "saving_of_trapezoid_percent"
    frame = _frame(tables, "exactline/attributions", columns=[column])
    if len(frame):
        what = "Integrated gradients: samples saved by trapezoid rule over left sum"
        yield Figure(what, "range over the networks", _range(frame[column]), "20 … 40 %")


@_headline("exactline/table1-program")
def _errors_of_sampling_by_the_program(tables: Tables) -> Iterator[Figure]:
    column = "error_percent_at_m_tilde"
    names = "exactline/program_attributions", "exactline/convbig/program_attributions"
    frame = _frame(tables, *names, columns=("dataset", "training", "network", column))
    frame = frame[(frame["dataset"] == "cifar10") & (frame["training"] == "normal")]
    what = "Integrated gradients, CIFAR-10: error of m̃ samples, by the paper's program"
    for row in _rows(frame.merge(paper_frame("exactline/table1"), on="network")):
        yield Figure(what, row["network"], f"{row[column]:.0f} %", f"{row['error_percent']:.0f} %")


@_headline("exactline/table3")
def _densities(tables: Tables) -> Iterator[Figure]:
    columns = ("dataset", "images", "training", "median")
    frame = _frame(tables, "exactline/linearity_directions", columns=columns)
    frame = frame[(frame["dataset"] == "mnist") & (frame["images"] == "right")]
    frame = frame[frame["training"] == "normal"]
    what = "Density of affine parts, FGSM / random neighbours: median, MNIST"
    paper = paper_frame("exactline/table3")
    for row in _rows(frame.merge(paper, on="training", suffixes=("", " of the paper"))):
        theirs = f"{row['median of the paper']:.2f}"
        yield Figure(what, "trained normally", f"{row['median']:.2f}", theirs)


# --- NeuSemSlice -----------------------------------------------------------------------------

FORMS = {"NeuSemSlice": "as printed", "NeuSemSlice, centred": "centred"}
AT_A_TIME = "64 neurons at a time"
MLP, ALEXNET, VGG = "MLP, MNIST", "AlexNet, CIFAR-10", "VGG-16, CIFAR-10"
FIFTH = f"{ALEXNET}, a fifth of the images"


def _gains(tables: Tables, name: str) -> pd.DataFrame:
    """Return the rows of all settings, in which weights in and out were counted."""
    columns = ("settings", "metric", "method", "against", "gain", "p_value", "repeats")
    frame = _frame(tables, f"semantic/{name}", columns=columns)
    frame = frame[(frame["settings"] == "all") & frame["method"].isin(FORMS)]
    if "counted" in frame:  # by the compression rate
        frame = frame[frame["counted"] == "weights in and out"]
    return frame


@_headline("neusemslice/table4")
def _semantic_slices(tables: Tables) -> Iterator[Figure]:
    paper = paper_frame("neusemslice/table4").set_index("setting")
    alexnet, vgg = "AlexNet-CIFAR10", "VGG16-CIFAR10"
    interval = "taylor, i = 64"
    for name, metric, setting, title in (
        ("table4-mlp-mnist", "taylor", "MLP-MNIST", MLP),
        ("table4-alexnet-cifar10", "taylor", alexnet, FIFTH),
        ("intervals-alexnet-cifar10-tests", interval, alexnet, f"{FIFTH}, {AT_A_TIME}"),
        ("all-images/table4-alexnet-cifar10", "taylor", alexnet, ALEXNET),
        (
            "all-images/intervals-alexnet-cifar10-tests",
            interval,
            alexnet,
            f"{ALEXNET}, {AT_A_TIME}",
        ),
        ("table4-vgg16-cifar10", "taylor", vgg, VGG),
        ("intervals-vgg16-cifar10-tests", interval, vgg, f"{VGG}, {AT_A_TIME}"),
    ):
        against = {
            "Global": ("over global slicing", "p_value_global"),
            "Category-wise": ("over category-wise slicing", "p_value_category"),
        }
        frame = _gains(tables, name)
        # Where repeats is 0, the curves have no compression rate in common.
        frame = frame[(frame["metric"] == metric) & (frame["repeats"] > 0)]
        frame = frame[frame["against"].isin(against)]
        for row in _rows(frame, method=list(FORMS), against=list(against)):
            case, column = against[row["against"]]
            gain, p, theirs = row["gain"], row["p_value"], paper.loc[setting, column]
            reached = (gain > 0 and p < 0.05) or (
                theirs == "> 0.05" and not (gain < 0 and p < 0.05)
            )
            is_one = row["repeats"] == 1  # one model can only say no
            yield Figure(
                f"Semantic slicing, {FORMS[row['method']]} ({title}, Taylor): gain in area under "
                "the curve",
                case,
                f"{100 * gain:+.1f} points ({'one model' if is_one else f'p = {p:.2g}'})",
                f"p {theirs}",
                None if is_one and gain > 0 else reached,
            )


@_headline("neusemslice/table4")
def _semantic_slices_by_metric(tables: Tables) -> Iterator[Figure]:
    for name, title in {
        "table4-mlp-mnist": MLP,
        "all-images/table4-alexnet-cifar10": ALEXNET,
        "all-images/table4-alexnet-cifar10-interval64": f"{ALEXNET}, {AT_A_TIME}",
        "table4-vgg16-cifar10": VGG,
        "table4-vgg16-cifar10-interval64": f"{VGG}, {AT_A_TIME}",
    }.items():
        frame = _gains(tables, name)
        frame = frame[frame["against"] == "Global"]
        what = f"Semantic slicing ({title}): gain in area over global slicing, points, by metric"
        for method, form in FORMS.items():
            of_method = frame[frame["method"] == method]
            if not len(of_method):
                continue
            rows = _rows(of_method)
            here = ", ".join(f"{row['metric']} {100 * row['gain']:+.1f}" for row in rows)
            least, repeats = of_method["gain"].min(), of_method["repeats"].min()
            comparable = repeats > 1 or least <= 0
            # The paper's section 5.2
            yield Figure(what, form, here, "all above 0", least > 0 if comparable else None)


@_headline("neusemslice/figure6")
def _half_of_the_parameters(tables: Tables) -> Iterator[Figure]:
    name = "semantic/section56-half-mobilenet_v3_small-cifar10"
    columns = ("metric", "method", "accuracy", "paper accuracy")
    what = "Slices without half of the parameters (MobileNetV3, CIFAR-10, Taylor): accuracy"
    others = ("Global", "Category-wise")  # they do not depend on the interval
    for ending, form, methods in (
        ("", "", (*others, *FORMS)),
        ("-interval64", f", {AT_A_TIME}", tuple(FORMS)),
    ):
        frame = _frame(tables, name + ending, columns=columns)
        frame = frame[(frame["metric"] == "taylor") & frame["method"].isin(methods)]
        for row in _rows(frame):
            method, ours, theirs = row["method"], row["accuracy"], row["paper accuracy"]
            reached = None if method in others else ours >= theirs  # others' figures are no goal
            yield Figure(what, f"{method}{form}", f"{ours:.1%}", f"{theirs:.1%}", reached)


@_headline("neusemslice/table5")
def _restructuring(tables: Tables) -> Iterator[Figure]:
    paper = paper_frame("neusemslice/table5").set_index(["setting", "method"])["CR"]
    alexnet = "alexnet-cifar10"
    for name, setting, title in (
        ("table5-10permille-mlp-mnist", "MLP-MNIST", MLP),
        (
            f"all-images/table5-10permille-{alexnet}-interval64",
            "AlexNet-CIFAR10",
            f"{ALEXNET}, {AT_A_TIME}",
        ),
        (f"table5-10permille-{alexnet}", "AlexNet-CIFAR10", FIFTH),
        (f"table5-10permille-{alexnet}-interval64", "AlexNet-CIFAR10", f"{FIFTH}, {AT_A_TIME}"),
    ):
        frame = _frame(tables, f"semantic/{name}", columns=("method", "CR"))
        columns = ("method", "against", "figure", "p_value")
        tests = _frame(tables, f"semantic/{name}-tests", columns=columns)
        tests = tests[(tests["against"] == "LAMP") & (tests["figure"] == "CR")]
        lamp = frame[frame["method"] == "LAMP"]["CR"]
        ours = frame[frame["method"].isin([f"{form}+LAMP" for form in FORMS])]
        theirs = paper[setting, "NeuSemSlice+LAMP"] - paper[setting, "LAMP"]
        for row in _rows(ours.merge(tests, on="method")) if len(lamp) else ():
            points = 100 * (row["CR"] - lamp.iloc[0])
            yield Figure(
                f"Restructuring ({title}): parameters removed beyond LAMP alone",
                row["method"],
                f"{points:+.1f} points (p = {row['p_value']:.2g})",
                f"{theirs:+.1f} points",
                points >= theirs,
            )


def _development(tables: Tables, table: int, tasks: int, note: str) -> Iterator[Figure]:
    """Yield the mean accuracy after several tasks; `note` is said of AlexNet with all images."""
    interval = f"table{table}-alexnet-cifar10-interval64"
    for name, title in {
        f"table{table}-mlp-mnist": MLP,
        f"all-images/{interval}": f"{ALEXNET}, {AT_A_TIME}{note}",
        interval: f"{FIFTH}, {AT_A_TIME}",
    }.items():
        columns = ("method", "Avg", "Avg known", "paper Avg")
        frame = _frame(tables, f"semantic/{name}", columns=columns)
        what = f"Incremental development without replay ({title}): mean accuracy"
        rows = _rows(frame[frame["method"] == "NeuSemSlice"])
        of = {"Avg": "among all classes", "Avg known": "each among its own classes"}
        for column, classes in of.items():
            for row in rows:
                ours, theirs = row[column], row["paper Avg"]
                case = f"{tasks} tasks, {classes}"
                yield Figure(what, case, f"{ours:.1%}", f"{theirs:.1%}", ours >= theirs)


@_headline("neusemslice/table7")
def _two_tasks(tables: Tables) -> Iterator[Figure]:
    return _development(tables, 7, 2, "")


@_headline("neusemslice/table8")
def _three_tasks(tables: Tables) -> Iterator[Figure]:
    return _development(tables, 8, 3, "; one of five models had not learned its first task")


# --- DeepXplore ------------------------------------------------------------------------------


@_headline("deepxplore/differences")
def _differences(tables: Tables) -> Iterator[Figure]:
    searches = ("light", "occlusion", "blackout")
    frame = _frame(tables, "deepxplore/differences", columns=("search", "found, share"))
    what = "DeepXplore: share of seeds changed into differences"
    for row in _rows(frame[frame["search"].isin(searches)], search=searches):
        yield Figure(what, row["search"], f"{row['found, share']:.0%}")
