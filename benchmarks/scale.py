"""A model of slicing ImageNet with ResNet-50 on a cluster, fed by measured figures.

    python benchmarks/scale.py --output data/results/benchmarks/scale

ResNet-50 has random weights (seed 0) and gets images of CIFAR-10 at 224 × 224: nothing is
downloaded. The exclusion is relative to the sum of local values: a network that was not trained
hardly tells images apart, so that relative to outputs all of them are excluded. The walk's time
is the CPU time of one thread.

The model counts three ways in which slicing all 1,281,167 training images could be limited: the
walks, on all cores of all nodes; the forward passes that capture the activations, on the node
that reads the images or on each node for its own share; and sending what is captured to the
other nodes. Whatever takes longest decides.
"""

import json
import os
import sys
import time
from datetime import date
from pathlib import Path
from typing import Annotated

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

import _help  # noqa: F401
import keras
import typer
from bench_slicing import best, count_values, recorded_sums

import nnslicer_tf as nns
from nnslicer_tf import datasets
from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf._tables import text_table
from nnslicer_tf.slicing._exclusion_walk import walk

IMAGES = 1_281_167
CLUSTERS = ((1, 16), (4, 16), (16, 16), (16, 64))  # nodes, cores of each
NETWORK = 10e9 / 8  # bytes a second into the other nodes


def measure(granularity: str) -> dict[str, float]:
    """Return the figures of one sample of ResNet-50."""
    keras.utils.set_random_seed(0)
    im = nns.InstrumentedModel(keras.applications.ResNet50(weights=None))
    small = datasets.load("cifar10", "train[:16]").x
    x = small.repeat(7, axis=1).repeat(7, axis=2)
    profile = nns.Profile.from_data(im, x, batch_size=2, progress=False)
    slicer = nns.Slicer(im, profile, 0.3, granularity, workers=0, progress=False, relative_to="sum")
    plan = slicer.plan("predicted")
    figures = {"capture s": best(lambda: im.forward(x[:1], plan.captured), 3)}
    captured = im.forward(x[:1], plan.captured)
    figures["captured MB"] = sum(values.nbytes for values in captured.values()) / 1e6
    figures["walk s"] = best(lambda: walk(plan, captured, each=False), 3, time.thread_time)
    figures["local values"] = count_values(recorded_sums(plan, captured))
    return figures


def hours(figures: dict[str, float], nodes: int, cores: int, local: bool) -> dict[str, float]:
    """Return the hours that each part of the work takes on a cluster, by the model.

    Args:
        figures: Result of `measure`.
        nodes: Number of nodes.
        cores: Cores of a node.
        local: Whether every node captures its own images; else the first captures all.
    """
    sent = 0.0 if local else figures["captured MB"] * 1e6 * (nodes - 1) / nodes
    captures = figures["capture s"] * os.cpu_count() / cores  # a forward pass uses all cores
    return {
        "walks h": IMAGES * figures["walk s"] / (nodes * cores) / 3600,
        "captures h": IMAGES * captures / (nodes if local else 1) / 3600,
        "sending h": IMAGES * sent / NETWORK / 3600,
    }


def main(
    output: Annotated[Path | None, typer.Option(help="Path without ending: .json, .md.")] = None,
) -> None:
    """Measure, print the model, write JSON and Markdown."""
    if output is not None:
        check_writable(output.with_suffix(".json"))
    measured = {
        "θ = 0.3": measure("activation"),
        "θ = 0.3, channel": measure("channel"),
    }
    keys = ("capture s", "captured MB", "local values", "walk s")
    rows = [(k, *(f"{figures[k]:,.4g}" for figures in measured.values())) for k in keys]
    model = []
    for name, figures in measured.items():
        for nodes, cores in CLUSTERS:
            for local in (False, True):
                parts = hours(figures, nodes, cores, local)
                who = "each node" if local else "one node"
                model.append((name, nodes, cores, who, *(f"{v:,.3g}" for v in parts.values())))
    text = "\n".join(
        [
            "# ImageNet with ResNet-50 on a cluster: a model",
            "",
            f"`python benchmarks/scale.py {' '.join(sys.argv[1:])}`, {date.today()}, "
            f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} at the end, seed 0, "
            "random weights. Measured, for one sample:",
            "",
            "```",
            text_table(("", *measured), rows),
            "```",
            "",
            f"By the model, for {IMAGES:,} images, {NETWORK * 8 / 1e9:g} Gbit/s between nodes "
            "(not measured):",
            "",
            "```",
            text_table(
                ("", "nodes", "cores", "captured on", "walks h", "captures h", "sending h"),
                model,
            ),
            "```",
        ]
    )
    print(text)
    if output is not None:
        with atomic_path(output.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(measured, indent=1))
        with atomic_path(output.with_suffix(".md")) as temporary:
            temporary.write_text(text + "\n")


if __name__ == "__main__":
    typer.run(main)
