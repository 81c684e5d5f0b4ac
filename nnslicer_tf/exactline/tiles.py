"""The walk of planes: tiles of a mesh that the operations' bends cut, one operation at a time.

The public interface is in `plane`, which also explains the method.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from nnslicer_tf.errors import NonFiniteActivationError, UnsupportedLayerError
from nnslicer_tf.exactline._polygon import Plane
from nnslicer_tf.exactline._program import LineProgram, LineStep
from nnslicer_tf.exactline._tiles import FinishedTiles
from nnslicer_tf.exactline.bends import BendingTransformer, Bends
from nnslicer_tf.exactline.mesh import MOST_TAPS, Mesh, Search, cut
from nnslicer_tf.exactline.points import Points

TILE = 1 << 20  # live float64 values in a tile: 8 MB
FEWEST = 128  # smallest number of vertices in a tile, as each cut doubles those on its seam
_NOISE = 1e-12  # values nearer than this, relative to an operation's largest, count as equal
_PROBES = 16  # points inside the polygon at which the size of values is measured


class PlaneWalk:
    """Walks a network through one plane and collects finished tiles."""

    def __init__(
        self, program: LineProgram, plane: Plane, scale: np.ndarray, finished: FinishedTiles
    ) -> None:
        self._program = program
        self._plane = plane
        self._scale = scale
        self._finished = finished
        self._tolerances = _tolerances(program, plane)

    def first(self) -> "_Tile":
        """Return the whole polygon."""
        plane = self._plane
        values = {self._program.input: Points.of(plane.at(plane.corners))}
        return _Tile("", Mesh.polygon(plane.corners / self._scale), values)

    def finish(self, tile: "_Tile", waiting: list["_Tile"]) -> None:
        """Walk a tile to the end, appending tiles that are split off on the way to the list."""
        if self._finished.has(tile.path):
            return
        while tile.next_step < len(self._program.steps):
            if tile.is_large:
                tile, second = tile.split()
                waiting.append(second)
                if self._finished.has(tile.path):
                    return
            else:
                self._advance(tile)
        self._finished.add(tile.path, tile.mesh, tile.values[self._program.output].samples())

    def _advance(self, tile: "_Tile") -> None:
        """Run one step, or part of one that cuts many faces."""
        step = self._program.steps[tile.next_step]
        if tile.search is not None:
            tile.cut(tile.search)
        elif isinstance(step.transformer, BendingTransformer):
            window = step.transformer.window(*tile.inputs(step))
            bends = step.transformer.bends
            tile.begin(bends, window, self._tolerances[step.name])
            if bends.taps > 1:
                # Between old vertices, groups that do not bend there have affine outputs.
                tile.values[step.name] = step.transformer.finish(window)
            else:
                tile.values[step.name] = window
        else:
            tile.values[step.name] = step.transformer(*tile.inputs(step))
            tile.next_step += 1
        search = tile.search
        if search is None or len(search.waiting):
            return
        if isinstance(step.transformer, BendingTransformer):
            tile.values[step.name] = _finished(step.transformer, tile.values[step.name], search)
        tile.search = None
        tile.next_step += 1


def _finished(transformer: BendingTransformer, values: Points, search: Search) -> Points:
    """Return an operation's output in a mesh that its bends have cut.

    Args:
        transformer: The operation.
        values: For an element-wise function, its inputs. Otherwise the outputs before the cut,
            interpolated at new vertices; only the groups that bend differ from them.
        search: The groups that bend.
    """
    if search.taps == 1:
        return transformer.finish(values)
    position, channel = np.divmod(search.groups, values.channels)
    values.by_position[position, :, channel] = transformer.finish(search.values).values.T
    return values


@dataclass
class _Tile:
    """Some faces of the plane, with the values at their vertices that later steps need.

    Attributes:
        path: How it was split off: "" for the whole polygon, then "0" or "1" for each split.
        mesh: The faces.
        values: Operation name → values at the vertices.
        next_step: Index of the next step.
        search: The bends of this step, while they cut faces.
    """

    path: str
    mesh: Mesh
    values: dict[str, Points]
    next_step: int = 0
    search: Search | None = None

    @property
    def _limit(self) -> int:
        """Number of vertices above which the tile counts as large."""
        live = [*self.values.values(), *([] if self.search is None else [self.search.values])]
        width = sum(points.positions * points.channels for points in live)
        return max(FEWEST, TILE // width)

    @property
    def is_large(self) -> bool:
        """Whether the tile should and can be split in two."""
        return len(self.mesh.keys) > self._limit and len(self.mesh) > 1

    def inputs(self, step: LineStep) -> list[Points]:
        """Return the inputs of a step, and drop those that no later step needs."""
        inputs = [self.values[name] for name in step.inputs]
        for name in step.dead:
            del self.values[name]
        return inputs

    def begin(self, bends: Bends, window: Points, tolerance: float) -> None:
        """Start the search for the bends of a step."""
        self.search = Search.of(window, bends, tolerance)
        self.mesh = self.mesh.with_new_edge_keys()

    def cut(self, search: Search) -> None:
        """Cut the faces along waiting bends, as many as there is room for."""
        limit = self._limit
        room = max(limit - len(self.mesh.keys), limit // 4)
        new, waiting = cut(self.mesh, search, room)
        if new is None:
            self.search = replace(search, waiting=waiting)
            return
        self.mesh = new.mesh
        self.values = {name: new.apply(points) for name, points in self.values.items()}
        self.search = search.applied(new, waiting)

    def split(self) -> tuple["_Tile", "_Tile"]:
        """Return two halves."""
        first, second = (self._part(*half) for half in zip("01", self.mesh.halves(), strict=True))
        return first, second

    def _part(self, name: str, faces: np.ndarray) -> "_Tile":
        mesh, used = self.mesh.part(faces)
        return replace(
            self,
            path=self.path + name,
            mesh=mesh,
            values={name: points.take(used) for name, points in self.values.items()},
            search=None if self.search is None else self.search.take(used),
        )


def check_taps(step: LineStep) -> None:
    """Reject a maximum of too many values for their winners to fit an integer."""
    if not isinstance(step.transformer, BendingTransformer):
        return
    bends = step.transformer.bends
    values = bends.taps + int(np.isfinite(bends.floors).any())
    if values > MOST_TAPS:
        raise UnsupportedLayerError(
            f"Operation '{step.name}' is a maximum of {values} values. Planes take maxima of "
            f"{MOST_TAPS} at most; a ReLU before or after it counts as one, unless fuse=False."
        )


def _tolerances(program: LineProgram, plane: Plane) -> dict[str, float]:
    """Return for each step that bends the difference within which its values count as equal."""
    corners = plane.at(plane.corners)
    shares = np.random.default_rng(0).dirichlet(np.ones(len(corners)), _PROBES)
    x = np.concatenate([corners, np.tensordot(shares, corners, axes=1)])
    tolerances = {}

    def measure(step: LineStep, window: Points) -> None:
        tolerances[step.name] = _NOISE * float(np.abs(window.values).max())

    values = forward(program, x, measure)
    if not np.isfinite(values[program.output].values).all():
        raise NonFiniteActivationError(
            "The network's output on the polygon is NaN or infinite. Check the weights."
        )
    return tolerances


def forward(
    program: LineProgram,
    x: np.ndarray,
    see: Callable[[LineStep, Points], None] = lambda step, window: None,
) -> dict[str, Points]:
    """Return the output at points `(points, *input shape)`, by name.

    Args:
        program: The steps.
        x: The points.
        see: Called with every step that bends and its input values.
    """
    values = {program.input: Points.of(x)}
    for step in program.steps:
        inputs = [values[name] for name in step.inputs]
        if isinstance(step.transformer, BendingTransformer):
            window = step.transformer.window(*inputs)
            see(step, window)
            values[step.name] = step.transformer.finish(window)
        else:
            values[step.name] = step.transformer(*inputs)
        for name in step.dead:
            del values[name]
    return values
