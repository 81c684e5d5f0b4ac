"""Activation patching and path patching: what happens if one part takes another run's values?

Two runs of one model, on a *clean* and a *corrupt* sample that differ in what matters: one part
after another (a position, head, channel) of one run is given its value from the other, and the
target's score is read (Vig et al., NeurIPS 2020; Meng et al., "ROME", NeurIPS 2022). Path patching
(Wang et al., "IOI", ICLR 2023; Goldowsky-Dill et al., 2023) lets a sender act on one receiver only.

Cost: a forward pass for each part, in batches; two runs and two compiled functions for a path.
"""

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from nnslicer_tf._checks import check_name, names_of
from nnslicer_tf._environment import track
from nnslicer_tf._tables import ShownAsTable
from nnslicer_tf.errors import InvalidArgumentError, NNSlicerError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean, Operation, instrumented
from nnslicer_tf.instrument.ablated_network import projections_of_heads
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.instrument.references import values_of
from nnslicer_tf.instrument.target import Target, TargetLike, predicted_target, resolve_target
from nnslicer_tf.slicing.explaining import one_sample

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes

SWEEPS = ("operation", "position", "head", "head and position", "channel")
_CHUNK = 64
_MOST = 60  # labels on an axis of a picture


@dataclass(frozen=True, eq=False, repr=False)
class Patching(ShownAsTable):
    """The target's score with one part after another patched.

    Attributes:
        table: Columns operation; head, position, channel (those that were swept); score; and
            effect, (score − score of the patched run) / (score of the other run − score of the
            patched run): 0 if the part does nothing, 1 if it alone makes the whole difference.
        clean: The clean run's score.
        corrupt: The corrupt run's score.
        restore: Whether parts of the clean run were put into the corrupt one, else vice versa.
        target: What is scored.
    """

    table: "pd.DataFrame"
    clean: float
    corrupt: float
    restore: bool
    target: Target

    def to_frame(self) -> "pd.DataFrame":
        """Return the table."""
        return self.table

    def summary(self) -> str:
        """Return the two scores, and the parts with the largest effects."""
        run, other = ("corrupt", "clean") if self.restore else ("clean", "corrupt")
        best = self.table.reindex(self.table["effect"].abs().sort_values(ascending=False).index)
        rows = best.head(5).to_string(index=False, float_format="{:.3g}".format)
        return (
            f"Score {self.clean:.4g} in the clean run, {self.corrupt:.4g} in the corrupt run. "
            f"{len(self.table):,} parts of the {other} run were put into the {run} run, one at a "
            f"time. The largest effects:\n{rows}"
        )

    def plot(self, ax: "Axes | None" = None, labels: Sequence[str] = ()) -> "Axes":
        """Plot the effects: operations (and heads) as rows, positions or channels as columns.

        `labels` are names of the columns, such as words. Last columns without effect are left out.
        """
        from nnslicer_tf.report.figures import new_axes

        keys = [k for k in ("head", "position", "channel") if k in self.table]
        across = keys[-1] if keys else None
        rows = self.table["operation"].astype(str)
        if "head" in keys and across != "head":
            rows = rows + " " + self.table["head"].astype(str)
        places, found = rows.factorize()
        names = list(found)
        columns = self.table[across] if across else np.zeros(len(self.table), int)
        grid = np.full((len(names), int(np.max(columns)) + 1), np.nan)
        grid[places, columns] = self.table["effect"]
        most = max(1.0, float(np.nanmax(np.abs(grid))))
        used = np.flatnonzero((np.abs(np.nan_to_num(grid)) > 1e-4 * most).any(axis=0))
        grid = grid[:, : max(used.max(initial=0) + 1, len(labels))]
        width = 2 + 0.07 * max(map(len, names)) + 0.5 * min(grid.shape[1], 24)
        ax = new_axes(ax, (max(width, 5.5), 2 + 0.3 * min(len(names), 40)))
        image = ax.imshow(grid, cmap="RdBu", vmin=-most, vmax=most, aspect="auto")
        run, other = ("corrupt", "clean") if self.restore else ("clean", "corrupt")
        ax.patch.set(hatch="///", edgecolor="lightgrey")  # where there is nothing to patch
        for row, column in np.argwhere(np.abs(np.nan_to_num(grid)) >= 0.05):
            if grid.size <= 150:  # more have no room for numbers
                effect, at = grid[row, column], (column, row)
                colour = "white" if abs(effect) > 0.6 * most else "black"
                ax.annotate(f"{effect:.2g}", at, color=colour, ha="center", va="center", size=8)
        bar = ax.figure.colorbar(image, ax=ax, label="share of the difference in score")
        bar.set_ticks([0, 1], labels=[f"0: {run} run", f"1: {other} run"])
        bar.ax.set_ylim(min(0.0, float(np.nanmin(grid))), most)
        if len(names) <= _MOST:  # without the layers around all, and what is the same inside all
            outer = posixpath.commonpath(names) if len(names) > 1 else ""
            short = [name.removeprefix(f"{outer}/") for name in names]
            while len(ends := {posixpath.split(name) for name in short}) > 1 and all(
                head and tail == posixpath.basename(short[0]) for head, tail in ends
            ):
                short = [posixpath.dirname(name) for name in short]
            ax.set_yticks(range(len(names)), short, parse_math=False)
        ax.set(xlabel=across or "", ylabel="operation")
        if across and grid.shape[1] <= 24:
            shown = labels if len(labels) == grid.shape[1] else range(grid.shape[1])
            ax.set_xticks(range(grid.shape[1]), list(map(str, shown)))
            ax.tick_params("x", rotation=45 if len(labels) else 0)
        part = " and ".join(keys) or "operation"
        title = f"Which {part} of the {other} run, put into the {run} run\nalone, gives its answer?"
        ax.set_title(title, fontsize=10)
        return ax


def patch(
    model: ModelLike,
    clean: DataLike,
    corrupt: DataLike,
    target: TargetLike | None = None,
    *,
    instead_of: TargetLike | None = None,
    sweep: str = "position",
    operations: Sequence[str] | None = None,
    restore: bool = True,
    progress: bool = True,
) -> Patching:
    """Run one sample with one part after another taken from a run on another sample.

    Args:
        model: The model.
        clean: One sample, with or without an axis of samples.
        corrupt: The other.
        target: What is scored: all that attributions take. By default, the logit of the clean run's
            class less that of the corrupt run's, if they differ.
        instead_of: A class or neurons whose score is subtracted.
        sweep: What is patched at a time: an "operation" as a whole, one of its "position"s with all
            channels, a "head" (of attentions), a "head and position", or a "channel".
        operations: Names of the operations that are swept; by default all weighted sums, recurrent
            values and sums of residual paths, or the heads of all attentions.
        restore: Put clean values into the corrupt run (denoising: which parts are enough to restore
            the clean score?), or corrupt values into the clean run (noising: which are needed?).
        progress: Show a progress bar.

    Raises InvalidArgumentError for a sweep or operation that the model lacks, or equal scores;
    InputShapeError or NonFiniteActivationError for bad samples.
    """
    import pandas as pd

    im = instrumented(model)
    check_name("sweep", sweep, SWEEPS)
    runs, chosen, scores = _runs(im, clean, corrupt, target, instead_of)
    of = None if operations is None else names_of("operations", operations)
    names = _swept(im, chosen, sweep, of)
    own, other = (1, 0) if restore else (0, 1)
    weights = chosen.weights(im[chosen.operation].size)

    # The other run's values, and the groups of neurons that are patched together.
    values = values_of(im, runs[other], names)
    keys, groups = [], {}
    for name in names:
        parts = _parts(im[name], sweep)
        groups[name] = [members.tolist() for _, members in parts]
        keys += [{"operation": name, **key} for key, _ in parts]
    reference = Mean({name: values[name][0] for name in names})
    ablation = Ablation(im, reference, "neuron", target=chosen, of=names, groups=groups)
    found = []
    chunks = np.split(np.arange(len(keys)), range(_CHUNK, len(keys), _CHUNK))
    for chunk in track(chunks, "Patching", progress=progress):
        masks = np.ones((len(chunk), ablation.units), np.float32)
        masks[np.arange(len(chunk)), chunk] = 0  # units are the parts, in the same order
        rows = runs[own][np.zeros(len(chunk), int)]
        found.append(ablation.outputs(masks, rows).reshape(len(chunk), -1) @ weights)
    table = pd.DataFrame(keys)
    table["score"] = np.concatenate(found).astype(np.float64)
    table["effect"] = (table["score"] - scores[own]) / (scores[other] - scores[own])
    return Patching(table, scores[0], scores[1], restore, chosen)


def patch_path(
    model: ModelLike,
    clean: DataLike,
    corrupt: DataLike,
    sender: str | tuple[str, int],
    receiver: str | tuple[str, int],
    target: TargetLike | None = None,
    *,
    instead_of: TargetLike | None = None,
) -> float:
    """Return the effect of a sender on the target through one receiver alone.

    The clean run is repeated with the corrupt run's sender; all other heads, weighted sums and
    recurrent values keep their clean values, but for the receiver, which reads the changed ones.
    The receiver's new value is then put into the clean run.

    Sender and receiver, a later one, are names of operations, or (name, head) for one head of an
    attention's context; of a receiving head all that it reads is changed: queries, keys and values.
    The other arguments are those of `patch`.

    Returns (score − clean score) / (corrupt score − clean score); raises InvalidArgumentError if
    the receiver does not depend on the sender, or the scores are equal.
    """
    im = instrumented(model)
    runs, chosen, scores = _runs(im, clean, corrupt, target, instead_of)
    (start, of_start), (end, of_end) = (_named(im, part) for part in (sender, receiver))
    between = {o.name for o in im.graph.between([start], [end])}
    if end not in between:
        raise InvalidArgumentError(f"'{end}' does not depend on '{start}': there is no path.")
    inside = projections_of_heads(im)
    # An activation reads its own layer's sum.
    inside |= {n for n in between if n.partition(":")[0] == end.partition(":")[0]}
    frozen = [n for n in _units(im) if n in between and n not in inside]

    # The receiver's value where only the sender differs, and nothing passes through other parts.
    values, sent = values_of(im, runs[0], frozen), values_of(im, runs[1], [start])
    reference = Mean({**{n: values[n][0] for n in frozen}, start: sent[start][0]})
    whole = Target(end, tuple(range(im[end].size)), end)
    direct = Ablation(im, reference, "neuron", target=whole, of=[start, *frozen])
    mask = {name: np.zeros(im[name].shape) for name in frozen}
    mask[start] = ~of_start
    changed = direct.outputs(mask, runs[0])[0]

    if end != chosen.operation:
        last = Ablation(im, Mean({end: changed}), "neuron", target=chosen, of=[end])
        changed = last.outputs({end: ~of_end}, runs[0])
    score = float(changed.ravel() @ chosen.weights(im[chosen.operation].size))
    return (score - scores[0]) / (scores[1] - scores[0])


def _runs(
    im: InstrumentedModel, clean: DataLike, corrupt: DataLike, target: Any, instead_of: Any
) -> tuple[list[Any], Target, list[float]]:
    """Return the checked samples, the target and its scores, which differ."""
    im, runs = im.named_by(clean, corrupt), []
    for which, sample in (("clean", clean), ("corrupt", corrupt)):
        try:
            runs.append(one_sample(im, sample)[0])
        except NNSlicerError as error:
            raise type(error)(f"The {which} sample: {error}") from None
    if target is None:
        target, other = (predicted_target(im, im.logits(run)) for run in runs)
        if instead_of is None and other != target:
            instead_of = other
    chosen = resolve_target(im, target, instead_of)
    weights = chosen.weights(im[chosen.operation].size)
    values = (values_of(im, run, [chosen.operation])[chosen.operation] for run in runs)
    scores = [float(value.ravel() @ weights) for value in values]
    if np.isclose(scores[0], scores[1], rtol=1e-6, atol=1e-12):
        raise InvalidArgumentError(
            f"The target's score is {scores[0]:.4g} in both runs: there is nothing to explain. "
            "Choose samples, or a target, that differ."
        )
    return runs, chosen, scores


def _units(im: InstrumentedModel) -> list[str]:
    """Return weighted sums, recurrent values and heads: what paths lead through."""
    return [
        o.name
        for o in im.operations
        if o.kind == "weighted_sum"
        or isinstance(o.params, Member)
        or (o.heads is not None and o.heads.role == "context")
    ]


def _swept(
    im: InstrumentedModel, target: Target, sweep: str, names: Sequence[str] | None
) -> list[str]:
    """Return the checked operations of a sweep, in topological order."""
    reached = [o for o in im.graph.ancestors([target.operation]) if o.name != target.operation]
    by_head = sweep.startswith("head")
    heads = [o.name for o in reached if o.heads is not None and o.heads.role == "context"]
    if by_head and not (names or heads):
        raise InvalidArgumentError(f"'{im.model.name}' has no heads. Use sweep='channel'.")
    known = [o.name for o in reached]
    if names is None:
        units = {*_units(im)} - projections_of_heads(im)
        units |= {o.name for o in reached if o.kind == "add" and len(o.inputs) > 1}
        return heads if by_head else [name for name in known if name in units]
    if not names:
        raise InvalidArgumentError("operations is empty. Name at least one, or omit it.")
    for name in names:
        if name not in known:
            hint = "does not exist" if name not in im.graph.operations else "is not before it"
            raise InvalidArgumentError(
                f"Operation '{name}' {hint}; the target reads '{target.operation}'."
            )
        if by_head and im[name].heads is None:
            raise InvalidArgumentError(f"Operation '{name}' has no heads; swept: {heads}.")
    return [name for name in known if name in names]


def _parts(operation: Operation, sweep: str) -> list[tuple[dict[str, int], np.ndarray]]:
    """Return the parts of an operation that are patched together: their keys and neurons."""
    index = np.arange(operation.size).reshape(operation.shape)
    if sweep == "operation":
        return [({}, index.ravel())]
    if sweep == "channel":
        by_channel = index.reshape(-1, (operation.shape or (1,))[-1]).T
        return [({"channel": i}, members) for i, members in enumerate(by_channel)]
    heads = operation.heads
    together = heads.axes if heads is not None else ()
    axes = [axis for axis in range(index.ndim - 1) if axis not in together]
    rest = [axis for axis in range(index.ndim) if axis not in axes]
    positions = int(np.prod([operation.shape[axis] for axis in axes]))
    by_position = index.transpose(*axes, *rest).reshape(positions, -1)
    if sweep == "position":
        return [({"position": i}, members) for i, members in enumerate(by_position)]
    assert heads is not None
    of_heads = [heads.members(operation.shape, h).ravel() for h in range(heads.count)]
    if sweep == "head":
        return [({"head": h}, np.flatnonzero(members)) for h, members in enumerate(of_heads)]
    return [
        ({"head": h, "position": p}, neurons[members[neurons]])
        for h, members in enumerate(of_heads)
        for p, neurons in enumerate(by_position)
    ]


def _named(im: InstrumentedModel, part: str | tuple[str, int]) -> tuple[str, np.ndarray]:
    """Return an operation's name, and which of its neurons a part has."""
    name, head = (part, None) if isinstance(part, str) else part
    operation = im[name]
    if head is None:
        return name, np.ones(operation.shape, bool)
    count = 0 if operation.heads is None else operation.heads.count
    if not 0 <= head < count:
        raise InvalidArgumentError(f"Operation '{name}' has {count} heads. Received: {head}")
    return name, operation.heads.members(operation.shape, head)
