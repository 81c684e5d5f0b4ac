"""`Slicer.decisive`: the requirements on decisive slices, and what is searched."""

import os
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from nnslicer_tf._checks import as_generator, check_count, check_name, check_number
from nnslicer_tf._environment import progress_bar
from nnslicer_tf._files import digest
from nnslicer_tf.errors import CriterionError, InvalidArgumentError
from nnslicer_tf.instrument.data import DataLike
from nnslicer_tf.instrument.fingerprint import fixed_models
from nnslicer_tf.instrument.inputs import arrays_of
from nnslicer_tf.instrument.layout import LEVELS
from nnslicer_tf.instrument.references import Samples, as_reference
from nnslicer_tf.slicing._batches import warn_of_unusual
from nnslicer_tf.slicing._decisions import Decisions, Item
from nnslicer_tf.slicing.answers import Answers
from nnslicer_tf.slicing.criterion import PREDICTED, Outputs
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.donors import class_trials

if TYPE_CHECKING:
    from nnslicer_tf.slicing.slicer import Slicer

_BATCH = 256


@dataclass(frozen=True)
class Requirements:
    """What decisive slices have to keep, and of what they are: arguments of `Slicer.decisive`.

    Raises InvalidArgumentError for values out of range.
    """

    level: str
    min_probability: float | None
    max_divergence: float | None
    max_share: float
    tolerance: float
    together: bool
    at_least: float | None = None
    at_most: float = 0.05
    minimal: bool = False
    needed: bool = False

    def __post_init__(self) -> None:
        check_name("level", self.level, LEVELS)
        intervals = {"max_divergence": "(0, inf]", "at_least": "(0, 1)", "at_most": "(0, 1)"}
        numbers = ("max_share", "tolerance", "at_most")
        for name in ("min_probability", "max_divergence", "at_least", *numbers):
            value, interval = getattr(self, name), intervals.get(name, "(0, 1]")
            if value is not None or name in numbers:
                check_number(name, value, interval)
                object.__setattr__(self, name, float(value))  # NumPy's cannot be saved
        for name in ("together", "minimal", "needed"):
            value = getattr(self, name)
            if not isinstance(value, (bool, np.bool_)):
                raise InvalidArgumentError(f"{name} must be True or False. Received: {value!r}")
            object.__setattr__(self, name, bool(value))
        if self.needed and self.at_least is not None:
            raise InvalidArgumentError(
                "at_least and needed=True cannot be combined: what is needed is decided at one "
                "reference. Pass one of them."
            )


class DecisiveSearch:
    """The part of `Slicer` that finds decisive slices."""

    @fixed_models()
    def decisive(
        self,
        x: DataLike,
        outputs: Outputs = PREDICTED,
        level: str = "synapse",
        *,
        reference: Any = "mean",
        scope: DataLike | int | None = 50,
        at_least: float | None = None,
        min_probability: float | None = None,
        max_divergence: float | None = None,
        max_share: float = 0.2,
        tolerance: float = 0.1,
        others: int | None = 3,
        together: bool = False,
        against: DataLike | None = None,
        at_most: float = 0.05,
        minimal: bool = False,
        needed: bool = False,
        folder: str | os.PathLike | None = None,
        rng: int | np.random.Generator = 0,
    ) -> DecisiveSlices:
        """Return for each sample the smallest slice found that keeps the model's answer.

        Units with the least effect on the answer are ablated in rounds, with effects estimated
        again in each, until the answer is lost; a bisection follows and, of fewer than 1,000 units,
        the removal of single ones that can be left out. This slicer's θ, granularity and
        contribution have no effect. The certificate is measured by running the model. A sample
        takes some 70 forward passes, as many for each other class, and `scope` ones. Samples are
        searched on one thread per core, or on the Ray workers that this slicer was given.

        A slice may keep the answer at the mean alone. With a background and `at_least` it keeps it
        for that share of other samples' values, with 95 % confidence: effects are estimated with
        new donors in each round, which show about which size is enough; another set tests sizes
        around it, from large to small up to the first that fails (fixed-sequence testing), each
        until it is decided. That takes some 200 to 300 passes for a background of 200.

        Args:
            x: Samples, as for `slice`.
            outputs: "predicted", or the class that the model assigns to all samples, or one for
                each; for another output than the first, {its name: one of these}. Or any target of
                attributions: a label among independent ones, which is on or off; a pixel or region
                of a map, or inner neurons, whose mean value is kept; a `Target` that compares two
                classes, of which the leading one is kept.
            level: Kind of units: "synapse", "neuron" (an element of a weighted sum's output),
                "channel" (also a unit of a recurrent layer), "head" (of attention; channels
                elsewhere) or "input" (a position of the input, such as a pixel or a word; padding
                counts, too, and stays). Recurrent units are ablated for their own next step, too.
            reference: What inactive units contribute: "mean" (the profile's), "zero", or
                `Samples(x)`, or "samples" for the profile's: the values of each of these, in turn.
            scope: Other samples on which the slice is tested: how many of the profile's
                (`Profile.rows`), or samples that no search has seen; None or 0 for no test.
            at_least: Share of other samples for which the answer is to be kept as required when
                inactive units take their values; needs `Samples(background)` of 58 or more for 0.9.
                `scope` may give the samples of the test, which otherwise are half the background.
            min_probability: Least probability of the answer with the slice alone; by default, it
                only has to be the most probable. Of independent labels, that one is the answer.
            max_divergence: Largest Kullback-Leibler divergence, in nats, of the output with the
                slice alone from the model's; no limit by default.
            max_share: Largest share of the units of a "found" slice; others are returned, too.
            tolerance: For a model that predicts a number, in place of the two bounds: how far it
                may change with the slice alone, as a share of its change with all units ablated.
            others: Number of other classes, drawn by `rng`, for which the same search is started,
                to see whether it meets a slice of at most the same size; None for all. The class
                that nothing active gives is never asked for: masks of any size give it.
            together: Return one slice for all samples, which must be of one class. It keeps the
                answer for at least 95 % of them.
            against: For `together`: samples of other classes, for a slice that tells the class from
                these. It is searched on a third of both, and tested on half: of samples that no
                search has seen, it keeps `at_least` of the class, and gives the class for `at_most`
                of the others, each with 95 % confidence.
            at_most: Share of others for which the slice may give the class.
            minimal: Try every unit of the slice alone, and leave it out where the answer is kept.
                Without `at_least`, slices of up to 64 of fewer than 1,000 units are minimal anyway.
                Of up to 256 units, all are tried so, too, and the smaller slice is returned.
            needed: The model gives another answer without the slice: what speaks most for the
                answer in the rest is added until it does.
            folder: Folder for the slices, from which an interrupted run of the same samples
                resumes; not with `against`.
            rng: Seed or generator, for `others` and the choice of other samples. A sample's slice
                does not depend on the others of a call.

        Raises InvalidArgumentError if an argument is out of range; CriterionError if `outputs` is
        not what the model answers; UnsupportedLayerError if the model has no units at this level;
        InputShapeError or NonFiniteActivationError for bad data; ProfileMismatchError if the folder
        is from another run; CorruptFileError if the folder is damaged.
        """
        bounds = min_probability, max_divergence, max_share, tolerance
        required = Requirements(level, *bounds, together, at_least, at_most, minimal, needed)
        slicer = cast("Slicer", self)
        slicer._check_weights()
        im, generator = slicer.im, as_generator(rng)
        if others is not None:
            check_count("others", others, 0)
        reference = as_reference(reference, slicer.profile)
        named = im.named_by(x, reference.x, scope, against)
        if isinstance(reference, Samples):  # arrays, which can be sent to workers
            reference = Samples(named.check(reference.x))
        if scope is not None and not isinstance(scope, (int, float, np.number)):
            scope = named.check(scope)
        job = Decisions(slicer, outputs, required, reference, others, scope)
        answers = job.answers

        # The samples (each is run many times, so all are kept), and the answers to keep.
        checked = warn_of_unusual(named.samples(x).batches(_BATCH), slicer.profile)
        batches = [arrays_of(batch) for batch in checked]
        inputs = [np.concatenate(parts) for parts in zip(*batches, strict=True)]
        samples = len(inputs[0])
        full = job.values(job.model.as_batch(inputs))
        targets = _targets(job.wanted, answers, required, full)

        # One search for a class against others; else for each sample, or for all of them.
        if against is not None:
            fits = required.together and folder is None and not answers.is_number
            if required.at_least is None or not fits:
                raise InvalidArgumentError(
                    "against bounds how often a class's slice claims other samples: pass "
                    "together=True and at_least, such as 0.95, with samples of one class, and omit "
                    "folder, as it is one search."
                )
            strangers = named.check(against)
            of_others = job.values(strangers)
            chosen = np.flatnonzero(answers.of(of_others) != targets[0])
            of_both = zip(inputs, arrays_of(strangers[chosen]), strict=True)
            every = [np.concatenate(pair) for pair in of_both]
            levels = required.at_least, 1 - required.at_most
            trials = class_trials(job.model, every, samples, levels, generator)
            labels, asked = np.full(len(every[0]), targets[0]), generator.permutation(answers.count)
            item = Item(every, np.concatenate([full, of_others[chosen]]), labels, asked, 0)
            with progress_bar("Deciding", 1, slicer.progress, unit="slice"):
                return job.found(item, trials)
        job.draw_donors(generator)
        # A sample's search is the same among any others: its seed comes from what it is.
        run, items = generator.bytes(8), []
        for rows in [np.arange(samples)] if required.together else np.arange(samples)[:, None]:
            own = [array[rows] for array in inputs]
            seed = int(digest([run, *own])[:8], 16)
            asked = np.random.default_rng(seed).permutation(answers.count)
            items.append(Item(own, full[rows], targets[rows], asked, seed))
        return job.collect(items, folder)


def _targets(wanted: Any, answers: Answers, required: Requirements, full: np.ndarray) -> np.ndarray:
    """Return the answer that each sample's slice has to keep."""
    bounds = [required.min_probability, required.max_divergence]
    if answers.is_number and any(bound is not None for bound in bounds):
        raise InvalidArgumentError(
            "The model predicts a number, which has no probability: bound its change by tolerance, "
            "in place of min_probability and max_divergence."
        )
    predicted = targets = answers.of(full)
    if wanted is not None and not (isinstance(wanted, str) and wanted == PREDICTED):
        labels = np.asarray(wanted)
        if labels.dtype.kind not in "iu" or labels.size not in (1, len(predicted)):
            raise CriterionError(
                "outputs must be 'predicted', a class, one class for each sample, or a target such "
                f"as a pixel or an inner neuron. Received: {wanted!r}"
            )
        targets = np.broadcast_to(labels.ravel(), predicted.shape)
        if (targets != predicted).any():
            index = int(np.argmax(targets != predicted))
            what, remedy = "is classified as", "only samples that the model assigns to this class"
            if not answers.is_number and answers.classes.is_multi_label:
                what, remedy = "has as its most probable label", "one label for all samples"
            raise CriterionError(
                f"A decisive slice keeps the model's own answer. Sample {index} {what} "
                f"{predicted[index]}. Received: outputs={targets[index]}. Pass 'predicted', or "
                f"{remedy}."
            )
    if required.together and not answers.is_number and len(np.unique(targets)) > 1:
        raise CriterionError(
            "One slice for all samples needs samples of one class. The model assigns these to "
            f"classes {np.unique(targets).tolist()}; pass those of one class, or together=False."
        )
    least = required.min_probability
    if least is not None and not answers.is_number:
        whole = answers.probability(full, targets)
        below = np.flatnonzero(whole < least)
        if len(below):
            listed = ", ".join(f"{i} ({100 * whole[i]:.1f} %)" for i in below[:5])
            more = f" and {len(below) - 5} more" if len(below) > 5 else ""
            warnings.warn(
                f"The whole model gives its answer less than min_probability={least:.12g} for "
                f"{len(below)} of {len(predicted)} samples: {listed}{more}. A slice of them may "
                "not reach it either; lower min_probability.",
                stacklevel=3,
            )
    return targets
