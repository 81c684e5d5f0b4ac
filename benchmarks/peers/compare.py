"""One question, several libraries: the same model and inputs, results, seconds, lines of code.

    python benchmarks/peers/compare.py [--samples 20] [--seed 0]

writes `data/results/peers`; see README.md beside this file. A library that is missing, or fails,
has a row that says so.
"""

import inspect
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from importlib.metadata import PackageNotFoundError, version
from io import StringIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pandas as pd
import typer

ROOT = Path(__file__).parents[2]
sys.path.append(str(ROOT / "apps"))  # for `reproduction`

import nnslicer_tf as nns  # noqa: E402
from nnslicer_tf import attributions, datasets, dflare, zoo  # noqa: E402
from nnslicer_tf.attributions import metrics  # noqa: E402
from nnslicer_tf.instrument.target import resolve_target  # noqa: E402
from reproduction.decisive.comparison import SHARES, Kept, methods  # noqa: E402
from reproduction.decisive.settings import DecisiveSettings  # noqa: E402
from reproduction.tables import provenance, write_table  # noqa: E402

PACKAGES = ("nnslicer-tf", "shap", "xplique", "tf-explain")
DISTANCE, QUERIES = 60, 1000

Method = Callable[[Any, np.ndarray, np.ndarray, int], np.ndarray]
"""A model, a sample, background rows and a class → a value for each pixel."""


# --- what each pixel adds to the logit of a class: the code that a user writes ---


def nnslicer_explain(model, x, rows, label):
    slicer = nns.Slicer(model, nns.Profile.from_data(model, rows, progress=False), progress=False)
    why = slicer.explain(x, label, background=rows, compare=False, decisive=False)
    return why.contributions


def nnslicer_deep_explainer(model, x, rows, label):
    explainer = attributions.DeepExplainer(model, rows)
    return explainer.shap_values(x[None])[0, ..., label]


def shap_deep_explainer(model, x, rows, label):
    import shap

    explainer = shap.DeepExplainer(model, rows)
    return explainer.shap_values(x[None])[0, ..., label]


def shap_gradient_explainer(model, x, rows, label):
    import shap

    explainer = shap.GradientExplainer(model, rows)
    return explainer.shap_values(x[None], nsamples=200, rseed=0)[0, ..., label]


def shap_kernel_explainer(model, x, rows, label):
    import shap

    def logits(flat):
        return model.predict(flat.reshape(-1, *x.shape), batch_size=4096, verbose=0)[:, label]

    explainer = shap.KernelExplainer(logits, rows.reshape(len(rows), -1))
    return explainer.shap_values(x.ravel(), nsamples=500, silent=True).reshape(x.shape)


def of_xplique(name: str, **options: Any) -> Method:
    def explained(model, x, rows, label):
        from xplique import attributions as peers

        explainer = getattr(peers, name)(model, **options)
        values = explainer(x[None], np.eye(model.output_shape[-1], dtype=np.float32)[[label]])
        return np.asarray(values).reshape(x.shape)

    return explained


def tf_explain_integrated_gradients(model, x, rows, label):
    from tf_explain.core.integrated_gradients import IntegratedGradients

    points = IntegratedGradients.generate_interpolations(x[None], 50)
    values = IntegratedGradients.get_integrated_gradients(points, model, label, 50)
    return np.asarray(values).reshape(x.shape)


def tf_explain_gradients_inputs(model, x, rows, label):
    from tf_explain.core.gradients_inputs import GradientsInputs

    return np.asarray(GradientsInputs.compute_gradients(x[None], model, label)).reshape(x.shape)


def tf_explain_occlusion(model, x, rows, label):
    import keras
    from tf_explain.core.occlusion_sensitivity import OcclusionSensitivity

    of_bytes = keras.Sequential([keras.Input(x.shape), keras.layers.Rescaling(1 / 255), model])
    values = OcclusionSensitivity().get_sensitivity_map(of_bytes, 255 * x, label, patch_size=1)
    return np.asarray(values).reshape(x.shape)


PIXELS: dict[str, Method] = {
    "nnslicer_tf: Slicer.explain": nnslicer_explain,
    "nnslicer_tf: DeepExplainer": nnslicer_deep_explainer,
    "shap: DeepExplainer": shap_deep_explainer,
    "shap: GradientExplainer, 200 samples": shap_gradient_explainer,
    "shap: KernelExplainer, 500 samples": shap_kernel_explainer,
    "Xplique: IntegratedGradients, 50 steps": of_xplique("IntegratedGradients", steps=50),
    "Xplique: GradientInput": of_xplique("GradientInput"),
    "Xplique: SmoothGrad, 50 samples": of_xplique("SmoothGrad", nb_samples=50),
    "Xplique: Occlusion": of_xplique("Occlusion", patch_size=1, patch_stride=1),
    "Xplique: Rise, 1000 masks": of_xplique("Rise", nb_samples=1000),
    "Xplique: KernelShap, 500 samples": of_xplique(
        "KernelShap",
        nb_samples=500,
        map_to_interpret_space=lambda x: np.arange(64, dtype=np.int32).reshape(8, 8),
    ),
    "tf-explain: IntegratedGradients, 50 steps": tf_explain_integrated_gradients,
    "tf-explain: GradientsInputs": tf_explain_gradients_inputs,
    "tf-explain: OcclusionSensitivity": tf_explain_occlusion,
}

REFERENCES = dict.fromkeys(list(PIXELS)[:5], "rows") | {
    name: "zero" for name in PIXELS if name.startswith(("Xplique: Integ", "Xplique: KernelShap"))
}
"""Method → the baseline of its values, if they add up to a difference of logits."""


def pixels(model: Any, x: np.ndarray, rows: np.ndarray) -> Iterator[dict]:
    """Score contributions of pixels: delete and insert the largest, and add them up."""
    im = nns.InstrumentedModel(model)
    logits = im.logits(x)
    labels = logits.argmax(axis=1).tolist()
    bases = {"rows": im.logits(rows).mean(axis=0), "zero": im.logits(0 * x[:1])[0]}
    for name, method in PIXELS.items():
        row: dict[str, Any] = {"method": name}
        try:
            with redirect_stdout(StringIO()):
                method(model, x[0], rows, labels[0])  # compiles
                start = time.perf_counter()
                values = [method(model, x[i], rows, labels[i]) for i in range(len(x))]
            row["s per sample"] = (time.perf_counter() - start) / len(x)
        except Exception as error:  # a peer must not stop the others
            yield row | {"note": f"{type(error).__name__}: {error}".splitlines()[0][:90]}
            continue
        areas, errors = [], []
        for one, value, logit, label in zip(x, values, logits, labels, strict=True):
            target = resolve_target(im, label)
            options = {"steps": 32, "rows": rows[:20]}
            curves = metrics.curves(im, one, rows.mean(0), target, {"": value}, **options)
            areas.append([curve[""].area for curve in curves])
            base = bases.get(REFERENCES.get(name, ""), np.full_like(logit, np.nan))
            errors.append(abs(np.sum(value) / (logit[label] - base[label]) - 1))
        row["deletion"], row["insertion"] = np.mean(areas, axis=0)
        row["error of the sum"] = np.median(errors)
        yield row | {"lines": lines_of(method)}


# --- which synapses decide ---


def decisive_slice(im, profile, x):
    slicer = nns.Slicer(im, profile, progress=False)
    return slicer.decisive(x)


def synapses(model: Any, x: np.ndarray, train: np.ndarray, seed: int) -> Iterator[dict]:
    """Keep the largest synapses by each ranking, the others at their mean: is the answer kept?"""
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, train, progress=False)
    network = Kept(im, profile)
    answers = network.answers(x)
    labels = answers.of(answers.full)

    def keeps(i: int, order: np.ndarray, size: int) -> bool:
        return bool(answers.of(network.logits(x[i], order[:size]))[0] == labels[i])

    decisive_slice(im, profile, x[:1])
    start = time.perf_counter()
    found = decisive_slice(im, profile, x)
    row = {"method": "nnslicer_tf: Slicer.decisive", "of": "this library"}
    row["s per sample"] = (time.perf_counter() - start) / len(x)
    table = found.to_frame()
    sizes = table["size"].to_numpy()
    row["share of the synapses that is enough, median"] = table["share"].median()
    row["kept with as many synapses"] = float(table["kept"].mean())
    asked = table["other classes asked"].sum()
    row["also given for another class"] = table["other classes given"].sum() / asked
    yield row | {"lines": lines_of(decisive_slice)}

    rankings = {one.name: one for one in methods(network, DecisiveSettings(model="digits_cnn"))}
    for name in ("EAP", "EAP-IG", "|weight|", "random"):
        score = rankings[name].score
        score(x[:1], labels[:1])
        start = time.perf_counter()
        orders = np.argsort(-score(x, labels), axis=1)
        row = {"method": name, "of": "our implementation" if name.startswith("EAP") else "control"}
        row["s per sample"] = (time.perf_counter() - start) / len(x)
        enough = []
        for i, order in enumerate(orders):
            kept = (s for s in SHARES if keeps(i, order, int(s * network.units)))
            enough.append(next(kept, 1.0))
        row["share of the synapses that is enough, median"] = float(np.median(enough))
        same = [keeps(i, order, int(sizes[i])) for i, order in enumerate(orders)]
        yield row | {"kept with as many synapses": float(np.mean(same))}


# --- on which inputs does the compressed copy answer differently ---


def nnslicer_deviations(model, compressed, images, seed):
    pair = dflare.ModelPair(model, compressed, lambda x: x / np.float32(255))
    search = dflare.DFlare(max_queries=QUERIES, max_distance=DISTANCE)
    found = dflare.find_deviations(pair, images, search=search, rng=seed, progress=False)
    return found.found, found.queries


def random_search(model, compressed, images, seed):
    pair = dflare.ModelPair(model, compressed, lambda x: x / np.float32(255))
    rng, found, queries = np.random.default_rng(seed), [], []
    for image in images:
        change = rng.integers(-DISTANCE, DISTANCE + 1, (QUERIES, *image.shape))
        mutants = np.clip(image.astype(int) + change, 0, 255).astype(np.uint8)
        differs = dflare.agreement(pair, mutants).differs
        found.append(differs.any())
        queries.append(int(differs.argmax()) + 1 if differs.any() else QUERIES)
    return np.array(found), np.array(queries)


def deviations(model: Any, train: np.ndarray, images: np.ndarray, seed: int) -> Iterator[dict]:
    """Search from the same seeds, each pixel changed by at most `DISTANCE` of 255."""
    original = dflare.with_softmax(model)
    compressed = dflare.compress(original, "int8", train[:200])
    for name, method in (("nnslicer_tf: DFlare", nnslicer_deviations), ("random", random_search)):
        method(original, compressed, images[:2], seed)
        start = time.perf_counter()
        found, queries = method(original, compressed, images, seed)
        row = {"method": name, "s per seed": (time.perf_counter() - start) / len(images)}
        row |= {"found": found.mean(), "queries, mean": queries.mean()}
        row |= {"queries, median": float(np.median(queries)), "lines": lines_of(method)}
        yield row


def lines_of(method: Callable) -> int:
    """Return the lines of a function's body, blank ones excluded."""
    return sum(bool(line.strip()) for line in inspect.getsource(method).splitlines()[1:])


def installed(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def main(
    samples: Annotated[int, typer.Option(help="Samples and seeds.", min=2)] = 20,
    seed: Annotated[int, typer.Option(help="Random seed.", min=0)] = 0,
    output: Annotated[Path, typer.Option(help="Folder.")] = ROOT / "data" / "results" / "peers",
) -> None:
    """Compare with peers; write a table for each question."""
    warnings.simplefilter("ignore")  # of the peers, about versions
    model = zoo.load("digits_cnn")
    train, test = datasets.load("digits", "train"), datasets.load("digits", "test")
    order = np.random.default_rng(seed).permutation(len(test.x))[:samples]
    x, rows = test.x[order], train.x[:100]
    images = np.rint(255 * x).astype(np.uint8)
    questions = {
        "synapses": ("Which synapses decide?", lambda: synapses(model, x, train.x, seed)),
        "pixels": ("What does each pixel add?", lambda: pixels(model, x, rows)),
        "deviations": (
            "Where does the 8-bit copy deviate?",
            lambda: deviations(model, train.x, images, seed),
        ),
    }
    packages = ", ".join(f"{name} {installed(name)}" for name in PACKAGES)
    head = {"model": "digits_cnn (6,032 synapses)", "samples": f"{samples} of digits:test"}
    head |= {"seed": seed, "packages": packages}
    for name, (title, ask) in questions.items():
        frame = pd.DataFrame(ask())
        column = next(c for c in frame if c.startswith("s per"))
        frame["times ours"] = (frame[column] / frame[column][0]).round(2)
        frame = frame.round({c: 4 for c in frame.select_dtypes("number")})
        write_table(output / f"{name}.csv", title, frame, provenance(**head))
        print(frame.to_string(), flush=True)


if __name__ == "__main__":
    typer.run(main)
