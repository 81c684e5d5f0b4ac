"""Errors that come from an argument of a wrong type name the argument; others are left alone."""

import pickle
from typing import Any

import keras
import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf import deepxplore, dflare, exactline, pruning
from nnslicer_tf._faces import explained
from nnslicer_tf.errors import CriterionError, InvalidArgumentError


@pytest.fixture(scope="module")
def im():
    return nns.InstrumentedModel(
        keras.Sequential([keras.Input((3,), name="rows"), keras.layers.Dense(2)])
    )


def example(x: np.ndarray, names: "Unheard" = (), share: float | None = 0.5):  # noqa: F821
    if share == 0.25:
        raise CriterionError("the library's own")
    return x[0] + len(names[0]) if names else x[0] / share


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"x": "a", "share": 1}, "x must be an array. Received: 'a'"),
        ({"x": [1.0], "share": "a"}, "share must be a number or None. Received: 'a'"),
        ({"x": None}, "x must be an array. Received: None"),
    ],
)
def test_the_first_wrong_argument_is_named(arguments, message):
    with pytest.raises(InvalidArgumentError) as raised:
        explained(example, __name__)(**arguments)
    assert str(raised.value) == message
    assert raised.value.__cause__ is not None  # for whom reports a bug


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"x": [1], "share": 0}, ZeroDivisionError),  # the types are right: a fault of the library
        ({"x": [1], "share": 0.25}, CriterionError),
        ({"x": []}, IndexError),
        ({"x": [1], "names": [3]}, TypeError),  # its annotation cannot be resolved
        ({"y": 1}, TypeError),
    ],
)
def test_other_errors_are_left_alone(arguments, error):
    with pytest.raises(error) as raised:
        explained(example, __name__)(**arguments)
    assert not isinstance(raised.value, InvalidArgumentError)


def test_what_works_is_not_refused():
    assert explained(example, __name__)([3], share=np.float32(2)) == 1.5
    assert explained(example, __name__)((3,), names=("ab",)) == 5


def test_object_and_any_fit_everything():
    """The error of the machine is not taken for one of an argument."""

    def fails(**options: object):
        raise MemoryError

    def takes(many: dict[str, object], rest: list[Any]):
        raise MemoryError

    for function, args, kwargs in (
        (fails, (), {"a": "text", "b": None, "c": 3}),
        (takes, ({"a": "text", "b": [1]}, ["text", 1]), {}),
    ):
        with pytest.raises(MemoryError):
            explained(function, __name__)(*args, **kwargs)
    with pytest.raises(InvalidArgumentError, match="many must be dict"):
        explained(takes, __name__)({1: "text"}, [])


def test_methods_of_results_and_of_base_classes(im):
    line = exactline.exact_line(im, np.zeros(3), np.ones(3))
    with pytest.raises(InvalidArgumentError, match="ratios must be an array"):
        line.at("a")
    profile = nns.Profile.from_data(im, np.ones((2, 3)), progress=False)
    with pytest.raises(InvalidArgumentError, match="im must be an InstrumentedModel"):
        profile.check_model(3)
    with pytest.raises(InvalidArgumentError, match="ranges must be a NeuronRanges"):
        deepxplore.BoundaryCoverage("a")


def test_public_functions_pickle():
    assert pickle.loads(pickle.dumps(pruning.shrink)) is pruning.shrink
    assert pickle.loads(pickle.dumps(dflare.agreement)) is dflare.agreement
    assert pickle.loads(pickle.dumps(nns.Slicer)) is nns.Slicer
