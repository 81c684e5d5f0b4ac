"""One table in two orders of columns: the results are those of one order, in every analysis."""

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import (
    attributions,
    debugging,
    deepbase,
    deepxplore,
    detection,
    dflare,
    exactline,
    instrument,
    pruning,
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
        [keras.Input((3,)), layers.Dense(6, "relu", name="h"), layers.Dense(2, name="o")]
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
    np.testing.assert_allclose(ims[0].predict(TABLE), ims[1].predict(TABLE), rtol=1e-5)
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
