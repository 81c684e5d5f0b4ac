"""`Profile`: the mean activation of every neuron (NNSlicer, section 4.2).

Time: one pass over the data. Memory: one float64 mean per neuron, up to 100 samples, and one batch
of activations, whatever the size of the data set.
"""

import os
import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from nnslicer_tf._checks import check_count, check_name, counted
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable, arrays_frame
from nnslicer_tf.errors import ProfileMismatchError

if TYPE_CHECKING:  # saved profiles can be displayed without Keras
    import pandas as pd

    from nnslicer_tf.instrument import InstrumentedModel
    from nnslicer_tf.instrument.data import DataLike
    from nnslicer_tf.instrument.model import ModelLike

_FORMAT = "nnslicer_tf profile 1"
POSITIONS = ("each", "pooled")
_ROW_BYTES = 64 << 20


@dataclass(eq=False, repr=False)
class Profile(ShownAsTable):
    """Mean activation of every neuron over a data set.

    Attributes:
        means: Operation name → float64 array of the operation's shape.
        samples: Number of samples that were averaged.
        fingerprint: Fingerprint of the profiled model.
        input_range: Smallest and largest value of the samples; None for several inputs.
        positions: "each": every neuron has its own mean; "pooled": the neurons of operations
            with a mask (`Operation.mask`) share their means over all positions.
        input_means: Smallest and largest mean of a single sample's values; None without an
            `input_range` and in files of older versions.
        columns: Names of a table's columns; empty for other data.
        own_code: What `InstrumentedModel.own_code` was; "" in files of older versions.
        rows: Input operation → some of the profiled samples, `(rows, *input shape)` float32: the
            other samples of a certificate's scope, and the background of explanations. Empty in
            files of older versions. In this form all analyses take them as data.
    """

    means: dict[str, np.ndarray]
    samples: int
    fingerprint: str
    input_range: tuple[float, float] | None = None
    positions: str = "each"
    input_means: tuple[float, float] | None = None
    columns: tuple[str, ...] = ()
    own_code: str = ""
    rows: dict[str, np.ndarray] = field(default_factory=dict)

    @classmethod
    def from_data(
        cls,
        im: "ModelLike",
        data: "DataLike",
        batch_size: int = 256,
        progress: bool = True,
        positions: str | None = None,
        rows: int = 100,
    ) -> "Profile":
        """Profile a model. Padding is left out of all means.

        Args:
            im: The model; a Keras model is instrumented.
            data: Samples `(samples, *input_shape)`, a `DataLike`; the paper's are the training set.
            batch_size: Samples in one forward pass.
            progress: Show a progress bar.
            positions: For operations with a mask: "pooled" (the default), one mean over all
                positions, or "each", a mean for each position (of all positions where every sample
                is padded). Neurons with the same value in every sample, such as those of a first
                token that never changes, causal attention's scores and probabilities, and all
                operations without a mask, have a mean for each position.
            rows: How many samples the profile keeps as well, at most 64 MiB of them. They are drawn
                with a fixed seed, whatever the batch size; 0 keeps none, as private data may need.

        Raises InvalidArgumentError, InputShapeError or NonFiniteActivationError for bad data.
        """
        # Imported here, because loading a profile needs none of these.
        from nnslicer_tf.instrument import instrumented

        check_count("rows", rows, 0)
        im = instrumented(im, data)
        masks = {o.name: o.mask for o in im.operations if o.mask}
        positions = ("pooled" if masks else "each") if positions is None else positions
        check_name("positions", positions, POSITIONS)
        sums = {operation.name: np.zeros(operation.shape) for operation in im.operations}
        counts = {name: np.zeros_like(sums[name]) for name in masks}
        # Least and largest values, by which constant neurons are recognised.
        extremes = {n: [np.full_like(sums[n], end) for end in (np.inf, -np.inf)] for n in masks}
        opened = im.samples(data)
        samples = 0
        ranges = np.array([[np.inf, -np.inf]] * 2)  # of values, and of the samples' means
        # Rows are the samples with the smallest random keys: the same for every batch size.
        rng, keys = np.random.default_rng(0), np.zeros(0)
        kept = {name: np.zeros((0, *im[name].shape), np.float32) for name in im.input_operations}
        rows = min(rows, _ROW_BYTES // max(1, 4 * sum(im[name].size for name in kept)))
        for activations in im.capture_batches(opened, batch_size, progress=progress):
            for name, values in activations.items():
                if name in masks:
                    mask = activations[masks[name]]
                    present = mask.reshape(*mask.shape, *(1,) * (values.ndim - mask.ndim)) > 0
                    low, high = extremes[name]
                    np.minimum(low, np.where(present, values, np.inf).min(axis=0), out=low)
                    np.maximum(high, np.where(present, values, -np.inf).max(axis=0), out=high)
                    values = np.where(present, values, 0)
                    counts[name] += present.sum(axis=0)
                sums[name] += values.sum(axis=0, dtype=np.float64)
            batch = activations[im.input_operations[0]]
            samples += len(batch)
            keys = np.append(keys, rng.random(len(batch)))
            chosen = np.sort(np.argsort(keys)[:rows])
            keys = keys[chosen]
            for name, rows_of in kept.items():
                kept[name] = np.concatenate([rows_of, activations[name]])[chosen]
            of_samples = batch.reshape(len(batch), -1).mean(axis=1, dtype=np.float64)
            for pair, values in zip(ranges, (batch, of_samples), strict=True):
                pair[:] = min(pair[0], values.min()), max(pair[1], values.max())

        means = {}
        for name, total in sums.items():
            if name not in masks:
                means[name] = total / samples
                continue
            # Neurons that not every sample has; those that none has get the mean over positions.
            axes = tuple(a for a, extent in enumerate(im[masks[name]].shape) if extent > 1)
            count = counts[name]
            of_all = count.sum(axis=axes, keepdims=True)
            pooled = total.sum(axis=axes, keepdims=True) / np.maximum(of_all, 1)
            # A causal mask makes positions unequal: the first row of an attention is always 1.
            is_causal = im[masks[name]].params is not None
            # Nor does a position vary at which all samples have the same token.
            low, high = extremes[name]
            with np.errstate(invalid="ignore"):
                varies = (count < samples) | (high - low > 1e-6 * np.abs(high))
            rank = len(im[masks[name]].shape)
            of_position = varies.any(axis=tuple(range(rank, varies.ndim)), keepdims=True)
            is_constant = ~of_position & (samples > 1)
            known = (count > 0) & (is_constant | (positions == "each" or is_causal))
            means[name] = np.where(known, total / np.maximum(count, 1), pooled)
        seen: list[tuple[float, float] | None] = [None, None]  # those of tokens mean nothing
        if len(im.input_operations) == 1 and im.graph.vocabulary(im.input_operation) is None:
            seen = [(float(low), float(high)) for low, high in ranges]
        of_data = seen[0], positions, seen[1], opened.columns
        return cls(means, samples, im.fingerprint, *of_data, im.own_code, kept if rows else {})

    def per_channel(self) -> "Profile":
        """Return a profile with the mean of each channel at all its positions.

        The means of single positions differ most near the borders of images.
        """
        means = {}
        for name, mean in self.means.items():
            of_channels = mean.reshape(-1, *mean.shape[-1:]).mean(axis=0)
            means[name] = np.broadcast_to(of_channels, mean.shape).copy()
        return replace(self, means=means, positions="pooled")

    def check_model(self, im: "InstrumentedModel") -> None:
        """Raise ProfileMismatchError unless the model has the profiled weights and operations."""
        from nnslicer_tf.instrument.fingerprint import same_model

        if self.fingerprint != im.fingerprint:
            raise ProfileMismatchError(
                f"The profile belongs to a different model (fingerprint {self.fingerprint[:12]}…) "
                f"than '{im.model.name}' ({im.fingerprint[:12]}…): architecture or weights differ. "
                "Profile this model with Profile.from_data."
            )
        if not same_model(f"- - {self.own_code}", f"- - {im.own_code}"):
            raise ProfileMismatchError(
                f"The code of a layer of '{im.model.name}', or a setting that it reads, is another "
                "than in the profiled model. Profile this model with Profile.from_data."
            )
        names, known = [o.name for o in im.operations], [*self.means]
        if known != names:  # the same ones in another order are those of other layers, too
            first = next((n for n, k in zip(names, known, strict=False) if n != k), names[-1])
            raise ProfileMismatchError(
                f"The profile is of an equal model whose operations have other names ({first!r} is "
                "the first). Name the layers explicitly, or load the profiled model's file."
            )
        for operation in im.operations:
            shape = np.shape(self.means[operation.name])
            if shape != tuple(operation.shape):
                raise ProfileMismatchError(
                    f"The profile's means of '{operation.name}' have shape {shape}, expected "
                    f"{operation.shape}. Profile this model with Profile.from_data."
                )

    def to_frame(self) -> "pd.DataFrame":
        """Return a table with one row per operation: shape, and statistics of the means."""
        return arrays_frame(self.means)

    def save(self, path: str | os.PathLike) -> None:
        """Write the profile to an .npz file, replacing an older one only when it is complete."""
        header = {
            "samples": self.samples,
            "fingerprint": self.fingerprint,
            "operations": list(self.means),
            "input_range": self.input_range,
            "positions": self.positions,
            "input_means": self.input_means,
            "columns": list(self.columns),
            "own_code": self.own_code,
            "rows": list(self.rows),
            "kept": len(next(iter(self.rows.values()), ())),
        }
        means = [np.asarray(mean, np.float64) for mean in self.means.values()]
        arrays = {f"mean{i}": mean for i, mean in enumerate(means)}
        arrays |= {f"rows{i}": np.asarray(v, np.float32) for i, v in enumerate(self.rows.values())}
        write_archive(path, _FORMAT, header, arrays)

    @classmethod
    def load(cls, path: str | os.PathLike) -> "Profile":
        """Read a profile; raise MissingFileError, or CorruptFileError if it is damaged."""
        with read_archive(path, _FORMAT, "profile") as file:
            samples = file.value("samples", int, least=1)
            fingerprint = file.value("fingerprint", str)
            means = file.named("operations", "mean", np.float64)
            file.check(all(mean.size for mean in means.values()), "a mean has no values")
            # Files of older versions do not have all of these.
            positions = file.header.get("positions", "each")
            file.check(positions in POSITIONS, f"its positions are {positions!r}")
            columns = file.header.get("columns", [])
            is_list = isinstance(columns, list) and all(isinstance(name, str) for name in columns)
            file.check(is_list, f"its columns are {columns!r}")
            code = file.header.get("own_code", "")
            is_code = isinstance(code, str) and re.fullmatch(r"([0-9a-f]+ [0-9a-f]{64})?", code)
            file.check(is_code, f"its code is {code!r}")
            has_rows = "rows" in file.header or "rows0" in file
            kept = file.value("kept", int, least=0) if has_rows else 0
            rows = file.named("rows", "rows", np.float32, "rows ...") if has_rows else {}
            file.check(rows.keys() <= means.keys(), f"it has rows of {[*rows]!r}")
            for name, array in rows.items():
                fits = len(array) == kept and array.shape[1:] == means[name].shape
                file.check(fits, f"its rows of {name!r} have shape {array.shape}")
            pairs = [file.header.get(name) for name in ("input_range", "input_means")]
            for pair in (pair for pair in pairs if pair is not None):
                are_numbers = isinstance(pair, list) and [type(v) in (int, float) for v in pair]
                file.check(are_numbers == [True, True], f"it has the range {pair!r}")
                file.check(-np.inf < pair[0] <= pair[1] < np.inf, f"it has the range {pair}")
            input_range, input_means = (None if p is None else (p[0], p[1]) for p in pairs)
        of_data = input_range, positions, input_means, tuple(columns)
        return cls(means, samples, fingerprint, *of_data, code, rows)

    def __repr__(self) -> str:
        return (
            f"Profile({counted(len(self.means), 'operation')}, {counted(self.samples, 'sample')}, "
            f"model {self.fingerprint[:12]}…)"
        )
