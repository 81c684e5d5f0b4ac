"""The work of `Slicer.decisive`: a search for each sample, in this process or on Ray workers.

Searches are independent: each has its sample, and a seed of its own. So results do not depend on
how many workers there are, and those of a folder are found again.
"""

import copy
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
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
from nnslicer_tf.slicing._shared_passes import Member, SharedPasses
from nnslicer_tf.slicing.answers import CLASS, asked_answers
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.donors import DonorSets, donor_sets
from nnslicer_tf.slicing.search import Search

if TYPE_CHECKING:
    from nnslicer_tf.slicing.deciding import Requirements
    from nnslicer_tf.slicing.slicer import Slicer

_STORED = 32  # slices of a file
_FLOATS_OF_PASS = 1 << 24  # of the masks, and of the activations, of all samples


@dataclass(frozen=True)
class Item:
    """One search: of one sample, or of several that share a mask."""

    inputs: Sequence[np.ndarray]
    full: np.ndarray  # the whole model's values, (samples, values)
    targets: np.ndarray  # the answers to keep, (samples,)
    asked: np.ndarray  # other answers, in the order in which the same search is tried for them
    seed: int


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
        self._given = slicer, outputs, required, self.reference, others, scope
        self.answers, self.wanted = asked_answers(slicer.im, outputs)
        target = self.answers.target or {self.answers.operation: "all"}
        self.model = Ablation(slicer.im, self.reference, required.level, target=target)
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

    @property
    def at_once(self) -> int:
        """How many searches share a pass: those of one sample each, with values of no other."""
        if self.reference.paired or isinstance(self.reference, Samples):
            return 1
        activations = sum(operation.size for operation in self.model.im.operations)
        most = _FLOATS_OF_PASS // max(self.model.units, activations)
        return next((count for count in (16, 8, 4, 2) if count <= most), 1)

    def __call__(
        self, items: Sequence[Item], done: Callable[..., Any] = lambda: None
    ) -> list[DecisiveSlices]:
        """Return the slices of items, which share passes; call `done` after each."""
        passes = SharedPasses(self.model, len(items))

        def run(place: int) -> DecisiveSlices:
            item, model = items[place], self.model if len(items) == 1 else Member(passes, place)
            try:
                trials = self._donors.trials(self.model, item.inputs, item.seed)
                return self.found(item, trials, model)
            finally:
                passes.leave()
                done()

        if len(items) == 1:
            return [run(0)]
        with ThreadPoolExecutor(len(items)) as pool:
            try:
                return list(pool.map(run, range(len(items))))
            except BaseException:  # Ctrl-C
                passes.stop()
                raise

    def found(self, item: Item, trials: dict[str, Any], model: Any = None) -> DecisiveSlices:
        """Return the slice of an item, of which a search runs `trials` (see `DonorSets`)."""
        slicer, *_, others, _ = self._given
        answers = copy.copy(self.answers)
        answers.full = item.full
        rows = np.arange(len(item.full))
        search = Search(model or self.model, answers, rows, item.targets, self.required, **trials)
        search.decide()
        if not answers.is_number and len(search.members) < self.model.units:
            nothing = np.bincount(answers.of(search.empty)).argmax()  # a slice of nothing gives it
            drawn = [int(n) for n in item.asked if n not in (search.targets[0], nothing)]
            search.given += [(answer, search.gives(answer)) for answer in drawn[:others]]
        certificate = search.certificate()
        info = {
            **asdict(self.required),
            "reference": self.reference.name,
            "inactive": self.reference.words,
            "kind": answers.kind,
            "names": answers.names,
            "labels": answers.kind == CLASS and answers.classes.is_multi_label,
            "donors": len(search.data.index) // len(search.samples),
            "number": answers.is_number,
            "others": [[list(pair) for pair in search.given]],
            "untested": self._donors.missing,
            "fingerprint": slicer.profile.fingerprint,
            "own_code": slicer.profile.own_code,
            **({"columns": list(slicer.im.columns)} if slicer.im.columns else {}),
        }
        contributions = [search.contributions()]
        return DecisiveSlices(self.model.shapes, [search.members], contributions, certificate, info)

    def collect(self, items: Sequence[Item], folder: Any) -> DecisiveSlices:
        """Return the slices of all items in order, searching for those that a folder lacks."""
        slicer, *_ = self._given
        store = (
            None if folder is None else Store(folder, self._identity(items[0]), "search for slices")
        )
        files = [range(i, min(i + _STORED, len(items))) for i in range(0, len(items), _STORED)]
        keys = [f"slices-{number:08d}" for number in range(len(files))]
        found: dict[int, DecisiveSlices] = {}
        joined: dict[int, DecisiveSlices] = {}  # by file
        digests: dict[int, str] = {}
        for number, (own, key) in enumerate(zip(files, keys, strict=True)):
            if store is None:
                break
            digests[number] = digest(array for i in own for array in self._arrays(items[i]))
            if key in store:
                with store.open(key) as file:
                    check_batch(number, file.value("digest", str), digests[number])
                    joined[number] = DecisiveSlices.from_archive(file)
        # The rest, as many searches at once as share a pass, of one file.
        size, rest = self.at_once, []
        for own in (own for number, own in enumerate(files) if number not in joined):
            rest += [(i, items[i : min(i + size, own.stop)]) for i in own[::size]]

        # Ray is worth its start for several searches, and if it was asked for.
        def results(done: Callable[..., Any]) -> Iterator[tuple[int, list[DecisiveSlices]]]:
            if len(rest) > 1 and (slicer.workers or slicer.ray_address is not None):
                engine = make_engine(slicer.workers, slicer.ray_address)
                for index, slices in engine.map(self, rest):
                    done(len(slices))
                    yield index, slices
                return
            threads = 1 if slicer.workers == 0 or size > 1 else available_cores()
            with ThreadPoolExecutor(threads) as pool:
                yield from pool.map(lambda part: (part[0], self(part[1], done)), rest)

        with progress_bar("Deciding", len(items), slicer.progress, unit="slice") as bar:
            bar.update(len(items) - sum(len(part) for _, part in rest))
            for first, slices in results(bar.update):
                found |= dict(enumerate(slices, first))
                number = first // _STORED
                if all(i in found for i in files[number]):
                    joined[number] = DecisiveSlices.join([found.pop(i) for i in files[number]])
                    if store is not None:
                        header, arrays = joined[number].to_archive()
                        store.save(keys[number], header | {"digest": digests[number]}, arrays)
        return DecisiveSlices.join([joined[number] for number in range(len(files))])

    def _arrays(self, item: Item) -> Iterator[Any]:
        """Yield what tells a search from others of a folder: its sample, and its reference."""
        yield from (*item.inputs, item.targets, item.asked, np.array(item.seed))
        base = self.model.unchecked(item.inputs).base if self.reference.paired else {}
        yield from map(ops.convert_to_numpy, base.values())

    def _identity(self, first: Item) -> dict[str, Any]:
        """Return everything that the slices depend on, but for their samples."""
        slicer, _, required, _, others, _ = self._given
        donors, answers = self._donors, self.answers
        sets = [d for d in (*donors.rounds, donors.choice, donors.tests) if d is not None]
        reference = self.model.unchecked(first.inputs).base
        return {
            "model": slicer.im.identity,
            **asdict(required),
            "answer": [answers.operation, answers.kind, digest([answers.score(0)[0]])],
            "output": repr(replace(answers.classes, remark="")),
            "others": others,
            "reference": digest(ops.convert_to_numpy(value) for value in reference.values()),
            "donors": digest(array for donors in sets for array in donors.inputs),
        }
