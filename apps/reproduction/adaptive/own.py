"""Challenge a detector that was saved in a file."""

import sys
from importlib import import_module
from pathlib import Path

import pandas as pd

from nnslicer_tf.cli import inputs
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument import InstrumentedModel
from nnslicer_tf.instrument.loading import load_model
from nnslicer_tf.slicing import Profile, Slicer
from reproduction.adaptive.challenge import challenge
from reproduction.adaptive.settings import OwnSettings
from reproduction.nnslicer.settings import split_names
from reproduction.result import ExperimentFigure, ExperimentResult, ExperimentTable, note


def challenge_own(s: OwnSettings) -> ExperimentResult:
    """Attack a detector and its model."""
    im = InstrumentedModel(load_model(s.model), bounds=(s.low, s.high))
    module, _, kind_name = s.kind.partition(":")
    sys.path.append(str(Path.cwd()))  # the user's module may be here
    try:
        kind = getattr(import_module(module), kind_name)
    except (ImportError, AttributeError, ValueError) as error:
        raise InvalidArgumentError(
            f"--kind must be MODULE:CLASS of a detector. Received: '{s.kind}' ({error})"
        ) from error
    source: InstrumentedModel | Slicer = im
    if kind.source == "slicer":
        if s.profile is None:
            raise InvalidArgumentError(f"A {kind_name} needs --profile: the profile of its slicer.")
        source = Slicer(im, Profile.load(s.profile), s.theta, progress=False)
    detector = kind.load(s.detector, source)
    data = inputs.dataset(s.data, im, s.normalise, labels=True)
    normal = inputs.dataset(s.normal, im, s.normalise, split="train").x if s.normal else None
    result = challenge(
        *(detector, im, data.x, data.y, s.seed),
        normal=normal,
        norms=split_names(s.norms),
        attacks=split_names(s.attacks) or None,
        folder=s.work / s.detector.stem,
        **s.values("steps", "queries", "rounds"),
    )
    print(result)
    head = {"model": s.model.name, "detector": s.detector.name, "verdict": result.verdict}
    checks = pd.DataFrame(
        [(c.name, c.passed, c.said) for c in result.checks], columns=["check", "passed", "figures"]
    )
    name = s.detector.stem
    tables = [
        ExperimentTable(name, result.to_frame(), "Adaptive attacks", head, note("challenge")),
        ExperimentTable(f"{name}-budgets", result.success(), "Shares of images by budget", head),
        ExperimentTable(f"{name}-checks", checks, "Sanity checks of the attacks", head),
        ExperimentTable(f"{name}-images", result.images(), "Every image", head),
    ]
    return ExperimentResult(tables, [ExperimentFigure(name, result.plot())])
