"""Shares of time of the apps' commands, by kind of work, at their `--quick` sizes.

    python benchmarks/profile_apps.py --files <folder> --output data/results/benchmarks/apps

A thread looks at the main thread's stack every 10 ms and counts what the innermost frame of a
known kind belongs to; where no frame is of one, it counts for Keras if that is at work. Work on
other threads and processes counts as what waits for it. Shares are of wall-clock time; they say
where to look, not how fast the machine is.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from datetime import date
from pathlib import Path
from typing import Annotated

import typer

from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf._tables import text_table

APPS = Path(__file__).parents[1] / "apps"
COMMANDS = (
    "analyse_lines acas",
    "analyse_lines attributions",
    "analyse_lines linearity",
    "detect_adversarial",
    "draw_slices",
    "explore_differences",
    "find_deviations search",
    "find_deviations ablation",
    "find_deviations dissemination",
    "find_deviations repair",
    "inspect_units units",
    "inspect_units prune",
    "inspect_units explore",
    "maintain_model slicing mlp mnist",
    "maintain_model restructure mlp mnist",
    "maintain_model readapt mlp mnist",
    "maintain_model develop mlp mnist",
    "protect_model protect",
    "prune_targeted curves",
    "prune_targeted fine-tuned",
    "prune_targeted ablation",
    "find_causes faults",
)

# Options of commands that need files, whose folders are below the one of `--files`.
FILES = {
    "analyse_lines acas": ("--networks", "acasxu"),
    "explore_differences": ("--models", "models/deepxplore"),
}

# What a frame of the main thread counts as, by a part of its file's path.
KINDS = {
    "importlib": "imports",
    "/numba/": "compiling kernels",
    "/_training.py": "training",
    "/zoo/recipes.py": "training",
    "/nnslicer_tf/slicing/": "slicing",
    "/nnslicer_tf/_kernels/": "slicing",
    "/nnslicer_tf/instrument/": "forward and gradients",
    "/nnslicer_tf/detection/attacks/": "attacks",
    "/foolbox/": "attacks",
    "/tensorflow/lite/": "LiteRT",
    "/ai_edge_litert/": "LiteRT",
    "/matplotlib/": "plots",
    "/sklearn/": "scikit-learn",
    "/nnslicer_tf/datasets": "data",
}

# What a frame counts as where the stack has none of the kinds above.
OTHERWISE = {"/keras/": "Keras", "/tensorflow/": "Keras"}

SAMPLER = """
import collections, json, runpy, sys, threading, time
tables, target, arguments = json.loads(sys.argv[1])
main, seen, done = threading.main_thread().ident, collections.Counter(), threading.Event()

def files(frame):
    while frame is not None:
        yield frame.f_code.co_filename
        frame = frame.f_back

def kind(frame):
    paths = list(files(frame))
    for kinds in tables:
        for path in paths:
            for part, name in kinds.items():
                if part in path:
                    return name
    return "the rest"

def watch():
    while not done.wait(0.01):
        seen[kind(sys._current_frames().get(main))] += 1

threading.Thread(target=watch, daemon=True).start()
sys.argv = [arguments[0], *arguments[1:]]
sys.path.insert(0, arguments[0].rpartition("/")[0])
try:
    runpy.run_path(arguments[0], run_name="__main__")
except SystemExit as error:
    if error.code not in (None, 0):
        raise
finally:
    done.set()
    with open(target, "w") as file:
        json.dump(seen, file)
"""


def profile(command: str, files: Path) -> dict[str, float]:
    """Run a command at its quick size; return its seconds and the share of each kind of work."""
    name, *subcommand = command.split()
    if command in FILES:
        option, folder = FILES[command]
        subcommand += [option, str(files.resolve() / folder)]
    with tempfile.TemporaryDirectory() as folder:
        target = str(Path(folder) / "samples.json")
        arguments = [str(APPS / f"{name}.py"), *subcommand, "--quick", "--results", folder]
        start = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", SAMPLER, json.dumps([[KINDS, OTHERWISE], target, arguments])],
            cwd=folder,
            capture_output=True,
            text=True,
        )
        if done.returncode:
            raise RuntimeError(done.stderr[-2000:])
        seconds = time.perf_counter() - start
        seen = json.loads(Path(target).read_text())
    total = sum(seen.values())
    return {"seconds": seconds} | {kind: count / total for kind, count in seen.items()}


def main(
    files: Annotated[Path, typer.Option(help="Folder of published models.")],
    commands: Annotated[str, typer.Option(help="Commands, separated by commas.")] = ",".join(
        COMMANDS
    ),
    output: Annotated[Path | None, typer.Option(help="Path without ending: .json, .md.")] = None,
) -> None:
    """Profile, print a table, write JSON and Markdown."""
    if output is not None:
        check_writable(output.with_suffix(".json"))
    found = {}
    for command in commands.split(","):
        try:
            found[command] = profile(command, files)
        except RuntimeError as error:  # a data set or option that is not there
            print(f"{command} is left out:\n{error}", file=sys.stderr)
    kinds = [*dict.fromkeys([*KINDS.values(), *OTHERWISE.values(), "the rest"])]
    kinds = [kind for kind in kinds if any(kind in shares for shares in found.values())]
    rows = [
        (name, f"{shares['seconds']:.0f}", *(f"{shares.get(kind, 0):.0%}" for kind in kinds))
        for name, shares in found.items()
    ]
    text = (
        f"# Where the apps spend their time\n\n`python benchmarks/profile_apps.py "
        f"{' '.join(sys.argv[1:])}`, {date.today()}, {os.cpu_count()} cores, load average "
        f"{os.getloadavg()[0]:.1f} at the end. Each command with `--quick`; shares of wall-clock "
        f"time.\n\n```\n{text_table(('command', 'seconds', *kinds), rows)}\n```\n"
    )
    print(text)
    if output is not None:
        with atomic_path(output.with_suffix(".json")) as temporary:
            temporary.write_text(json.dumps(found, indent=1))
        with atomic_path(output.with_suffix(".md")) as temporary:
            temporary.write_text(text)


if __name__ == "__main__":
    typer.run(main)
