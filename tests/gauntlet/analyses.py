"""The analyses of the gauntlet: each computes something and compares it with an independent value.

An analysis that does not apply to a model raises an error of the library; any other exception, and
any difference, fails the test.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import keras
import numpy as np
from gauntlet.models import CASES, Case

import nnslicer_tf as nns
from nnslicer_tf import debugging, deepxplore, detection, dflare, exactline, pruning, semantic
from nnslicer_tf.errors import NNSlicerError
from support.documents import unpack

CLOSE = {"rtol": 1e-3, "atol": 1e-4}


class Subject:
    """A model of the gauntlet with its samples, wrapped and profiled on first use."""

    def __init__(self, name: str, folder: Path) -> None:
        keras.utils.set_random_seed(0)
        self.case: Case = CASES[name]
        self.folder = folder
        self.model = self.case.build()
        if self.case.classes:
            self.balance()

    def balance(self) -> None:
        """Shift the last bias so that all classes are predicted."""
        bias = (self.model.trainable_variables or [None])[-1]
        if bias is None or tuple(bias.shape) not in ((self.case.classes,), (1,)):
            return
        try:
            shape = {} if self.shape is None else {"input_shape": self.shape}
            logits = nns.InstrumentedModel(self.model, **shape).logits(self.samples(200, 3))
        except NNSlicerError:
            return
        bias.assign(np.array(bias) - np.median(logits.reshape(200, -1), axis=0))

    @cached_property
    def x(self) -> np.ndarray | list[np.ndarray]:
        return self.samples(8, 0)

    def samples(self, count: int, seed: int) -> np.ndarray | list[np.ndarray]:
        if not getattr(self.model, "inputs", None):  # a subclassed model of five columns
            return np.random.default_rng(seed).normal(size=(count, 5)).astype("f4")
        return self.case.samples(self.model, count, seed)

    @property
    def shape(self) -> tuple[int, ...] | None:
        """The shape of an input, where the model leaves it open."""
        inputs = getattr(self.model, "inputs", None)
        known = inputs and all(None not in tensor.shape[1:] for tensor in inputs)
        return None if known else self.x.shape[1:]

    @cached_property
    def im(self) -> nns.InstrumentedModel:
        shape = self.shape
        return nns.InstrumentedModel(self.model, **({"input_shape": shape} if shape else {}))

    @cached_property
    def profile(self) -> nns.Profile:
        return nns.Profile.from_data(self.im, self.samples(24, 1), progress=False)

    def slicer(self, **options: object) -> nns.Slicer:
        return nns.Slicer(self.im, self.profile, workers=0, progress=False, **options)

    @property
    def target(self) -> object:
        """What slices start from: the predicted class, or the first value of the last operation."""
        vector = len(self.im.operations[-1].shape) == 1 and len(self.outputs()) == 1
        return "predicted" if vector else {self.im.operations[-1].name: [0]}

    def outputs(self, model: Callable | None = None, x: object = None) -> list[np.ndarray]:
        """The outputs that Keras computes."""
        y = (model or self.model)(self.x if x is None else x, training=False)
        return [np.asarray(v, np.float32) for v in (y if isinstance(y, (list, tuple)) else [y])]

    def labelled(self, count: int) -> tuple[object, np.ndarray]:
        """Inputs, and the classes that Keras gives them, as equal in number as they can be."""
        x = self.samples(8 * count, 2)
        y = classes_of(self.outputs(x=x)[0].reshape(8 * count, -1)).astype(int)
        turn = np.empty(len(y), int)  # 0 for the first sample of each class, and so on
        for label in np.unique(y):
            turn[y == label] = np.arange(np.sum(y == label))
        rows = np.sort(np.argsort(turn, kind="stable")[:count])
        return rows_of(x, rows), y[rows]

    @contextmanager
    def zeroed(self, masks: dict[str, np.ndarray]) -> Iterator[None]:
        """The model itself with the kernels' weights outside the masks set to 0 for a while."""
        variables = {name: self.im.kernels[name].variable() for name in masks}
        values = {name: np.array(v) for name, v in variables.items()}
        for name, variable in variables.items():
            variable.assign(values[name] * masks[name].reshape(values[name].shape))
        try:
            yield
        finally:
            for name, variable in variables.items():
                variable.assign(values[name])


def rows_of(x: np.ndarray | list[np.ndarray], rows: np.ndarray | slice) -> object:
    return [part[rows] for part in x] if isinstance(x, list) else x[rows]


def same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for a, b in zip(found, expected, strict=True):
        np.testing.assert_allclose(a, b, **CLOSE)


def wrap(s: Subject) -> None:
    """Predictions are Keras's, also for large inputs and zeros."""
    parts = s.x if isinstance(s.x, list) else [s.x]
    for scale in (1, 30, 0) if parts[0].dtype.kind == "f" else (1,):
        scaled = [scale * part for part in parts] if scale != 1 else parts
        x = scaled if isinstance(s.x, list) else scaled[0]
        predicted = s.im.predict(x)
        if isinstance(predicted, dict):
            predicted = list(predicted.values())
        predicted = predicted if isinstance(predicted, list) else [predicted]
        same(predicted, s.outputs(x=x)[: len(predicted)])


def slice_at_zero(s: Subject) -> None:
    """The walk on the backend and the compiled kernels, which share no code, give one result."""
    by_backend, by_kernels = (s.slicer(theta=theta).slice(s.x, s.target) for theta in (0.0, 1e-30))
    for name, values in by_backend.synapses.items():
        np.testing.assert_array_equal(values, by_kernels.synapses[name], err_msg=name)


def slice_with_exclusion(s: Subject) -> None:
    """The slice of all samples is the sum of the samples' slices."""
    adds_up(s.slicer(theta=0.3), s)


def slice_channels(s: Subject) -> None:
    """The same at the granularity of channels."""
    adds_up(s.slicer(theta=0.3, granularity="channel"), s)


def adds_up(slicer: nns.Slicer, s: Subject) -> None:
    whole, each = slicer.slice(s.x, s.target), slicer.slice_each(s.x, s.target)
    for name, values in whole.synapses.items():
        total = sum(one.synapses[name] for one in each)
        np.testing.assert_array_equal(values, total, err_msg=name)


def amounts(s: Subject) -> None:
    """The contributions at the input add up to the change of the target."""
    slicer = s.slicer(theta=0.0, contribution="amount")
    starts = [operation.name for operation in s.im.operations if not operation.inputs]
    target = s.im.logit_operation
    for one in slicer.slice_each(s.x, s.target):
        if s.im.operations[1].kind != "lookup":  # tokens have no values to change
            received = sum(one.neurons[start].sum() for start in starts)
            given = one.neurons[target].sum()
            np.testing.assert_allclose(received, given, rtol=2e-2, atol=2e-3)


def decide(s: Subject) -> None:
    """Keras gives the certified answer when the weights outside of a decisive slice are 0."""
    x = rows_of(s.x, slice(2))
    output = {next(iter(s.im.outputs)): "predicted"} if len(s.im.outputs) > 1 else "predicted"
    found = s.slicer().decisive(x, output, reference="zero", others=1)
    for index, answer in enumerate(found.certificate["answer with slice alone"]):
        with s.zeroed(found.masks(index)):
            outputs = s.outputs(x=x)[0]
        alone = outputs.reshape(2, -1)[index : index + 1]
        if s.im.classes.is_number:
            np.testing.assert_allclose(alone[0, 0], answer, **CLOSE)
        else:
            assert classes_of(alone)[0] == answer


def apply_slice(s: Subject) -> None:
    """A sliced copy answers as the model does whose other weights are 0."""
    one = s.slicer(theta=0.3).slice(s.x, s.target)
    sliced = s.outputs(one.apply(s.im, "zero"))
    with s.zeroed({name: values != 0 for name, values in one.synapses.items()}):
        same(sliced, s.outputs())


def save_and_load(s: Subject) -> None:
    """A slice and a profile come back from their files."""
    one = s.slicer(theta=0.3).slice(s.x, s.target)
    one.save(s.folder / "slice.npz")
    assert nns.Slice.load(s.folder / "slice.npz") == one
    s.profile.save(s.folder / "profile.npz")
    again = nns.Profile.load(s.folder / "profile.npz")
    for name, mean in s.profile.means.items():
        np.testing.assert_array_equal(again.means[name], mean)


def prune(s: Subject) -> None:
    """Nothing pruned changes nothing; half pruned, the smallest weights are 0."""
    scores = {name: np.abs(kernel.kernel()) for name, kernel in s.im.kernels.items()}
    same(s.outputs(pruning.prune(s.im, scores, 0.0)), s.outputs())
    masks = {}
    for name, values in scores.items():
        order = np.argsort(values, axis=None, kind="stable")
        masks[name] = np.ones(values.size, bool)
        masks[name][order[: values.size // 4]] = False
    quarter = pruning.prune(s.im, scores, 0.25)
    with s.zeroed(masks):
        same(s.outputs(quarter), s.outputs())


def compact(s: Subject) -> None:
    """A model without its dead neurons gives the same outputs."""
    scores = {name: np.abs(kernel.kernel()) for name, kernel in s.im.kernels.items()}
    pruned = pruning.prune(s.im, scores, 0.6)
    same(s.outputs(pruning.compact(s.im.like(pruned))), s.outputs(pruned))


def shrink(s: Subject) -> None:
    """A smaller model is as good as its table says: for two classes, or all maps and numbers."""
    if not s.case.classes:
        return shrink_values(s)
    x, y = s.labelled(60)
    small = pruning.shrink(s.im, x, y, classes=(0, 1), ratio=0.3, progress=False)
    assert small.model.count_params() <= 0.75 * s.model.count_params()
    among = np.flatnonzero(y < 2)
    x = rows_of(x, among)
    for model, accuracy in zip((s.model, small.model), small.accuracy, strict=True):
        (outputs,) = s.outputs(model, x)
        classes = classes_of(outputs if outputs.shape[-1] == 1 else outputs[:, :2])
        np.testing.assert_allclose(np.mean(classes == y[among]), accuracy, atol=0.02)


def shrink_values(s: Subject) -> None:
    x = s.samples(60, 2)
    truth = {}
    for name, values in zip(s.im.output_names, s.outputs(x=x), strict=True):
        truth[name] = values if s.im.classes_of(name).is_number else values.argmax(axis=-1)
    small = pruning.shrink(s.im, x, truth, ratio=0.3, by="weight", progress=False)
    assert small.model.count_params() <= 0.75 * s.model.count_params()
    for (name, right), values in zip(truth.items(), s.outputs(small.model, x), strict=True):
        of_output = {
            k.removeprefix(f"{name}: "): v[1] for k, v in small.quality.items() if name in k
        }
        quality = of_output or {k: v[1] for k, v in small.quality.items()}
        if s.im.classes_of(name).is_number:
            error, spread = np.square(values - right), np.square(right - right.mean(axis=0))
            np.testing.assert_allclose(quality["R²"], 1 - error.sum() / spread.sum(), atol=1e-3)
        else:
            np.testing.assert_allclose(
                quality["accuracy"], (values.argmax(axis=-1) == right).mean(), atol=0.02
            )


def lines(s: Subject) -> None:
    """Between the bends of an exact line, the model's logits are linear."""
    line = exactline.exact_line(s.im, s.x[0], s.x[1])
    ratios = np.asarray(line.ratios)
    middles = (ratios[1:] + ratios[:-1]) / 2
    places = np.concatenate([ratios, middles])[:, None]
    flat = s.x[0].ravel() + places * (s.x[1] - s.x[0]).ravel()
    logits = s.im.logits(flat.reshape(-1, *s.x.shape[1:]).astype("f4"))
    ends = logits[: len(ratios)].reshape(len(ratios), -1)
    between = logits[len(ratios) :].reshape(len(middles), -1)
    np.testing.assert_allclose(between, (ends[1:] + ends[:-1]) / 2, rtol=1e-2, atol=1e-3)


def cover(s: Subject) -> None:
    """Covered neurons are those whose scaled value was above the threshold."""
    coverage = deepxplore.NeuronCoverage(s.im, threshold=0.5, granularity="activation")
    coverage.update(s.x)
    captured = s.im.capture(s.x)
    for name, covered in coverage.covered.items():
        values = np.asarray(captured[name], np.float64).reshape(len(captured[name]), -1)
        if values.shape[1] == 1:  # a single neuron has nothing to be compared with
            continue
        low, high = values.min(axis=1, keepdims=True), values.max(axis=1, keepdims=True)
        scaled = np.divide(values - low, high - low, out=0 * values, where=high > low)
        expected = (scaled > 0.5).any(axis=0)
        assert np.mean(expected.reshape(covered.shape) == covered) > 0.99, name


def detect(s: Subject) -> None:
    """Inputs are flagged by the distance of Keras's two largest logits."""
    x, _ = s.labelled(120)
    detector = detection.LogitMargin(s.im, false_positive_rate=0.2).fit(x)
    logits = np.sort(s.im.logits(x).reshape(120, -1), axis=1)
    margins = 2 * abs(logits[:, 0]) if logits.shape[1] == 1 else logits[:, -1] - logits[:, -2]
    order = np.argsort(detector.score_samples(x))
    np.testing.assert_allclose(margins[order], -np.sort(-margins), **CLOSE)
    by_slices = detection.SliceDetector(s.slicer(theta=0.0), "paper", false_positive_rate=0.2)
    flagged = by_slices.fit(x).predict(x)
    alone = [by_slices.predict(x[i : i + 1])[0] for i in range(3)]
    np.testing.assert_array_equal(flagged[:3], alone)


def debug(s: Subject) -> None:
    """Keras answers as the mended copy does when weights of suspicious synapses are 0."""
    kind, output, wrong = s.im.classes, s.im.output_names[0], np.arange(60) % 2 == 0
    if kind.is_number or kind.is_map:
        x = s.samples(60, 2)
        right = kind.answers(s.outputs(x=x)[0])
        right[wrong] = right[wrong] + 1 if kind.is_number else (right[wrong] + 1) % kind.count
    else:
        x, y = s.labelled(60)
        turned = np.roll(np.unique(y), 1)[np.searchsorted(np.unique(y), y)]
        right = np.where(wrong, turned, y)
    runs = [(rows_of(x, part), right[part]) for part in (wrong, ~wrong)]
    suspicion = debugging.suspicious(s.im, *runs, output=output, progress=False)
    mended = debugging.mend(s.im, suspicion, x, right, "mask", output=output, channels=2)
    of_output = s.im.of_output(output)
    masks = debugging.localisation.suspicious_synapses(of_output, suspicion, channels=2)
    with s.zeroed({name: ~mask for name, mask in masks.items()}):
        same(s.outputs(mended), s.outputs())


def deviations(s: Subject) -> None:
    """Every deviation found is one: Keras's answers of the two models differ."""
    keras.utils.set_random_seed(0)
    models, rng = [s.model, s.case.build()], np.random.default_rng(0)
    for variable in models[1].trainable_variables:
        variable.assign(np.array(variable) + 0.3 * rng.normal(size=variable.shape))
    plain = not isinstance(s.x, list) and s.x.dtype.kind in "iuf"
    if plain and s.case.classes and s.outputs()[0].shape[-1] > 1:
        models = [with_softmax(model, s.x) for model in models]
    first, second = models
    seeds, preprocess = s.x, None
    if (
        plain and seeds.ndim == 4 and seeds.dtype != np.uint8
    ):  # images of bytes, which the models do not take
        seeds = np.rint((seeds.clip(-3, 3) + 3) * 42).astype(np.uint8)
        preprocess = lambda x: np.asarray(x, "f4") / 42 - 3  # noqa: E731
    limit = None if s.case.classes else 0.05
    pair = dflare.ModelPair(first, second, preprocess, tolerance=limit)
    search = dflare.DFlare(max_queries=30, timeout=10)
    found = dflare.find_deviations(pair, seeds, search=search, progress=False)
    for outcome in found:
        if outcome.deviation is not None:
            x = np.asarray(outcome.deviation.image)[None]
            x = preprocess(x) if preprocess else x
            if limit is not None:
                one, other = (s.outputs(model, x)[0] for model in (first, second))
                assert np.sqrt(np.square(one - other).mean()) > limit
                continue
            answers = [classes_of(s.outputs(model, x)[0])[0] for model in (first, second)]
            assert answers[0] != answers[1]


def with_softmax(model: keras.Model, x: np.ndarray) -> Callable:
    """Return a model with probabilities; a function of a subclassed one."""
    if not getattr(model, "inputs", None):
        return lambda x, training=False: keras.ops.softmax(model(x, training=training))
    inputs = keras.Input(x.shape[1:], dtype=x.dtype.name)
    return keras.Model(inputs, keras.layers.Softmax()(model(inputs)))


def classes_of(outputs: np.ndarray) -> np.ndarray:
    return (outputs[:, 0] > 0.5) if outputs.shape[1] == 1 else outputs.argmax(axis=1)


def semantic_slicing(s: Subject) -> None:
    """Without neurons that are not critical, a model is smaller; all of them change nothing."""
    y = np.arange(8) % s.case.classes if s.case.classes else None
    critical = semantic.SemanticSlicer(s.im, s.x, y).semantic_slice(step=2)
    assert semantic.restructure(s.im, critical).count_params() <= s.model.count_params()
    whole = {name: np.ones_like(mask) for name, mask in critical.items()}
    same(s.outputs(semantic.restructure(s.im, whole)), s.outputs())


def explain(s: Subject) -> None:
    """Contributions add up to the score, less that of the rows, or of the mean, that they say."""
    several = isinstance(s.x, list)
    sample = [part[0] for part in s.x] if several else s.x[0]
    target = None
    if len(s.outputs()) > 1:
        target = {"class": 0}
    elif len(s.outputs()[0].shape) > 2:
        target = np.s_[0, 0, 0]
    why = s.slicer().explain(sample, target)
    assert why.summary()

    def scores(x: object) -> np.ndarray:
        values = s.im.capture(x, of=[why.target.operation])[why.target.operation]
        return values.reshape(len(values), -1) @ why.target.weights(values[0].size)

    total = sum(np.sum(part) for part in keras.tree.flatten(why.contributions))
    reference = s.profile.rows
    if why.background is not None:
        reference = why.background.rows
    elif not any(o.kind == "lookup" for o in s.im.operations):
        reference = {n: s.profile.means[n][None] for n in s.im.input_operations}
    else:
        return  # the mean of an embedding
    x = [np.asarray(part)[None] for part in sample] if several else sample[None]
    change = scores(x)[0] - scores(reference).mean()
    np.testing.assert_allclose(total, change, rtol=1e-3, atol=1e-3)


def explore(s: Subject) -> None:
    """The page holds the operations and the slice's contributions."""
    one = s.slicer(theta=0.3).slice(s.x, s.target)
    header, arrays = unpack(nns.explore(one, s.im, progress=False).data)
    names = [operation["name"] for operation in header["operations"]]
    assert names == [operation.name for operation in s.im.operations]
    (part,) = header["exhibits"][0]["parts"]
    for place, reference in part["neurons"].items():
        np.testing.assert_array_equal(arrays[reference], one.neurons[names[int(place)]])


ANALYSES: dict[str, Callable[[Subject], None]] = {
    "wrap": wrap,
    "slice, θ = 0": slice_at_zero,
    "slice, θ = 0.3": slice_with_exclusion,
    "slice, channels": slice_channels,
    "amounts": amounts,
    "decide": decide,
    "apply": apply_slice,
    "save, load": save_and_load,
    "explain": explain,
    "explore": explore,
    "prune": prune,
    "compact": compact,
    "shrink": shrink,
    "semantic": semantic_slicing,
    "lines": lines,
    "cover": cover,
    "detect": detect,
    "debug": debug,
    "deviations": deviations,
}
