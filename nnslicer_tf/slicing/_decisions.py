"""The work of `Slicer.decisive`: a search for each sample, in this process or on Ray workers.

Searches are independent: each has its sample, and a seed of its own. So results do not depend on
how many workers there are, and those of a folder are found again.
"""

import copy
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from keras import ops

from nnslicer_tf._environment import available_cores, progress_bar
from nnslicer_tf._files import digest
from nnslicer_tf.engine import Store
from nnslicer_tf.engine.engines import Job, make_engine
from nnslicer_tf.instrument import Ablation
from nnslicer_tf.instrument.references import Samples, as_reference, values_of
from nnslicer_tf.slicing._checkpoint import check_batch
from nnslicer_tf.slicing.answers import BINARY, asked_answers
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.donors import DonorSets, donor_sets
from nnslicer_tf.slicing.search import Search

if TYPE_CHECKING:
    from nnslicer_tf.slicing.deciding import Requirements
    from nnslicer_tf.slicing.slicer import Slicer

_STORED = 32  # slices of a file


@dataclass(frozen=True)
class Item:
    """One search: of one sample, or of several that share a mask."""

    inputs: Sequence[np.ndarray]
    full: np.ndarray  # the whole model's values, (samples, values)
    targets: np.ndarray  # the answers to keep, (samples,)
    asked: np.ndarray  # other answers, in the order in which the same search is tried for them
    seed: int

    def digest(self) -> str:
        """Return what identifies the search among those of a folder."""
        return digest([*self.inputs, self.targets, self.asked, str(self.seed).encode()])


class Decisions(Job):
    """Finds the slices of items. A copy, such as a Ray worker's, prepares its own model."""

    def __init__(
        self,
        slicer: "Slicer",
        outputs: Any,
        required: "Requirements",
        reference: Any,
        others: int | None,
        scope: Any,
    ) -> None:
        self.required = required
        self.reference = as_reference(reference, slicer.profile)
        if isinstance(self.reference, Samples):  # arrays, which can be sent to workers
            self.reference = Samples(slicer.im.check(self.reference.x))
        if scope is not None and not isinstance(scope, (int, float, np.number)):
            scope = slicer.im.check(scope)
        self._given = slicer, outputs, required, self.reference, others, scope
        self.answers, self.wanted = asked_answers(slicer.im, outputs)
        target = self.answers.target or {self.answers.operation: "all"}
        self.model = Ablation(slicer.im, self.reference, required.level, target=target)
        self._rng = np.random.default_rng(0)
        self._donors = DonorSets()

    def __getstate__(self) -> tuple:
        return self._given, self._rng

    def __setstate__(self, state: tuple) -> None:
        given, rng = state
        Decisions.__init__(self, *given)
        self.draw_donors(rng)

    def draw_donors(self, rng: np.random.Generator) -> None:
        """Choose the samples whose values inactive units take."""
        slicer, *_, scope = self._given
        self._rng = copy.deepcopy(rng)
        self._donors = donor_sets(
            self.model, slicer.profile, self.reference, scope, self.required.at_least, rng
        )

    def values(self, x: Any) -> np.ndarray:
        """Return the whole model's values that answers are read from, `(samples, values)`."""
        name = self.answers.operation
        values = values_of(self._given[0].im, x, [name])[name]
        return values.reshape(len(values), -1).astype(np.float64)

    def __call__(self, item: Item) -> DecisiveSlices:
        return self.found(item, self._donors.trials(self.model, item.inputs, item.seed))

    def found(self, item: Item, trials: dict[str, Any]) -> DecisiveSlices:
        """Return the slice of an item, of which a search runs `trials` (see `DonorSets`)."""
        slicer, *_, others, _ = self._given
        answers = copy.copy(self.answers)
        answers.full = item.full
        rows = np.arange(len(item.full))
        search = Search(self.model, answers, rows, item.targets, self.required, **trials)
        search.decide()
        if not answers.is_number and len(search.members) < self.model.units:
            drawn = [int(answer) for answer in item.asked if answer != search.targets[0]]
            search.given += [(answer, search.gives(answer)) for answer in drawn[:others]]
        certificate = search.certificate()
        info = {
            **asdict(self.required),
            "reference": self.reference.name,
            "inactive": self.reference.words,
            "kind": answers.kind,
            "names": answers.names,
            "labels": answers.kind != BINARY and answers.classes.is_multi_label,
            "donors": len(search.data.index) // len(search.samples),
            "number": answers.is_number,
            "others": [[list(pair) for pair in search.given]],
            "untested": self._donors.missing,
            "fingerprint": slicer.profile.fingerprint,
        }
        contributions = [search.contributions()]
        return DecisiveSlices(self.model.shapes, [search.members], contributions, certificate, info)

    def collect(self, items: Sequence[Item], folder: Any) -> DecisiveSlices:
        """Return the slices of all items in order, searching for those that a folder lacks."""
        slicer, *_ = self._given
        store = (
            None if folder is None else Store(folder, self._identity(items[0]), "decisive slices")
        )
        files = [range(i, min(i + _STORED, len(items))) for i in range(0, len(items), _STORED)]
        keys = [f"slices-{number:08d}" for number in range(len(files))]
        found: dict[int, DecisiveSlices] = {}
        joined: dict[int, DecisiveSlices] = {}  # by file
        digests: dict[int, str] = {}
        for number, (own, key) in enumerate(zip(files, keys, strict=True)):
            if store is None:
                break
            digests[number] = digest(items[i].digest().encode() for i in own)
            if key in store:
                with store.open(key) as file:
                    check_batch(number, file.value("digest", str), digests[number])
                    joined[number] = DecisiveSlices.from_archive(file)
        rest = [(i, items[i]) for n, own in enumerate(files) if n not in joined for i in own]

        # Ray is worth its start for several searches, and if it was asked for.
        def results() -> Iterator[tuple[int, DecisiveSlices]]:
            if len(rest) > 1 and (slicer.workers or slicer.ray_address is not None):
                yield from make_engine(slicer.workers, slicer.ray_address).map(self, rest)
                return
            threads = 1 if slicer.workers == 0 else available_cores()
            with ThreadPoolExecutor(threads) as pool:
                yield from pool.map(lambda item: (item[0], self(item[1])), rest)

        with progress_bar("Deciding", len(items), slicer.progress, unit="slice") as bar:
            bar.update(len(items) - len(rest))
            for index, slices in results():
                found[index] = slices
                bar.update()
                number = index // _STORED
                if all(i in found for i in files[number]):
                    joined[number] = DecisiveSlices.join([found.pop(i) for i in files[number]])
                    if store is not None:
                        header, arrays = joined[number].to_archive()
                        store.save(keys[number], header | {"digest": digests[number]}, arrays)
        return DecisiveSlices.join([joined[number] for number in range(len(files))])

    def _identity(self, first: Item) -> dict[str, Any]:
        """Return everything that the slices depend on, but for their samples."""
        slicer, _, required, _, others, _ = self._given
        donors, answers = self._donors, self.answers
        sets = [d for d in (*donors.rounds, donors.choice, donors.tests) if d is not None]
        reference = self.model.unchecked(first.inputs).base
        return {
            "model": slicer.profile.fingerprint,
            **asdict(required),
            "answer": [answers.operation, answers.kind, digest([answers.score(0)[0]])],
            "others": others,
            "reference": digest(ops.convert_to_numpy(value) for value in reference.values()),
            "donors": digest(array for donors in sets for array in donors.inputs),
        }
