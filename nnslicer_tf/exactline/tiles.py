"""The walk through a plane: each operation's bends cut tiles of a mesh (see `plane`)."""

from dataclasses import dataclass, field, replace
from threading import Lock

import numpy as np

from nnslicer_tf._checks import counted
from nnslicer_tf._environment import progress_bar
from nnslicer_tf._kernels.compiled import is_compiled
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import NonFiniteActivationError, TooManyRegionsError
from nnslicer_tf.exactline._kernels.mesh_cuts import cut_faces
from nnslicer_tf.exactline.bends import BendingTransformer
from nnslicer_tf.exactline.mesh import Mesh, Search, cut
from nnslicer_tf.exactline.pieces import run_splitting
from nnslicer_tf.exactline.planar_partition import Plane
from nnslicer_tf.exactline.points import Points
from nnslicer_tf.exactline.program import LineProgram, LineStep

TILE = 1 << 20  # Number of live float64 values in a tile: 8 MB
FEWEST = 128  # Smallest number of vertices in a tile, as each cut doubles those on its seam
_NOISE = 1e-12  # values nearer than this, relative to an operation's largest, count as equal
_PROBES = 16  # points inside the polygon at which the size of values is measured


def walk_plane(
    program: LineProgram, plane: Plane, finished: "FinishedTiles", scale: np.ndarray, workers: int
) -> None:
    """Walk a network through one plane, and add all tiles to `finished`.

    Mesh coordinates are the plane's divided by `scale`, `(2,)`; 0 workers are one per core. Raises
    NonFiniteActivationError if outputs are NaN or infinite, and the errors of `FinishedTiles`.
    """
    # The size of the values of each step.
    corners = plane.at(plane.corners)
    shares = np.random.default_rng(0).dirichlet(np.ones(len(corners)), _PROBES)
    x = np.concatenate([corners, np.tensordot(shares, corners, axes=1)])
    outputs, sizes = forward(program, x)
    _check_finite(outputs)

    def advance(tile: Tile) -> bool:
        """Run one step, or part of one that cuts many faces."""
        if tile.path in finished.whole:
            return False
        if not tile.steps:
            finished.add(tile.path, tile.mesh, tile.values[program.output].samples())
            return False
        step = tile.steps[0]
        bending = step.transformer if isinstance(step.transformer, BendingTransformer) else None
        if tile.search is not None:
            tile.cut(tile.search)
        else:
            inputs = [tile.values[name] for name in step.inputs]
            for name in step.dead:
                del tile.values[name]
            if bending is None:
                tile.values[step.name] = step.transformer(*inputs)
            else:
                window = bending.window(*inputs)
                tile.search = Search.of(window, bending.bends, _NOISE * sizes[step.name])
                tile.mesh = tile.mesh.with_new_edge_keys()
                # Between old vertices, groups that do not bend there have affine outputs.
                tile.values[step.name] = window if tile.search.taps == 1 else bending.finish(window)
        if tile.search is not None and len(tile.search.waiting):
            return True
        if tile.search is not None and bending is not None:
            values = tile.values[step.name]
            if tile.search.taps == 1:
                tile.values[step.name] = bending.finish(values)
            else:  # only the groups that bend differ from what was interpolated
                position, channel = np.divmod(tile.search.groups, values.channels)
                maxima = bending.finish(tile.search.values).values
                values.by_position[position, :, channel] = maxima.T
        tile.search = None
        tile.steps = tile.steps[1:]
        return True

    values = {program.input: Points.of(corners)}
    mesh = Mesh.of(plane.corners / scale, np.array([0, len(corners)]), np.arange(len(corners)))
    run_splitting(Tile("", mesh, values, program.steps, finished.whole), advance, workers)


def forward(program: LineProgram, x: np.ndarray) -> tuple[np.ndarray, dict[str, float]]:
    """Return the outputs `(points, outputs)`, and the largest value of each step that bends."""
    values, sizes = {program.input: Points.of(x)}, {}
    for step in program.steps:
        inputs = [values[name] for name in step.inputs]
        if isinstance(step.transformer, BendingTransformer):
            window = step.transformer.window(*inputs)
            sizes[step.name] = float(np.abs(window.values).max())
            values[step.name] = step.transformer.finish(window)
        else:
            values[step.name] = step.transformer(*inputs)
        for name in step.dead:
            del values[name]
    return values[program.output].samples(), sizes


@dataclass
class Tile:
    """Some faces of the plane, with the values at their vertices that later steps need."""

    path: str  # "" for the whole polygon, with "0" or "1" appended for each split
    mesh: Mesh
    values: dict[str, Points]  # by name of operation
    steps: tuple[LineStep, ...]  # the remaining steps
    finished: set[str] = field(repr=False)  # paths of tiles to skip
    search: Search | None = None  # the next step's bends, while they cut faces

    @property
    def _limit(self) -> int:
        """Number of vertices above which the tile counts as large."""
        live = [*self.values.values(), *([] if self.search is None else [self.search.values])]
        return max(FEWEST, TILE // sum(points.positions * points.channels for points in live))

    @property
    def is_large(self) -> bool:
        """Whether it is unfinished, and should and can be split in two."""
        if not self.steps or self.path in self.finished:
            return False
        return len(self.mesh.keys) > self._limit and self.mesh.faces > 1

    def cut(self, search: Search) -> None:
        """Cut the faces along waiting bends, as many as there is room for."""
        limit = self._limit
        new = cut(self.mesh, search, max(limit - len(self.mesh.keys), limit // 4))
        self.mesh, self.search = new.mesh, new.search
        if len(new.weights) or new.used is not None:
            self.values = {name: new.apply(points) for name, points in self.values.items()}

    def split(self) -> tuple["Tile", "Tile"]:
        """Return two halves."""

        def part(name: str, faces: np.ndarray) -> Tile:
            mesh, used = self.mesh.part(faces)
            values = {name: points.take(used) for name, points in self.values.items()}
            search = self.search and self.search._replace(values=self.search.values.take(used))
            return replace(self, path=self.path + name, mesh=mesh, values=values, search=search)

        first, second = self.mesh.halves()
        return part("0", first), part("1", second)


class FinishedTiles:
    """The finished tiles of a plane, in memory and, with a `store`, in a checkpoint.

    A tile's path records its splits, so that a resumed run recognises finished tiles. `whole` has
    their paths, and those of tiles whose halves are both finished. More than `most` regions, in the
    checkpoint or later, raise TooManyRegionsError.
    """

    def __init__(self, area: float, store: Store | None, most: int | None, progress: bool) -> None:
        self.whole: set[str] = set()
        self._store, self._most = store, most
        self._tiles: dict[str, tuple[Mesh, np.ndarray]] = {}
        self._regions = 0
        self._share = 0.0
        self._area = area
        self._lock = Lock()
        desc = "Plane" if is_compiled(cut_faces) else "Compiling"
        self._bar = progress_bar(desc, 100, progress, unit="%")
        for key in [] if store is None else store.keys():
            with store.open(key) as file:  # type: ignore[union-attr]  # there are keys
                mesh = Mesh(
                    file.array("places", np.float64, "vertices 2"),
                    file.array("keys", np.uint64, "vertices"),
                    file.array("start", np.int64, "starts"),
                    file.array("loop", np.int64, "corners"),
                    file.array("edge_keys", np.uint64, "corners"),
                )
                self._add(key[1:], mesh, file.array("outputs", np.floating, "vertices *"))
        self._check_count()

    def close(self) -> None:
        """Remove the progress bar."""
        self._bar.close()

    def add(self, path: str, mesh: Mesh, outputs: np.ndarray) -> None:
        """Add a tile's faces, with outputs `(vertices, outputs)`, which must be finite."""
        _check_finite(outputs)
        with self._lock:
            self._bar.set_description("Plane", refresh=False)
            self._add(path, mesh, outputs)
            if self._store is not None:
                self._store.save(f"t{path}", {}, {**mesh._asdict(), "outputs": outputs})
            self._check_count()

    def joined(self) -> tuple[Mesh, np.ndarray]:
        """Return the faces of all tiles, merging shared vertices, and the outputs."""
        meshes, outputs = zip(*(self._tiles[path] for path in sorted(self._tiles)), strict=True)
        places, all_keys, starts, loops, edge_keys = zip(*meshes, strict=True)
        unsorted = np.concatenate(all_keys)
        keys, first, index = np.unique(unsorted, return_index=True, return_inverse=True)
        begins = np.cumsum([0, *map(len, places)])
        loop = np.concatenate([own + begin for own, begin in zip(loops, begins, strict=False)])
        start = np.append(0, np.cumsum(np.concatenate([*map(np.diff, starts)])))
        vertices, values = np.concatenate(places)[first], np.concatenate(outputs)[first]
        return Mesh(vertices, keys, start, index[loop], np.concatenate(edge_keys)), values

    def _check_count(self) -> None:
        if self._most is not None and self._regions > self._most:
            raise TooManyRegionsError(
                f"The polygon has more than {counted(self._most, 'region')}: {self._regions:,} "
                f"were found in {100 * self._share:.3g} % of its area. Choose a smaller polygon "
                "or a larger max_regions."
            )

    def _add(self, path: str, mesh: Mesh, outputs: np.ndarray) -> None:
        self._tiles[path] = mesh, outputs
        self._regions += mesh.faces
        share = mesh.areas().sum() / self._area
        self._share += share
        self._bar.update(min(100 * share, 100 - self._bar.n))  # but for rounding, all of 100
        self._bar.set_postfix_str(counted(self._regions, "region"), refresh=False)
        self.whole.add(path)
        while path and path[:-1] + ("1" if path[-1] == "0" else "0") in self.whole:
            path = path[:-1]
            self.whole.add(path)


def _check_finite(outputs: np.ndarray) -> None:
    if not np.isfinite(outputs).all():
        raise NonFiniteActivationError(
            "The network's output on the polygon is NaN or infinite. Check the weights."
        )
