"""The explorer's document: all the data that a page shows, collected and packed.

It stores the contributions, and the values that explain why a synapse was excluded, without loss if
it is small. In larger documents, values and weights are rounded, synapses are only marked as
members, and optional data are omitted; of very large kernels only the strongest weights are stored,
of very large operations only the number of members. The page says so.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np

from nnslicer_tf import __version__
from nnslicer_tf._environment import track
from nnslicer_tf._kernels import pools
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean, Operation, Synapses, Zero
from nnslicer_tf.instrument.index_maps import routing_map
from nnslicer_tf.instrument.operations import Lookup, Pooling
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.kinds.kind import Layout
from nnslicer_tf.report.explorer.exhibits import Exhibit, Part
from nnslicer_tf.report.explorer.packing import Packer
from nnslicer_tf.report.explorer.structure import fold, head_axes, product_facts, through_time

EXACT_VALUES = 1_000_000
"""Up to this number of neurons, over all samples, values are stored exactly."""

MAX_NEURONS = 20_000_000
"""Up to this number of neurons, over all parts, they are stored; else the largest operations' are
only counted."""

DENSE_WEIGHTS = 1_500_000
"""Models with more weights store only the strongest of each neuron, and round all values."""

STRONGEST = 16  # Number of weights stored for each neuron of such a model

STORED_SYNAPSES = 4_000_000
"""Up to this number of synapses, over all parts, contributions are stored."""

MAX_MAP = 500_000  # Index maps of routing operations with more neurons are left out
MAX_CLASSES = 20  # Number of classes whose probabilities are stored

_RULES = {
    "weighted_sum": "sum",
    "maximum_merge": "extreme",
    "minimum_merge": "extreme",
    **{k: k for k in ("average", "maximum", "add", "subtract", "multiply", "lookup", "mask")},
}


class Document:
    """All the data that a page shows, about results of models with the same operations."""

    def __init__(
        self,
        exhibits: Sequence[Exhibit],  # all models must have the same operations
        title: str,
        classes: Sequence[str] = (),  # names, in order; empty for plain numbers
        columns: Sequence[str] = (),  # names of a table's; empty for other inputs
        words: Sequence[Sequence[str]] = (),  # for sequences of tokens, those of each sample
        explanation: Any = None,  # of the one sample; its input's contributions are shown
        progress: bool = True,
    ) -> None:
        self._exhibits, self._progress = exhibits, progress
        self._title, self._classes, self._columns, self._words = title, classes, columns, words
        self._explanation = explanation
        self._packer = Packer()
        self._rows: list[dict[str, Any]] = []
        self._row_of: dict[tuple, int] = {}
        self._whole: dict[tuple, list] = {}

        # Decide what to store, and how.
        im = exhibits[0].im
        self._im = im
        self._models = list({id(one.im): one for one in exhibits}.values())
        self._places = {o.name: place for place, o in enumerate(im.operations)}
        self._kernel_places = {name: place for place, name in enumerate(im.kernels)}
        self._granularities = sorted({one.granularity for one in exhibits})
        neurons = sum(o.size for o in im.operations)
        samples = {
            (id(one.im), id(one.x)): len(one.x) if one.each else 1
            for one in exhibits
            if one.x is not None
        }
        # Lookups are left out, because the weights of a word are the values of its lookup.
        weights = sum(k.size for k in im.kernels.values() if not isinstance(k, Lookup))
        parts = sum(len(one.parts) for one in exhibits)
        by_position = "activation" in self._granularities
        self._dense = weights <= DENSE_WEIGHTS
        few_values = neurons * sum(samples.values()) <= EXACT_VALUES or not by_position
        self._exact = self._dense and few_values
        self._with_synapses = parts * weights <= STORED_SYNAPSES
        sizes = np.sort([o.size for o in im.operations])
        fitting = sizes[np.cumsum(sizes) * max(parts, 1) <= MAX_NEURONS]
        self._max_size = sizes[-1] if not by_position else int(fitting[-1]) if len(fitting) else 0
        self._feeding = {im.input_operation, im.logit_operation}
        for operation in im.operations:
            by_itself = operation.kind == "lookup" or product_facts(operation)
            if isinstance(operation.params, (Synapses, Pooling)) or by_itself:
                self._feeding.update(operation.inputs)
            if by_itself or isinstance(operation.params, Member):
                self._feeding.add(operation.name)
            if operation.mask:
                self._feeding.add(operation.mask)

    def pack(self) -> bytes:
        """Return the packed document."""
        im = self._im
        places = {id(one.im): place for place, one in enumerate(self._models)}
        masked = {
            id(one): Ablation(
                one.im, Zero() if one.means is None else Mean(one.means), of=list(one.im.kernels)
            )
            for one in self._exhibits
            if one.x is not None
            and len(one.im.output_operations) == 1
            and not one.im.classes.is_number
            and not one.im.classes.positions
        }
        every = [(one, i) for one in self._exhibits for i in range(len(one.parts))]
        parts: dict[int, list] = {id(one): [] for one in self._exhibits}
        for one, i in track(every, "Exploring", len(every), self._progress):
            parts[id(one)].append(self._part(one, i, places[id(one.im)], masked.get(id(one))))
        heads = head_axes(im.operations)
        kernels = []
        for k in im.kernels.values():
            taps, inputs, outputs = k.layout.from_kernel(np.empty(k.shape, np.int8)).shape
            facts = {"name": k.name, "shape": list(k.shape), "size": k.size, "groups": k.groups}
            kernels.append(facts | {"taps": taps, "inputs": inputs, "outputs": outputs})
        header = {
            "title": self._title,
            "versions": {
                "nnslicer-tf": __version__,
                "keras": keras.__version__,
                "numpy": np.__version__,
            },
            "rounded": not self._exact,
            "input": self._places[im.input_operation],
            "logits": self._places[im.logit_operation],
            "operations": [self._operation(o, heads) for o in im.operations],
            "groups": [
                {"label": group.label, "members": [self._places[m] for m in group.members]}
                for group in fold(im.operations)
            ],
            "kernels": kernels,
            "classes": list(map(str, self._classes)),
            "features": None,
            "models": [self._model(one) for one in self._models],
            "rows": self._rows,
            "exhibits": [
                {
                    "name": one.name,
                    "model": places[id(one.im)],
                    "each": one.each,
                    "theta": None if one.facts.get("theta") is None else float(one.facts["theta"]),
                    "granularity": one.granularity,
                    "level": str(one.facts.get("level", "")),
                    "outputs": str(one.facts.get("outputs", "")),
                    "relativeTo": str(one.facts.get("relative_to", "output")),
                    "rectify": str(one.facts.get("rectify", "sign")),
                    "parts": parts[id(one)],
                }
                for one in self._exhibits
            ],
        }
        if self._explanation is not None:
            header["asked"] = self._explanation.question
            features = np.asarray(self._explanation.contributions, np.float32)
            header["features"] = self._packer.add(features)
        return self._packer.pack(header)

    def _floats(self, values: np.ndarray) -> int:
        return self._packer.add(values) if self._exact else self._packer.add_levels(values)

    def _stores(self, name: str) -> bool:
        """Return whether the values of an operation's single neurons are stored."""
        return self._im[name].size <= self._max_size and (self._exact or name in self._feeding)

    # --- the model -----------------------------------------------------------------

    def _operation(self, operation: Operation, heads: Mapping[str, int]) -> dict[str, Any]:
        """Return the data of an operation for the page."""
        params, kind = operation.params, kind_of(operation)
        data: dict[str, Any] = {
            "name": operation.name,
            "kind": operation.kind,
            "layer": type(operation.keras_layer).__name__ if operation.keras_layer else "Input",
            "shape": list(operation.shape),
            "inputs": [self._places[source] for source in operation.inputs],
            "rule": _RULES.get(operation.kind, "pass" if kind.one_to_one else "other"),
            "mask": self._places.get(operation.mask or ""),
            "heads": heads.get(operation.name),
            **product_facts(operation),
            **through_time(operation, self._places, self._kernel_places),
        }
        if isinstance(params, Synapses) and params.is_constant:
            data["rule"] = "other"  # the page has no weights for it
        elif isinstance(params, Synapses):
            data["kernel"] = self._kernel_places[params.name]
        by_position = "activation" in self._granularities and operation.size <= self._max_size
        if isinstance(params, (Synapses, Pooling)) and by_position and operation.kind != "lookup":
            # By tap: `(taps, windows)`.
            data["taps"] = self._packer.add(params.taps.T)
        if kind.moves and operation.kind != "mask":
            data["rule"] = "move"
            if kind.reach == "element":  # values stay where they are, those of padding become 0
                data["map"] = None
            elif operation.size <= MAX_MAP:
                source = routing_map(operation).ravel()
                plain = np.array_equal(source, np.arange(source.size))
                data["map"] = None if plain else self._packer.add(source)
        return data

    def _model(self, one: Exhibit) -> dict[str, Any]:
        """Return the weights and means of an exhibit's model."""
        weights = []
        for kernel in one.im.kernels.values():
            stored: dict[str, Any] = {}
            weights.append(stored)
            if isinstance(kernel, Lookup):
                continue
            matrix, bias = kernel.matrix(), kernel.read_bias()
            if bias is not None:
                stored["bias"] = self._packer.add(np.asarray(bias, np.float32))
            if not self._dense:  # the weights of each output that are largest in magnitude
                by_output = matrix.reshape(-1, matrix.shape[-1]).T
                last = min(STRONGEST, by_output.shape[1]) - 1
                chosen = np.argpartition(-np.abs(by_output), last, axis=1)
                chosen = np.sort(chosen[:, :STRONGEST], axis=1)
                matrix = np.take_along_axis(by_output, chosen, axis=1)
                stored["chosen"] = self._packer.add(chosen)
            stored["values"] = self._floats(matrix)
        means: dict[str, Any] = {}
        if one.means is not None:
            for granularity in self._granularities:
                layout = Layout(granularity, one.means)
                means[granularity] = {
                    self._places[name]: self._floats(layout.mean(name))
                    for name in one.means
                    if granularity == "channel" or self._stores(name)
                }
        return {
            "name": one.im.model.name,
            "fingerprint": one.im.fingerprint,
            "weights": weights,
            "means": means,
        }

    # --- the exhibits ----------------------------------------------------------------

    def _part(self, one: Exhibit, i: int, model: int, masked: Ablation | None) -> dict[str, Any]:
        """Return the slice of sample `i`, or of all, with the answers of model number `model`."""
        part, kernels = one.parts[i], one.im.kernels
        certificate = getattr(part, "certificate", "")  # slices of a set have none
        neurons, members = self._neurons(part)
        synapses = {}
        for name, values in part.synapses.items() if self._with_synapses else ():
            matrix = kernels[name].layout.from_kernel(np.asarray(values))
            shown = matrix if self._exact else matrix != 0
            synapses[self._kernel_places[name]] = self._packer.add(shown)
        data: dict[str, Any] = {
            "samples": getattr(part, "samples", 1),  # a slice of a set has none
            "neurons": neurons,
            "members": members,
            "synapses": synapses,
            "kept": {
                self._kernel_places[name]: int(np.count_nonzero(values))
                for name, values in part.synapses.items()
            },
        }
        if one.x is not None:
            x = one.x[i : i + 1] if one.each else one.x
            key = (model, id(one.x), i if one.each else None)
            data["row"] = self._row(key, x, one)
            data["says"] = None
            data["inactive"] = "zero" if one.means is None else "their mean values"
            if masked is not None:  # a classifier
                if key not in self._whole:
                    self._whole[key] = _answer(one.im, masked.outputs({}, x))
                data["says"] = {"whole": self._whole[key]}
                if part.synapses and not certificate:
                    inside = {name: np.asarray(v) != 0 for name, v in part.synapses.items()}
                    outside = {name: ~mask for name, mask in inside.items()}
                    data["says"]["kept"] = _answer(one.im, masked.outputs(inside, x))
                    data["says"]["removed"] = _answer(one.im, masked.outputs(outside, x))
        if certificate:
            data |= {"certificate": certificate, "measured": part.measured}
        if "predicted" in one.facts and one.facts["predicted"][i] >= 0:  # −1: no single class
            data["predicted"] = one.facts["predicted"][i]
        return data

    def _neurons(self, part: Part) -> tuple[dict[int, int], dict[int, list[int]]]:
        """Return operation → array, and large operation → numbers of members and neurons."""
        arrays: dict[int, int] = {}
        members: dict[int, list[int]] = {}
        for operation in self._im.operations:
            if operation.name not in part.neurons:
                continue
            place, values = self._places[operation.name], np.asarray(part.neurons[operation.name])
            if values.size > self._max_size:
                members[place] = [int(np.count_nonzero(values)), values.size]
                continue
            arrays[place] = self._packer.add(values)
        return arrays, members

    def _row(self, key: tuple, x: np.ndarray, one: Exhibit) -> int:
        """Return the index of the row with a sample's values, which exhibits can share."""
        if key not in self._row_of:
            # The input as bytes, with the values that 0 and 255 represent.
            mean = x.mean(axis=0)
            low, high = float(mean.min()), float(mean.max())
            scaled = np.round((mean - low) * (255 / (high - low or 1))).astype(np.uint8)
            row: dict[str, Any] = {"samples": len(x), "values": {}, "changes": {}}
            row |= {"picture": self._packer.add(scaled), "low": low, "high": high}
            if self._words and len(x) == 1:
                row["words"] = list(map(str, self._words[key[2] or 0]))
            elif self._columns:
                pairs = zip(self._columns, mean, strict=True)
                row["words"] = [f"{name} = {value:.4g}" for name, value in pairs]
            self._row_of[key] = len(self._rows)
            self._rows.append(row)
        row = self._rows[self._row_of[key]]
        if one.granularity in row["values"]:
            return self._row_of[key]

        values = _mean_values(one.im, x)
        if one.granularity == "activation":
            row["values"]["activation"] = {
                self._places[name]: self._floats(value)
                for name, value in values.items()
                if self._stores(name)
            }
            return self._row_of[key]
        row["values"]["channel"] = {
            self._places[name]: self._floats(
                value.reshape(-1, value.shape[-1]).mean(axis=0, dtype=np.float64).astype(np.float32)
            )
            for name, value in zip(values, map(np.atleast_1d, values.values()), strict=True)
        }
        if one.means is not None and len(x) == 1:
            # Δ of the inputs of filters' synapses: the input of a synapse is the mean, over all
            # windows, of the value that it multiplies (NNSlicer, Equation 1).
            for o in one.im.operations:
                kernel = o.params
                if not isinstance(kernel, Synapses) or isinstance(kernel, Lookup) or not o.kernels:
                    continue
                pair = (values[o.inputs[0]], one.means[o.inputs[0]])
                sheets = [np.ascontiguousarray(v).reshape(1, -1, v.shape[-1]) for v in pair]
                read, usual = (pools.tap_means(sheet, kernel.taps)[0] for sheet in sheets)
                change = (read - usual).astype(np.float32)
                row["changes"][self._places[o.name]] = self._floats(change)
        return self._row_of[key]


def _mean_values(im: InstrumentedModel, x: np.ndarray) -> Mapping[str, np.ndarray]:
    """Return the mean value of every neuron over samples, operation → `(*shape)` float32."""
    totals = {o.name: np.zeros(o.shape) for o in im.operations}
    for batch in im.capture_batches(x, batch_size=32):
        for name, values in batch.items():
            totals[name] += values.sum(axis=0, dtype=np.float64)
    return {name: (total / len(x)).astype(np.float32) for name, total in totals.items()}


def _answer(im: InstrumentedModel, logits: np.ndarray) -> list[list[float]]:
    """Return [class, mean probability] of the most likely classes of some samples."""
    shares = im.classes.probabilities(im.outputs_from(logits)).mean(axis=0)
    return [[int(i), float(shares[i])] for i in np.argsort(-shares, kind="stable")[:MAX_CLASSES]]
