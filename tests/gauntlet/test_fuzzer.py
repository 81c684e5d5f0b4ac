"""Odd arguments end in errors of the library, never hang, and change no input."""

import importlib
import tempfile
import types
from pathlib import Path

import pytest
from gauntlet import fuzzer, public_calls

from support.faces import PACKAGES, face

NOT_CALLED = {
    # Results, made by calls that are in the list, with methods of their own.
    *("Reversion", "Normalisation", "Target"),
    # Bases of a user's own classes, and descriptions of operations in a user's own code.
    *("AdditiveMeasure", "ClassRanker", "Constraint", "Detector", "Measure", "Metric"),
    *("MutationOperator", "Ranker", "Scorer", "SearchAlgorithm", "Vote", "VotingDetector"),
    *("Affine", "Elementwise", "MaskOf", "Operation", "Pooling", "Step", "Synapses", "Zero"),
    *("register_layer", "register_transformer", "register_kind", "register_rule"),
    *("AtZero", "Kind", "Neurons", "Node", "Rule", "SuspicionScores", "kind_of"),
    "names",  # no argument
}


@pytest.fixture(scope="module")
def world():
    with tempfile.TemporaryDirectory() as folder:
        yield public_calls.build_world(Path(folder))


@pytest.mark.slow
def test_no_raw_error_in_two_thousand_calls():
    assert [str(fault) for fault in fuzzer.fuzz(2000, seed=7)] == []


def public_value(package, name):
    return getattr(importlib.import_module(f"nnslicer_tf.{package}"), name)


def test_every_public_call_is_tried(world):
    parts = {part for name in public_calls.calls(world) for part in name.split(".")}
    public = {
        name
        for package in PACKAGES - {"cli", "engine", "_kernels"}
        for name in face(package)
        if isinstance(public_value(package, name), (type, types.FunctionType))
    }
    missing = public - parts
    assert missing == NOT_CALLED


@pytest.mark.slow
def test_the_calls_work_as_they_stand(world):
    refused = {
        *("load", "load_data", "load_model", "InstrumentedModel.at_position"),
        # Their arguments here are files that are not there, or another kind of data.
        *("Slice.load", "Profile.load", "SliceDetector.load", "LogitMargin.load"),
        *("LogitMargin.fit", "LogitMargin.score", "Explanation.differences", "Differences.plot"),
    }
    for name, call in public_calls.calls(world).items():
        if name not in refused:
            call.of(**call.arguments)


def test_faults_are_seen(world):
    def raw(x):
        return x.missing

    def write(x):
        world.x[0] = 0

    attempts = [
        fuzzer.attempt("raw", public_calls.Call(raw, {"x": 1}), {}, world),
        fuzzer.attempt("write", public_calls.Call(write, {"x": 1}), {}, world),
        fuzzer.attempt("fine", public_calls.Call(lambda x: x, {"x": 1}), {"x": "None"}, world),
    ]
    assert "AttributeError" in attempts[0].what
    assert attempts[1].what == "changed its data or its model"
    assert attempts[2] is None
