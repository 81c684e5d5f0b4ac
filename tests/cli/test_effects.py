"""Options without effect are refused, before any file is read."""

import inspect
import re

import keras
import numpy as np
import pytest
from keras import layers

from nnslicer_tf.cli import application

SLICE = ("slice", "--model", "m.keras", "--profile", "p.npz", "--data", "digits")
COVER = ("cover", "--model", "m.keras", "--data", "digits")
DIFF = ("diff", "old.keras", "new.keras", "--data", "digits")
LINES = ("lines", "--model", "m.keras", "--from", "0,0", "--to", "1,1")
PLANES = ("planes", "--model", "m.keras", "--corner", "0,0", "--corner", "1,1", "--corner", "0,1")

# A command, options without effect, and what the message says they need.
WITHOUT_EFFECT = [
    *((SLICE, options, "without --decisive")
      for options in ("--level neuron", "--level bogus", "--level synapse", "--reference zero",
                      "--at-least 0.5", "--at-least 7", "--min-probability 0", "--max-share 0.2",
                      "--max-divergence 0.1", "--needed", "--minimal")),
    *((SLICE, f"--decisive {options}", "with --decisive")
      for options in ("--theta 0.3", "--granularity channel", "--relative-to sum", "--each",
                      "--rectify pass", "--outputs 3", "--outputs predicted")),
    (SLICE, "--decisive --theta 0.1 --level neuron", "with --decisive"),
    (COVER, "--criterion top-k --threshold 0.5", "without --criterion neuron"),
    (COVER, "--criterion boundary --train digits --threshold 0.25", "without --criterion neuron"),
    (COVER, "--train digits", "without --criterion k-multisection or boundary"),
    (COVER, "--criterion top-k --train digits", "without --criterion k-multisection or boundary"),
    (DIFF, "--flips 0 --level channel", "without --flips"),
    (DIFF, "--flips 0 --seed 1", "without --flips"),
    (LINES, "--normalise unit", "without images or a data set by name"),
    (LINES, "--normalise bogus", "without images or a data set by name"),
    (PLANES, "--normalise standard", "without images or a data set by name"),
    *(((name, "--model", "m.keras", "--data", f"rows{ending}"), "--normalise unit", "images or a")
      for name in ("profile", "cover", "causes", "inspect", "semantic", "prune")
      for ending in (".csv", ".npz", ".npy")),
    (("explore", "s.npz", "--model", "m.keras"), "--normalise unit", "images or a data set"),
    (("explore", "s.npz", "--model", "m.keras"), "--model n.keras", "Pass one --model and"),
    (("explore", "s.npz", "--model", "m.keras", "--profile", "p.npz"), "--profile q.npz",
     "Pass one --model and --profile for all"),
]  # fmt: skip


@pytest.mark.parametrize("command, options, needed", WITHOUT_EFFECT)
def test_options_without_effect_are_refused(nnslicer, command, options, needed):
    code, out, errors = nnslicer(*command, *options.split())
    assert code == 2 and not out and len(errors.splitlines()) == 1
    assert needed in errors
    named = re.findall(r"--[a-z-]+", errors)
    assert {*named} & {*options.split()}


@pytest.mark.parametrize(
    "command, options",
    [
        (SLICE, "--decisive --level neuron --min-probability 0.5 --needed --minimal"),
        (SLICE, "--theta 0.1 --granularity channel --each --outputs 3"),
        (COVER, "--threshold 0.1"),
        (COVER, "--criterion neuron --threshold 0.1"),
        (COVER, "--criterion boundary --train digits"),
        (DIFF, "--level channel --seed 1"),
        (DIFF, "--flips 2 --level channel"),
        (LINES, "--normalise none"),
        (LINES, "--data digits --normalise unit"),
        (("profile", "--model", "m.keras", "--data", "rows.csv"), "--normalise none"),
        (("profile", "--model", "m.keras", "--data", "folder"), "--normalise unit"),
        (
            ("prune", "--model", "m.keras", "--data", "rows.npz"),
            "--test digits --normalise unit",
        ),
    ],
)
def test_options_with_effect_are_not(nnslicer, command, options):
    code, _, errors = nnslicer(*command, *options.split())
    assert code == 2 and "has no effect" not in errors
    assert re.search(r"There is no (model |profile )?file", errors)


def test_conditions_in_helps_name_options_and_values_of_their_command():
    count = 0
    for module, names in application._PANELS.values():
        for name in names:
            command = inspect.signature(getattr(module, name))
            for parameter in command.parameters.values():
                text = parameter.annotation.__metadata__[0].help
                if found := re.match(r"With(?:out)? --(\S+?):? ", text):
                    assert found[1].replace("-", "_") in command.parameters
                    count += 1
    assert count >= 18


@pytest.mark.parametrize("command", ["show s.npz", "suite d.npz", "demo", "warmup"])
def test_a_task_needs_a_model(nnslicer, command):
    code, out, errors = nnslicer("--task", "binary", *command.split())
    assert code == 2 and not out and "--task has no effect without a --model" in errors


@pytest.fixture(scope="module")
def tables(tmp_path_factory):
    """A folder with a model of two values, its 8-bit version, one of numbers, and data."""
    folder = tmp_path_factory.mktemp("tables")
    keras.utils.set_random_seed(0)
    for name, last in (("classes", layers.Dense(3)), ("numbers", layers.Dense(1))):
        model = keras.Sequential([keras.Input((2,)), layers.Dense(4, "relu"), last])
        model.save(folder / f"{name}.keras")
    x = np.random.default_rng(0).normal(size=(20, 2)).astype(np.float32)
    np.savez(folder / "x.npz", x=x)
    np.savez(folder / "xy.npz", x=x, y=x[:, 0])
    return folder


def test_data_that_no_point_refers_to(nnslicer, tables):
    model = ("--model", tables / "classes.keras", "--data", tables / "x.npz")
    code, _, errors = nnslicer("lines", *model, "--from", "0,0", "--to", "1,1")
    assert code == 2 and "--data has no effect without the index of a sample in --from" in errors
    assert nnslicer("lines", *model, "--from", "0,0", "--to", 1)[0] == 0
    corners = ("--corner", "0,0", "--corner", "0,1", "--corner")
    code, _, errors = nnslicer("planes", *model, *corners, "1,1")
    assert code == 2 and "without the index of a sample in --corner" in errors
    assert nnslicer("planes", *model, *corners, 1)[0] == 0


def test_causes_of_flips_of_numbers(nnslicer, tables):
    model = tables / "numbers.keras"
    command = ("--task", "regression", "diff", model, model, "--data", tables / "xy.npz")
    command += ("--tolerance", 0.1)
    assert nnslicer(*command)[0] == nnslicer(*command, "--flips", 0)[0] == 0
    for option in (("--flips", 2), ("--level", "channel"), ("--seed", 1)):
        code, _, errors = nnslicer(*command, *option)
        assert code == 2 and f"{option[0]} has no effect without one class" in errors


def test_a_scale_of_what_are_no_images(nnslicer, tables, tmp_path):
    model = tables / "classes.keras"
    pair = ("--original", model, "--compressed", model)
    for command in ("agreement", "deviations", "layers", "recipe"):
        run = (command, *pair, "--data", tables / "x.npz", "--scale", 255)
        code, _, errors = nnslicer(*run)
        assert code == 2 and "--scale has no effect without images" in errors
    assert nnslicer("agreement", *pair, "--data", tables / "x.npz", "--scale", 0)[0] == 0


def test_a_sample_of_what_is_no_set(nnslicer, files, tmp_path):
    common = ("--model", files / "model.keras", "--profile", files / "profile.npz")
    one = tmp_path / "one.npz"
    assert nnslicer("slice", *common, "--data", "digits:test[:1]", "--output", one)[0] == 0
    for file in (one, files / "profile.npz"):
        code, out, errors = nnslicer("show", file, "--sample", 0)
        assert code == 2 and not out and "--sample has no effect without a set" in errors
