"""Contributions of a table's columns: near exact Shapley values, and useful in deletion?"""

import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import combinations
from math import factorial
from multiprocessing import get_context

import keras
import numpy as np
import pandas as pd
from sklearn import datasets

import nnslicer_tf as nns
from nnslicer_tf.attributions import ATTRIBUTIONS, metrics
from nnslicer_tf.attributions.background import Background
from nnslicer_tf.attributions.methods import deeplift, deeplift_by_row
from nnslicer_tf.attributions.problem import Problem
from reproduction.explanations.settings import TableSettings
from reproduction.result import ExperimentResult, ExperimentTable

_LARGEST = 5
_STEPS = 50
_MEANS = ("within 10 %", "deletion", "insertion")
_DRAWS = 2000
_TITLE = "Contributions of columns, compared with exact Shapley values"
_TEXT = """\
Of the five features with the largest exact Shapley values: the share whose contribution is within
10 % of the exact value, and the median of the relative errors. Deletion and insertion: areas under
the curves of the answer (a probability; of diabetes, the prediction's place in the range of all
predictions) as features are replaced by those of the background rows, mean over these; deletion
should be small, insertion large. "Mean row": the reference is the mean of the training rows; else
contributions are means over the background rows. All methods add up the columns of a feature.
"from" and "to": 95 % of the means of 2,000 bootstrap samples of the test rows."""


def tables(s: TableSettings) -> ExperimentResult:
    """Explain test rows of three tables by several methods."""
    makers = (_diabetes, _wine, _customers)
    with ProcessPoolExecutor(len(makers), get_context("spawn")) as pool:
        rows = [row for found in pool.map(partial(_compared, s), makers) for row in found]
    frame = pd.DataFrame(rows)
    head = {"samples": s.samples, "rows": s.rows, "epochs": s.epochs, "seed": s.seed}
    return ExperimentResult([ExperimentTable("tables", frame, _TITLE, head, _TEXT)])


def _diabetes(seed: int) -> tuple[str, pd.DataFrame, np.ndarray, int]:
    data = datasets.load_diabetes(as_frame=True)
    target = (data.target - data.target.mean()) / data.target.std()
    return "diabetes (a number)", 20 * data.data, target.to_numpy(), 1


def _wine(seed: int) -> tuple[str, pd.DataFrame, np.ndarray, int]:
    data = datasets.load_wine(as_frame=True)
    x = (data.data - data.data.mean()) / data.data.std()
    return "wine (3 classes)", x, data.target.to_numpy(), 3


def _customers(seed: int) -> tuple[str, pd.DataFrame, np.ndarray, int]:
    """Draw customers with three categories and missing ages: ten features in 22 columns."""
    rng, count = np.random.default_rng(seed), 1500
    frame = pd.DataFrame(rng.normal(size=(count, 5)), columns=["age", "income", *"uvw"])
    frame["city"] = rng.choice(["Oslo", "Rome", "New_York", "Lima"], count, p=[0.4, 0.3, 0.2, 0.1])
    frame["plan"] = rng.choice(["basic", "family", "pro"], count, p=[0.6, 0.3, 0.1])
    frame["job_kind"] = rng.choice(list("abcdef"), count)
    frame["member"] = rng.integers(0, 2, count)
    score = frame["income"] * np.where(frame["city"] == "Rome", 2.0, 0.5)
    score += np.where(frame["plan"] == "pro", 1.5, 0) - 0.7 * frame["age"] * (frame["member"] - 0.5)
    score += 0.5 * (frame["job_kind"] == "c") - 0.4
    y = (score + 0.5 * rng.normal(size=count) > 0).astype(int).to_numpy()
    frame.loc[rng.random(count) < 0.15, "age"] = np.nan
    frame.loc[rng.random(count) < 0.1, "city"] = None
    frame["missingindicator_age"] = frame["age"].isna()
    frame["age"] = frame["age"].fillna(frame["age"].median())
    x = pd.get_dummies(frame, columns=["city"], dummy_na=True)
    x = pd.get_dummies(x, columns=["plan", "job_kind"]).astype(float)
    return "customers (yes or no; categories, NaN)", x, y, 1


def _compared(s: TableSettings, make: Callable) -> list[dict]:
    title, x, y, units = make(s.seed)
    # A network, its profile, and test rows that neither has seen.
    order = np.random.default_rng(s.seed).permutation(len(x))
    x, y = x.iloc[order], y[order]
    train, test = x.iloc[s.samples :], x.iloc[: s.samples]
    keras.utils.set_random_seed(s.seed)
    is_number = y.dtype.kind == "f"
    final = "linear" if is_number else "softmax" if units > 1 else "sigmoid"
    hidden = [keras.layers.Dense(n, "relu") for n in (32, 16)]
    model = keras.Sequential(
        [keras.Input((x.shape[1],)), *hidden, keras.layers.Dense(units, final)]
    )
    loss = "mse" if is_number else f"{'sparse_categorical' if units > 1 else 'binary'}_crossentropy"
    model.compile(keras.optimizers.Adam(3e-3), loss)
    model.fit(train.to_numpy(), y[s.samples :], epochs=s.epochs, verbose=0)
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, train, progress=False, rows=s.rows)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    answers = model.predict(x.to_numpy(), verbose=0).ravel() if is_number else np.array([0.0, 1.0])

    found: dict[str, list[tuple]] = {}
    for i in range(len(test)):
        why = slicer.explain(test.iloc[[i]], compare=False, decisive=False)
        against, target = why.background, why.target
        weights = target.weights(units)
        exact = exact_values(
            lambda rows, weights=weights: _logits(model, rows) @ weights,
            against.entries, np.asarray(against.rows), against.features,
        )  # fmt: skip
        first = np.argsort(-np.abs(exact))[:_LARGEST]
        methods = _methods(im, profile, slicer, test.iloc[[i]], against, target, model, s.seed)
        values, seconds = {}, {}
        for name, method in methods.items():
            start = time.perf_counter()
            values[name] = method()
            seconds[name] = time.perf_counter() - start
        spread = {
            n: (v / np.bincount(against.features))[against.features] for n, v in values.items()
        }
        curves = metrics.curves(
            im, against.entries, profile.means, target, spread, 20, against.rows, against.features
        )
        for name, of_features in values.items():
            errors = np.abs(of_features / exact - 1)[first]
            areas = [(c[name].area - answers.min()) / np.ptp(answers) for c in curves]
            found.setdefault(name, []).append((errors, *areas, seconds[name]))
    rows = []
    draws = np.random.default_rng(s.seed).integers(len(test), size=(_DRAWS, len(test)))
    for name, each in found.items():
        errors, deletion, insertion, seconds = zip(*each, strict=True)
        row = {"table": title, "method": name}
        within = [(error <= 0.1).mean() for error in errors]
        for column, of_rows in zip(_MEANS, (within, deletion, insertion), strict=True):
            values = np.array(of_rows, np.float64)
            row[column] = round(values.mean(), 3)
            ends = np.quantile(values[draws].mean(axis=1), (0.025, 0.975))
            row |= {f"{column}, from": round(ends[0], 3), f"{column}, to": round(ends[1], 3)}
        row["median error"] = round(float(np.median(np.concatenate(errors))), 4)
        rows.append(row | {"ms": round(1000 * float(np.median(seconds)))})
    return rows


def _methods(
    im: nns.InstrumentedModel,
    profile: nns.Profile,
    slicer: nns.Slicer,
    row: pd.DataFrame,
    against: Background,
    target: object,
    model: keras.Model,
    seed: int,
) -> dict[str, Callable[[], np.ndarray]]:
    """Return the methods, as functions without arguments that return values `(features,)`."""
    x, rows, features = against.entries, np.asarray(against.rows), against.features
    weights = target.weights(im[target.operation].size)

    def own() -> np.ndarray:
        return slicer.explain(row, compare=False, decisive=False).background.values

    def of_features(values: np.ndarray) -> np.ndarray:
        return np.bincount(features, weights=values)

    def integrated() -> np.ndarray:
        """Integrate gradients from each row to the sample, by the trapezoidal rule."""
        problem = Problem(im, x, rows[0], target)
        shares = np.linspace(0, 1, _STEPS + 1)[:, None, None]
        (name,) = problem.x
        points = (rows + shares * (x - rows)).reshape(-1, len(x)).astype(np.float32)
        gradients = problem.gradients({name: points})[name].reshape(_STEPS + 1, *rows.shape)
        mean = (gradients[1:] + gradients[:-1]).mean(axis=0) / 2
        return of_features((mean * (x - rows)).mean(axis=0))

    def kernel() -> np.ndarray:
        import shap

        names = [str(i) for i in range(features.max() + 1)]
        groups = [np.flatnonzero(features == i) for i in range(len(names))]
        data = shap.utils._legacy.DenseData(rows, names, groups)
        np.random.seed(seed)  # noqa: NPY002 - it draws from this one
        explainer = shap.KernelExplainer(lambda z: _logits(model, z) @ weights, data)
        return explainer.shap_values(x, silent=True)

    methods = {
        "explain (Shapley values)": own,
        "shap.KernelExplainer": kernel,
        "DeepLIFT": lambda: of_features(deeplift_by_row(im, x, rows, target).mean(axis=0)),
        "integrated gradients, 50 steps": integrated,
        "DeepLIFT, mean row": lambda: of_features(deeplift(im, x, profile.means, target)),
        "integrated gradients, 50 steps, mean row": lambda: of_features(
            ATTRIBUTIONS["integrated gradients, 50 samples"](im, x, profile.means, target)
        ),
        "random order": lambda: np.random.default_rng(seed).normal(size=features.max() + 1),
    }
    try:
        import shap  # noqa: F401
    except ImportError:
        del methods["shap.KernelExplainer"]
    return methods


def _logits(model: keras.Model, x: np.ndarray) -> np.ndarray:
    """Return the logits of a stack of Dense and ReLU, in NumPy."""
    weights = model.get_weights()
    for place in range(0, len(weights), 2):
        x = np.asarray(x, np.float64) @ weights[place] + weights[place + 1]
        x = np.maximum(x, 0) if place < len(weights) - 2 else x
    return x


def exact_values(
    score: Callable[[np.ndarray], np.ndarray], x: np.ndarray, rows: np.ndarray, features: np.ndarray
) -> np.ndarray:
    """Return Shapley values by their definition, means over rows, `(features,)`."""
    count = int(features.max()) + 1
    scores = {}
    for size in range(count + 1):
        for coalition in combinations(range(count), size):
            mixed = np.where(np.isin(features, coalition), x, rows)
            scores[frozenset(coalition)] = score(mixed).mean()
    values = np.zeros(count)
    for coalition, value in scores.items():
        for feature in range(count):
            if feature not in coalition:
                share = factorial(len(coalition)) * factorial(count - len(coalition) - 1)
                values[feature] += share * (scores[coalition | {feature}] - value)
    return values / factorial(count)
