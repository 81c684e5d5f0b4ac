"""The public calls with arguments that they accept, and odd values to put in their place."""

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pandas as pd
import tensorflow as tf
from matplotlib.figure import Figure

import nnslicer_tf as nns
from nnslicer_tf import (
    attributions,
    datasets,
    debugging,
    deepbase,
    deepxplore,
    detection,
    dflare,
    exactline,
    instrument,
    protection,
    pruning,
    report,
    semantic,
    slicing,
    versions,
    zoo,
)


@dataclass
class World:
    """Small models, data and results to build calls from."""

    model: keras.Model
    newer: keras.Model
    im: nns.InstrumentedModel
    x: np.ndarray
    y: np.ndarray
    profile: nns.Profile
    images: np.ndarray
    image_model: keras.Model
    folder: Path
    dataset: datasets.Dataset
    made: dict[str, Any] = field(default_factory=dict)

    def pair(self) -> dflare.ModelPair:
        """Return the two models as a pair of classifiers of rows."""
        models = map(dflare.with_softmax, (self.model, self.newer))
        return dflare.ModelPair(*models, domain=dflare.TableDomain(self.x))


def build_world(folder: Path) -> World:
    """Return the models and data, the same in each run."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    layers = keras.layers
    model = keras.Sequential(
        [
            keras.Input((6,)),
            layers.Dense(5, activation="relu", name="hidden"),
            layers.Dense(3, name="logits"),
        ]
    )
    image_model = keras.Sequential(
        [
            keras.Input((6, 6, 1)),
            layers.Conv2D(2, 3, activation="relu", name="conv"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(3, name="logits"),
        ]
    )
    x = rng.normal(0, 1, (200, 6)).astype(np.float32)
    model.layers[-1].bias.assign(-model.predict(x, verbose=0).mean(0))  # each class is answered
    y = model.predict(x, verbose=0).argmax(1)
    y[::7] = (y[::7] + 1) % 3
    newer = keras.models.clone_model(model)
    newer.set_weights([w + rng.normal(0, 0.3, w.shape) for w in model.get_weights()])
    im = nns.InstrumentedModel(model)
    world = World(
        model=model,
        newer=newer,
        im=im,
        x=x,
        y=y,
        profile=nns.Profile.from_data(im, x, progress=False),
        images=rng.random((20, 6, 6, 1), np.float32),
        image_model=image_model,
        folder=folder,
        dataset=datasets.Dataset(x, y, "rows", "train", "unit", 3),
    )
    slicer = nns.Slicer(im, world.profile, progress=False)
    detector = detection.SliceDetector(slicer).fit(x)
    channel_scores = pruning.scores(im, "weight")
    critical = semantic.SemanticSlicer(im, x, y).global_slice(0.5)
    world.made = {
        "slicer": slicer,
        "slice": slicer.slice(x[:3]),
        "set": slicer.slice_each(x[:4]),
        "decisive": slicer.decisive(x[:2], scope=None, others=0),
        "explanation": slicer.explain(x[:1], compare=False, decisive=False),
        "detector": detector,
        "pair": world.pair(),
        "comparison": versions.compare(model, newer, x, y),
        "scores": channel_scores,
        "critical": critical,
        "hidden": protection.select(channel_scores, 0.2),
        "coverage": deepxplore.NeuronCoverage(im),
        "ranges": deepxplore.NeuronRanges.from_data(im, x, progress=False),
        "semantic": semantic.SemanticSlicer(im, x, y),
        "line": exactline.exact_line(im, x[0], x[1]),
        "deviations": dflare.find_deviations(
            world.pair(), x[:3], search=dflare.DFlare(max_queries=50), progress=False
        ),
        "inspected": deepbase.inspect(im, x, {"first": x[:, 0]}, progress=False),
        "suspicion": debugging.suspicious(im, (x[::7], y[::7]), (x[1::7], y[1::7]), progress=False),
        "keep": pruning.keep_masks(channel_scores, 0.2),
        "layers": debugging.compare_layers(im, newer, x, progress=False),
        "plane": exactline.exact_plane(im, x[:3], progress=False),
        "flips": versions.explain_flips(model, newer, x, progress=False),
        "patching": slicing.patch(im, x[0], x[1], progress=False),
        "margin": detection.LogitMargin(im).fit(x),
        "differences": deepxplore.generate(
            [model, newer], np.clip(x[:5], 0, 1), max_iterations=2, progress=False
        ),
    }
    return world


@dataclass(frozen=True)
class Call:
    """A public callable with arguments that it accepts."""

    of: Callable[..., Any]
    arguments: Mapping[str, Any]


def calls(w: World) -> dict[str, Call]:
    """Return the calls by name; parameters that a call omits are replaced, too."""
    im, x, y, made = w.im, w.x, w.y, w.made
    slicer, quiet = made["slicer"], {"progress": False}
    table: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
        "InstrumentedModel": (nns.InstrumentedModel, {"model": w.model}),
        "InstrumentedModel.capture": (im.capture, {"x": x}),
        "InstrumentedModel.predict": (im.predict, {"x": x}),
        "InstrumentedModel.logits": (im.logits, {"x": x}),
        "InstrumentedModel.gradients": (im.gradients, {"x": x, "of": 0}),
        "InstrumentedModel.labelled": (im.labelled, {"data": x, "y": y}),
        "InstrumentedModel.check": (im.check, {"x": x}),
        "InstrumentedModel.like": (im.like, {"model": w.newer}),
        "InstrumentedModel.at_position": (im.at_position, {"position": 0}),
        "Criterion": (nns.Criterion, {"outputs": (0,)}),
        "Profile.from_data": (nns.Profile.from_data, {"im": im, "data": x, **quiet}),
        "Profile.save": (w.profile.save, {"path": w.folder / "profile.npz"}),
        "Profile.check_model": (w.profile.check_model, {"im": im}),
        "Slicer": (nns.Slicer, {"im": im, "profile": w.profile, **quiet}),
        "Slicer.at_theta": (slicer.at_theta, {"theta": 0.2}),
        "Slicer.slice": (slicer.slice, {"x": x[:4]}),
        "Slicer.slice_each": (slicer.slice_each, {"x": x[:4]}),
        "Slicer.iterate": (lambda **k: list(slicer.iterate(**k)), {"x": x[:4]}),
        "Slicer.decisive": (slicer.decisive, {"x": x[:1], "scope": None, "others": 0}),
        "Slicer.explain": (slicer.explain, {"x": x[:1], "compare": False, "decisive": False}),
        "Slicer.plan": (slicer.plan, {}),
        "Slice.apply": (made["slice"].apply, {"model": w.model, "reference": "zero"}),
        "Slice.to_vector": (made["slice"].to_vector, {}),
        "Slice.compare": (made["slice"].compare, {"other": made["slice"]}),
        "Slice.edges": (made["slice"].edges, {"model": w.model}),
        "Slice.save": (made["slice"].save, {"path": w.folder / "slice.npz"}),
        "SliceSet.to_array": (made["set"].to_array, {}),
        "SliceSet.kept_share": (made["set"].kept_share, {"kernel": "hidden"}),
        "DecisiveSlices.masks": (made["decisive"].masks, {}),
        "DecisiveSlices.summary": (made["decisive"].summary, {}),
        "Explanation.channels": (made["explanation"].channels, {}),
        "Explanation.name": (made["explanation"].name, {"label": 0}),
        "patch": (slicing.patch, {"model": im, "clean": x[:1], "corrupt": x[1:2]}),
        "Ablation": (instrument.Ablation, {"model": im, "reference": "zero"}),
        "Samples": (instrument.Samples, {"x": x}),
        "copy_model": (instrument.copy_model, {"model": w.model}),
        "load_model": (instrument.load_model, {"path": w.folder / "none.keras"}),
        "DeepExplainer": (attributions.DeepExplainer, {"model": im, "data": x}),
        "compare": (versions.compare, {"old": w.model, "new": w.newer, "x": x, "y": y}),
        "explain_flips": (
            versions.explain_flips,
            {"old": w.model, "new": w.newer, "x": x[:6], **quiet},
        ),
        "rank_changes": (
            versions.rank_changes,
            {"old": w.model, "new": w.newer, "x": x, "y": y, **quiet},
        ),
        "revert": (
            versions.revert,
            {"old": w.model, "new": w.newer, "x": x, "y": y, **quiet},
        ),
        "load": (datasets.load, {"name": "nowhere"}),
        "load_data": (datasets.load_data, {"spec": w.folder / "none.npz"}),
        "normalisation": (datasets.normalisation, {"name": "mnist", "kind": "unit"}),
        "suspicious": (
            debugging.suspicious,
            {"im": im, "failing": (x[::7], y[::7]), "passing": (x[1::7], y[1::7]), **quiet},
        ),
        "Runs.split": (debugging.Runs.split, {"im": im, "x": x, "y": y}),
        "compare_layers": (
            debugging.compare_layers,
            {"im": im, "compressed": w.newer, "x": x, **quiet},
        ),
        "recipe": (debugging.recipe, {"comparison": made["layers"]}),
        "Units": (deepbase.Units, {"pattern": "*"}),
        "inspect": (
            deepbase.inspect,
            {"models": im, "dataset": x, "hypotheses": {"first": x[:, 0]}, **quiet},
        ),
        "classes": (deepbase.classes, {"y": y, "names": ("a", "b", "c")}),
        "NeuronCoverage": (deepxplore.NeuronCoverage, {"im": im}),
        "TopKCoverage": (deepxplore.TopKCoverage, {"im": im}),
        "KMultisectionCoverage": (deepxplore.KMultisectionCoverage, {"ranges": made["ranges"]}),
        "BoundaryCoverage": (deepxplore.BoundaryCoverage, {"ranges": made["ranges"]}),
        "Coverage.update": (made["coverage"].update, {"x": x}),
        "generate": (
            deepxplore.generate,
            {"models": [w.image_model, w.image_model], "seeds": w.images[:2], "max_iterations": 1},
        ),
        "SliceDetector": (detection.SliceDetector, {"slicer": slicer}),
        "SliceDetector.fit": (detection.SliceDetector(slicer).fit, {"X": x}),
        "SliceDetector.predict": (made["detector"].predict, {"X": x}),
        "SliceDetector.score": (made["detector"].score, {"X": x, "y": np.arange(len(x)) % 2}),
        "evaluate": (
            detection.evaluate,
            {"detector": made["detector"], "attacks": {"noise": (x, x + 0.1)}},
        ),
        "ModelPair": (dflare.ModelPair, {"original": w.model, "compressed": w.newer}),
        "agreement": (dflare.agreement, {"pair": made["pair"], "x": x}),
        "as_classifier": (dflare.as_classifier, {"model": w.model}),
        "compress": (dflare.compress, {"model": w.model, "method": "prune"}),
        "DFlare": (dflare.DFlare, {}),
        "find_deviations": (
            dflare.find_deviations,
            {
                "pair": w.pair(),
                "seeds": x[:2],
                "search": dflare.DFlare(max_queries=20),
                **quiet,
            },
        ),
        "with_softmax": (dflare.with_softmax, {"model": w.model}),
        "exact_line": (exactline.exact_line, {"im": im, "start": x[0], "end": x[1]}),
        "exact_plane": (exactline.exact_plane, {"im": im, "polygon": x[:3]}),
        "integrated_gradients": (
            exactline.integrated_gradients,
            {"im": im, "x": x[0], "baseline": x[1], "target": 0},
        ),
        "LinearPartition.at": (made["line"].at, {"ratios": np.array([0.1, 0.4])}),
        "select": (protection.select, {"scores": made["scores"], "share": 0.1}),
        "hide": (protection.hide, {"model": w.model, "hidden": made["hidden"]}),
        "steal": (
            protection.steal,
            {
                "model": w.model,
                "hidden": made["hidden"],
                "train": (x, y),
                "budget": 5,
                "attacker": protection.Attacker(epochs=1, progress=False),
            },
        ),
        "scores": (pruning.scores, {"im": im, "method": "weight"}),
        "prune": (pruning.prune, {"model": w.model, "scores": made["scores"], "ratio": 0.3}),
        "global_ratios": (pruning.global_ratios, {"scores": made["scores"], "ratio": 0.3}),
        "keep_masks": (pruning.keep_masks, {"scores": made["scores"], "ratio": 0.3}),
        "shrink": (
            pruning.shrink,
            {"model": w.model, "x": x, "y": y, "classes": [0, 1], "ratio": 0.2, **quiet},
        ),
        "renormalise": (pruning.renormalise, {"model": w.model, "x": x}),
        "fine_tune": (
            pruning.fine_tune,
            {"model": keras.models.clone_model(w.model), "x": x, "y": y, **quiet},
        ),
        "SemanticSlicer": (semantic.SemanticSlicer, {"im": im, "x": x, "y": y}),
        "SemanticSlicer.global_slice": (made["semantic"].global_slice, {"share": 0.3}),
        "SemanticSlicer.semantic_slice": (made["semantic"].semantic_slice, {}),
        "contributions": (semantic.contributions, {"im": im, "x": x, "y": y}),
        "masked": (semantic.masked, {"model": w.model, "critical": made["critical"]}),
        "restructure": (semantic.restructure, {"model": w.model, "critical": made["critical"]}),
        "parameter_share": (
            semantic.parameter_share,
            {"model": w.model, "neurons": made["critical"]},
        ),
        "train_neurons": (
            semantic.train_neurons,
            {"model": w.model, "neurons": made["critical"], "x": x, "y": y, "epochs": 1},
        ),
        "plot_words": (report.plot_words, {"values": np.ones(2), "words": ("a", "b")}),
        "plot_over_image": (
            report.plot_over_image,
            {"values": np.ones((6, 6)), "image": w.images[0]},
        ),
        "explore": (nns.explore, {"slices": made["set"], "im": im, "x": x[:4], **quiet}),
        "build": (zoo.build, {"name": "mlp"}),
        "accuracy": (zoo.accuracy, {"model": w.model, "data": w.dataset}),
        "Dataset": (
            datasets.Dataset,
            vars(w.dataset),
        ),
        "Mean": (instrument.Mean, {"means": w.profile}),
        "Weights": (instrument.Weights, {"model": w.newer}),
        "instrumented": (instrument.instrumented, {"model": w.model}),
        "patch_path": (
            slicing.patch_path,
            {
                "model": im,
                "clean": x[:1],
                "corrupt": x[1:2],
                "sender": "hidden",
                "receiver": "logits",
            },
        ),
        "LineWalker": (exactline.LineWalker, {"im": im}),
        "LineWalker.line": (exactline.LineWalker(im).line, {"start": x[0], "end": x[1]}),
        "PlaneWalker": (exactline.PlaneWalker, {"im": im}),
        "Attributor": (exactline.Attributor, {"im": im}),
        "Attributor.exact": (
            exactline.Attributor(im).exact,
            {"x": x[0], "baseline": x[1], "target": 0},
        ),
        "Evidence": (detection.Evidence, {"im": im, "x": x}),
        "LogitMargin": (detection.LogitMargin, {"im": im}),
        "ReconstructionError": (detection.ReconstructionError, {"im": im}),
        "ImageDomain": (dflare.ImageDomain, {}),
        "TableDomain": (dflare.TableDomain, {"data": x}),
        "SignalDomain": (dflare.SignalDomain, {"data": x}),
        "TextDomain": (dflare.TextDomain, {"embedding": x}),
        "Domain.mutate": (
            dflare.TableDomain(x).mutate,
            {"x": x[0], "operator": "noise", "rng": np.random.default_rng(0)},
        ),
        "minimise": (dflare.minimise, {"pair": w.pair(), "found": made["deviations"], **quiet}),
        "verify": (dflare.verify, {"pair": w.pair(), "found": made["deviations"]}),
        "export_suite": (
            dflare.export_suite,
            {"found": made["deviations"], "folder": w.folder / "suite"},
        ),
        "repair_labels": (dflare.repair_labels, {"pair": w.pair(), "found": made["deviations"]}),
        "Blackout": (deepxplore.Blackout, {}),
        "Occlusion": (deepxplore.Occlusion, {}),
        "NeuronRanges.from_data": (
            deepxplore.NeuronRanges.from_data,
            {"im": im, "x": x, **quiet},
        ),
        "brightness": (deepbase.brightness, {"x": w.images}),
        "edge_direction": (deepbase.edge_direction, {"degrees": 30.0}),
        "per_record": (deepbase.per_record, {"behaviour": lambda row: row}),
        "best_units": (deepbase.best_units, {"frame": made["inspected"]}),
        "counterpart_of": (
            debugging.counterpart_of,
            {"im": im, "compressed": w.newer, "x": x},
        ),
        "mend": (
            debugging.mend,
            {"im": im, "suspicion": made["suspicion"], "x": x, "y": y, "epochs": 1},
        ),
        "Attacker": (protection.Attacker, {}),
        "simulate_attacks": (
            protection.simulate_attacks,
            {
                "model": w.model,
                "hidden": made["hidden"],
                "train": (x, y),
                "test": (x, y),
                "targets": [0],
                "budgets": (5,),
                "attacker": protection.Attacker(epochs=1, progress=False),
            },
        ),
        "NNSlicerRanker": (pruning.NNSlicerRanker, {}),
        "times_weight": (pruning.times_weight, {"im": im, "scores": made["scores"]}),
        "apply_masks": (pruning.apply_masks, {"model": w.model, "keep": made["keep"]}),
        "weight_masks": (pruning.weight_masks, {"model": w.model, "keep": made["keep"]}),
        "masks": (pruning.masks, {"model": w.model}),
        "without_masks": (pruning.without_masks, {"model": w.model}),
        "compact": (pruning.compact, {"model": w.model}),
        "remove_units": (
            pruning.remove_units,
            {"model": w.model, "keep": {"hidden": np.arange(5) > 0}},
        ),
        "develop": (
            semantic.develop,
            {
                "model": w.model,
                "critical": made["critical"],
                "x": x,
                "y": y,
                "learned": [0, 1],
                "epochs": 1,
            },
        ),
        "readapt": (
            semantic.readapt,
            {
                "model": w.model,
                "critical": made["critical"],
                "x": x,
                "y": y,
                "adversarial": x + 0.1,
                "epochs": 1,
            },
        ),
        "plot_neurons": (report.plot_neurons, {"contributions": x[0]}),
        "plot_over_time": (report.plot_over_time, {"values": x[:4]}),
        "plot_kept_synapses": (report.plot_kept_synapses, {"slices": made["set"]}),
        "plot_slices": (
            report.plot_slices,
            {"slices": {"a": made["slice"]}, "operations": ["hidden"]},
        ),
        "save_figure": (report.save_figure, {"figure": Figure(), "path": w.folder / "a.png"}),
    }
    by_hand = {name: Call(of, given) for name, (of, given) in table.items()}
    return methods_of_results(w) | by_hand


_NOT_FOR_USERS = {
    # Called by the library with what it has checked, or with objects of its own.
    *("restore", "hits", "learn", "anomaly_scores", "evidence", "seed", "join", "fuse"),
    *("from_archive", "prepared", "votes_of", "slice_vote", "forward", "warn_of_scale"),
}

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def methods_of_results(w: World) -> dict[str, Call]:
    """Return the public methods of all objects that the calls return, by class and name."""
    found = {}
    known = {
        **dict.fromkeys(("x", "X", "batch", "data"), w.x[:3]),
        **{"y": w.y[:3], "name": "hidden", "kernels": ("hidden",), "operations": ("hidden",)},
        **{"of": ("hidden",), "output": "logits", "share": 0.5, "places": np.zeros((3, 2))},
        **{"seeds": np.clip(w.x[:5], 0, 1), "switched": (), "model": w.newer, "category": 0},
    }
    for one in (*w.made.values(), w.im, w.profile, w.dataset):
        kind = type(one).__name__
        methods = inspect.getmembers(one, inspect.ismethod)
        for name, method in sorted(methods, key=lambda pair: pair[0] != "save"):  # before `load`
            own = (method.__module__ or "").startswith("nnslicer_tf")
            if not own or name.startswith("_") or name in _NOT_FOR_USERS:
                continue
            suffix = ".html" if kind == "Explanation" else ".npz"
            values = known | {"other": one, "path": w.folder / f"{kind}{suffix}"}
            needed = [
                parameter.name
                for parameter in inspect.signature(method).parameters.values()
                if parameter.default is parameter.empty and parameter.kind not in _VARIABLE
            ]
            given = {parameter: values.get(parameter, 0) for parameter in needed}
            found[f"{kind}.{name}"] = Call(method, given)
    return found


def odd_values(w: World) -> dict[str, Any]:
    """Return values that few parameters accept, and some that are nearly right."""
    x = w.x
    with_nan = x.copy()
    with_nan[1, 2] = np.nan
    return {
        "None": None,
        "True": True,
        "-1": -1,
        "0": 0,
        "1": 1,
        "2.5": 2.5,
        "huge": 2**70,
        "inf": float("inf"),
        "nan": float("nan"),
        "complex": 1j,
        "empty text": "",
        "text": "hidden",
        "long text": "x" * 300,
        "text with NUL": "a\0b",
        "surrogate": "\ud800",
        "bytes": b"x",
        "[]": [],
        "[[]]": [[]],
        "{}": {},
        "dict": {"a": 1},
        "dict of numbers": {1: 2},
        "dict of the kernel": {"hidden": 3},
        "set": {1},
        "range": range(3),
        "tuple of texts": ("a", "b"),
        "list of None": [None],
        "ragged": [[1], [2, 3]],
        "object": object(),
        "class": dict,
        "module": np,
        "function": lambda *a, **k: None,
        "generator": (i for i in range(3)),
        "path": w.folder / "there is none",
        "folder": w.folder,
        "array of nothing": np.zeros((0, 6), np.float32),
        "array of no axis": np.array(3),
        "array of texts": np.array(["a", "b"]),
        "array of objects": np.array([None, {}], dtype=object),
        "array of bools": np.array([True, False, True]),
        "array of large ints": np.array([2**62, -1]),
        "array of complex": np.ones((4, 6), complex),
        "array of dates": np.array(["2020-01-01"], dtype="datetime64[D]"),
        "array with NaN": with_nan,
        "array with inf": np.where(np.isnan(with_nan), np.inf, with_nan),
        "array of other width": np.ones((4, 5), np.float32),
        "array of five axes": np.ones((1, 1, 1, 1, 1)),
        "float16": x[:4].astype(np.float16),
        "labels from 1": w.y + 1,
        "one label": w.y[:1],
        "tensor": tf.constant(x[:4]),
        "tensor of texts": tf.constant(["a"]),
        "frame": pd.DataFrame(x[:4]),
        "frame of texts": pd.DataFrame({"a": ["b", "c"]}),
        "series": pd.Series([1, 2, 3]),
        "dataset": tf.data.Dataset.from_tensor_slices(x[:4]),
        "model": w.model,
        "other model": w.image_model,
        "layer": w.model.layers[0],
        "instrumented model": w.im,
        "profile": w.profile,
        "slice": w.made["slice"],
    }
