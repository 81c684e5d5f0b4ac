"""Number of cores, where the system tells it of a process and where it does not."""

import os

import pytest

from nnslicer_tf._environment import available_cores


@pytest.mark.parametrize(("cores", "expected"), [(6, 6), (None, 1)])
def test_cores_where_the_system_does_not_tell_those_of_a_process(monkeypatch, cores, expected):
    monkeypatch.delattr(os, "sched_getaffinity", raising=False)
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    assert available_cores() == expected


def test_cores_of_a_process(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {1, 3}, raising=False)
    assert available_cores() == 2
