"""The explorer's document: all the data that a page shows, collected and packed.

Its size is that of the contributions, plus the values that are needed to explain why a synapse
was excluded. Small documents store both without loss. In larger ones, values and weights are
rounded, only the membership of synapses is stored, and everything that the page can do without is
left out; for very large kernels, only the strongest weights are stored. The document records
this, and the page says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import Any

import numpy as np

from nnslicer_tf._environment import track
from nnslicer_tf.instrument import InstrumentedModel, MaskedModel, Operation, Synapses
from nnslicer_tf.instrument.index_maps import routing_map
from nnslicer_tf.instrument.operations import Lookup, Pooling
from nnslicer_tf.instrument.recurrence import Member
from nnslicer_tf.kinds import kind_of
from nnslicer_tf.report.explorer import measured
from nnslicer_tf.report.explorer.folding import fold
from nnslicer_tf.report.explorer.packing import Packer
from nnslicer_tf.report.explorer.sequences import head_axes, product_facts, through_time
from nnslicer_tf.report.explorer.shown import Exhibit, Part

EXACT_VALUES = 1_000_000
"""Up to this number of neurons, over all samples, values are stored exactly."""

DENSE_WEIGHTS = 1_500_000
"""Models with more weights store only the strongest of each neuron, and round all values."""

STRONGEST = 16
"""Number of weights stored for each neuron of such a model."""

STORED_SYNAPSES = 4_000_000
"""Up to this number of synapses, over all parts, contributions are stored."""

LARGEST_MAP = 500_000
"""Index maps of routing operations with more neurons are left out."""

_RULES = {
    "weighted_sum": "sum",
    "average": "average",
    "maximum": "maximum",
    "add": "add",
    "subtract": "subtract",
    "multiply": "multiply",
    "maximum_merge": "extreme",
    "minimum_merge": "extreme",
    "lookup": "lookup",
    "mask": "mask",
}


@dataclass(frozen=True, eq=False)
class Source:
    """A model with the data that belongs to it.

    Attributes:
        im: The model.
        x: Samples for its exhibits, `(samples, *input_shape)` float32, or None.
        means: The profile's means by operation, or None.
    """

    im: InstrumentedModel
    x: np.ndarray | None
    means: Mapping[str, np.ndarray] | None


@dataclass(eq=False)
class Document:
    """A document that is being built.

    Attributes:
        title: Title of the page.
        classes: Names of the classes, in order; empty for plain numbers.
        words: For inputs that are sequences of tokens, the tokens of each sample; otherwise empty.
        progress: Whether to show a progress bar.
    """

    title: str
    classes: Sequence[str] = ()
    words: Sequence[Sequence[str]] = ()
    progress: bool = True
    _packer: Packer = field(default_factory=Packer)
    _rows: list[dict[str, Any]] = field(default_factory=list)
    _row_of: dict[tuple, int] = field(default_factory=dict)
    _says: dict[tuple, list] = field(default_factory=dict)

    def pack(self, shown: Sequence[tuple[Exhibit, Source]]) -> bytes:
        """Return the packed document.

        Args:
            shown: The exhibits, each with its model; all models must have the same operations.
        """
        im = shown[0][1].im
        sources = list({id(source.im): source for _, source in shown}.values())
        parts = [
            (exhibit, source, i) for exhibit, source in shown for i in range(len(exhibit.parts))
        ]
        needed = {exhibit.facts.get("granularity", "activation") for exhibit, _ in shown}
        self._plan(im, needed, shown)
        places = {id(source.im): place for place, source in enumerate(sources)}
        remainders = {
            id(source.im): MaskedModel(source.im)
            for source in sources
            if source.x is not None and measured.is_classifier(source.im)
        }
        packed: dict[int, list] = {id(exhibit): [] for exhibit, _ in shown}
        for exhibit, source, i in track(parts, "Exploring", len(parts), self.progress):
            packed[id(exhibit)].append(
                self._part(exhibit, source, i, places[id(source.im)], remainders)
            )
        header = {
            "title": self.title,
            "versions": {name: version(name) for name in ("nnslicer-tf", "keras", "numpy")},
            "rounded": not self._exact,
            "input": self._places[im.input_operation],
            "logits": self._places[im.logit_operation],
            "operations": [self._operation(o, "activation" in needed) for o in im.operations],
            "groups": [
                {"label": g.label, "members": [self._places[m] for m in g.members]}
                for g in fold(im.operations)
            ],
            "kernels": [_kernel(kernel) for kernel in im.kernels.values()],
            "classes": list(map(str, self.classes)),
            "models": [self._model(source, needed) for source in sources],
            "rows": self._rows,
            "exhibits": [
                {
                    "name": exhibit.name,
                    "model": places[id(source.im)],
                    "each": exhibit.each,
                    **_facts(exhibit),
                    "parts": packed[id(exhibit)],
                }
                for exhibit, source in shown
            ],
        }
        return self._packer.pack(header)

    def _plan(
        self, im: InstrumentedModel, needed: set[str], shown: Sequence[tuple[Exhibit, Source]]
    ) -> None:
        """Decide what to store, and how."""
        self._places = {o.name: place for place, o in enumerate(im.operations)}
        self._kernel_places = {name: place for place, name in enumerate(im.kernels)}
        samples = {
            (id(source.im), id(source.x)): len(source.x) if exhibit.each else 1
            for exhibit, source in shown
            if source.x is not None
        }
        count = measured.total_size(im.operations) * sum(samples.values())
        few = "activation" not in needed or count <= EXACT_VALUES
        # Lookups are left out, because the weights of a word are the values of its lookup.
        weights = sum(k.size for k in im.kernels.values() if not isinstance(k, Lookup))
        self._dense = weights <= DENSE_WEIGHTS
        self._exact = few and self._dense
        parts = sum(len(exhibit.parts) for exhibit, _ in shown)
        self._with_synapses = parts * weights <= STORED_SYNAPSES
        self._heads = head_axes(im.operations)
        self._feeding = {im.input_operation, im.logit_operation}
        for operation in im.operations:
            by_itself = operation.kind == "lookup" or product_facts(operation)
            if isinstance(operation.params, (Synapses, Pooling)) or by_itself:
                self._feeding.update(operation.inputs)
            if by_itself or isinstance(operation.params, Member):
                self._feeding.add(operation.name)
            if operation.mask:
                self._feeding.add(operation.mask)

    def _floats(self, values: np.ndarray) -> int:
        add = self._packer.add if self._exact else self._packer.add_levels
        return add(values)

    # --- the model -----------------------------------------------------------------

    def _operation(self, operation: Operation, by_position: bool) -> dict[str, Any]:
        """Return the data of an operation for the page.

        Args:
            operation: The operation.
            by_position: Whether the connections of single positions are needed.
        """
        params = operation.params
        kind = kind_of(operation)
        found: dict[str, Any] = {
            "name": operation.name,
            "kind": operation.kind,
            "layer": type(operation.keras_layer).__name__ if operation.keras_layer else "Input",
            "shape": list(operation.shape),
            "inputs": [self._places[source] for source in operation.inputs],
            "rule": _RULES.get(operation.kind, "pass" if kind.one_to_one else "other"),
            "mask": self._places.get(operation.mask or ""),
            "heads": self._heads.get(operation.name),
            **product_facts(operation),
            **through_time(operation, self._places, self._kernel_places),
        }
        if isinstance(params, Synapses):
            found["kernel"] = self._kernel_places[params.name]
        if isinstance(params, (Synapses, Pooling)) and by_position and operation.kind != "lookup":
            # By tap, because the position that a tap reads mostly advances by one each time.
            found["taps"] = self._packer.add_steps(params.taps.T)
        if kind.move is not None and operation.kind != "mask":
            found["rule"] = "move"
            if operation.size <= LARGEST_MAP:
                source = routing_map(operation).ravel()
                plain = np.array_equal(source, np.arange(source.size))
                found["map"] = None if plain else self._packer.add_steps(source)
        return found

    def _model(self, source: Source, needed: set[str]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "name": source.im.model.name,
            "fingerprint": source.im.fingerprint,
            "weights": [self._weights(kernel) for kernel in source.im.kernels.values()],
            "means": {},
        }
        if source.means is not None:
            for granularity in sorted(needed):
                means = measured.layout_means(source.means, granularity)
                found["means"][granularity] = {
                    self._places[name]: self._floats(mean)
                    for name, mean in means.items()
                    if granularity == "channel" or self._stores(name)
                }
        return found

    def _weights(self, kernel: Synapses) -> dict[str, Any]:
        if isinstance(kernel, Lookup):
            return {}
        matrix = kernel.matrix()
        bias = kernel.read_bias()
        found = {} if bias is None else {"bias": self._packer.add(np.asarray(bias, np.float32))}
        if self._dense:
            return found | {"values": self._floats(matrix)}
        chosen, values = measured.strongest(matrix, STRONGEST)
        return found | {"chosen": self._packer.add(chosen), "values": self._floats(values)}

    def _stores(self, name: str) -> bool:
        """Return whether the values of an operation's single neurons are stored."""
        return self._exact or name in self._feeding

    # --- the exhibits ----------------------------------------------------------------

    def _part(
        self, exhibit: Exhibit, source: Source, i: int, model: int, remainders: Mapping[int, Any]
    ) -> dict[str, Any]:
        part = exhibit.parts[i]
        kernels = source.im.kernels
        found: dict[str, Any] = {
            "samples": part.samples,
            "neurons": self._neurons(source.im, part),
            "synapses": {
                self._kernel_places[name]: self._synapses(
                    kernels[name].layout.from_kernel(np.asarray(values))
                )
                for name, values in part.synapses.items()
                if self._with_synapses
            },
            "kept": {
                self._kernel_places[name]: int(np.count_nonzero(values))
                for name, values in part.synapses.items()
            },
        }
        if source.x is not None:
            own = source.x[i : i + 1] if exhibit.each else source.x
            key = (model, id(source.x), i if exhibit.each else None)
            granularity = exhibit.facts.get("granularity", "activation")
            found["row"] = self._row(key, own, source, granularity)
            found["says"] = self._answers(remainders.get(id(source.im)), own, part, key)
        if "predicted" in exhibit.facts:
            found["predicted"] = exhibit.facts["predicted"][i]
        return found

    def _synapses(self, values: np.ndarray) -> int:
        """Store contributions of synapses; in a large document, only which are not 0."""
        if self._exact:
            return self._packer.add(_stored(values))
        return self._packer.add_bits(values != 0)

    def _neurons(self, im: InstrumentedModel, part: Part) -> dict[int, int]:
        """Return operation → array, starting at the outputs, as inputs refer to them."""
        found: dict[int, int] = {}
        for operation in reversed(im.operations):
            name = operation.name
            if name not in part.neurons:
                continue
            values = _stored(part.neurons[name])
            reader = self._elementwise_reader(im, operation)
            alike = reader in part.neurons and part.neurons[reader].shape == values.shape
            if alike and values.dtype.kind == "i":
                like = found[self._places[reader]]
                reference = self._packer.add_like(values, part.neurons[reader], like)
            else:
                reference = self._packer.add(values)
            found[self._places[name]] = reference
        return found

    @staticmethod
    def _elementwise_reader(im: InstrumentedModel, operation: Operation) -> str:
        """Return an operation's only reader if that is elementwise, otherwise ""."""
        readers = im.graph.consumers[operation.name]
        alone = len(readers) == 1 and kind_of(readers[0]).reach == "element"
        return readers[0].name if alone else ""

    def _row(self, key: tuple, x: np.ndarray, source: Source, granularity: str) -> int:
        """Return the number of the row with a sample's values, which exhibits can share."""
        if key not in self._row_of:
            self._row_of[key] = len(self._rows)
            mean = x.mean(axis=0)
            row: dict[str, Any] = {"samples": len(x), "values": {}, "changes": {}}
            row |= self._picture(mean)
            if self.words and len(x) == 1:
                row["words"] = list(map(str, self.words[key[2]]))
            self._rows.append(row)
        row = self._rows[self._row_of[key]]
        if granularity not in row["values"]:
            values = measured.activations(source.im, x)
            row["values"][granularity] = self._values(values, granularity)
            if granularity == "channel" and source.means is not None and len(x) == 1:
                row["changes"] = self._changes(source, values)
        return self._row_of[key]

    def _values(self, values: Mapping[str, np.ndarray], granularity: str) -> dict[int, int]:
        if granularity == "channel":
            means = measured.channel_means(values)
            return {self._places[name]: self._floats(mean) for name, mean in means.items()}
        return {
            self._places[name]: self._floats(value)
            for name, value in values.items()
            if self._stores(name)
        }

    def _changes(self, source: Source, values: Mapping[str, np.ndarray]) -> dict[int, int]:
        """Return Δ of the inputs of all filters' synapses at channel granularity."""
        assert source.means is not None
        return {
            self._places[o.name]: self._floats(
                measured.tap_changes(o, values[o.inputs[0]], source.means[o.inputs[0]])
            )
            for o in source.im.operations
            if isinstance(o.params, Synapses)
        }

    def _picture(self, x: np.ndarray) -> dict[str, Any]:
        """Return an input as bytes, with the values that 0 and 255 represent."""
        low, high = float(x.min()), float(x.max())
        scaled = np.round((x - low) * (255 / (high - low or 1))).astype(np.uint8)
        return {"picture": self._packer.add(scaled), "low": low, "high": high}

    def _answers(
        self, remainder: Any, x: np.ndarray, part: Part, key: tuple
    ) -> dict[str, Any] | None:
        if remainder is None:
            return None
        if key not in self._says:
            self._says[key] = _answer(measured.answer(remainder.logits({}, x)))
        found = {"whole": self._says[key]}
        if part.synapses:
            for name, inverted in (("kept", False), ("removed", True)):
                kept = measured.masks(part.synapses, inverted)
                found[name] = _answer(measured.answer(remainder.logits(kept, x)))
        return found


def _kernel(kernel: Synapses) -> dict[str, Any]:
    taps, inputs, outputs = kernel.layout.from_kernel(np.empty(kernel.shape, np.int8)).shape
    return {
        "name": kernel.name,
        "shape": list(kernel.shape),
        "size": kernel.size,
        "groups": kernel.groups,
        "taps": taps,
        "inputs": inputs,
        "outputs": outputs,
    }


def _answer(answer: measured.Answer) -> list[list[float]]:
    return [list(pair) for pair in zip(answer.classes, answer.probabilities, strict=True)]


def _stored(values: np.ndarray) -> np.ndarray:
    """Return contributions, marks or scores in a type that the packer stores compactly."""
    values = np.asarray(values)
    return values.astype(np.float32) if values.dtype.kind == "f" else values.astype(np.int64)


def _facts(exhibit: Exhibit) -> dict[str, Any]:
    """Return an exhibit's facts as JSON types."""
    facts = exhibit.facts
    theta = facts.get("theta")
    return {
        "theta": None if theta is None else float(theta),
        "granularity": str(facts.get("granularity", "activation")),
        "outputs": str(facts.get("outputs", "")),
        "relativeTo": str(facts.get("relative_to", "output")),
        "rectify": str(facts.get("rectify", "sign")),
    }
