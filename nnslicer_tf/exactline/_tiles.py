"""`FinishedTiles`: collects the finished tiles of a plane, in memory and in a checkpoint."""

from threading import Lock
from types import TracebackType

import numpy as np
from tqdm.auto import tqdm

from nnslicer_tf._kernels.compiled import is_compiled
from nnslicer_tf.engine import Store
from nnslicer_tf.errors import NonFiniteActivationError, TooManyRegionsError
from nnslicer_tf.exactline._kernels import mesh_queries
from nnslicer_tf.exactline._kernels.mesh_faces import cut_faces
from nnslicer_tf.exactline.mesh import Mesh


class FinishedTiles:
    """The finished tiles of a plane; used as a context manager that shows progress.

    A tile's path records how it was split off, so that a resumed run recognises finished tiles;
    a tile is also finished if both its halves are.

    Args:
        area: Area of all tiles.
        store: Where tiles are kept; None keeps them in memory only.
        most: Largest number of regions; None for no limit.
        progress: Whether to show a progress bar.
    """

    def __init__(self, area: float, store: Store | None, most: int | None, progress: bool) -> None:
        self._store = store
        self._most = most
        self._tiles: dict[str, tuple[Mesh, np.ndarray]] = {}
        self._whole: set[str] = set()
        self._regions = 0
        self._area = 0.0
        self._total = area
        self._lock = Lock()
        desc = "Plane" if is_compiled(cut_faces) else "Compiling"
        self._bar = tqdm(total=100, desc=desc, unit="%", disable=not progress, leave=False)
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

    def __enter__(self) -> "FinishedTiles":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._bar.close()

    def has(self, path: str) -> bool:
        """Return whether a tile and all that was split off from it are finished."""
        return path in self._whole

    def add(self, path: str, mesh: Mesh, outputs: np.ndarray) -> None:
        """Add a tile.

        Args:
            path: How it was split off.
            mesh: Its faces.
            outputs: `(vertices, outputs)`.

        Raises:
            TooManyRegionsError: if there are too many regions by now.
            NonFiniteActivationError: if an output is NaN or infinite.
        """
        if not np.isfinite(outputs).all():
            raise NonFiniteActivationError(
                "The network's output on the polygon is NaN or infinite. Check the weights."
            )
        with self._lock:
            self._bar.set_description("Plane", refresh=False)
            self._add(path, mesh, outputs)
            if self._store is not None:
                arrays = {name: getattr(mesh, name) for name in mesh.__dataclass_fields__}
                self._store.save(f"t{path}", {}, {**arrays, "outputs": outputs})
            self.check_count()

    def check_count(self) -> None:
        """Raise an error if there are too many regions, perhaps already in the checkpoint.

        Raises:
            TooManyRegionsError: if there are more than the limit.
        """
        if self._most is not None and self._regions > self._most:
            raise TooManyRegionsError(
                f"The polygon has more than {self._most:,} regions: {self._regions:,} were "
                f"found in {100 * self._share:.3g} % of its area. Choose a smaller polygon, "
                "or a larger max_regions, or boundary_only=True."
            )

    def joined(self) -> tuple[Mesh, np.ndarray]:
        """Return the faces of all tiles, merging shared vertices, and the outputs."""
        tiles = [self._tiles[path] for path in sorted(self._tiles)]
        meshes = [mesh for mesh, _ in tiles]
        keys, first, index = np.unique(
            np.concatenate([mesh.keys for mesh in meshes]), return_index=True, return_inverse=True
        )
        begins = np.cumsum([0, *(len(mesh.keys) for mesh in meshes)])
        corners = np.cumsum([0, *(len(mesh.loop) for mesh in meshes)])
        loops = [mesh.loop + begin for mesh, begin in zip(meshes, begins, strict=False)]
        starts = [mesh.start[:-1] + begin for mesh, begin in zip(meshes, corners, strict=False)]
        mesh = Mesh(
            np.concatenate([mesh.places for mesh in meshes])[first],
            keys,
            np.concatenate([*starts, corners[-1:]]),
            index[np.concatenate(loops)],
            np.concatenate([mesh.edge_keys for mesh in meshes]),
        )
        return mesh, np.concatenate([outputs for _, outputs in tiles])[first]

    @property
    def _share(self) -> float:
        return self._area / self._total

    def _add(self, path: str, mesh: Mesh, outputs: np.ndarray) -> None:
        before = self._share
        self._tiles[path] = mesh, outputs
        self._regions += len(mesh)
        self._area += mesh_queries.areas(mesh.places, mesh.start, mesh.loop).sum()
        self._bar.update(100 * (self._share - before))
        self._bar.set_postfix_str(f"{self._regions:,} regions")
        self._whole.add(path)
        while path:
            other = path[:-1] + ("1" if path[-1] == "0" else "0")
            if other not in self._whole:
                break
            path = path[:-1]
            self._whole.add(path)
