"""One table in two orders of columns: the results are those of one order, in every analysis."""

import warnings
from functools import partial

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers
from sklearn.exceptions import NotFittedError

import nnslicer_tf as nns
from nnslicer_tf import (
    attributions,
    datasets,
    debugging,
    deepbase,
    deepxplore,
    detection,
    dflare,
    exactline,
    instrument,
    protection,
    pruning,
    semantic,
    slicing,
    versions,
)
from nnslicer_tf.attributions.methods import deeplift
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.pruning.fine_tuning import imitate
from nnslicer_tf.report.explorer import explorer

RNG = np.random.default_rng(0)
TABLE = pd.DataFrame(RNG.normal(size=(80, 3)), columns=["a", "b", "c"])
OTHER = TABLE[["c", "b", "a"]]
CLASSES = (TABLE["c"] > 0).to_numpy(int)
pytestmark = pytest.mark.filterwarnings("ignore:The columns were reordered")


def network():
    """A classifier that reads c ten times as strongly as a."""
    model = keras.Sequential(
        [keras.Input((3,), name="i"), layers.Dense(6, "relu", name="h"), layers.Dense(2, name="o")]
    )
    rng = np.random.default_rng(1)
    hidden = rng.normal(size=(3, 6)) * [[1], [3], [10]]
    model.set_weights([hidden, rng.normal(size=6), rng.normal(size=(6, 2)), np.zeros(2)])
    return model


@pytest.fixture
def model():
    return network()


@pytest.fixture
def named(model):
    """A slicer whose profile names the columns."""
    return nns.Slicer(model, nns.Profile.from_data(model, TABLE, progress=False), progress=False)


@pytest.fixture
def unnamed(model):
    """A slicer that knows no columns."""
    profile = nns.Profile.from_data(model, TABLE.to_numpy(), progress=False)
    return nns.Slicer(model, profile, progress=False)


def test_explain_with_columns(named):
    def found(x, **columns):
        why = named.explain(x, compare=False, decisive=False, **columns)
        return why.background.to_frame().set_index("feature")[["value", "contribution"]]

    expected = found(TABLE.iloc[[3]])
    assert expected["value"].astype(float).to_dict() == pytest.approx(
        TABLE.iloc[3].to_dict(), rel=1e-3
    )
    names = [*OTHER.columns]
    for x in (OTHER.iloc[3], OTHER.iloc[[3]], OTHER.iloc[3].to_numpy(), [*OTHER.iloc[3]]):
        pd.testing.assert_frame_equal(found(x, columns=names), expected, check_like=True)
    other_words = found(TABLE.iloc[3].to_numpy(), columns=["A", "B", "C"])
    assert other_words.index.sort_values().tolist() == ["A", "B", "C"]


@pytest.fixture
def shown(monkeypatch):
    """What explorers are given: names and values of the first sample."""
    given = {}

    class Recorded(explorer.Document):
        def __init__(self, exhibits, title, classes, columns, *rest):
            values = zip(columns, exhibits[0].x[0].tolist(), strict=True)
            given.update(values=dict(values), classes=tuple(classes))
            super().__init__(exhibits, title, classes, columns, *rest)

    monkeypatch.setattr(explorer, "Document", Recorded)
    return given


def test_explore(named, shown):
    each, expected = named.slice_each(TABLE.iloc[:2]), pytest.approx(TABLE.iloc[0].to_dict())
    fresh = keras.models.clone_model(named.im.model)
    fresh.set_weights(named.im.model.get_weights())
    rows, names = OTHER.iloc[:2], [*OTHER.columns]
    for im, x, options in (
        (named.im, rows, {}),
        (named.im, rows, {"columns": names}),
        (named.im, rows.to_numpy(), {"columns": names}),
        (named.im, TABLE.iloc[:2].to_numpy(), {}),
        (fresh, rows, {"profile": named.profile}),
        (fresh, TABLE.iloc[:2], {"columns": TABLE.columns.to_numpy()}),
    ):
        nns.explore(each, im, x, progress=False, **options)
        assert shown["values"] == expected


NAMES = {
    "array": (np.array(["no", "yes"]), ("no", "yes")),
    "index": (pd.Index(["no", "yes"]), ("no", "yes")),
    "bytes": (keras.ops.convert_to_tensor(["no", "yes"]), ("no", "yes")),
    "dict": ({1: "yes", 0: "no"}, ("no", "yes")),
    "set": ({"no", "yes"}, "names in order"),
    "text": ("no", "names in order"),
    "dict by name": ({"no": 0, "yes": 1}, "names in order"),
    "one": (["no"], "has 2 classes; received 1 name"),
    "three": (["a", "b", "c"], "has 2 classes; received 3 names"),
    "twice": (["no", "no"], "must be unique"),
}


@pytest.mark.parametrize("kind", NAMES)
def test_names_of_classes(kind, named, shown):
    """Names have an order, and there is one for each class."""
    names, expected = NAMES[kind]
    why = named.explain(TABLE.iloc[3], compare=False, decisive=False)
    each, rows = named.slice_each(TABLE.iloc[:2]), TABLE.iloc[:2]
    calls = {
        "explain": lambda: named.explain(TABLE.iloc[3], classes=names, compare=False).classes,
        "explore": lambda: nns.explore(each, named.im, rows, classes=names) and shown["classes"],
        "explore why": lambda: nns.explore(why, named.im, classes=names) and shown["classes"],
    }
    for call in calls.values():
        if isinstance(expected, tuple):
            assert tuple(call()) == expected
        else:
            with pytest.raises(InvalidArgumentError, match=expected):
                call()


def test_attributions_and_lines(model):
    """Both ends are read in the order of the first, whose names no profile knows."""
    start, end, other = TABLE.iloc[0], TABLE.iloc[1], OTHER.iloc[1]
    im = nns.InstrumentedModel(model)
    expected = deeplift(im, start.to_numpy(), end.to_numpy(), 1)
    np.testing.assert_allclose(deeplift(im, start, other, 1), expected)
    expected = exactline.integrated_gradients(im, start.to_numpy(), end.to_numpy(), 1)
    np.testing.assert_allclose(exactline.integrated_gradients(im, start, other, 1), expected)
    lines = [exactline.exact_line(im, start, point, progress=False) for point in (end, other)]
    np.testing.assert_array_equal(lines[0].ratios, lines[1].ratios)
    assert im.columns == ()  # a call leaves nothing behind


@pytest.mark.parametrize("given", ["model", "profiled"])
def test_deep_explainer(given, model, named):
    pytest.importorskip("shap")
    explainer = attributions.DeepExplainer(
        named.im if given == "profiled" else model, TABLE.iloc[:30], progress=False
    )
    found, expected = explainer(OTHER.iloc[:2]), explainer(TABLE.iloc[:2])
    assert [*found.feature_names] == [*TABLE.columns]
    np.testing.assert_array_equal(found.data, TABLE.iloc[:2].to_numpy("f4"))
    np.testing.assert_array_equal(found.values, expected.values)


def test_coverage(model):
    ranges = [deepxplore.NeuronRanges.from_data(model, x, progress=False) for x in (TABLE, OTHER)]
    assert ranges[0].digest != ranges[1].digest  # there is no name to go by: each is a first table
    covered = []
    for x in (TABLE, OTHER):
        found = deepxplore.KMultisectionCoverage(ranges[0])
        found.update(x, progress=False)
        covered.append(found.total())
    assert covered[0] == covered[1]


def test_decisive(unnamed):
    def found(other, **more):
        slices = unnamed.decisive(TABLE.iloc[:4], scope=other, **more)
        return slices.to_frame()

    donors = {name: instrument.Samples(x.iloc[40:60]) for name, x in (("t", TABLE), ("o", OTHER))}
    pd.testing.assert_frame_equal(found(OTHER.iloc[40:]), found(TABLE.iloc[40:]))
    pd.testing.assert_frame_equal(
        found(10, reference=donors["o"]), found(10, reference=donors["t"])
    )


def test_ablation_by_a_profile(named):
    """The profile's names hold for a model that has just been loaded."""
    mask = {"h:pre": np.arange(6) % 2 == 0}
    fresh = keras.models.clone_model(named.im.model)
    fresh.set_weights(named.im.model.get_weights())
    ablation = instrument.Ablation(fresh, instrument.Mean(named.profile), "neuron")
    np.testing.assert_array_equal(ablation.outputs(mask, OTHER), ablation.outputs(mask, TABLE))


def test_a_failed_shrink_leaves_no_columns(model):
    im = nns.InstrumentedModel(model)
    for options in ({"y": np.zeros(5, int)}, {"y": CLASSES, "test": (TABLE, np.zeros(5, int))}):
        with pytest.raises(InvalidArgumentError):
            pruning.shrink(im, OTHER, ratio=0.3, progress=False, **options)
        assert im.columns == ()


def test_models_of_two_orders():
    """The twin of a model for the other order gives the same answers, but to no one table."""
    first, second = network(), network()
    second.layers[0].set_weights(
        [second.layers[0].get_weights()[0][::-1], second.layers[0].get_weights()[1]]
    )
    slicers = [
        nns.Slicer(m, nns.Profile.from_data(m, x, progress=False), progress=False)
        for m, x in ((first, TABLE), (second, OTHER))
    ]
    ims = [slicer.im for slicer in slicers]
    np.testing.assert_allclose(ims[0].predict(TABLE), ims[1].predict(TABLE), atol=1e-5)
    with pytest.raises(InvalidArgumentError, match="in different orders: a, b, c and c, b, a"):
        dflare.ModelPair(*ims)
    with pytest.raises(InvalidArgumentError, match="in different orders"):
        versions.compare(*ims, TABLE)


def test_detectors(model, tmp_path):
    """A detector knows the columns of the table that it was fitted on, also from a file."""
    detector = detection.LogitMargin(nns.InstrumentedModel(model)).fit(TABLE)
    detector.save(tmp_path / "d.npz")
    loaded = detection.LogitMargin.load(tmp_path / "d.npz", nns.InstrumentedModel(network()))
    for one in (detector, loaded):
        np.testing.assert_array_equal(one.score_samples(OTHER), one.score_samples(TABLE))


def test_a_column_that_is_there_twice(named):
    twice = pd.concat([TABLE, TABLE[["b"]]], axis=1)
    with pytest.raises(nns.errors.InputShapeError, match=r"there twice: \['b'\]"):
        named.slice_each(twice)


@pytest.mark.parametrize("names", [[1, "1", "x"], ["0.5", 0.5, "x"], [True, "True", "x"]])
def test_names_that_differ_in_type_alone(model, names):
    with pytest.raises(nns.errors.InputShapeError, match="names that differ as text"):
        nns.Profile.from_data(model, TABLE.iloc[:, :3].set_axis(names, axis=1), progress=False)


def test_labels_that_are_missing(model):
    y = CLASSES.astype(float)
    y[3] = np.nan
    with pytest.raises(InvalidArgumentError, match="leave these samples out"):
        versions.compare(model, network(), TABLE, y)


@pytest.mark.parametrize("words", [[None] * 3, [["a"]] * 3, [1.0, 2.0, 3.0]])
def test_words_that_are_none(words, named):
    with pytest.raises(InvalidArgumentError, match="words must be a sequence of words"):
        named.explain(TABLE.iloc[0], words=words, compare=False, decisive=False)


def slicer_of(x, seed=1, model=None):
    """A slicer of a network of its own, profiled on a table in its order of columns."""
    keras.utils.set_random_seed(seed)
    model = model or keras.Sequential(
        [
            keras.Input((3,), name="i"),
            layers.Dense(6, "relu", name="h"),
            layers.Dense(2, "softmax", name="o"),
        ]
    )
    return nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)


def numbered(order):
    """The table with columns 0, 1, 2 in some order; pandas names them so by default."""
    return pd.DataFrame(TABLE.to_numpy(), columns=range(3))[order]


PAIRS = {
    "other order": (TABLE, OTHER),
    "numbers": (numbered([0, 1, 2]), numbered([2, 0, 1])),
    "other names": (TABLE, OTHER.rename(columns={"b": "B"})),
    "one unnamed": (TABLE.to_numpy(), OTHER),
}


@pytest.mark.parametrize("kind", PAIRS)
def test_calls_with_several_models(kind):
    """What shows or reads one table refuses models of several orders, by all ways to pass it."""
    tables = PAIRS[kind]
    first, second = (slicer_of(x, seed) for seed, x in enumerate(tables))
    ims, profiles = [first.im, second.im], {"one": first.profile, "two": second.profile}
    results = {
        "one": first.slice_each(tables[0][:2]),
        "two": second.slice_each(tables[1][:2]),
    }
    by_name = dict(zip(("one", "two"), ims))
    shared = tables[1 if kind == "other names" else 0]
    shared = TABLE if kind == "one unnamed" else shared
    calls = [
        lambda: nns.explore(results, by_name, shared[:2], profile=profiles, progress=False),
        lambda: nns.explore(
            results,
            by_name,
            {"one": tables[0][:2], "two": tables[1][:2]},
            profile=profiles,
            progress=False,
        ),
        lambda: deepbase.inspect(by_name, shared, {"a": CLASSES}, units=["h"], progress=False),
        lambda: deepxplore.generate(ims, shared, bounds=(-9, 9), progress=False),
    ]
    if kind == "one unnamed":  # an array with a table does not say in which order it is
        calls.pop(1)
    else:
        calls += [
            lambda: dflare.ModelPair(*ims),
            lambda: versions.compare(*ims, shared),
            lambda: versions.rank_changes(*ims, shared, CLASSES, progress=False),
            lambda: imitate(*ims, shared, progress=False),
            lambda: debugging.compare_layers(*ims, shared, progress=False),
        ]
    for call in calls:
        with pytest.raises(nns.errors.NNSlicerError, match=r"in different orders|Missing here"):
            call()


def test_a_model_with_two_profiles():
    """The slices of one model by profiles of two orders are not shown on one page."""
    first = slicer_of(TABLE)
    copy = keras.models.clone_model(first.im.model)
    copy.set_weights(first.im.model.get_weights())
    second = slicer_of(OTHER, model=copy)
    results = {"one": first.slice_each(TABLE[:2]), "two": second.slice_each(TABLE[:2])}
    profiles = {"one": first.profile, "two": second.profile}
    with pytest.raises(InvalidArgumentError, match="different orders: a, b, c and c, b, a"):
        nns.explore(results, first.im, TABLE[:2], profile=profiles, progress=False)


def test_several_models_of_one_order(shown):
    """They are right if the table is in another order, against NumPy and Keras."""
    slicers = [slicer_of(OTHER, seed) for seed in range(2)]
    ims = {"one": slicers[0].im, "two": slicers[1].im}
    x = OTHER.to_numpy(np.float32)
    scores = deepbase.inspect(
        ims, TABLE, {"c": TABLE["c"].to_numpy()}, units=["h"], progress=False
    ).set_index("model")["score"]
    answers = []
    for name, im in ims.items():
        values = keras.Model(im.model.inputs, im.model.get_layer("h").output).predict(x, verbose=0)
        expected = [
            np.corrcoef(column, TABLE["c"])[0, 1] if column.std() else np.nan for column in values.T
        ]
        np.testing.assert_allclose(scores[name].to_numpy(float), expected, atol=1e-4)
        answers.append(im.model.predict(x, verbose=0).argmax(axis=1))
    found = deepxplore.generate(
        [*ims.values()], TABLE, bounds=(-9, 9), max_iterations=1, progress=False
    )
    seeds = found.seed_index[~found.generated]
    np.testing.assert_array_equal(np.sort(seeds), np.flatnonzero(answers[0] != answers[1]))

    results = {name: one.slice_each(TABLE[:2]) for name, one in zip(ims, slicers)}
    profiles = {name: one.profile for name, one in zip(ims, slicers)}
    nns.explore(results, ims, TABLE[:2], profile=profiles, progress=False)
    assert shown["values"] == pytest.approx(TABLE.iloc[0].to_dict())


@pytest.mark.parametrize("kind", ["each", "one", "decisive", "a decisive one"])
def test_slices_in_files_know_the_columns(kind, shown, tmp_path):
    """Without a profile, the model's input is in the order of the slices, not of the table."""
    named = slicer_of(OTHER)
    if "decisive" in kind:
        made = named.decisive(TABLE[:1], scope=None, others=0)
        made = made[0] if "one" in kind else made
    else:
        made = named.slice_each(TABLE[:1]) if kind == "each" else named.slice(TABLE[:1])
    made.save(tmp_path / "slices.npz")
    loaded = type(made).load(tmp_path / "slices.npz")
    plain = keras.models.clone_model(named.im.model)
    plain.set_weights(named.im.model.get_weights())
    nns.explore(loaded, plain, TABLE[:1], progress=False)
    assert list(shown["values"]) == ["c", "b", "a"]
    assert shown["values"] == pytest.approx(TABLE.iloc[0].to_dict())
    with pytest.raises(nns.errors.InputShapeError, match="Missing here"):
        nns.explore(loaded, plain, TABLE[:1].rename(columns={"a": "z"}), progress=False)


def test_a_student_and_its_teacher():
    """The student has no names; the teacher's order holds for both."""
    teacher = slicer_of(OTHER).im
    students = [network() for _ in range(2)]
    for student, x in zip(students, (TABLE, OTHER.to_numpy())):
        imitate(student, teacher, x, rng=0, progress=False)
    for one, other in zip(*(student.get_weights() for student in students)):
        np.testing.assert_array_equal(one, other)


def test_layers_of_a_named_copy():
    """Its order of columns holds for the original, too, which has no names."""
    model, copy = network(), network()
    rng = np.random.default_rng(3)
    copy.set_weights([w + rng.normal(size=w.shape) for w in copy.get_weights()])
    im = slicer_of(OTHER, model=copy).im
    found = debugging.compare_layers(nns.InstrumentedModel(model), im, TABLE, progress=False)
    x = OTHER.to_numpy(np.float32)
    both = np.stack([one.predict(x, verbose=0).argmax(axis=1) for one in (model, copy)], axis=1)
    np.testing.assert_array_equal(found.labels, both[both[:, 0] != both[:, 1]])


def test_one_of_several_outputs():
    """The order of the columns is kept where one of a model's outputs is taken."""
    models = []
    for seed in range(2):
        keras.utils.set_random_seed(seed)
        inputs = keras.Input((3,), name="i")
        hidden = layers.Dense(6, "relu", name="h")(inputs)
        ends = [layers.Dense(2, "softmax", name=name)(hidden) for name in ("p", "q")]
        models.append(keras.Model(inputs, ends))
    ims = [
        nns.Slicer(
            model,
            nns.Profile.from_data(model, OTHER, progress=False),
            progress=False,
        ).im
        for model in models
    ]
    x = OTHER.to_numpy(np.float32)
    expected = np.stack([m.predict(x, verbose=0)[1].argmax(axis=1) for m in models], axis=1)
    np.testing.assert_array_equal(versions.compare(*ims, TABLE, output="q").answers, expected)
    pair = dflare.ModelPair(*ims, output="q")
    np.testing.assert_array_equal(dflare.agreement(pair, TABLE).labels, expected)


def test_an_ablation_and_its_reference():
    """A profile of another order than the model's is refused; one alone names the columns."""
    slicer = slicer_of(TABLE)
    other = slicer_of(OTHER, model=keras.models.clone_model(slicer.im.model)).profile
    with pytest.raises(InvalidArgumentError, match="different orders"):
        instrument.Ablation(slicer.im, instrument.Mean(other), "neuron")


UNITS = np.array([1, 0, 1])
HIDDEN = {"h": np.arange(18).reshape(3, 6) % 2 == 0}
CRITICAL = {"h": np.arange(6) < 4}


def weights(model):
    return np.concatenate([w.ravel() for w in model.get_weights()])


def of_ablation(x, donors, how="outputs"):
    ablation = instrument.Ablation(network(), instrument.Samples(donors[:1]), "input", target=1)
    found = getattr(ablation, how)(UNITS, x[:4])
    return found if how == "outputs" else found[0]


def of_new_donors(x, donors):
    old = instrument.Samples(np.zeros((1, 3), np.float32))
    ablation = instrument.Ablation(network(), old, "input")
    return ablation.outputs(UNITS, ablation.rows(x[:4], instrument.Samples(donors[:1])))


def of_attacks(train, test):
    attacker = protection.Attacker(epochs=1, progress=False)
    pairs = (train, CLASSES[: len(train)]), (test, CLASSES[: len(test)])
    return protection.simulate_attacks(
        network(), HIDDEN, *pairs, [1], budgets=(20,), attacker=attacker
    ).to_numpy()


def of_suspicion(failing, passing):
    model = network()
    y = model.predict(TABLE.to_numpy(), verbose=0).argmax(axis=1)
    runs = (failing[:5], 1 - y[:5]), (passing[:20], y[:20])
    return debugging.suspicious(nns.InstrumentedModel(model), *runs, progress=False).channels[
        "h:pre"
    ]


def of_mending(known, x):
    im = nns.InstrumentedModel(network())
    y = im.model.predict(TABLE.to_numpy(), verbose=0).argmax(axis=1)
    found = debugging.suspicious(im, (known[:5], 1 - y[:5]), (known[:20], y[:20]), progress=False)
    return weights(debugging.mend(im, found, x[:10], CLASSES[:10], "scale"))


def of_explanation(x, other, **options):
    profile = nns.Profile.from_data(model := network(), TABLE.to_numpy(), progress=False)
    slicer = nns.Slicer(model, profile, theta=0.1, progress=False)
    options = {name: other[:30] for name in options}
    why = slicer.explain(x[:1], compare=False, decisive=False, **options)
    found = why.frequencies["h"] if "usual" in options else why.background.values
    return np.asarray(found)


def of_decisive(x, other, *which):
    profile = nns.Profile.from_data(model := network(), TABLE.to_numpy(), progress=False)
    slicer = nns.Slicer(model, profile, progress=False)
    options = {"reference": instrument.Samples(other[20:30]), "scope": other[30:60]}
    options = {name: options[name] for name in which}
    return slicer.decisive(x[:4], rng=0, others=0, **options).to_frame().iloc[:, 2:].to_numpy(str)


def of_evaluation(normal, attack, fitted=None):
    detector = detection.LogitMargin(nns.InstrumentedModel(network()))
    detector.fit(TABLE.to_numpy() if fitted is None else fitted)
    found = detection.evaluate(detector, {"x": (normal[:30], attack[30:60])})
    return found.iloc[:, 1:].to_numpy(float)


def of_ranges(known, x):
    coverage = deepxplore.KMultisectionCoverage(
        deepxplore.NeuronRanges.from_data(network(), known, progress=False), 10
    )
    coverage.update(x[:9], progress=False)
    return coverage.covered["h"]


def of_updates(first, second):
    coverage = deepxplore.NeuronCoverage(network(), 0.5)
    return [coverage.update(first[:9]), coverage.update(second[:9])]


def of_generation(covered, seeds):
    models = [network(), network()]
    rng = np.random.default_rng(7)
    models[1].set_weights([w + rng.normal(size=w.shape) for w in models[1].get_weights()])
    coverage = [deepxplore.NeuronCoverage(m, 0.5) for m in models]
    for one in coverage:
        one.update(covered[:5])
    options = {"bounds": (-9, 9), "max_iterations": 2, "progress": False}
    return deepxplore.generate(models, seeds, coverage=coverage, **options).inputs


def of_domain(data, seeds):
    pair = dflare.ModelPair(with_softmax(3), with_softmax(4), domain=dflare.TableDomain(data))
    search = dflare.DFlare(max_queries=30)
    found = dflare.find_deviations(pair, seeds[:4], search=search, rng=0, progress=False)
    return np.array([*found.queries, *found.images.ravel()])


def with_softmax(seed):
    model = dflare.with_softmax(network())
    rng = np.random.default_rng(seed)
    model.set_weights([w + 0.3 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def of_ranker(known, x):
    profile = nns.Profile.from_data(network(), known, progress=False)
    options = {"profile": profile, "theta": 0.1, "progress": False}
    model = network()
    return pruning.scores(model, "nnslicer", x, model_classes(), correct_only=False, **options)["h"]


def model_classes():
    return network().predict(TABLE.to_numpy(), verbose=0).argmax(axis=1)


def of_slice(known, donors):
    profile = nns.Profile.from_data(model := network(), known, progress=False)
    one = nns.Slicer(model, profile, theta=0.1, progress=False).slice(known[:3])
    kept = one.apply(network(), instrument.Samples(donors[:1]))
    return kept.predict(TABLE.to_numpy(np.float32)[:5], verbose=0)


def of_semantic(x, baseline, function=semantic.contributions, **options):
    row = baseline.iloc[9] if hasattr(baseline, "iloc") else baseline[9]
    if function is semantic.contributions:
        return semantic.contributions(network(), x, "deeplift", CLASSES, baseline=row)["h"]
    return semantic.SemanticSlicer(network(), x, CLASSES, "deeplift", baseline=row).scores["h"]


def of_readapting(x, other):
    return weights(
        semantic.readapt(network(), CRITICAL, x[:20], CLASSES[:20], other[20:40], epochs=1)
    )


def of_shrinking(x, test):
    options = {"ratio": 0.3, "rng": 0, "progress": False}
    found = pruning.shrink(network(), x, model_classes(), test=(test, model_classes()), **options)
    return [*found.quality.values()]


def of_patching(clean, corrupt, function=None):
    pair = clean[:1], corrupt[1:2]
    if function is not None:
        return slicing.patch_path(network(), *pair, "h:pre", "h", target=1)
    found = slicing.patch(network(), *pair, target=1, sweep="channel", progress=False)
    return [found.clean, found.corrupt, *found.table["score"]]


def of_rows(call):
    """A call on one row of each table."""

    def run(first, second):
        rows = (x.iloc[i] if hasattr(x, "iloc") else x[i] for i, x in enumerate((first, second)))
        return call(nns.InstrumentedModel(network()), *rows)

    return run


def of_deep_explainer(data, x):
    pytest.importorskip("shap")
    return attributions.DeepExplainer(network(), data[:30], progress=False).shap_values(x[:3])


def of_detector(known, x):
    return detection.LogitMargin(nns.InstrumentedModel(network())).fit(known).score_samples(x)


def of_a_named_detector(normal, attack):
    return of_evaluation(normal, attack, TABLE)


TWO_TABLES = {
    "patch": of_patching,
    "patch_path": partial(of_patching, function="path"),
    "Ablation.outputs": lambda donors, x: of_ablation(x, donors),
    "Ablation.effects": lambda donors, x: of_ablation(x, donors, "effects"),
    "Ablation.rows": lambda donors, x: of_new_donors(x, donors),
    "simulate_attacks": of_attacks,
    "suspicious": of_suspicion,
    "mend": of_mending,
    "explain usual": partial(of_explanation, usual=True),
    "explain background": partial(of_explanation, background=True),
    "decisive reference": lambda x, other: of_decisive(x, other, "reference"),
    "decisive scope": lambda x, other: of_decisive(x, other, "scope"),
    "evaluate": of_evaluation,
    "evaluate, fitted on a table": of_a_named_detector,
    "detector": of_detector,
    "NeuronRanges": of_ranges,
    "Coverage.update": of_updates,
    "generate": of_generation,
    "TableDomain": of_domain,
    "NNSlicerRanker": of_ranker,
    "Slice.apply": of_slice,
    "contributions": of_semantic,
    "SemanticSlicer": partial(of_semantic, function=semantic.SemanticSlicer),
    "readapt": of_readapting,
    "shrink": of_shrinking,
    "deeplift": of_rows(lambda im, x, b: deeplift(im, x, b, 1)),
    "deeplift by name": of_rows(lambda im, x, b: deeplift(im, {"i": x}, {"i": b}, 1)),
    "occlusion": of_rows(lambda im, x, b: attributions.ATTRIBUTIONS["occlusion"](im, x, b, 1)),
    "integrated_gradients": of_rows(lambda im, *x: exactline.integrated_gradients(im, *x, 1)),
    "exact_line": of_rows(lambda im, *x: exactline.exact_line(im, *x, progress=False).outputs),
    "LineWalker": of_rows(lambda im, *x: exactline.LineWalker(im).line(*x).outputs),
    "LineWalker.lines": lambda a, b: np.concatenate(
        [o.outputs for o in exactline.LineWalker(network()).lines(a[:2], b[2:4])]
    ),
    "Attributor.path": of_rows(lambda im, *x: exactline.Attributor(im).path(*x, 1).gradients),
    "DeepExplainer": of_deep_explainer,
}
"""Calls that read two tables, which no profile or earlier call has named."""


@pytest.mark.parametrize("name", TWO_TABLES)
def test_two_tables(name):
    """The second is put into the order of the first, with a warning: as arrays in that order."""
    call, x = TWO_TABLES[name], TABLE.to_numpy()
    expected = call(x, x)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", category=DeprecationWarning)
        unchanged = call(TABLE, TABLE)
    with pytest.warns(UserWarning, match="The columns were reordered"):
        reordered = call(TABLE, OTHER)
    for found in (unchanged, reordered):
        if np.asarray(expected).dtype.kind == "U":
            np.testing.assert_array_equal(found, expected)
        else:
            np.testing.assert_allclose(found, expected, rtol=1e-5, atol=1e-6)
    with pytest.raises(nns.errors.NNSlicerError, match=r"Missing here|other names"):
        call(TABLE, OTHER.rename(columns={"b": "B"}))


def with_a_constant(table, folder):
    """The table's rows as the lines of a file, with labels."""
    path = folder / f"{'-'.join(table.columns)}.csv"
    table.assign(label=CLASSES).to_csv(path, index=False)
    return path


FORMS = {
    "pair": lambda x, _: (x, CLASSES),
    "list of pairs": lambda x, _: [(x[:40], CLASSES[:40]), (x[40:], CLASSES[40:])],
    "dict": lambda x, _: {"x": x, "y": CLASSES},
    "data set": lambda x, _: datasets.Dataset(
        x.to_numpy(), CLASSES, "t", "test", "none", 2, columns=tuple(map(str, x.columns))
    ),
    "file": with_a_constant,
    "file's name": lambda x, folder: str(with_a_constant(x, folder)),
}


@pytest.mark.parametrize(("form", "other"), [*zip(FORMS, [*FORMS][1:] + [*FORMS][:1], strict=True)])
def test_forms_of_two_tables(form, other, tmp_path):
    """Every form says the columns' names, of the first table and of the second."""
    attacker = protection.Attacker(epochs=1, progress=False)

    def found(*data):
        return protection.simulate_attacks(
            network(), HIDDEN, *data, [1], budgets=(9,), attacker=attacker
        ).to_numpy()

    expected = found(*[(TABLE.to_numpy(), CLASSES)] * 2)
    with pytest.warns(UserWarning, match="The columns were reordered"):
        reordered = found(FORMS[form](TABLE, tmp_path), FORMS[other](OTHER, tmp_path))
    np.testing.assert_allclose(reordered, expected)


@pytest.mark.parametrize(
    "pair",
    {
        "in order first": (numbered([0, 1, 2]), numbered([2, 0, 1])),
        "in disorder first": (numbered([2, 0, 1]), numbered([0, 1, 2])),
        "after an array": (TABLE.to_numpy(), numbered([0, 1, 2])),
    }.items(),
    ids=lambda item: item[0],
)
def test_numbers_as_names(pair):
    """Columns 0, 1, 2 have an order, too, of which the first table's holds."""
    first, second = pair[1]
    x = np.asarray(first)
    for call in (of_patching, of_attacks, of_evaluation):
        np.testing.assert_allclose(call(first, second), call(x, x), rtol=1e-5)


def test_a_profile_of_a_table_without_names():
    """A model that knows no names takes its means, as if they were an array's."""
    profiles = [
        nns.Profile.from_data(network(), x, progress=False)
        for x in (numbered([0, 1, 2]), TABLE.to_numpy())
    ]
    found = [
        instrument.Ablation(network(), one, "input").outputs(UNITS, TABLE[:4]) for one in profiles
    ]
    np.testing.assert_array_equal(*found)


FEATURES = ("a", "b", "c"), ("p", "q")
LARGE = pd.DataFrame(RNG.normal(size=(9, 5)), columns=[*FEATURES[0], *FEATURES[1]])


def two_inputs(keys=False):
    """A model of two tables, which may have keys that are not the inputs' names."""
    keras.utils.set_random_seed(3)
    inputs = [keras.Input((3,), name="left"), keras.Input((2,), name="right")]
    both = layers.Concatenate(name="both")(inputs)
    end = layers.Dense(2, name="o")(layers.Dense(6, "relu", name="h")(both))
    return keras.Model(dict(zip(("l", "r"), inputs)) if keys else inputs, end)


def inputs_of(rows, order=1, keys=("left", "right"), as_array=False):
    """Rows of both tables, by name or as a list, with columns forwards or backwards."""
    parts = [LARGE[[*names][::order]].iloc[rows] for names in FEATURES]
    parts = [part.to_numpy() for part in parts] if as_array else parts
    return dict(zip(keys, parts)) if keys else parts


SEVERAL = {
    "patch": lambda im, x, y: slicing.patch(im, x, y, 1, sweep="channel", progress=False).clean,
    "corrupt": lambda im, x, y: slicing.patch(im, x, y, 1, sweep="channel", progress=False).corrupt,
    "deeplift": lambda im, x, y: np.concatenate([*deeplift(im, x, y, 1).values()]),
    "donors": lambda im, x, y: instrument.Ablation(im, instrument.Samples(x), "channel").outputs(
        {"h:pre": np.arange(6) % 2 == 0}, y
    ),
    "baseline": lambda im, x, y: semantic.contributions(
        im, x, "deeplift", CLASSES[: len(next(iter(x.values())))], baseline=y
    )["h"],
}


@pytest.mark.filterwarnings("ignore:When providing `inputs` as a dict")
@pytest.mark.parametrize(
    ("name", "keys"),
    [
        (name, keys)
        for name in SEVERAL
        for keys in (("left", "right"), ("l", "r"), None)
        if name != "baseline" or keys == ("left", "right")  # it takes a dict by the inputs' names
    ],
)
def test_several_inputs(name, keys):
    """The tables of each input have an order of their own."""
    one = name in ("deeplift", "baseline")
    rows = (0 if name == "deeplift" else slice(0, 1), 4 if one else slice(4, 5))

    def found(order=1, **options):
        im = nns.InstrumentedModel(two_inputs(keys == ("l", "r")))
        x, y = inputs_of(rows[0], 1, keys, **options), inputs_of(rows[1], order, keys, **options)
        return SEVERAL[name](im, x, y)

    expected = found(as_array=True)
    np.testing.assert_allclose(found(), expected, rtol=1e-5)
    with pytest.warns(UserWarning, match="The columns were reordered"):
        np.testing.assert_allclose(found(-1), expected, rtol=1e-5)


def criteria(model):
    ranges = deepxplore.NeuronRanges.from_data(model, TABLE.to_numpy(), progress=False)
    return [
        deepxplore.NeuronCoverage(model, 0.5),
        deepxplore.TopKCoverage(model, 2),
        deepxplore.KMultisectionCoverage(ranges, 5),
        deepxplore.BoundaryCoverage(ranges),
    ]


@pytest.mark.parametrize("place", range(4))
def test_coverage_in_files(place, tmp_path):
    """A file says the columns; a table that is added later has their order, or is refused."""
    saved, path = criteria(network())[place], tmp_path / "coverage.npz"
    saved.update(TABLE[:9])
    saved.save(path)
    loaded = criteria(network())[place].restore(path)
    with pytest.warns(UserWarning, match="The columns were reordered"):
        assert loaded.update(OTHER[:9]) == 0
    with pytest.raises(nns.errors.InputShapeError, match="Missing here"):
        loaded.update(OTHER.rename(columns={"b": "B"}))
    other = criteria(network())[place]
    other.update(OTHER[:9])
    before = other.total()
    with pytest.raises(InvalidArgumentError, match="different orders: c, b, a and a, b, c"):
        other.restore(path)
    assert other.total() == before

    # Of arrays, and in files of earlier versions, there are no names.
    unnamed = criteria(network())[place]
    unnamed.update(TABLE.to_numpy()[:9])
    assert unnamed.restore(path).update(OTHER[:9]) == 0
    unnamed = criteria(network())[place]
    unnamed.update(TABLE.to_numpy()[:9])
    unnamed.save(path)
    assert loaded.restore(path).im.columns == tuple(TABLE.columns)
    assert criteria(network())[place].restore(path).im.columns == ()


def test_coverage_of_numbered_columns_in_files(tmp_path):
    first, second = numbered([2, 0, 1]), numbered([0, 1, 2])
    saved = deepxplore.NeuronCoverage(network(), 0.5)
    saved.update(first[:9])
    saved.save(tmp_path / "coverage.npz")
    loaded = deepxplore.NeuronCoverage(network(), 0.5).restore(tmp_path / "coverage.npz")
    assert loaded.update(second[:9]) == 0


@pytest.mark.parametrize("other", [TABLE, OTHER])
def test_explorers_of_two_tables(other, shown):
    """A page shows one order of columns."""
    model = network()
    results = {"one": {"h": np.ones(6, bool)}, "two": {"h": np.zeros(6, bool)}}
    tables = {"one": TABLE[:2], "two": other[:2]}
    if other is OTHER:
        with pytest.raises(InvalidArgumentError, match="in different orders"):
            nns.explore(results, model, tables, progress=False)
    else:
        nns.explore(results, model, tables, progress=False)
        assert shown["values"] == pytest.approx(TABLE.iloc[0].to_dict())


@pytest.mark.parametrize("metric", ["avg", "taylor"])
def test_streams_of_tables(metric):
    """Batches are put into the order of the first, with labels and without."""

    def found(*tables):
        parts = (table[i * 40 : i * 40 + 40] for i, table in enumerate(tables))
        stream = ((x, CLASSES[i * 40 : i * 40 + 40]) for i, x in enumerate(parts))
        return semantic.contributions(network(), stream, metric)["h"]

    expected = semantic.contributions(network(), TABLE.to_numpy(), metric, CLASSES)["h"]
    np.testing.assert_allclose(found(TABLE, OTHER), expected, rtol=1e-5)


def test_attacks_of_one_evaluation():
    """All attacks are read in one order, also if only one of several tables names the columns."""
    detector = detection.LogitMargin(nns.InstrumentedModel(network())).fit(TABLE.to_numpy())
    x = TABLE.to_numpy()
    expected = detection.evaluate(detector, {"p": (x[:9], x[9:18]), "q": (x[:9], x[30:39])})
    for pairs in (
        {"p": (TABLE[:9], OTHER[9:18]), "q": (OTHER[:9], OTHER[30:39])},
        {"p": (x[:9], TABLE[9:18]), "q": (OTHER[:9], x[30:39])},
    ):
        pd.testing.assert_frame_equal(detection.evaluate(detector, pairs), expected)
    with pytest.raises(NotFittedError):
        detection.evaluate(detection.LogitMargin(detector.im), {"p": (x[:9], x[9:18])})


@pytest.mark.parametrize("columns", [[0.0, 1.0, 2.0], [False, True, 2], [0, 1, 2], ["0", "1", "2"]])
def test_names_that_are_like_numbers(columns):
    """0.0, 1.0, … and False, True counted as no names, so that tables were read by position."""
    im = nns.InstrumentedModel(network())
    table = pd.DataFrame(TABLE.to_numpy(), columns=columns)
    profile = nns.Profile.from_data(im, table, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    reordered = table[columns[::-1]]
    np.testing.assert_array_equal(slicer.im.check(reordered), table.to_numpy(np.float32))
    np.testing.assert_array_equal(slicer.im.points(reordered.iloc[0], "x"), table.iloc[0])
    letters = nns.InstrumentedModel(network()).named_by(TABLE)
    if 0.0 in columns and isinstance(columns[0], float):
        with pytest.raises(nns.errors.InputShapeError, match=r"unknown: \['0.0', '1.0', '2.0'\]"):
            letters.check(table)


@pytest.mark.filterwarnings("ignore:Class numbers follow")
def test_labels_are_compared_with_the_columns_in_order(tmp_path):
    """The model was asked with the file's columns in their order there: a false warning."""
    im = nns.InstrumentedModel(network()).named_by(TABLE)
    predicted = np.array(["no", "yes"])[im.predict(TABLE).argmax(axis=1)]
    OTHER.assign(label=predicted).to_csv(tmp_path / "other.csv", index=False)
    for data in (tmp_path / "other.csv", datasets.load_data(tmp_path / "other.csv")):
        _, y = im.labelled(data)
        np.testing.assert_array_equal(y, predicted == "yes")
    # The other order of classes is still noticed.
    swapped = np.where(predicted == "yes", "no", "yes")
    OTHER.assign(label=swapped).to_csv(tmp_path / "swapped.csv", index=False)
    with pytest.warns(nns.errors.PlausibilityWarning, match="another class order"):
        im.labelled(tmp_path / "swapped.csv")
