"""Export deviations as a regression suite that pytest runs against the next compressed model.

export_suite(found, "suite", preprocess)
COMPRESSED_MODEL=new.tflite pytest suite
"""

import os
from pathlib import Path

import numpy as np

from nnslicer_tf._files import atomic_path, check_writable
from nnslicer_tf.dflare.deviations import DeviationSet
from nnslicer_tf.dflare.model_pair import Preprocess
from nnslicer_tf.errors import InvalidArgumentError

_TEST = '''\
"""Inputs on which a compressed model once answered differently from its original.

    COMPRESSED_MODEL=new.tflite pytest .

The variable names a .tflite, .keras or .h5 file. `deviations.npz` holds the inputs as the models
take them, and the original model's labels.
"""

import os
from pathlib import Path

import numpy as np
import pytest

from nnslicer_tf.dflare.classifiers import as_classifier
from nnslicer_tf.dflare.domain import class_probabilities

with np.load(Path(__file__).parent / "deviations.npz") as _file:
    INPUTS, LABELS = _file["inputs"], _file["labels"]


@pytest.fixture(scope="module")
def compressed():
    path = os.environ.get("COMPRESSED_MODEL")
    if not path:
        pytest.fail("Set COMPRESSED_MODEL to the file of the model to test.")
    return as_classifier(path)


@pytest.mark.parametrize("case", range(len(INPUTS)))
def test_the_compressed_model_answers_as_the_original_did(compressed, case):
    outputs = compressed.probabilities(INPUTS[case : case + 1])
    assert class_probabilities(outputs)[0].argmax() == LABELS[case]
'''


def export_suite(
    found: DeviationSet, folder: str | os.PathLike, preprocess: Preprocess | None = None
) -> Path:
    """Write deviations as a folder of pytest tests.

    Args:
        found: The deviations.
        folder: Receives `test_deviations.py` and `deviations.npz`.
        preprocess: As in the search; the file stores the models' inputs. None: the values as
            float32, sentences as they are.

    Returns:
        The test file.

    Raises:
        InvalidArgumentError: if nothing was found, or the folder cannot be written.
    """
    if not found.found.any():
        raise InvalidArgumentError("There are no deviations to export: none was found.")
    test = check_writable(Path(folder) / "test_deviations.py")
    inputs = found.images
    if preprocess is not None:
        inputs = np.asarray(preprocess(inputs))
    elif inputs.ndim != 2 or inputs.dtype.kind not in "iu":  # no sentences
        inputs = inputs.astype(np.float32)
    with atomic_path(test.with_name("deviations.npz")) as temporary, temporary.open("wb") as file:
        np.savez_compressed(file, inputs=inputs, labels=found.labels[:, 0])
    with atomic_path(test) as temporary:
        temporary.write_text(_TEST, encoding="utf-8")
    return test
