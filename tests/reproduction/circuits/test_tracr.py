"""Edges of compiled programs: a network written by hand, and programs that Tracr compiles."""

import numpy as np
import pytest

from reproduction.circuits.settings import TracrSettings
from reproduction.circuits.tracr import AblatedProgram, tracr
from reproduction.circuits.tracr_networks import (
    LENGTH,
    POSITION,
    PROGRAMS,
    CompiledProgram,
    Program,
    compile_program,
)

# Dimensions of the stream: tokens a and b, their negation, the answer.
A, B, HIDDEN, ANSWER = range(4)


@pytest.fixture(scope="module")
def negation():
    """The MLP reads A, and writes HIDDEN, which nothing reads, and ANSWER."""
    table = np.zeros((3, 4), np.float32)
    table[1, A] = table[2, B] = 1
    read, write = np.zeros((4, 1), np.float32), np.zeros((1, 4), np.float32)
    read[A], write[0, [HIDDEN, ANSWER]] = 1, -1
    weights = {
        "input": table,
        "positions": np.zeros((LENGTH, 4), np.float32),
        "mlp0/read": read,
        "mlp0/write": write,
        "output/read": np.eye(4, dtype=np.float32)[:, [ANSWER]],
    }
    program = Program(lambda: None, lambda t: [-float(x == "a") for x in t], ("a", "b"))
    codes = {"BOS": 0, "a": 1, "b": 2}
    return CompiledProgram(program, weights, ["mlp0", "output"], ("value",), codes)


def test_the_model_computes_the_program(negation):
    x, answers = negation.draw(20, np.random.default_rng(0))
    np.testing.assert_allclose(negation.model().predict(x, verbose=0)[:, 0], answers, atol=1e-6)
    assert x.shape == (20, LENGTH) and {0.0, -1.0} == {*answers}


def test_used_edges_are_written_read_and_reach_the_output(negation):
    x, _ = negation.draw(40, np.random.default_rng(0))
    ablated = AblatedProgram(negation, x, x[::-1])
    used = negation.used(ablated.varies_at, ablated.active_at)
    assert negation.edges == [
        ("input", "mlp0/read"),
        ("input", "output/read"),
        ("mlp0", "output/read"),
    ]
    assert [np.flatnonzero(row).tolist() for row in used] == [[A], [], [ANSWER]]
    # The input also writes B, and the MLP HIDDEN: candidates that nothing reads.
    assert [np.flatnonzero(row).tolist() for row in ablated.varies] == [
        [A, B],
        [A, B],
        [HIDDEN, ANSWER],
    ]


def test_ablated_edges_give_the_reference(negation):
    x, answers = negation.draw(20, np.random.default_rng(0))
    references, others = negation.draw(20, np.random.default_rng(1))
    ablated = AblatedProgram(negation, x, references)
    mask = np.ones(ablated.shape)
    np.testing.assert_allclose(ablated.answers(mask)[:, 0], answers, atol=1e-6)
    mask[0, A] = 0
    np.testing.assert_allclose(ablated.answers(mask)[:, 0], others, atol=1e-6)
    # The program is linear where the MLP is active, so that first-order effects are exact there.
    effects = ablated.effects(np.zeros(20, int), np.ones(ablated.shape))[:, 0, A]
    active = x[:, POSITION] == 1
    np.testing.assert_allclose(effects[active], (np.array(answers) - others)[active], atol=1e-6)


def test_programs_compile_and_are_ranked(tmp_path):
    pytest.importorskip("tracr", reason="Tracr is not installed: pip install tracr-pypi")
    network = compile_program("reverse")
    x, answers = network.draw(10, np.random.default_rng(0))
    outputs = network.model().predict(x, verbose=0).argmax(axis=1)
    assert [network.values[k] for k in outputs] == answers
    s = TracrSettings(["reverse"], references=2, explained=4, work=tmp_path)
    areas = tracr(s).table("tracr").set_index("method")["AUROC, mean"]
    assert areas["slices, amounts"] > 0.99


@pytest.mark.parametrize("name", PROGRAMS)
def test_answers_have_one_value_for_each_token(name):
    program = PROGRAMS[name]
    tokens = list(program.vocabulary[: LENGTH - 1])
    assert len(program.answer(tokens)) == len(tokens)
