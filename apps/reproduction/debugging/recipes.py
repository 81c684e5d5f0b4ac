"""Which layers should stay in float: rankings compared by quantising again and running the file."""

from collections.abc import Iterator
from importlib.util import find_spec

import numpy as np

from nnslicer_tf import versions
from nnslicer_tf.debugging import compare_layers, recipe
from nnslicer_tf.debugging.counterparts import Place
from nnslicer_tf.dflare import compress
from nnslicer_tf.dflare.classifiers import as_classifier
from nnslicer_tf.errors import MissingPackageError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.pruning.costs import to_litert
from reproduction.debugging.settings import RecipeSettings
from reproduction.dflare.pairs import load_original
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.result import versions as versions_of
from reproduction.rows import RowStore

_CALIBRATION = 200  # training samples that calibrate the ranges of activations
_COMPARED = 100  # deviating training samples by which layers are compared
_RANDOM_ORDERS = 5


def recipes(s: RecipeSettings) -> ExperimentResult:
    """Quantise networks again with the layers that each ranking leaves in float; run the files."""
    if find_spec("ai_edge_quantizer") is None:
        raise MissingPackageError("This needs the AI Edge Quantizer: pip install ai-edge-quantizer")
    for network in s.networks.split(","):  # data that are missing are named before long work
        load_original(network, None).samples("train[:1]")
    store = RowStore.of(
        s, "recipes", ("network", "quantiser"), "budgets", "learned", "tested", "seed"
    )
    names = [{"network": n, "quantiser": q} for n in s.networks.split(",") for q in s.quantisers]
    rows = store.fill(names, lambda **name: _Study(s, **name).rows(), "Networks")
    # Random orders are repeated; the others have one row.
    by = ["network", "quantiser", "budget", "ranking"]
    files = rows.groupby(by, sort=False).mean(numeric_only=True).reset_index()
    wide = files.pivot_table("differ", by[:3], "ranking", sort=False).reset_index()
    head = {"networks": s.networks, "training_samples": s.learned, "test_samples": s.tested}
    head |= {"seed": s.seed, "libraries": versions_of("ai-edge-litert", "ai-edge-quantizer")}
    title = "Answers of quantised files that differ from the original's"
    return ExperimentResult(
        [
            ExperimentTable("recipes", wide, title, head, note("kept_in_float")),
            ExperimentTable("recipes_files", files),
        ]
    )


class _Study:
    """A network and its quantised file, with training samples to choose layers by."""

    def __init__(self, s: RecipeSettings, network: str, quantiser: str) -> None:
        from ai_edge_quantizer import recipe as known

        self.settings, self.quantiser = s, getattr(known, quantiser)()
        original = load_original(network, None)
        self.im = InstrumentedModel(original.load())
        self.float_file = to_litert(self.im.model)
        train = original.samples(f"train[:{s.learned + _CALIBRATION}]")
        self.calibration, self.x = train[:_CALIBRATION], train[_CALIBRATION:]
        self.test = original.samples(f"test[:{s.tested}]")
        self.answers = self.im.predict(self.x).argmax(axis=1)
        self.file = self.made([])
        differ = as_classifier(self.file).probabilities(self.x).argmax(axis=1) != self.answers
        few = self.x[differ][:_COMPARED]
        self.compared = compare_layers(self.im, self.file, few, progress=False)
        self.places = [place for place in self.compared.places if place.kernel is not None]

    def made(self, entries: list) -> bytes:
        """Return a file, quantised with further entries of a recipe."""
        whole = [*self.quantiser, *entries]
        content: bytes = compress(self.float_file, "ai_edge", self.calibration, recipe=whole)
        return content

    def rows(self) -> Iterator[dict[str, object]]:
        """Yield a row for the plain file, and for each ranking and budget."""
        yield self._row("none", 0.0, self.file, 0.0)
        rng = np.random.default_rng(self.settings.seed)
        orders = list(self._orders().items())
        for _ in range(_RANDOM_ORDERS):
            orders.append(("random", [self.places[i] for i in rng.permutation(len(self.places))]))
        for name, order in orders:
            for budget in self.settings.budgets:
                chosen = recipe(self.compared, budget, order)
                file = self.made(chosen.ai_edge(self.float_file)) if chosen.places else self.file
                yield self._row(name, budget, file, chosen.weights)

    def _orders(self) -> dict[str, list[Place]]:
        """Return for each ranking the places by priority."""
        im, twin = self.im, self.compared.twin
        causes = [self.compared.causes[place.operation] for place in self.places]
        # The loss that rounded weights cause, if the original's answers are the right ones.
        ranked = versions.rank_changes(
            im, twin, self.x, self.answers, level="layer", progress=False
        )
        losses = dict(zip(ranked["name"], ranked["harm"], strict=True))
        paths = {n: str(k.variable().path).rpartition("/")[0] for n, k in im.kernels.items()}
        harms = [losses.get(paths[str(place.kernel)], 0.0) for place in self.places]
        errors = [self._mended_error(im.like(twin), place) for place in self.places]

        def ordered(values: list[float], by_weight: bool = True) -> list[Place]:
            each = zip(self.places, values, strict=True)
            worth = {p: value / (p.weights if by_weight else 1) for p, value in each}
            return sorted(self.places, key=lambda place: -worth[place])

        return {
            "causes": list(self.compared.ranking),
            "causes a weight": ordered(causes),
            "loss": ordered(harms, by_weight=False),
            "loss a weight": ordered(harms),
            "error a weight": ordered(errors),
            "smallest": ordered([1.0] * len(self.places)),
        }

    def _mended_error(self, twin: InstrumentedModel, place: Place) -> float:
        """Return by how much the logits' squared error falls if one kernel is not rounded."""
        right = self.im.logits(self.x)
        before = np.square(twin.logits(self.x) - right).sum()
        variable = twin.kernels[str(place.kernel)].variable()
        rounded = variable.numpy()
        variable.assign(self.im.kernels[str(place.kernel)].variable())
        after = np.square(twin.logits(self.x) - right).sum()
        variable.assign(rounded)
        return float(before - after)

    def _row(self, ranking: str, budget: float, file: bytes, share: float) -> dict[str, object]:
        answers = as_classifier(file).probabilities(self.test).argmax(axis=1)
        differ = float((answers != self.im.predict(self.test).argmax(axis=1)).mean())
        row = {"ranking": ranking, "budget": budget, "bytes": len(file)}
        return row | {"weights in float": share, "differ": differ}
