"""Mutation testing: do the tests notice a small error in the code?

A mutant is the package with one change: a comparison, a sign, a constant, a condition, two
arguments, a statement less. It is run against the tests that `TESTS` names for its file; if all
pass, it survives. Mutants are drawn at random, from each file by
the root of the number that it has.

    nice python tests/mutations.py --count 300 --seed 0

Rows are appended to data/results/mutations/mutants.csv; a second run of the same command goes on
where the first stopped, and `--again survived` runs survivors again after tests were added. Each
mutant is written to a copy of the package in a temporary folder and tested in a process forked from
one that has imported TensorFlow: 5 to 20 seconds each, on one core.
"""

import argparse
import ast
import csv
import importlib
import os
import pkgutil
import random
import shlex
import shutil
import signal
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = ROOT / "data" / "results" / "mutations" / "mutants.csv"

LIMIT = 240  # seconds

# The beginning of a path in the package → tests, the quickest and nearest first. The longest wins.
COUNTS, TOKENS, SETS, MASKS, WORDS, LINES, PLANES = (
    "tests/slicing/test_against_oracle.py",
    "tests/slicing/test_sequences_against_oracle.py",
    "tests/slicing/test_sets.py",
    "tests/instrument/test_ablation_cases.py tests/instrument/test_ablation.py",
    "tests/slicing/test_explained_pages.py tests/slicing/test_explanation.py "
    "-k 'not text and not inner and not several'",
    "tests/exactline/test_steps.py tests/exactline/test_curves.py tests/exactline/test_walk.py",
    "tests/exactline/test_polygons.py tests/exactline/test_planes.py "
    "tests/exactline/test_plane_measures.py",
)
GRADIENTS = f"tests/exactline/test_gradients.py {LINES} tests/exactline/test_gradient_walk.py"
SLICES = f"tests/slicing/test_slicer.py {TOKENS} {COUNTS} -k 'not counts and not amounts'"
DECISIVE = (
    "tests/slicing/test_search_ideas.py tests/slicing/test_binary_answers.py "
    "tests/slicing/test_decisive.py -k 'not other_samples and not one_slice'"
)
TESTS = {
    "exactline/": f"tests/exactline/test_partition.py {GRADIENTS}",
    "exactline/_kernels/mesh": PLANES,
    "exactline/acas": "tests/exactline/test_acas.py",
    "exactline/bends": PLANES,
    "exactline/mesh": PLANES,
    "exactline/gradients": f"tests/exactline/test_polygons.py {GRADIENTS}",
    "exactline/partition": (
        "tests/exactline/test_partition.py tests/exactline/test_plane_measures.py "
        "-k 'not classes_areas'"
    ),
    "exactline/points": PLANES,
    "exactline/program": (f"{LINES} tests/exactline/test_plane_measures.py -k 'not classes_areas'"),
    "exactline/pieces": "tests/exactline/test_pieces.py tests/exactline/test_walk.py",
    "exactline/plan": PLANES,
    "exactline/rules/": (
        f"tests/exactline/test_maps.py tests/exactline/test_lines_by_position.py {GRADIENTS}"
    ),
    "exactline/tiles": PLANES,
    "instrument/ablat": f"{MASKS} tests/slicing/test_search_ideas.py",
    "instrument/references": f"{MASKS} -k 'donor or weights or fit or values'",
    "instrument/recurrence": (
        "tests/instrument/test_recurrent_layers.py tests/slicing/test_recurrence.py"
    ),
    "kinds/kind": (
        f"tests/instrument/test_masks.py {TOKENS} {COUNTS} tests/slicing/test_recurrence.py "
        "-k 'random_models or midpoints or padding or simple or lstm or mask or 2d'"
    ),
    "kinds/lookup": f"{TOKENS} tests/instrument/test_masks.py",
    "kinds/pointwise": f"{COUNTS} -k 'operators or subtract or multiply or maxi or relu or norm'",
    "kinds/pooling": (
        f"{COUNTS} {TOKENS} tests/instrument/test_masks.py -k 'pool or global or random or padding'"
    ),
    "kinds/products": f"{TOKENS} {COUNTS} -k 'multiply or midpoints or test_random_models'",
    "kinds/recurrence": "tests/slicing/test_recurrence.py tests/slicing/test_amounts.py",
    "kinds/rescale": (
        f"tests/slicing/test_products_of_several.py tests/slicing/test_amounts.py {COUNTS} "
        "-k 'amounts or three'"
    ),
    "kinds/routing": f"{COUNTS} -k 'up or padding or cropping or permute or concatenate'",
    "kinds/weighted_sum": (
        f"{COUNTS} tests/slicing/test_strides.py tests/slicing/test_recurrence.py "
        "-k 'conv or dense or depthwise or transposed or equal or channel or table'"
    ),
    "instrument/windows": f"{COUNTS} tests/slicing/test_strides.py -k 'pool or conv or equal'",
    "slicing/": SLICES,
    "slicing/_batches": f"tests/slicing/test_unusual_inputs.py {SLICES}",
    "slicing/_results": f"tests/slicing/test_rows_and_tokens.py {SLICES}",
    "slicing/_rows": f"tests/slicing/test_rows_and_tokens.py {SLICES}",
    "slicing/_zero_walk": (
        "tests/slicing/test_search_ideas.py tests/slicing/test_zero_walk.py "
        f"tests/slicing/test_amounts.py tests/slicing/test_slicer.py {TOKENS} {COUNTS} "
        "-k 'not test_counts'"
    ),
    "slicing/answers": DECISIVE,
    "slicing/criterion": f"tests/slicing/test_criterion.py {SLICES}",
    "slicing/decisive": (
        f"{SETS} tests/slicing/test_binary_answers.py tests/slicing/test_decisive.py "
        "-k 'not other_samples and not levels and not transformers'"
    ),
    "slicing/edges": f"{SETS} tests/slicing/test_rows_and_tokens.py",
    "slicing/expl": WORDS,
    "slicing/profile": (
        "tests/slicing/test_profile_parts.py tests/slicing/test_profile.py "
        "tests/slicing/test_slicer.py"
    ),
    "slicing/search": DECISIVE,
    "slicing/slice.py": f"{SETS} tests/slicing/test_slicer.py",
    "slicing/slice_set": f"{SETS} tests/slicing/test_explained_pages.py",
    "slicing/slicer": f"tests/slicing/test_settings.py {SLICES}",
}

# Ideas that can be switched off in one place: these are always among the mutants.
IDEAS = (
    ("instrument/ablation.py", "RIVALS = 0.75", "RIVALS = 0.0"),
    ("slicing/_zero_walk.py", "* batch < _EXACT", "* 0 < _EXACT"),
    ("slicing/search.py", "_FADED = 0.3", "_FADED = 0.0"),
    ("slicing/search.py", "_FADED = 0.3", "_FADED = 1.0"),
    ("slicing/search.py", "_MEMORY = 0.5", "_MEMORY = 0.0"),
    ("slicing/search.py", "given, estimate = effects(mask)", "estimate = memory"),
)

COMPARISONS: dict[type, str] = {
    **{ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">", ast.Eq: "!=", ast.NotEq: "=="},
    **{ast.Is: "is not", ast.IsNot: "is", ast.In: "not in", ast.NotIn: "in"},
}
OPERATORS: dict[type, str] = {
    **{ast.Add: "-", ast.Sub: "+", ast.Mult: "/", ast.Div: "*", ast.FloorDiv: "*"},
    **{ast.Mod: "//", ast.Pow: "*", ast.BitAnd: "|", ast.BitOr: "&"},
}
FUNCTIONS = {"min": "max", "max": "min", "any": "all", "all": "any"}
# What is said in words, or types: its changes are none of the program's.
SKIPPED = (ast.Raise, ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True)
class Mutant:
    """One change of one file, and what became of it."""

    file: str
    line: int
    column: int
    kind: str
    before: str
    after: str
    result: str = ""  # killed, survived or timeout
    seconds: float = 0.0
    test: str = ""  # that failed

    @property
    def key(self) -> tuple[str, ...]:
        """What tells it from the others."""
        return self.file, str(self.line), str(self.column), self.kind, self.after


def changes(node: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield the kind and the source of each change of a node."""

    def text(part: ast.AST) -> str:
        return f"({ast.unparse(part)})"

    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        (right,) = node.comparators
        yield "comparison", f"{text(node.left)} {COMPARISONS[type(node.ops[0])]} {text(right)}"
    elif isinstance(node, ast.BinOp) and type(node.op) in OPERATORS:
        yield "operator", f"{text(node.left)} {OPERATORS[type(node.op)]} {text(node.right)}"
    elif isinstance(node, ast.BoolOp):
        other = " or " if isinstance(node.op, ast.And) else " and "
        yield "and/or", other.join(map(text, node.values))
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not)):
        yield "sign", text(node.operand)
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield "constant", str(not node.value)
    elif isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        is_scaled = isinstance(node.value, float) and node.value
        yield "constant", repr(2 * node.value if is_scaled else node.value + 1)
    elif isinstance(node, ast.Call):
        name = node.func.id if isinstance(node.func, ast.Name) else ""
        if name in FUNCTIONS:
            yield "function", FUNCTIONS[name] + ast.unparse(node)[len(name) :]
        elif len(node.args) > 1 and not any(isinstance(a, ast.Starred) for a in node.args[:2]):
            first, second, *others = node.args
            swapped = ast.Call(node.func, [second, first, *others], node.keywords)
            same = ast.dump(first) == ast.dump(second)
            if not same and name not in ("isinstance", "zip", "hasattr", "getattr"):
                yield "arguments", ast.unparse(swapped)
    elif isinstance(node, (ast.AugAssign, ast.Continue, ast.Break, ast.Expr)):
        if not isinstance(node, ast.Expr) or isinstance(node.value, ast.Call):
            yield "statement", "pass"
    elif isinstance(
        getattr(node, "test", None), (ast.Name, ast.Attribute, ast.Call, ast.NamedExpr)
    ):
        yield "condition", f"not {text(node.test)}"


def mutants_of(file: str) -> Iterator[Mutant]:
    """Yield all mutants of a file of the package."""
    source = (ROOT / file).read_text()

    def visit(node: ast.AST) -> Iterator[Mutant]:
        if isinstance(node, SKIPPED) or "warn" in ast.unparse(getattr(node, "func", ast.Pass())):
            return
        for kind, after in changes(node):
            place = node.test if kind == "condition" else node
            before = ast.get_source_segment(source, place)
            yield Mutant(file, place.lineno, place.col_offset, kind, before, after)
        for name, field in ast.iter_fields(node):
            if name not in ("annotation", "returns", "decorator_list", "type_params"):
                for child in field if isinstance(field, list) else [field]:
                    if isinstance(child, ast.AST):
                        yield from visit(child)

    yield from visit(ast.parse(source))


def mutated(mutant: Mutant) -> str:
    """Return the source of a mutant's file."""
    lines = (ROOT / mutant.file).read_bytes().splitlines(keepends=True)
    start = sum(map(len, lines[: mutant.line - 1])) + mutant.column  # in bytes, as `col_offset`
    source = b"".join(lines)
    before = mutant.before.encode()
    if source[start : start + len(before)] != before:
        raise SystemExit(f"{mutant.file}:{mutant.line} has changed; draw mutants anew.")
    after = mutant.after if mutant.kind in ("statement", "idea") else f"({mutant.after})"
    text = (source[:start] + after.encode() + source[start + len(before) :]).decode()
    ast.parse(text)
    return text


def tests_of(file: str) -> list[str]:
    """Return the arguments that select the tests of a file."""
    path = file.removeprefix("nnslicer_tf/")
    return shlex.split(TESTS[max((start for start in TESTS if path.startswith(start)), key=len)])


def ideas() -> Iterator[Mutant]:
    """Yield the mutants without one of the ideas."""
    for path, before, after in IDEAS:
        file = f"nnslicer_tf/{path}"
        above, _, _ = (ROOT / file).read_text().partition(before)
        line = above.rpartition("\n")[2]
        yield Mutant(file, above.count("\n") + 1, len(line.encode()), "idea", before, after)


def drawn(count: int, seed: int) -> list[Mutant]:
    """Return mutants drawn at random, from each file by the root of the number of its mutants."""
    files = [p.relative_to(ROOT).as_posix() for p in sorted(ROOT.glob("nnslicer_tf/**/*.py"))]
    of = {f: list(mutants_of(f)) for f in files if any(f[12:].startswith(s) for s in TESTS)}
    print(f"{sum(map(len, of.values()))} mutants are possible in {len(of)} files")
    share = count / sum(len(every) ** 0.5 for every in of.values())
    chosen = list(ideas())
    for file, every in of.items():
        size = min(len(every), round(share * len(every) ** 0.5))
        some = random.Random(f"{seed} {file}").sample(every, size)
        chosen += sorted(some, key=lambda m: (m.line, m.column))
    return chosen


def warm_up() -> None:
    """Import what tests import, but for this package, so that each fork need not."""
    sys.dont_write_bytecode = True  # mutants of one second and size would share bytecode
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    for name in ("OMP_NUM_THREADS", "TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS"):
        os.environ[name] = "1"
    sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "apps"), str(ROOT)]
    import hypothesis  # noqa: F401
    import keras  # noqa: F401
    import pytest  # noqa: F401

    import nnslicer_tf

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in pkgutil.walk_packages(nnslicer_tf.__path__, "nnslicer_tf."):
            if not module.name.endswith(("__main__", "ray_engine")):
                importlib.import_module(module.name)
    for name in [n for n in sys.modules if n.partition(".")[0] in ("nnslicer_tf", "support")]:
        del sys.modules[name]
    sys.path.remove(str(ROOT))


def start(folder: Path, tests: list[str], log: Path) -> int:
    """Fork a process that runs tests on the copy of the package in a folder; return its id."""
    pid = os.fork()
    if pid:
        return pid
    os.setsid()
    os.chdir(ROOT)
    output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.environ["PYTHONPATH"] = str(folder)
    sys.path.insert(0, str(folder))
    try:
        import pytest

        import nnslicer_tf

        assert nnslicer_tf.__file__.startswith(str(folder)), nnslicer_tf.__file__
        ignored = "ignore::pytest.PytestAssertRewriteWarning"
        options = ["-q", "-x", "-n", "0", "-p", "no:cacheprovider", "--tb=no", "-W", ignored]
        code = int(pytest.main([*options, *tests]))
    except BaseException as error:
        print(repr(error))
        code = 99
    os._exit(code)


def main() -> None:
    """Run the mutants that were not run yet, two at a time; print how many were killed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--count", type=int, default=300, help="mutants")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2, help="processes at a time")
    parser.add_argument("--only", default="", help="beginnings of paths, with commas")
    parser.add_argument("--again", default="", help="result whose mutants are run again")
    parser.add_argument("--list", action="store_true", help="print the mutants, run none")
    options = parser.parse_args()

    kept: list[Mutant] = []
    if TABLE.exists():
        with TABLE.open() as file:
            for row in csv.DictReader(file):
                row |= {"line": int(row["line"]), "column": int(row["column"])}
                kept.append(Mutant(**row))
    again = [m for m in kept if options.again and m.result == options.again]
    done = {m.key for m in kept if m not in again}
    only = tuple(f"nnslicer_tf/{path}" for path in options.only.split(","))
    wanted = again or drawn(options.count, options.seed)
    wanted = [m for m in wanted if m.key not in done and m.file.startswith(only)]
    if options.list:
        for mutant in wanted:
            print(f"{mutant.file}:{mutant.line}: {mutant.before!r} → {mutant.after!r}")
        return

    results = {m.key: m for m in kept}

    def save(mutant: Mutant) -> None:
        results[mutant.key] = mutant
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, [f.name for f in fields(Mutant)], lineterminator="\n")
            writer.writeheader()
            writer.writerows(asdict(m) for m in results.values())

    warm_up()
    with tempfile.TemporaryDirectory() as folder:
        copies = [Path(folder) / str(index) for index in range(options.jobs)]
        for copy in copies:
            shutil.copytree(ROOT / "nnslicer_tf", copy / "nnslicer_tf")
        running: dict[int, tuple[Mutant, Path, float]] = {}
        queue = list(reversed(wanted))
        while queue or running:
            while queue and len(running) < options.jobs:
                copy = next(c for c in copies if c not in [c for _, c, _ in running.values()])
                mutant = queue.pop()
                (copy / mutant.file).write_text(mutated(mutant))
                pid = start(copy, tests_of(mutant.file), copy / "log")
                running[pid] = mutant, copy, time.monotonic()
            time.sleep(0.1)
            for pid, (mutant, copy, began) in list(running.items()):
                seconds = time.monotonic() - began
                over, status = os.waitpid(pid, os.WNOHANG)
                late = seconds > LIMIT
                if not over and not late:
                    continue
                if not over:
                    os.killpg(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                failed = [
                    line.removeprefix("FAILED ").removeprefix("ERROR ").partition(" - ")[0]
                    for line in (copy / "log").read_text().splitlines()
                    if line.startswith(("FAILED ", "ERROR "))
                ]
                result = "timeout" if not over else "killed" if status else "survived"
                row = {**asdict(mutant), "result": result, "seconds": round(seconds, 1)}
                save(Mutant(**{**row, "test": failed[0] if failed else ""}))
                shutil.copy2(ROOT / mutant.file, copy / mutant.file)
                del running[pid]
                where = f"{mutant.file}:{mutant.line}"
                print(f"{result:8} {seconds:5.1f} s {where}: {mutant.before!r} → {mutant.after!r}")
                sys.stdout.flush()
        # A survivor shows that its tests pass; the others have to without a change.
        passed = {tuple(tests_of(m.file)) for m in results.values() if m.result == "survived"}
        every = set() if options.only else {tuple(tests_of(m.file)) for m in results.values()}
        for tests in sorted(every - passed):
            _, status = os.waitpid(start(copies[0], list(tests), copies[0] / "log"), 0)
            print("fail" if status else "pass", "without a change:", *tests, flush=True)
    counts = [m.result for m in results.values()]
    print({result: counts.count(result) for result in sorted(set(counts))})


if __name__ == "__main__":
    main()
