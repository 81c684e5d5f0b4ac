"""How `Slicer.explain` makes an `Explanation`: the target, the slice and its ablation, findings."""

import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import keras
import numpy as np
import pandas as pd

from nnslicer_tf._checks import as_array, check_name, check_texts, counted, names_in_order
from nnslicer_tf._environment import track, waiting
from nnslicer_tf.attributions import ATTRIBUTIONS, Target, TargetLike, metrics
from nnslicer_tf.attributions.background import (
    DEEPLIFT,
    Background,
    Groups,
    contributions_against,
    is_far,
    is_table,
)
from nnslicer_tf.attributions.methods import deeplift
from nnslicer_tf.attributions.problem import feature_operations
from nnslicer_tf.attributions.shapley import batch_of
from nnslicer_tf.errors import InvalidArgumentError, UnsupportedLayerError
from nnslicer_tf.instrument import Ablation, InstrumentedModel, Mean
from nnslicer_tf.instrument.data import DataLike, as_named, column_names, samples_of_mapping
from nnslicer_tf.instrument.fingerprint import fixed_models
from nnslicer_tf.instrument.inputs import Inputs
from nnslicer_tf.instrument.operations import Lookup
from nnslicer_tf.instrument.outputs import check_synapses
from nnslicer_tf.instrument.target import predicted_target, resolve_target
from nnslicer_tf.report.words import words_of
from nnslicer_tf.slicing.answers import Answers, asked_answers
from nnslicer_tf.slicing.criterion import PREDICTED
from nnslicer_tf.slicing.decisive import DecisiveSlices
from nnslicer_tf.slicing.explanation import Comparison, Explanation
from nnslicer_tf.slicing.slice import Slice

if TYPE_CHECKING:
    from nnslicer_tf.slicing.slicer import Slicer

RANDOM = "random order"
EXACT = "integrated gradients"
SAMPLED = "integrated gradients, 50 samples"
EMPTY = "The slice is empty"
"""How the warning of an empty slice begins."""
_NEARLY_ALL = 0.9
_UNDECIDED = 1.5  # largest probability of an untrained model, times the number of classes


class Explainer:
    """The part of `Slicer` that explains an answer."""

    @fixed_models()
    def explain(
        self,
        x: DataLike,
        target: TargetLike | str | None = None,
        *,
        instead_of: TargetLike | str | None = None,
        classes: Sequence[str] = (),
        columns: Sequence[str] = (),
        words: Any = (),
        usual: DataLike | None = None,
        compare: bool | Iterable[str] = (SAMPLED,),
        decisive: bool = True,
        background: DataLike | None = None,
        groups: Groups | None = None,
    ) -> Explanation:
        """Explain why the model gave one sample its answer.

        Args:
            x: The sample, of the input shape; a row of a DataFrame; a dict or list for several.
            target: The class to explain; by default, the predicted one. Or any other neurons, as
                in `attributions.TargetLike`: a pixel or region of a map, neurons of an output
                or of an inner operation by name. A model of one value needs none. With `classes`, a
                class may be given by its name.
            instead_of: Another class, or other neurons of the same operation: why the target, not
                this? Their difference is explained; a second decisive slice keeps which leads.
            classes: Names of the classes, in order.
            columns: Names of a table's columns; by default those of a DataFrame.
            words: The words of a text, one for each token; padding has none, or "" or "[PAD]" each.
                Or what gives them: a tokenizer of KerasHub (an object with `id_to_token`), a
                `keras.layers.TextVectorization`, or (vectoriser, text), whose tokens are compared.
            usual: Samples of the class. If given, the explanation says how the slice differs from
                theirs; a few hundred are enough.
            compare: Other methods to judge on this sample beside the contributions, by hiding and
                showing features: some of `attributions.ATTRIBUTIONS` by name, True for all (exact
                integrated gradients, which can take minutes, only by name), False for none.
                Methods that do not apply to the model are left out, with the reason.
            decisive: Whether to look for the smallest slice that keeps the answer; it takes some 70
                forward passes, and as many for another class.
            background: Samples whose values stand for absent features; contributions are means over
                them. By default the profile's rows. "mean" compares with the profile's mean, which
                is the default for texts and profiles without rows.
            groups: Name of a feature → its columns, by name, or by index unless numbers name them;
                they are exchanged together. By default a table's one-hot columns; {} for none.

        Raises InvalidArgumentError if `x` is not one sample, or the target or a name is unknown;
        UnsupportedLayerError if the model has no synapses; InputShapeError or
        NonFiniteActivationError for bad data.
        """
        # The sample, the target, and their names.
        slicer = cast("Slicer", self)
        im, means = slicer.im, slicer.profile.means
        check_synapses(im)
        batch, columns = one_sample(im, x, columns)
        im = im.with_columns(im.columns or tuple(map(str, columns))).named_by(usual, background)
        sample = {n: a[0] for n, a in batch.items()} if isinstance(batch, Inputs) else batch[0]
        values = {name: value[0] for name, value in im.capture(batch).items()}
        if isinstance(compare, bool):
            compare = [name for name in ATTRIBUTIONS if name != EXACT] if compare else ()
        methods = (compare,) if isinstance(compare, str) else tuple(compare)
        for name in methods:
            check_name("attribution", name, ATTRIBUTIONS)
        names = names_in_order("classes", classes)
        asked = _by_name(target, names)
        if asked is None:
            asked = predicted_target(im, values[im.logit_operation][None])
        chosen = resolve_target(im, asked, _by_name(instead_of, names))
        whole = answer(im, chosen, values[chosen.operation])
        tokens = frozenset(n for n in im.input_operations if feature_operations(im, n) != (n,))
        names_in_order("classes", names, None if chosen.label is None else len(whole))
        text = max(im.input_operations, key=lambda n: im.graph.vocabulary(n) or 0)  # no segments
        words = words_of(im, words, np.ravel(values[text]) if tokens else np.zeros(0))
        for what, known in {"columns": columns, "words": words, "groups": groups or ()}.items():
            check_texts(what, known)

        # The contributions; the slice, alone and removed.
        with waiting("Contributions", slicer.progress):
            against = _against(im, slicer.profile, batch, chosen, columns, background, groups)
            contributions = deeplift(im, sample, means, chosen) if against is None else None
        faint = ""
        if against is None:
            rows, name = slicer.profile.rows, chosen.operation
            of_rows = im.forward(im.check(rows), [name])[name] if rows else values[name][None][:0]
            faint = _faint(contributions, values[name], chosen, of_rows)
        else:
            by_entry = batch_of(im, against.by_entry[None])
            several = isinstance(by_entry, Inputs)
            contributions = {n: a[0] for n, a in by_entry.items()} if several else by_entry[0]
        criterion = {chosen.operation: list(chosen.neurons)}

        def sliced(by: "Slicer", outputs: Any = criterion) -> Slice:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", EMPTY)  # the explanation says why
                return by.slice(batch, outputs)

        one = sliced(slicer)
        # The answers with the slice alone and removed; `decisive` uses the same compiled functions.
        tables = any(isinstance(kernel, Lookup) for kernel in im.kernels.values())
        of = list(im.kernels) if tables else None
        ablation = Ablation(im, Mean(slicer.profile), target=chosen, of=of)
        keep = one.synapse_mask()
        ways = keep, {name: ~mask for name, mask in keep.items()}
        kept, removed = (answer(im, chosen, ablation.outputs(way, batch)[0]) for way in ways)
        # The share of usual samples whose slice has a synapse, by kernel.
        frequencies: dict[str, Any] | None = None
        if usual is not None:
            counts: dict[str, Any] = dict.fromkeys(im.kernels, 0)
            samples, opened = 0, cast(Any, im.samples(usual))
            for part in slicer.iterate(opened, criterion):
                samples += len(part.predicted)
                counts = {n: c + (part.synapses[n] != 0).sum(axis=0) for n, c in counts.items()}
            frequencies = {name: count / samples for name, count in counts.items()}

        def amounts() -> Slice:
            parts: list[tuple[float, Slice]] = []
            for group, sign in ((chosen.neurons, 1), (chosen.against, -1)):
                if group:
                    one = sliced(slicer.by_amounts, {chosen.operation: list(group)})
                    parts.append((sign * chosen.sign / len(group), one))
            neurons: Any = {n: sum(f * p.neurons[n] for f, p in parts) for n in one.neurons}
            synapses: Any = {n: sum(f * p.synapses[n] for f, p in parts) for n in one.synapses}
            return Slice(neurons, synapses, one.info)

        # What was assumed about the outputs, and why the slice is empty or nearly complete.
        remark = im.classes.remark if chosen.answer == im.output_operations[0] else ""
        at_zero = partial(sliced, slicer.at_theta(0.0))
        smallest, contrast, withheld = None, None, ""
        if decisive:
            smallest, contrast, withheld = _decisive_for(slicer, chosen, batch, whole, names)
        unusual = unusual_size(slicer, one, values, whole, chosen, at_zero)
        return Explanation(
            sample=sample,
            target=chosen,
            whole=whole,
            kept=kept,
            removed=removed,
            contributions=contributions,
            background=against,
            slice=one,
            values=values,
            means=means,
            classes=names,
            columns=tuple(map(str, columns)),
            words=tuple(map(str, words)),
            decisive=smallest,
            contrast=contrast,
            withheld=withheld,
            finding=" ".join(filter(None, (remark, unusual, faint))),
            frequencies=frequencies,
            comparison=compare_methods(
                im, sample, means, chosen, methods, contributions, against, slicer.progress
            )
            if methods
            else None,
            token_inputs=tokens,
            _amounts=amounts,
            _first_calls={o.name: o.layer + o.part for o in im.operations},
        )


def _against(
    im: InstrumentedModel,
    profile: Any,
    batch: Any,
    target: Target,
    columns: Sequence[str],
    background: DataLike | None,
    groups: Groups | None,
) -> Background | None:
    """Return the contributions against the background; None against the mean."""
    # Words of other texts stand at other places: tokens are compared with their mean.
    has_tokens = any(feature_operations(im, n) != (n,) for n in im.input_operations)
    by_mean = isinstance(background, str) and background == "mean"
    if by_mean or (background is None and (not profile.rows or (has_tokens and not is_table(im)))):
        if groups:
            raise InvalidArgumentError(
                "groups need background rows: the mean of one-hot columns is no category. Omit "
                f"{'background=' + repr('mean') if by_mean else 'them, or pass background='}."
            )
        return None
    rows = im.check(profile.rows if background is None else background)
    return contributions_against(im, batch, rows, target, profile.means, columns, groups)


def _faint(contributions: Any, values: np.ndarray, target: Target, of_rows: np.ndarray) -> str:
    """Return why contributions against the mean say little; "" if there is no reason.

    `values` and `of_rows` are the target's operation's, for the sample and the profile's rows.
    """
    weights = target.weights(values.size)
    score, scores = float(values.ravel() @ weights), of_rows.reshape(len(of_rows), -1) @ weights
    parts = contributions.values() if isinstance(contributions, Mapping) else [contributions]
    total = sum(float(np.sum(part)) for part in parts)
    if is_far(score - total, scores):
        return (
            f"The mean of the profiled data has the score {score - total:.3g}, far from its rows' "
            f"mean score, {scores.mean():.3g}: it is no typical sample. The contributions are "
            "measured against it."
        )
    if abs(total) >= 0.05 * abs(score):
        return ""
    return (
        f"The contributions add up to only {total:+.2g}: the mean of the profiled data has nearly "
        f"the same score, {score - total:.3g}. Pass other samples as `background`."
    )


def _decisive_for(
    slicer: "Slicer", target: Target, batch: Any, whole: np.ndarray, names: Sequence[str]
) -> tuple[DecisiveSlices | None, DecisiveSlices | None, str]:
    """Return the decisive slice for the target, the one for a contrast, and why one is missing."""
    im, label = slicer.im, target.label
    output = next((o for o in im.outputs if im.output_operation_of(o) == target.answer), None)
    predicted = None if label is None else int(whole.argmax())
    is_label = label is not None and im.classes_of(output).is_multi_label

    def search(of: Any) -> DecisiveSlices:
        answers, _ = asked_answers(im, of)
        values = im.forward(batch, [answers.operation])[answers.operation].reshape(1, -1)
        probability, least = answers.probability(values, answers.of(values))[0], None
        if probability > 0.5:  # half of the log-odds: an answer of 99.99 % keeps 99 %
            odds = np.sqrt(probability / max(1 - probability, 1e-6))
            least = float(odds / (1 + odds))
        # Of two classes, one always leads, also without any part: there is no other to ask for.
        others = 0 if isinstance(of, Target) and of.against else 1
        return slicer.decisive(batch, of, others=others, max_share=1.0, min_probability=least)

    smallest, contrast, withheld = None, None, ""
    try:
        if label in (None, predicted) or is_label:
            of_output = label is None and output and im[target.answer].shape == (1,)
            smallest = search({output: PREDICTED} if of_output else replace(target, against=()))
        elif not target.against:
            one, other = (names[i] if names else str(i) for i in (label, int(whole.argmax())))
            is_one_unit = im[target.answer].shape == (1,)  # a contrast is of two
            remedy = f"target={other!r}" if is_one_unit else f"a contrast: instead_of={other!r}"
            withheld = (
                f"There is no decisive slice for {one}, because the model answers {other}. Ask for "
                f"{remedy}."
            )
        if target.against:
            contrast = search(target)
    except UnsupportedLayerError as error:  # it has no synapses
        withheld = f"There is no decisive slice. {error}"
    return smallest, contrast, withheld


def one_sample(
    im: InstrumentedModel, x: Any, columns: Sequence[str] = ()
) -> tuple[Any, Sequence[str]]:
    """Return a checked batch of one sample, and its column names, by default a DataFrame's."""
    if len(im.input_operations) > 1:
        is_named = isinstance(x, Mapping) or hasattr(x, "iloc")  # a table's columns are inputs
        x = x if hasattr(x, "iloc") else im.in_order(x)
        columns = columns if len(columns) or not isinstance(x, Mapping) else column_names(x)
        shapes = [(), *im.input_shapes.values()]
        batch: Any = {
            key: as_array(part)[None] if as_array(part).shape in shapes else as_array(part)
            for key, part in (x.items() if is_named else enumerate(x))
        }
        x = batch if is_named else list(batch.values())
    else:
        if isinstance(x, Mapping) and x and not any(as_array(v).ndim for v in x.values()):
            x = pd.DataFrame([x])  # a row of a table, as values by column
        elif isinstance(x, Mapping):  # perhaps with a label, as in a pair
            x = im.only_input(x) if len(x) == 1 else samples_of_mapping(x)[0]
        elif isinstance(x, tuple) and len(x) and np.ndim(x[0]) > 0:
            x = x[0]
        given = column_names(x)
        if given and len(columns) and tuple(map(str, columns)) != given:
            raise InvalidArgumentError(
                f"The table has the columns {list(given)}: omit columns={list(columns)!r}."
            )
        if not len(columns) or sorted(map(str, columns)) == sorted(im.columns):
            x = im.in_order(as_named(x, columns, im.columns))
            columns = column_names(x)
        elif len(columns) != im[im.input_operation].size or len(set(columns)) < len(columns):
            raise InvalidArgumentError(
                f"columns must be {im[im.input_operation].size} different names, one for each "
                f"value of a sample. Received: {list(columns)!r}"
            )
        if not isinstance(x, (str, os.PathLike)) and as_array(x).shape == im.input_shape:
            x = as_array(x)[None]
    checked = im.check(x)
    if len(checked) != 1:
        raise InvalidArgumentError(
            f"Expected one sample, such as x[i]. Received: {len(checked)}. To explain many, use "
            "slicer.slice_each(x) and nnslicer_tf.explore."
        )
    return checked, columns


def _by_name(target: Any, names: Sequence[str]) -> Any:
    """Return a target whose class is given by its name, or its number as a text, as an int."""
    if isinstance(target, str) and names:
        check_name("class", target, names)
        return names.index(target)
    return int(target) if isinstance(target, str) and target.isdigit() else target


def answer(im: InstrumentedModel, target: Target, values: np.ndarray) -> np.ndarray:
    """Return the probabilities of the classes, or the value of another target as `(1,)`.

    `values` are those of the target's operation, such as logits.
    """
    if target.label is not None:
        return Answers(im, target.answer, None).probabilities(values[None])[0]
    is_output = target.answer in im.output_operations
    if is_output and im.logit_operation_of(target.answer) == target.operation:
        values = im.outputs_from(values[None], target.answer)
    return np.atleast_1d(values.ravel().astype(np.float64) @ target.weights(values.size))


def compare_methods(
    im: InstrumentedModel,
    sample: Any,
    baseline: Mapping[str, np.ndarray],
    target: Target,
    methods: Iterable[str],
    contributions: Any,
    background: Background | None = None,
    progress: bool = False,
) -> Comparison:
    """Return attributions by other methods, and the curves of all on one sample.

    Against background rows, curves are means over these; else hidden units are the baseline's.
    """
    own = DEEPLIFT if background is None else background.method
    values = {own: contributions}
    left_out = {}
    for name in track([m for m in methods if m != own], "Other methods", progress=progress):
        try:
            values[name] = ATTRIBUTIONS[name](im, sample, baseline, target)
        except UnsupportedLayerError as error:
            left_out[name] = str(error)
    judged = {**values, RANDOM: keras.tree.map_structure(np.zeros_like, contributions)}
    over: dict[str, Any] = {}
    if background is not None and background.names:
        over = {"rows": background.rows, "features": background.features}
    with waiting("Curves", progress):
        deletion, insertion = metrics.curves(im, sample, baseline, target, judged, **over)
    return Comparison(values, deletion, insertion, left_out)


def unusual_size(
    slicer: "Slicer",
    one: Slice,
    values: Mapping[str, np.ndarray],
    whole: np.ndarray,
    target: Target,
    unexcluded: Callable[[], Slice],
) -> str:
    """Say why a slice is empty or nearly complete, and whether the network is dead; else "".

    `unexcluded` returns the slice at θ = 0.
    """
    im, theta, means = slicer.im, slicer.theta, slicer.profile.means
    share = float((one.to_vector() != 0).mean())
    if 0 < share < _NEARLY_ALL:
        return ""
    if share and theta == 0:
        return f"The slice has {share:.0%} of the synapses: θ = 0 excludes nothing. Try θ = 0.3."
    if share and len(whole) > 1 and whole.max() * len(whole) < _UNDECIDED:
        return (
            f"The slice has {share:.0%} of the synapses, and the model is undecided: the largest "
            f"probability is {whole.max():.1%}. Its weights look untrained (random)."
        )
    if share:
        return (
            f"The slice has {share:.0%} of the synapses: at θ = {theta:g} no part of the "
            "network stands out. Use a larger θ."
        )
    # The slice is empty: because of θ, or because nothing differs even without an exclusion.
    neurons = list(target.neurons)
    ends = (a[target.operation].ravel()[neurons].mean() for a in (values, means))
    value, mean = (target.sign * end for end in ends)  # of class 0, the negated logit of class 1
    name = target.answer if target.label is None else f"output {target.label}"
    at_zero = int(np.count_nonzero(unexcluded().to_vector())) if theta > 0 else 0
    if at_zero and theta > 1:
        return f"The slice is empty: θ = {theta:g} excludes everything; use 0.3."
    if at_zero:
        return (
            f"The slice is empty: {name} is {value:.4g}, on average {mean:.4g}, and θ = {theta:g} "
            f"excludes all changes as too small. Use a smaller θ (at θ = 0 the slice has "
            f"{counted(at_zero, 'synapse')})."
        )
    varying: set[str] = set()  # the others are the same for all samples by nature
    for operation in im.operations:
        is_input = operation.kind == "input"
        if is_input or (operation.kind != "mask" and not varying.isdisjoint(operation.inputs)):
            varying.add(operation.name)
        if operation.name not in varying or operation.name not in values:
            continue
        usual = means[operation.name]
        scale = max(float(np.abs(usual).max()), 1e-30)
        if np.abs(values[operation.name] - usual).max() <= 1e-6 * scale:
            return (
                f"The slice is empty: from '{operation.name}' on, every value is the same for this "
                "sample as on average over the profiled data. Either the network is dead there "
                "(all units of a layer at zero), or the sample is the mean itself."
            )
    return (
        f"The slice is empty: {name} is {value:.4g}, on average {mean:.4g}, but no change of a "
        "neuron reaches it through a synapse."
    )
