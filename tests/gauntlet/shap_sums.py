"""Do SHAP values add up? `python tests/gauntlet/shap_sums.py` asks shap's explainer and this one's.

The table, data/results/explanations/shap.csv, has a row for each kind of model.
"""

import sys
import tempfile
import warnings
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path

import keras
import numpy as np
import pandas as pd

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests")]

from gauntlet.analyses import Subject, rows_of  # noqa: E402
from gauntlet.models import CASES  # noqa: E402

from nnslicer_tf.attributions import DeepExplainer  # noqa: E402
from nnslicer_tf.errors import NNSlicerError  # noqa: E402

TOLERANCE = 1e-3


def largest_error(subject: Subject, explainer: type) -> float:
    """Return how far sums of values are from the change of the first output, by Keras."""
    background, x = subject.samples(24, 1), rows_of(subject.x, slice(0, 2))
    model = subject.im if explainer is DeepExplainer else subject.model
    values = explainer(model, background).shap_values(x, check_additivity=False)
    parts = values if isinstance(values, list) else [values]
    change = subject.outputs(x=x)[0] - subject.outputs(x=background)[0].mean(axis=0)
    change = change.reshape(2, -1)
    sums = sum(part.reshape(2, -1, change.shape[1]).sum(axis=1) for part in parts)
    return float(np.abs(sums - change).max())


def outcome(subject: Subject, explainer: type) -> str:
    """Return "adds up", by how much it does not, or the error."""
    try:
        error = largest_error(subject, explainer)
    except NNSlicerError as refusal:
        return f"refused: {refusal}".replace(f"{Path(__file__).parents[2]}/", "")
    except Exception as error:
        text = str(error).strip().splitlines() or [""]
        return f"{type(error).__name__}: {(text[-1] or text[0])[:100]}"
    return "adds up" if error < TOLERANCE else f"wrong by {error:.2g}"


def outcomes(name: str) -> list[str]:
    """Return both outcomes; shap's last, because an error leaves TensorFlow's gradients changed."""
    import shap

    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        explainers = DeepExplainer, shap.DeepExplainer
        return [outcome(Subject(name, Path(folder)), one) for one in explainers]


def main() -> None:
    """Write the table; each kind of model has a process of its own."""
    rows = []
    for name in CASES:
        with ProcessPoolExecutor(1, get_context("fork")) as pool:
            rows.append((name, *pool.submit(outcomes, name).result()))
        print(*rows[-1], sep=" | ", flush=True)
    columns = ["model", "nnslicer_tf", f"shap {version('shap')}, Keras {keras.__version__}"]
    frame = pd.DataFrame(rows, columns=columns)
    path = ROOT / "data" / "results" / "explanations" / "shap.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    frame.to_csv(path, index=False)
    counts = [(frame[column] == "adds up").sum() for column in columns[1:]]
    print(f"adds up: {counts[0]} and {counts[1]} of {len(frame)}")


if __name__ == "__main__":
    main()
