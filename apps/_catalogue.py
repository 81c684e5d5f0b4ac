"""Every table and figure of the papers: what makes it, where it is kept, what the paper says.

The only place that knows which file belongs to which table. A new result is one line here.
Paths are patterns below `data/results` and `data/paper`.
"""

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from nnslicer_tf.report import ResultTable

__all__ = ["CATALOGUE", "PAPERS", "Entry", "Extent"]

Extent = Callable[[Sequence[ResultTable]], tuple[int, int, str]]
"""From an entry's tables to how many there are, how many the paper has, and of what."""

PAPERS = {
    "nnslicer": "NNSlicer (Zhang et al., ESEC/FSE 2020)",
    "neusemslice": "NeuSemSlice (Zhou et al., TOSEM 2025)",
    "dflare": "DFlare and DRepair (Tian et al., TOSEM 2023)",
    "exactline": "ExactLine (Sotoudeh and Thakur, NeurIPS 2019)",
    "deepxplore": "DeepXplore (Pei et al., SOSP 2017) and DeepBase (Sellam et al., SIGMOD 2019)",
    "models": "The models",
    "speed": "Benchmarks",
}
"""Part of an id → what it is about, in the report's order."""


@dataclass(frozen=True)
class Entry:
    """A table or a figure.

    Attributes:
        id: `paper/name`.
        title: What it shows.
        command: The command that makes it, without `python`; empty where nothing does.
        minutes: Expected on two cores.
        needs: Data sets, and what else must be given.
        tables: Patterns of our result tables; files of single runs are left out.
        figures: Patterns of our pictures.
        more: Patterns of further files, which are linked.
        paper: The papers' tables.
        extents: How much of the paper's extent was measured.
        without: Why there is no command.
        view: Columns that become the rows, the columns and the values of a short form, which
            stands above tables that have them.
        trial: What is added to the command for a trial; `{folder}` is where it may write.
    """

    id: str
    title: str
    command: str = ""
    minutes: int = 0
    needs: str = ""
    tables: tuple[str, ...] = ()
    figures: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    paper: tuple[str, ...] = ()
    extents: tuple[Extent, ...] = ()
    without: str = ""
    view: tuple[str, str, str] | None = None
    trial: str = "--quick --results {folder}"

    @property
    def part(self) -> str:
        """The key of `PAPERS`."""
        return self.id.partition("/")[0]


def _settings(wanted: int, unit: str) -> Extent:
    """Count the models and data sets that the files are named after."""

    def count(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        stems = [table.path.stem.removesuffix("-tests") for table in tables]
        return len({tuple(stem.split("-")[-2:]) for stem in stems}), wanted, unit

    return count


def _distinct(column: str, wanted: int, unit: str, but: str = "") -> Extent:
    """Count the distinct values of a column, one of them left out."""

    def count(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        values = {v for t in tables if column in t.frame for v in t.frame[column].dropna()}
        return len(values - {but}), wanted, unit

    return count


def _largest(column: str, wanted: int, unit: str) -> Extent:
    """Take the largest value of a column."""

    def largest(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        values = [int(t.frame[column].max()) for t in tables if column in t.frame]
        return max(values, default=0), wanted, unit

    return largest


def _seeds(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
    """Count the seeds `0 … n` that stand above the tables; the paper has five models."""
    found = [re.search(r"0 … (\d+)", table.head.get("seeds", "")) for table in tables]
    return max((int(match[1]) + 1 for match in found if match), default=0), 5, "models trained"


def _stated(key: str, wanted: int, unit: str, pattern: str = r"([\d,]+)") -> Extent:
    """Take the number that stands above the tables."""

    def stated(tables: Sequence[ResultTable]) -> tuple[int, int, str]:
        found = [re.search(pattern, table.head.get(key, "")) for table in tables]
        numbers = [int(match[1].replace(",", "")) for match in found if match]
        return max(numbers, default=0), wanted, unit

    return stated


_MAINTAIN = "apps/maintain_model.py {} mlp mnist"
_MNIST, _CIFAR = "MNIST", "CIFAR-10"
_DIFFCHASER = "MNIST, CIFAR-10, the published models (--models or DIFFCHASER_MODELS)"
_SETTINGS = _settings(6, "models and data sets")
_IMAGES = _stated("sizes", 50_000, "training images")
_PAIRS = _distinct("paper_pair", 21, "pairs of models")

CATALOGUE: tuple[Entry, ...] = (
    Entry(
        "nnslicer/table1",
        "Symbols",
        paper=("nnslicer/table1.csv",),
        without="definitions; the names in `nnslicer_tf.slicing`",
    ),
    Entry(
        "nnslicer/table2",
        "Local contributions of the operations",
        paper=("nnslicer/table2.csv",),
        without="definitions; the rules of `nnslicer_tf.slicing`, tested against a plain walk",
    ),
    Entry("nnslicer/figure1", "Overview", without="an illustration"),
    Entry(
        "nnslicer/figure2",
        "Slices of normal and adversarial inputs",
        command="apps/draw_slices.py",
        minutes=2,
        needs=_MNIST,
        tables=("slices/*.csv",),
        figures=("slices/*.png", "demo/slices.png"),
    ),
    Entry(
        "nnslicer/table3",
        "Time to slice a sample",
        command="benchmarks/bench_slicing.py --output data/results/benchmarks/slicing",
        minutes=15,
        needs="nothing; DIFFCHASER_MODELS for ResNet-20",
        tables=("benchmarks/slicing.json",),
        more=("benchmarks/slicing.md",),
        paper=("nnslicer/table3.csv",),
        trial="--models lenet --output {folder}/slicing",
    ),
    Entry(
        "nnslicer/table4",
        "Detection of adversarial inputs",
        command="apps/detect_adversarial.py --model resnet10 --dataset cifar10",
        minutes=300,
        needs=_CIFAR,
        tables=("detection/*-cifar10*.csv",),
        figures=("detection/*-cifar10*.png",),
        more=("detection/README.md",),
        paper=("nnslicer/table4.csv",),
        view=("attack", "method", "f1"),
        extents=(
            _distinct("attack", 17, "attacks", but="Average"),
            _stated("attacked images", 500, "attacked images", r":(\d+)\]"),
            _stated("normal inputs", 10_000, "normal inputs"),
        ),
    ),
    Entry(
        "nnslicer/table4-lenet5",
        "The same on LeNet-5 and MNIST, which the paper does not have",
        command="apps/detect_adversarial.py",
        minutes=90,
        needs=_MNIST,
        tables=("detection/*-mnist*.csv",),
        figures=("detection/*-mnist*.png",),
        view=("attack", "method", "f1"),
        more=("detection/README.md",),
    ),
    Entry(
        "nnslicer/figure3",
        "Targeted pruning without fine-tuning",
        command="apps/prune_targeted.py curves",
        minutes=240,
        needs=_CIFAR,
        tables=("pruning/figure3*.csv",),
        figures=("pruning/figure3*.png",),
        view=("ratio", "method", "targets"),
        more=("pruning/README.md",),
        paper=("nnslicer/figure3.csv",),
        extents=(
            _stated("sets", 210, "sets of target classes"),
            _distinct("ratio", 13, "prune ratios"),
        ),
    ),
    Entry(
        "nnslicer/figure4",
        "Targeted pruning after one epoch of training",
        command="apps/prune_targeted.py fine-tuned",
        minutes=60,
        needs=_CIFAR,
        tables=("pruning/figure4*.csv",),
        figures=("pruning/figure4*.png",),
        view=("ratio", "method", "targets"),
        more=("pruning/README.md",),
        paper=("nnslicer/figure4.csv",),
        extents=(
            _stated("sets", 2, "sets of target classes"),
            _stated("images", 10_000, "images to train on"),
        ),
    ),
    Entry(
        "nnslicer/figure5",
        "Selective protection",
        command="apps/protect_model.py",
        minutes=300,
        needs=_CIFAR,
        tables=("protection/figure5*.csv",),
        figures=("protection/figure5*.png",),
        view=("budget", "method", "targets"),
        more=("protection/README.md",),
        paper=("nnslicer/figure5.csv",),
        extents=(_largest("budget", 45_000, "images of an attacker"),),
    ),
    Entry("neusemslice/figure1", "Overview", without="an illustration"),
    Entry("neusemslice/figure2", "Restructuring", without="an illustration"),
    Entry("neusemslice/figure3", "Re-adaptation", without="an illustration"),
    Entry("neusemslice/figure4", "Incremental development", without="an illustration"),
    Entry(
        "neusemslice/table1",
        "Accuracy after masking ranges of neurons, ranked on all data",
        command=_MAINTAIN.format("slicing"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/masking-*.csv", "semantic/table1-*.csv"),
        more=("semantic/README.md",),
        paper=("neusemslice/table1.csv",),
        extents=(_IMAGES,),
    ),
    Entry(
        "neusemslice/table2",
        "The same with ranks by category",
        command=_MAINTAIN.format("slicing"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/masking-*.csv", "semantic/table2-*.csv"),
        paper=("neusemslice/table2.csv",),
        extents=(_IMAGES,),
    ),
    Entry(
        "neusemslice/table3",
        "The same for single categories",
        command=_MAINTAIN.format("slicing"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/table3-*.csv",),
        paper=("neusemslice/table3.csv",),
        extents=(_IMAGES,),
    ),
    Entry(
        "neusemslice/figure5",
        "Accuracy over compression rate",
        command=_MAINTAIN.format("slicing"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/slicing-*.csv", "semantic/figure5-*.csv"),
        figures=("semantic/slicing-*.png", "semantic/figure5-*.png"),
        more=("semantic/README.md",),
        paper=("neusemslice/figure5.csv",),
        extents=(_SETTINGS, _IMAGES),
    ),
    Entry(
        "neusemslice/table4",
        "Semantic slicing against the others",
        command=_MAINTAIN.format("slicing"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/table4-*.csv",),
        paper=("neusemslice/table4.csv",),
        extents=(_SETTINGS, _IMAGES, _seeds),
    ),
    Entry(
        "neusemslice/table5",
        "Restructuring",
        command=_MAINTAIN.format("restructure"),
        minutes=20,
        needs=_MNIST,
        tables=("semantic/table5-*.csv",),
        more=("semantic/table5-*runs*.csv", "semantic/README.md"),
        paper=("neusemslice/table5.csv",),
        view=("method", "setting", "CR"),
        extents=(_SETTINGS, _IMAGES, _seeds),
    ),
    Entry(
        "neusemslice/table6",
        "Re-adaptation to adversarial samples",
        command=_MAINTAIN.format("readapt"),
        minutes=30,
        needs=_MNIST,
        tables=("semantic/table6-*.csv",),
        more=("semantic/table6-*runs*.csv", "semantic/README.md"),
        paper=("neusemslice/table6.csv",),
        extents=(_SETTINGS, _IMAGES, _seeds),
    ),
    Entry(
        "neusemslice/table7",
        "Incremental development, scenario I",
        command=_MAINTAIN.format("develop"),
        minutes=30,
        needs=_MNIST,
        tables=("semantic/table7-*.csv",),
        more=("semantic/table7-*runs*.csv", "semantic/README.md"),
        paper=("neusemslice/table7.csv",),
        view=("method", "setting", "mean"),
        extents=(_SETTINGS, _IMAGES, _seeds),
    ),
    Entry(
        "neusemslice/table8",
        "Incremental development, scenario II",
        command=_MAINTAIN.format("develop") + " --scenario 2",
        minutes=30,
        needs=_MNIST,
        tables=("semantic/table8-*.csv",),
        more=("semantic/table8-*runs*.csv", "semantic/README.md"),
        paper=("neusemslice/table8.csv",),
        extents=(_SETTINGS, _IMAGES, _seeds),
    ),
    Entry(
        "neusemslice/figure6",
        "MobileNetV3 on CIFAR-10",
        paper=("neusemslice/figure6.csv", "neusemslice/stated.csv"),
        without="not measured: the zoo builds MobileNetV3, but has no weights trained on CIFAR-10",
    ),
    Entry("dflare/figure1", "Two triggering images", without="an illustration"),
    Entry("dflare/figure2", "Gradients of integer weights", without="an illustration"),
    Entry("dflare/figure3", "Triggering inputs", without="an illustration"),
    Entry("dflare/figure8", "DRepair's workflow", without="an illustration"),
    Entry(
        "dflare/table1",
        "Inputs of the data sets that trigger a deviation",
        paper=("dflare/table1_triggering.csv",),
        without="not measured apart; seeds on which the models disagree are left out of searches",
    ),
    Entry(
        "dflare/table2",
        "Accuracy of the models",
        paper=("dflare/table2_accuracy.csv",),
        without="the paper's models are not at hand; those here are under `models`",
    ),
    Entry(
        "dflare/table3",
        "Mutation operators",
        paper=("dflare/table3_operators.csv",),
        without="definitions; `nnslicer_tf.dflare.IMAGE_OPERATORS`",
    ),
    Entry(
        "dflare/table4",
        "Effectiveness and efficiency of DFlare and DiffChaser",
        command="apps/find_deviations.py search",
        minutes=30,
        needs=_DIFFCHASER,
        tables=("dflare/search.csv", "dflare/search_*.csv"),
        more=("dflare/search*runs.csv", "dflare/README.md"),
        paper=("dflare/table4_search.csv", "dflare/authors_program.csv", "dflare/stated.csv"),
        extents=(_PAIRS, _stated("seed images", 500, "seed images")),
    ),
    Entry(
        "dflare/table5",
        "Models of ImageNet",
        paper=("dflare/table5_imagenet.csv",),
        without="ImageNet is not at hand",
    ),
    Entry(
        "dflare/figure4",
        "Histograms of the queries",
        command="apps/find_deviations.py search",
        minutes=30,
        needs=_DIFFCHASER,
        figures=("dflare/search*_queries.png",),
    ),
    Entry(
        "dflare/table6",
        "Ablation",
        command="apps/find_deviations.py ablation",
        minutes=120,
        needs=_DIFFCHASER,
        tables=("dflare/ablation*.csv",),
        more=("dflare/ablation*_runs.csv", "dflare/README.md"),
        paper=("dflare/table6_ablation.csv",),
        extents=(_PAIRS, _stated("seed images", 500, "seed images")),
    ),
    Entry(
        "dflare/figure5",
        "Queries over the share of mutated weights (section 5.4.1)",
        command="apps/find_deviations.py dissemination",
        minutes=30,
        needs=_MNIST,
        tables=("dflare/dissemination.csv", "dflare/dissemination_correlation.csv"),
        more=("dflare/dissemination_runs.csv", "dflare/README.md"),
        paper=("dflare/section54_dissemination.csv",),
        extents=(_distinct("model", 3, "models"),),
    ),
    Entry("dflare/figure6", "Accuracy of 13 pruned VGG-16", without="not measured"),
    Entry("dflare/figure7", "Searches of 13 pruned VGG-16", without="not measured"),
    Entry(
        "dflare/table7",
        "DRepair",
        command="apps/find_deviations.py repair",
        minutes=60,
        needs=_DIFFCHASER,
        tables=("dflare/repair.csv", "dflare/repair_made*.csv"),
        more=("dflare/README.md",),
        paper=("dflare/table7_repair.csv",),
        extents=(_distinct("pair", 21, "pairs of models"),),
    ),
    Entry(
        "dflare/table8",
        "Searches of repaired models",
        command="apps/find_deviations.py repair",
        minutes=60,
        needs=_DIFFCHASER,
        tables=("dflare/repair_search.csv",),
        more=("dflare/repair_search_runs.csv", "dflare/README.md"),
        paper=("dflare/table8_search_after_repair.csv",),
        extents=(_distinct("pair", 6, "pairs of models"),),
    ),
    Entry(
        "dflare/table9",
        "Speech-to-text models",
        paper=("dflare/table9_speech.csv",),
        without="DeepSpeech and Librispeech are not at hand; `AudioDomain` is tested",
    ),
    Entry(
        "dflare/table10",
        "Shorter timeouts",
        paper=("dflare/table10_timeouts.csv",),
        without="not measured; the searches here end in milliseconds (table 4)",
    ),
    Entry("exactline/figure1", "A line of three parts", without="an illustration"),
    Entry("exactline/figure3", "Integrated gradients", without="an illustration"),
    Entry(
        "exactline/figure2",
        "Decision boundaries of ACAS Xu",
        command="apps/analyse_lines.py acas",
        minutes=5,
        needs="the ACAS Xu networks (--networks FOLDER)",
        tables=("exactline/acas.csv",),
        figures=("exactline/acas.png",),
        more=("exactline/README.md",),
        paper=("exactline/figure2.csv",),
    ),
    Entry(
        "exactline/table1",
        "Error of integrated gradients, and samples needed (table 2)",
        command="apps/analyse_lines.py attributions",
        minutes=30,
        needs="MNIST, CIFAR-10",
        tables=("exactline/attributions.csv",),
        figures=("exactline/attributions.png",),
        more=("exactline/attributions_images.csv", "exactline/README.md"),
        paper=("exactline/table1.csv", "exactline/table2.csv", "exactline/stated.csv"),
        extents=(_largest("images", 1_000, "images"),),
    ),
    Entry(
        "exactline/table2",
        "Samples to stay within 5 %",
        command="apps/analyse_lines.py attributions",
        minutes=30,
        needs="MNIST, CIFAR-10",
        tables=("exactline/attributions.csv",),
        paper=("exactline/table2.csv",),
        extents=(_largest("images", 1_000, "images"),),
    ),
    Entry(
        "exactline/table3",
        "Density towards adversarial and random neighbours",
        command="apps/analyse_lines.py linearity",
        minutes=15,
        needs="MNIST, CIFAR-10",
        tables=("exactline/linearity_directions.csv",),
        figures=("exactline/linearity.png",),
        more=("exactline/linearity_images.csv", "exactline/README.md"),
        paper=("exactline/table3.csv",),
    ),
    Entry(
        "exactline/table4",
        "Density of normal and robust networks",
        command="apps/analyse_lines.py linearity",
        minutes=15,
        needs="MNIST, CIFAR-10",
        tables=("exactline/linearity_trainings.csv",),
        more=("exactline/training/*.json",),
        paper=("exactline/table4.csv",),
    ),
    Entry(
        "exactline/figure4",
        "Parts of lines as ticks (and figure 5)",
        command="apps/analyse_lines.py linearity",
        minutes=15,
        needs="MNIST, CIFAR-10",
        figures=("exactline/linearity_ticks.png",),
    ),
    Entry(
        "exactline/figure5",
        "The same for a robust network",
        command="apps/analyse_lines.py linearity",
        minutes=15,
        needs="MNIST, CIFAR-10",
        figures=("exactline/linearity_ticks.png",),
    ),
    Entry(
        "deepxplore/table1",
        "The networks of MNIST: neurons and parameters",
        paper=("deepxplore/table1_models.csv",),
        without="checked by a test; the networks here have the paper's numbers",
    ),
    Entry("deepxplore/figure5", "Workflow", without="an illustration"),
    Entry(
        "deepxplore/differences",
        "Differences found under each constraint",
        command="apps/explore_differences.py",
        minutes=10,
        needs="MNIST, the published weights (--models FOLDER)",
        tables=("deepxplore/differences.csv",),
        figures=("deepxplore/differences_*.png",),
        more=("deepxplore/README.md",),
    ),
    Entry(
        "deepxplore/coverage",
        "What found inputs cover",
        command="apps/explore_differences.py",
        minutes=10,
        needs="MNIST, the published weights (--models FOLDER)",
        tables=("deepxplore/coverage.csv",),
        figures=("deepxplore/coverage.png",),
    ),
    Entry(
        "deepxplore/retraining",
        "Retraining on found inputs",
        command="apps/explore_differences.py",
        minutes=10,
        needs="MNIST, the published weights (--models FOLDER)",
        tables=("deepxplore/retraining.csv",),
    ),
    Entry(
        "deepxplore/units",
        "DeepBase: what the channels of a network follow",
        command="apps/inspect_units.py units",
        minutes=5,
        needs=_CIFAR,
        tables=("deepbase/units.csv",),
        figures=("deepbase/units.png",),
        more=("deepbase/README.md",),
    ),
    Entry(
        "deepxplore/prune",
        "DeepBase: pruning by affinity",
        command="apps/inspect_units.py prune",
        minutes=5,
        needs=_CIFAR,
        tables=("deepbase/prune.csv",),
    ),
    Entry(
        "deepxplore/explore",
        "DeepBase: seeds for DeepXplore",
        command="apps/inspect_units.py explore",
        minutes=10,
        needs=_MNIST,
        tables=("deepbase/explore.csv",),
    ),
    Entry(
        "models/zoo",
        "Models that this project trained",
        command="apps/train.py resnet10",
        minutes=90,
        needs="MNIST, CIFAR-10",
        tables=("training/models.csv",),
        more=("training/*.json",),
        trial="--quick",
    ),
    Entry(
        "speed/deepbase",
        "Streamed inspection beside extracting everything first",
        command="benchmarks/bench_deepbase.py compare",
        minutes=5,
        needs=_CIFAR,
        tables=("deepbase/bench.csv",),
        trial="--records 300 --results {folder}",
    ),
    Entry(
        "speed/exactline",
        "Exact lines beside a naive recursion",
        command="benchmarks/bench_exactline.py",
        minutes=15,
        needs="MNIST; ACAS Xu (--acas FILE) and ResNet-20 (--resnet FILE) for their rows",
        tables=("exactline/speed.csv",),
    ),
    Entry(
        "speed/dflare",
        "Searches together, alone, and DiffChaser",
        command="benchmarks/bench_dflare.py lenet1 resnet20",
        minutes=15,
        needs=_DIFFCHASER,
        tables=("dflare/bench.csv",),
        trial="--seeds 20 --alone 5 --diffchaser 1 --turns 1 --results {folder}/bench.csv",
    ),
    Entry(
        "speed/semantic",
        "Similarities of all prefixes",
        command="benchmarks/bench_semantic.py",
        minutes=3,
        needs="nothing",
        tables=("benchmarks/semantic.csv",),
        trial="--runs 1 --results {folder}",
    ),
)
"""Everything, in the papers' order."""
