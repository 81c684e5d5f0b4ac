"""Neuron coverage, and the base class of all coverage criteria.

    cov = NeuronCoverage(im, threshold=0.25)
    cov.update(x_test); cov.total(); cov.covered["conv1"]

To add a criterion, subclass `Coverage` and implement `hits`.
"""

import os
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import check_count, check_name, check_number, counted
from nnslicer_tf._files import read_archive, write_archive
from nnslicer_tf._tables import ShownAsTable, text_table
from nnslicer_tf.errors import InvalidArgumentError, ProfileMismatchError
from nnslicer_tf.instrument import InstrumentedModel, Operation, instrumented
from nnslicer_tf.instrument.data import DataLike, one_order
from nnslicer_tf.instrument.fingerprint import same_model, weights_checksum
from nnslicer_tf.instrument.model import ModelLike
from nnslicer_tf.instrument.recurrence import RECURRENCE
from nnslicer_tf.kinds.kind import aligned_mask

_FORMAT = "nnslicer_tf coverage 1"
GRANULARITIES = ("channel", "activation")


class CountedNeurons:
    """The neurons of a model as DeepXplore counts them.

    A unit of a dense layer is a neuron; a filter is one, by its mean over positions; a unit of a
    recurrent layer is one, by the mean of its state over steps. Padding is ignored. All layers
    count except the input, its preprocessing, masks and those that only move values, at each of
    their calls: LeNet-1, LeNet-4 and LeNet-5 have the paper's 52, 148 and 268 neurons.

    With the granularity `"activation"` every element of an output is a neuron. `of` names
    operations; by default every layer's output (after a fused activation), and recurrent states.
    `shapes` maps operations to their neurons' shape: `(channels,)` or the operation's.
    """

    def __init__(self, im: ModelLike, granularity: str, of: Iterable[str] | None = None) -> None:
        def counts(operation: Operation) -> bool:
            if operation.kind == RECURRENCE:
                return operation.name.endswith(":h")
            is_layer = operation.ends and operation.kind not in ("mask", "routing")
            return is_layer and operation.name not in im.preprocessing

        check_name("granularity", granularity, GRANULARITIES)
        im = instrumented(im)
        operations = [o for o in im.operations if counts(o)] if of is None else [im[n] for n in of]
        if not operations:
            raise InvalidArgumentError("There is no operation whose neurons could be counted.")
        self.im, self.granularity = im, granularity
        self._weights: tuple[int, ...] | None = None
        whole = granularity == "activation"
        self.shapes = {o.name: o.shape if whole else o.shape[-1:] for o in operations}

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the operations, in order."""
        return tuple(self.shapes)

    def __len__(self) -> int:
        return sum(int(np.prod(shape)) for shape in self.shapes.values())

    def batches(
        self, x: DataLike, batch_size: int, progress: bool
    ) -> Iterator[dict[str, np.ndarray]]:
        """Yield the operations' values for batches of samples, NaN at padding."""
        self.check_weights()
        self.im = self.im.named_by(x)
        masks = {name: self.im[name].mask for name in self.names}
        operations = dict.fromkeys([*self.names, *(mask for mask in masks.values() if mask)])
        for batch in self.im.capture_batches(x, batch_size, [*operations], progress):
            values = {name: batch[name] for name in masks}
            for name, mask in masks.items():
                if mask is not None:
                    present = aligned_mask(batch[mask] > 0, values[name].ndim)
                    values[name] = np.where(present, values[name], np.float32(np.nan))
            yield values

    def check_weights(self) -> None:
        """Raise ProfileMismatchError if the weights have changed since the first measurement."""
        now = weights_checksum(self.im.model)
        if self._weights not in (None, now):
            raise ProfileMismatchError(
                f"The weights of '{self.im.model.name}' have changed since its neurons were "
                "first measured. Measure the ranges and the coverage again."
            )
        self._weights = now

    def reduce(self, values: np.ndarray) -> np.ndarray:
        """Return the neurons' outputs `(batch, *neurons)`; NaN where all positions are padding."""
        positions = self._positions(values)
        if not positions:
            return values
        means = values.mean(axis=positions, dtype=np.float64)
        if not np.isnan(means).any():
            return means
        counts = np.sum(~np.isnan(values), axis=positions)
        sums = np.nansum(values, axis=positions, dtype=np.float64)
        return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)

    def vector(self, values: Mapping[str, Any]) -> Any:
        """Return all neurons' outputs as one tensor `(batch, neurons)`, differentiable."""
        parts = []
        for name, shape in self.shapes.items():
            positions = self._positions(values[name])
            mean = keras.ops.mean(values[name], axis=positions) if positions else values[name]
            parts.append(keras.ops.reshape(mean, (-1, int(np.prod(shape)))))
        return keras.ops.concatenate(parts, axis=1)

    def _positions(self, values: Any) -> tuple[int, ...]:
        """Return the axes to average over, between the samples and the channels."""
        return () if self.granularity == "activation" else tuple(range(1, len(values.shape) - 1))


class Coverage(ShownAsTable, ABC):
    """The part of a model that a set of inputs covers: a mask for every operation.

    Args:
        im: The model.
        granularity: `"channel"` or `"activation"`, see `CountedNeurons`.
        of: Names of operations, see `CountedNeurons`.
        per_neuron: How many items of each neuron can be covered.
        options: The criterion's settings, JSON-serialisable; a file's must be equal.

    Attributes:
        neurons: The neurons that count.
        covered: Operation name → bool mask: `(*neurons,)`, or `(*neurons, per_neuron)` if
            a neuron has several items.
        samples: Number of inputs seen.
    """

    def __init__(
        self,
        im: ModelLike,
        granularity: str = "channel",
        of: Iterable[str] | None = None,
        *,
        per_neuron: int = 1,
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.neurons = neurons = CountedNeurons(im, granularity, of)
        self._per_neuron = per_neuron
        items = () if per_neuron == 1 else (per_neuron,)
        self.covered = {n: np.zeros((*s, *items), bool) for n, s in neurons.shapes.items()}
        self.samples = 0
        settings: dict[str, object] = {"granularity": granularity, "operations": [*neurons.names]}
        self._options = settings | dict(options or {})

    @property
    def im(self) -> InstrumentedModel:
        """The model."""
        return self.neurons.im

    @abstractmethod
    def hits(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return the mask, of the shape of `covered[name]`, that one batch covers.

        `values` are the operation's, `(batch, *operation shape)` float32, NaN at padding.
        """

    def update(self, x: DataLike, batch_size: int = 256, progress: bool = False) -> int:
        """Add the coverage of inputs, and return the number of newly covered items.

        Args:
            x: Samples `(samples, *input_shape)`, in any form of `DataLike`.
            batch_size: Samples in one forward pass.
            progress: Show a progress bar.

        Raises InvalidArgumentError, InputShapeError or NonFiniteActivationError for bad data;
        ProfileMismatchError if the weights have changed since the first update.
        """
        before = self._count()
        for batch in self.neurons.batches(x, batch_size, progress):
            for name, values in batch.items():
                self.covered[name] |= self.hits(name, values)
            self.samples += len(values)
        return self._count() - before

    def total(self) -> float:
        """Return the covered share of all items, 0 … 1."""
        return self._count() / self._size()

    def save(self, path: str | os.PathLike) -> None:
        """Write the coverage to an `.npz` file, atomically; errors as in `update`."""
        self.neurons.check_weights()
        header = {"kind": type(self).__name__, "options": self._options, "samples": self.samples}
        header |= {"fingerprint": self.im.fingerprint, "items": self._per_neuron}
        header |= {"model": self.im.identity, "columns": list(self.im.columns)}
        masks = {f"covered{i}": mask for i, mask in enumerate(self.covered.values())}
        write_archive(path, _FORMAT, header, masks)

    def restore(self, path: str | os.PathLike) -> Self:
        """Add the coverage in a file, of the same criterion on the same model; return self.

        Raises MissingFileError if there is no such file; CorruptFileError if it is damaged or of
        another kind; ProfileMismatchError if it is for another model, criterion or settings;
        InvalidArgumentError if it is for a table with other columns, or in another order.
        """
        with read_archive(path, _FORMAT, "coverage") as file:
            header, now = file.header, self.im.identity  # older: no "items", "model", "columns"
            known = file.value("model", str) if "model" in header else now
            items = file.value("items", int, least=1) if "items" in header else self._per_neuron
            own = (type(self).__name__, self._options, self.im.fingerprint, self._per_neuron)
            found = (header["kind"], header["options"], header["fingerprint"], items)
            if found != own or not same_model(known, now):
                raise ProfileMismatchError(
                    f"'{path}' belongs to a different model, criterion or settings: "
                    f"{header['kind']} {header['options']}. Expected: {self!r}"
                )
            self.neurons.check_weights()
            columns = tuple(file.names("columns") if "columns" in header else ())
            columns = one_order(self.im.columns or columns, columns or self.im.columns)
            samples = file.value("samples", int, least=0)
            covered = enumerate(self.covered.values())
            masks = [file.array(f"covered{i}", np.bool_, mask.shape) for i, mask in covered]
            file.check(samples or not any(map(np.any, masks)), "it covers items without samples")
        for name, mask in zip(self.covered, masks, strict=True):
            self.covered[name] |= mask
        self.samples += samples
        self.neurons.im = self.im.with_columns(columns)
        return self

    def to_frame(self) -> pd.DataFrame:
        """Return one row per operation: operation, items, covered, share."""
        rows = [
            {"operation": n, "items": m.size, "covered": int(m.sum()), "share": float(m.mean())}
            for n, m in self.covered.items()
        ]
        return pd.DataFrame(rows)

    def summary(self) -> str:
        """Return a table: operation, items, covered, share."""
        rows = [*self.to_frame().itertuples(index=False, name=None)]
        rows.append(("total", self._size(), self._count(), self.total()))
        cells = [(name, f"{n:,}", f"{hit:,}", f"{share:.1%}") for name, n, hit, share in rows]
        return text_table(("operation", "items", "covered", "share"), cells)

    def __repr__(self) -> str:
        name, covered = type(self).__name__, f"{self.total():.1%} of {self._size():,} covered"
        by = f"by {counted(self.samples, 'input')}, {self.neurons.granularity}"
        return f"{name}({self.im.model.name!r}, {covered} {by})"

    def _count(self) -> int:
        return sum(int(mask.sum()) for mask in self.covered.values())

    def _size(self) -> int:
        return sum(mask.size for mask in self.covered.values())


class NeuronCoverage(Coverage):
    """Neurons whose output was above a threshold (Pei et al., SOSP 2017, section 4.1).

    For every input, a layer's outputs are first scaled to [0, 1] by their minimum and maximum; if
    these are equal, nothing is covered. A layer of a single neuron is not scaled.

    The arguments are those of `Coverage`, and:

    Args:
        threshold: A neuron is covered when its scaled output is above it, 0 … 1.

    Raises InvalidArgumentError for a threshold outside [0, 1), or an unknown name.
    """

    def __init__(
        self,
        im: ModelLike,
        threshold: float = 0.0,
        granularity: str = "channel",
        of: Iterable[str] | None = None,
    ) -> None:
        self.threshold = check_number("threshold", threshold, "[0, 1)")
        super().__init__(im, granularity, of, options={"threshold": self.threshold})

    def hits(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return which neurons are above the threshold for some input."""
        if values[0].size > 1:  # a single neuron has nothing to be scaled by
            axes = tuple(range(1, values.ndim))
            low = np.fmin.reduce(values, axis=axes, keepdims=True)
            span = np.fmax.reduce(values, axis=axes, keepdims=True) - low
            values = (values - low) / np.where(span > 0, span, np.inf)
        return np.any(self.neurons.reduce(values) > self.threshold, axis=0)


class TopKCoverage(Coverage):
    """Neurons that were among the k largest of their layer for some input (TKNC).

    Of equal outputs, the first ones count.

    The arguments are those of `Coverage`, and:

    Args:
        k: How many neurons of a layer count for each input.

    Raises InvalidArgumentError if k is below one; for an unknown granularity or operation.
    """

    def __init__(
        self,
        im: ModelLike,
        k: int = 2,
        granularity: str = "channel",
        of: Iterable[str] | None = None,
    ) -> None:
        check_count("k", k)
        super().__init__(im, granularity, of, options={"k": k})
        self.k = k

    def hits(self, name: str, values: np.ndarray) -> np.ndarray:
        """Return which neurons are among the k largest for some input."""
        outputs = self.neurons.reduce(values).reshape(len(values), -1)
        largest = np.argsort(-outputs, axis=1, kind="stable")[:, : self.k]
        here = ~np.isnan(np.take_along_axis(outputs, largest, axis=1))
        hits = np.zeros(outputs.shape[1], bool)
        hits[largest[here]] = True
        return hits.reshape(self.covered[name].shape)
