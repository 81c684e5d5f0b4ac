"""Why compressed models deviate: responsible layers, recipes for quantisers, repeated searches."""

import functools
import operator
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from importlib.util import find_spec

import keras
import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from nnslicer_tf._checks import check_name
from nnslicer_tf.debugging import compare_layers, recipe
from nnslicer_tf.debugging.comparison import LayerComparison
from nnslicer_tf.debugging.recipes import Recipe
from nnslicer_tf.dflare import DeviationSet, ModelPair, compress, find_deviations
from nnslicer_tf.dflare.classifiers import ModelLike
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel, copy_model
from nnslicer_tf.pruning.costs import to_litert
from nnslicer_tf.report.results import errors_figure
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.debugging.settings import CompressionSettings
from reproduction.dflare.methods import METHODS
from reproduction.dflare.pairs import NamedPair, load_pair, uint8_images
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note, versions
from reproduction.rows import RowStore

_SEARCHES = ("DFlare", "Algorithm 1")
_CALIBRATION = 200  # training images for calibrating the range of activations
_PROFILE = 500
_SLICED = 20
_TIMES = 10  # a search counts as harder if it needs this many times the queries


Maker = Callable[[Recipe | None], bytes]


def compression(s: CompressionSettings) -> ExperimentResult:
    """Compare a pair layer by layer, make recipes for quantisers, and search again."""
    pair = load_pair(s.pair, s.models, s.work / "pairs")
    if isinstance(pair.load_compressed(), keras.Model):
        raise InvalidArgumentError(
            f"The compressed model of '{s.pair}' is no LiteRT file. Choose a quantised pair."
        )
    study = _Study(s, pair)
    makers = study.makers()
    found = study.search(pair.load_compressed(), study.test_images, "DFlare")
    compared = study.compare(pair.load_compressed(), found)
    name = f"compression_{s.pair}"
    head = {"pair": s.pair, "seed_images": len(study.test_images)}
    head |= {"deviations_compared": len(compared.x), "max_queries": s.max_queries}
    head |= {"budget": s.budget, "seed": s.seed}
    head["libraries"] = versions("ai-edge-litert", *["ai-edge-quantizer"] * _has_quantizer())
    fields = ("seeds", "max_queries", "budget", "seed")
    store = RowStore.of(s, name, ("row",), *fields, weights=study.im.fingerprint)
    for way, make in makers.items():
        if {"row": f"control,{way}"} not in store:
            store.add(study.recipe_rows(way, make))
    for share in s.shares:
        if {"row": f"{share},{_SEARCHES[-1]}"} not in store:
            store.add(study.shrunk_rows(compared, share))

    def table(ending: str, frame: pd.DataFrame, title: str, text: str) -> ExperimentTable:
        return ExperimentTable(name + ending, frame, f"{s.pair}: {title}", head, text)

    deviate = "what makes the compressed model deviate"
    again = "quantised again, with few layers left in float"
    control = "the layers that cause most, and those that cause least"
    shrunk = "searches, with less of the weights' errors"
    tables = [
        table("_layers", study.layers(compared), deviate, note("layers")),
        ExperimentTable(f"{name}_channels", compared.to_frame("channel", 50)),
        table("", _frame(store, makers, _SEARCHES), again, note("recipes", times=_TIMES)),
        table("_control", _frame(store, ["control"], makers), control, note("control")),
        table("_shrunk", _frame(store, s.shares, _SEARCHES), shrunk, note("shrunk", times=_TIMES)),
    ]
    return ExperimentResult(tables, [ExperimentFigure(name, compared.figure())])


def plot(layers: pd.DataFrame) -> Figure:
    """Draw the table of layers, from the input to the output: in the order of `depth`."""
    return errors_figure(layers.sort_values("depth").set_index("operation"))


class _Study:
    """One pair, with the images from which searches start."""

    def __init__(self, s: CompressionSettings, pair: NamedPair) -> None:
        self.settings, self.pair = s, pair
        self._whole: dict[str, DeviationSet] = {}  # searches with all of the weights' errors
        self.model: keras.Model = pair.load_original()
        self.im = InstrumentedModel(self.model)
        self.train = uint8_images(pair.dataset, f"train[:{20 * s.seeds + _PROFILE}]")
        self.test_images = self._agreed(uint8_images(pair.dataset, "test"))
        self.train_images = self._agreed(self.train[_PROFILE:])

    def makers(self) -> dict[str, Maker]:
        """Return for each quantiser the function that makes a file, with or without a recipe."""
        known: dict[str, Maker] = {
            "dynamic": partial(self._ai_edge, "dynamic_wi8_afp32"),
            "weights": partial(self._ai_edge, "weight_only_wi8_afp32"),
            "integer": self._integer,
            "static": partial(self._ai_edge, "static_wi8_ai8"),
            "static16": partial(self._ai_edge, "static_wi8_ai8", kept="int16"),
        }
        ways = self.settings.ways.split(",")
        for way in ways:
            check_name("way", way, known)
        if set(ways) - {"integer"} and not _has_quantizer():
            raise InvalidArgumentError(
                "All ways but 'integer' need the AI Edge Quantizer: pip install "
                "ai-edge-quantizer, or choose --ways integer."
            )
        return {way: known[way] for way in ways}

    def search(self, compressed: ModelLike, images: np.ndarray, search: str) -> DeviationSet:
        """Search from images."""
        pair = ModelPair(self.model, compressed, self.pair.preprocess)
        algorithm = replace(METHODS[search].search, max_queries=self.settings.max_queries)
        return find_deviations(pair, images, search=algorithm, rng=self.settings.seed)

    def compare(self, compressed: ModelLike, found: DeviationSet) -> LayerComparison:
        """Compare layers on the deviations that were found."""
        if not found.found.any():
            raise InvalidArgumentError("No search found a deviation: there is nothing to explain.")
        return compare_layers(self.im, compressed, self.pair.preprocess(found.images))

    def layers(self, compared: LayerComparison) -> pd.DataFrame:
        """Return the table of layers, with the overlap of the two models' slices."""
        frame = compared.to_frame()
        data = self.pair.preprocess(self.train[:_PROFILE])
        x, labels = compared.x[:_SLICED], compared.labels[:_SLICED, 0]
        sums = []
        for im in (self.im, self.im.like(compared.twin)):
            slicer = Slicer(im, Profile.from_data(im, data, progress=False), 0.3, progress=False)
            parts = [slicer.slice(x[labels == label], [int(label)]) for label in np.unique(labels)]
            sums.append(functools.reduce(operator.add, parts))
        first, second = sums
        shared = {}
        for place in compared.places:
            if place.kernel is not None:
                a, b = (one.synapses[place.kernel] != 0 for one in (first, second))
                shared[place.operation] = float((a & b).sum() / max((a | b).sum(), 1))
        frame["same slice"] = frame["operation"].map(shared)
        order = [place.operation for place in compared.places]
        frame["depth"] = frame["operation"].map(order.index)
        return frame

    def recipe_rows(self, way: str, make: Maker) -> Iterator[dict[str, object]]:
        """Yield rows for a quantiser's plain file, and for files with layers left in float."""

        def names(chosen: Recipe) -> str:
            return ", ".join(chosen.layers) or "no layer fits"

        plain = make(None)
        learned = self.compare(plain, self.search(plain, self.train_images, "DFlare"))
        chosen = recipe(learned, self.settings.budget)  # the layers that cause most
        better = make(chosen)
        befores = {name: self.search(plain, self.test_images, name) for name in _SEARCHES}
        for search, before in befores.items():
            after = self.search(better, self.test_images, search)
            base = {"row": f"{way},{search}", "quantiser": way, "search": search}
            yield {**base, "recipe": "none", "bytes": len(plain), **_queries(before)}
            row = {**base, "recipe": names(chosen), "bytes": len(better), **_queries(after)}
            row["weights in float"] = chosen.weights
            row["caused"] = sum(learned.causes[p.operation] for p in chosen.places)
            row |= {"predicted": chosen.mended, "mended": self._agree(better, before.images)}
            yield row | {"harder": _harder(before, after)}

        # As a control, the layers with the smallest effects.
        rest = [place for place in reversed(learned.ranking) if place not in chosen.places]
        others = recipe(learned, chosen.weights, rest) if chosen.places else chosen
        images = befores["DFlare"].images
        row = {"row": f"control,{way}", "quantiser": way, "layers that cause most": names(chosen)}
        row |= {"weights": chosen.weights, "mended": self._agree(better, images)}
        row |= {"layers that cause least": names(others), "their weights": others.weights}
        by_them = self._agree(make(others), images) if others.places else np.nan
        yield row | {"mended by them": by_them}

    def shrunk_rows(self, compared: LayerComparison, share: float) -> Iterator[dict[str, object]]:
        """Yield rows for a copy with a share of the errors of the compressed file's weights."""
        copy = self._with_errors(compared, share)
        for search in _SEARCHES:
            if search not in self._whole:
                whole = self._with_errors(compared, 1.0)
                self._whole[search] = self.search(whole, self.test_images, search)
            before = self._whole[search]
            after = self.search(copy, self.test_images, search)
            base = {"row": f"{share},{search}", "share": share, "search": search}
            yield {**base, **_queries(after), "harder": _harder(before, after)}

    def _with_errors(self, compared: LayerComparison, share: float) -> keras.Model:
        copy = copy_model(self.model)
        kernels = InstrumentedModel(copy).kernels
        for name, values in compared.counterpart.kernels().items():
            own = self.im.kernels[name].kernel()
            kernels[name].variable().assign(own + share * (values - own))
        return copy

    def _agreed(self, images: np.ndarray) -> np.ndarray:
        """Return random images on which the pair's models agree."""
        order = np.random.default_rng(0).permutation(len(images))[: 2 * self.settings.seeds]
        images = images[np.sort(order)]
        return images[self._answers(self.pair.load_compressed(), images)][: self.settings.seeds]

    def _agree(self, compressed: ModelLike, images: np.ndarray) -> float:
        return float(self._answers(compressed, images).mean()) if len(images) else np.nan

    def _answers(self, compressed: ModelLike, images: np.ndarray) -> np.ndarray:
        """Return for each image whether the compressed model agrees with the original."""
        pair = ModelPair(self.model, compressed, self.pair.preprocess)
        return ~pair.ask(images).deviates

    def _ai_edge(self, settings: str, chosen: Recipe | None, kept: str = "float") -> bytes:
        from ai_edge_quantizer import recipe as recipes

        content = to_litert(self.model)
        added = chosen.ai_edge(content, kept) if chosen else []
        samples = self.pair.preprocess(self.train[:_CALIBRATION])
        whole = [*getattr(recipes, settings)(), *added]
        return compress(content, "ai_edge", samples, recipe=whole)

    def _integer(self, chosen: Recipe | None) -> bytes:
        samples = self.pair.preprocess(self.train[:_CALIBRATION])
        if chosen is None or not chosen.places:
            return compress(self.model, "int8", samples)
        keep = chosen.tensors(to_litert(self.model))
        return compress(self.model, "int8", samples, keep=keep)


def _has_quantizer() -> bool:
    return find_spec("ai_edge_quantizer") is not None


def _queries(found: DeviationSet) -> dict[str, object]:
    """Return metrics of searches; those that gave up count with the queries they used."""
    return {
        "found": float(found.found.mean()),
        "deviate at once": int((found.status == "already_deviates").sum()),
        "median queries": float(np.median(found.queries)),
        "mean queries": float(found.queries.mean()),
    }


def _harder(before: DeviationSet, after: DeviationSet) -> float:
    """Return the share of the searches that succeeded and now fail, or need many more queries."""
    fails = after.status == "query_budget"
    harder = fails | (after.found & (after.queries >= _TIMES * before.queries))
    return float(harder[before.found].mean()) if before.found.any() else np.nan


def _frame(store: RowStore, keys: Iterable[object], others: Iterable[str]) -> pd.DataFrame:
    frame = store.to_frame([{"row": f"{key},{other}"} for key in keys for other in others])
    frame = frame.drop(columns="row").dropna(axis="columns", how="all")
    whole = [name for name in ("bytes", "deviate at once") if name in frame]
    return frame.astype(dict.fromkeys(whole, int))  # values from a store are floats
