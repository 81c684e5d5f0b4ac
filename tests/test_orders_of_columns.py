"""One table in two orders of columns: the results are those of one order, in every analysis."""

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import (
    attributions,
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
