"""Arguments that would make results silently wrong are refused before the work."""

import keras
import numpy as np
import pandas as pd
import pytest
import tensorflow as tf
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import attributions, dflare, exactline, protection, pruning, semantic, versions
from nnslicer_tf.datasets import Dataset
from nnslicer_tf.errors import (
    CriterionError,
    InputShapeError,
    InvalidArgumentError,
    NonFiniteActivationError,
    ProfileMismatchError,
)
from nnslicer_tf.instrument import Ablation

X = np.random.default_rng(0).normal(size=(60, 5)).astype(np.float32)
Y = np.arange(60) % 4


@pytest.fixture
def model():
    keras.utils.set_random_seed(0)
    hidden = layers.Dense(16, activation="relu", name="a")
    return keras.Sequential([keras.Input((5,)), hidden, layers.Dense(4, activation="softmax")])


def test_single_classes_have_no_tolerance(model):
    other = keras.models.clone_model(model)
    assert len(versions.compare(model, other, X).changed)
    with pytest.raises(InvalidArgumentError, match="for maps and numbers"):
        versions.compare(model, other, X, tolerance=1.0)
    with pytest.raises(InvalidArgumentError, match="for maps and numbers"):
        dflare.agreement(dflare.ModelPair(model, other, tolerance=1.0), X)


def test_agreement_needs_finite_inputs(model):
    pair = dflare.ModelPair(model, keras.models.clone_model(model))
    with pytest.raises(NonFiniteActivationError, match="NaN or infinite"):
        dflare.agreement(pair, np.where(X > 2, np.nan, X))


@pytest.mark.parametrize("level", ["neuron", "channel"])
def test_a_mask_of_an_operation_without_units_is_refused(model, level):
    ablation = Ablation(model, "zero", level)
    assert not ablation.outputs({"a:pre": np.zeros(16)}, X).any() and ablation.outputs({}, X).any()
    with pytest.raises(InvalidArgumentError, match=r"'a' has no units.*a:pre"):
        ablation.outputs({"a": np.zeros(16)}, X)


@pytest.mark.parametrize("rate", [np.nan, 0.0, -1.0, np.inf])
def test_learning_rates_are_positive(model, rate):
    with pytest.raises(InvalidArgumentError, match="learning_rate"):
        pruning.fine_tune(model, X, Y, 1, learning_rate=rate)


def test_epochs_are_counted_before_the_work(model):
    with pytest.raises(InvalidArgumentError, match="epochs"):
        pruning.shrink(model, X, Y, ratio=0.3, epochs=-1)


def test_flips_are_counted_from_0(model):
    found = versions.explain_flips(model, keras.models.clone_model(model), X[:9])
    assert found.summary(0) == found.summary(-len(found))
    for call in (found.summary, found.changes, found.with_changes, found.without_changes):
        with pytest.raises(InvalidArgumentError, match="flips, of the samples"):
            call(99)
    with pytest.raises(InvalidArgumentError, match="4 classes; received 1 name"):
        found.summary(0, classes=["only one"])


def test_versions_take_the_shape_of_the_data():
    keras.utils.set_random_seed(0)
    inputs = keras.Input((None, None, 1))
    pooled = layers.GlobalAveragePooling2D()(layers.Conv2D(8, 3, activation="relu")(inputs))
    model = keras.Model(inputs, layers.Dense(3)(pooled))
    other, x = keras.models.clone_model(model), np.random.default_rng(0).random((30, 9, 7, 1))
    changed = versions.compare(model, other, x).changed
    answers = [m.predict(x, verbose=0).argmax(axis=1) for m in (model, other)]
    assert changed.tolist() == np.flatnonzero(answers[0] != answers[1]).tolist()


def test_tables_of_a_test_have_the_columns_of_the_training(model):
    names = ["zeta", "alpha", "mid", "beta", "eta"]
    table = pd.DataFrame(X, columns=names)
    small = pruning.shrink(model, table, Y, ratio=0.3, test=(table[30:], Y[30:]), progress=False)
    with pytest.warns(UserWarning, match="columns were reordered"):
        turned = pruning.shrink(
            model, table, Y, ratio=0.3, test=(table[30:][names[::-1]], Y[30:]), progress=False
        )
    assert turned.accuracy == small.accuracy


@pytest.mark.parametrize("names", [range(5), [10, 20, 30, 40, 50], ["a", "b", 7, None, (1, 2)]])
def test_columns_without_texts_have_an_order_too(model, names):
    """Pandas' own names are places, of which an array has the order; others are compared."""
    table = pd.DataFrame(X, columns=pd.Index(names, tupleize_cols=False))
    slicer = nns.Slicer(model, nns.Profile.from_data(model, table, progress=False), progress=False)
    logits = slicer.im.logits(X)
    np.testing.assert_array_equal(slicer.im.logits(table), logits)
    with pytest.warns(UserWarning, match="columns were reordered"):
        np.testing.assert_array_equal(slicer.im.logits(table.iloc[:, ::-1]), logits)
    if names != range(5):
        with pytest.raises(InputShapeError, match="Missing here"):
            slicer.im.logits(table.set_axis(list("vwxyz"), axis=1))


NAMES = ["zeta", "alpha", "mid", "beta", "eta"]
TABLE = pd.DataFrame(X, columns=NAMES)
TURNED = TABLE[NAMES[::-1]]
IN_PARTS = {
    "a generator of tables": lambda: iter([TABLE[:9], TURNED[9:]]),
    "a list of tables": lambda: [TURNED[:9], TABLE[9:]],
    "pairs of tables": lambda: [(TABLE[:9], Y[:9]), (TURNED[9:], Y[9:])],
    "one pair": lambda: (TURNED, Y),
    "a pair as a list": lambda: [TURNED, Y],
    "a dict": lambda: {"x": TURNED},
    "a dict with labels": lambda: {"x": TURNED, "y": Y},
    "dicts": lambda: [{"x": TURNED[:9], "y": Y[:9]}, {"x": TABLE[9:], "y": Y[9:]}],
    "a list of rows": lambda: [(TURNED if i % 2 else TABLE).iloc[i] for i in range(len(X))],
    "rows with labels": lambda: (
        ((TABLE if i % 2 else TURNED).iloc[i], Y[i]) for i in range(len(X))
    ),
}


@pytest.mark.parametrize("form", IN_PARTS)
@pytest.mark.filterwarnings("ignore:The columns were reordered")
def test_each_part_of_a_table_has_its_columns_put_right(model, form):
    """Also in a first profile, whose columns are those of the first part."""
    fresh = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(fresh, IN_PARTS[form](), progress=False)
    order = [NAMES.index(name) for name in profile.columns]
    np.testing.assert_allclose(profile.means[fresh.input_operation], X.mean(0)[order], atol=1e-6)
    known = nns.InstrumentedModel(model)
    nns.Slicer(known, nns.Profile.from_data(known, TABLE, progress=False), progress=False)
    np.testing.assert_array_equal(known.check(IN_PARTS[form]()), X)
    again = nns.Profile.from_data(known, IN_PARTS[form](), progress=False)
    assert list(again.columns) == NAMES
    np.testing.assert_allclose(again.means[known.input_operation], X.mean(0), atol=1e-6)


def test_tables_of_several_inputs_are_put_in_order_in_every_form():
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((3,), name="num"), keras.Input((2,), name="cat")]
    joined = layers.Concatenate()(inputs)
    model = keras.Model(inputs, layers.Dense(2)(joined))
    num, cat = TABLE[NAMES[:3]], TABLE[NAMES[3:]]
    im, parts = nns.InstrumentedModel(model), {"num": num, "cat": cat}
    nns.Slicer(im, nns.Profile.from_data(im, parts, progress=False), progress=False)
    expected = model.predict([X[:, :3], X[:, 3:]], verbose=0)
    other = num[num.columns[::-1]]
    halves = (slice(30), slice(30, None))
    forms = {
        "dict": {"num": other, "cat": cat},
        "list": [other, cat],
        "tuple": (other, cat),
        "stream": ({"num": other[h], "cat": cat[h]} for h in halves),
        "pairs": (({"num": other[h], "cat": cat[h]}, Y[h]) for h in halves),
    }
    for name, form in forms.items():
        with pytest.warns(UserWarning, match="columns were reordered"):
            found = im.predict(form)
        np.testing.assert_allclose(found, expected, atol=1e-6, err_msg=name)
    with pytest.raises(InputShapeError, match="Missing here"):
        im.predict([num.rename(columns=str.upper), cat])


@pytest.mark.filterwarnings("ignore:The columns were reordered")
def test_analyses_of_two_models_know_the_columns(model):
    im, other = nns.InstrumentedModel(model), keras.models.clone_model(model)
    nns.Slicer(im, nns.Profile.from_data(im, TABLE, progress=False), progress=False)
    labels = model.predict(X, verbose=0).argmax(axis=1)
    for pair in ((im, other), (other, im)):
        found, expected = (versions.compare(*pair, x, labels) for x in (TURNED, X))
        assert found.quality == expected.quality
        np.testing.assert_array_equal(found.changed, expected.changed)
        both = [dflare.agreement(dflare.ModelPair(*pair), x, labels) for x in (TURNED, X)]
        assert both[0].quality == both[1].quality
    tuned = []
    for x in (TURNED, X):
        copy = im.like(keras.models.clone_model(model))
        copy.model.set_weights(model.get_weights())
        copy.columns = im.columns
        pruning.fine_tune(copy, x, Y, 1, progress=False, from_logits=False)
        tuned.append(copy.model.predict(X, verbose=0))
    np.testing.assert_allclose(*tuned, atol=1e-5)
    scores = [
        semantic.SemanticSlicer(im, X, Y, metric="deeplift", baseline=one).scores["a"]
        for one in (TURNED.iloc[0], X[0])
    ]
    np.testing.assert_allclose(*scores)


def test_slicers_of_one_model_have_the_columns_of_their_profiles(model):
    im = nns.InstrumentedModel(model)
    first = nns.Slicer(im, nns.Profile.from_data(im, TABLE, progress=False), progress=False)
    upper = TABLE.rename(columns=str.upper)
    fresh = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(fresh, upper, progress=False)
    second = nns.Slicer(im, profile, progress=False)
    assert first.slice(TABLE) == first.slice(X) == second.slice(upper)
    with pytest.raises(InputShapeError, match="Missing here"):
        first.slice(upper)


def test_columns_that_contradict_the_table(model):
    slicer = nns.Slicer(model, nns.Profile.from_data(model, TABLE, progress=False), progress=False)
    with pytest.raises(InvalidArgumentError, match="omit columns="):
        slicer.explain(TABLE[:1], columns=NAMES[::-1], compare=False, decisive=False)
    by_dict = slicer.explain({"x": TABLE[:1], "y": Y[:1]}, compare=False, decisive=False)
    np.testing.assert_array_equal(by_dict.sample, X[0])
    assert list(by_dict.columns) == NAMES


@pytest.mark.filterwarnings("ignore:The columns were reordered")
def test_points_of_lines_and_planes_have_the_columns_of_the_profile(model):
    slicer = nns.Slicer(model, nns.Profile.from_data(model, TABLE, progress=False), progress=False)
    im, (first, second) = slicer.im, (TURNED.iloc[0], TURNED.iloc[1])
    line = exactline.exact_line(im, first, second)
    np.testing.assert_allclose([line.start, line.end], X[:2])
    gradients = [exactline.integrated_gradients(im, *pair, 0) for pair in ((first, second), X[:2])]
    np.testing.assert_allclose(*gradients)
    walker = exactline.LineWalker(im)
    (line,) = walker.lines(TURNED[:1], TABLE[1:2])
    np.testing.assert_allclose([line.start, line.end], X[:2])
    for polygon in (TURNED[:3], [TABLE.iloc[0], TURNED.iloc[1], TABLE.iloc[2]]):
        plane = exactline.exact_plane(im, polygon, progress=False)
        np.testing.assert_allclose(plane.at(plane.corners)[0], X[0], atol=1e-6)
    ways = [
        attributions.ATTRIBUTIONS["gradient × input"](im, one, X[1], 0) for one in (first, X[0])
    ]
    np.testing.assert_allclose(*ways)


def test_a_sample_with_its_label_is_explained(model):
    slicer = nns.Slicer(model, nns.Profile.from_data(model, TABLE, progress=False), progress=False)
    for one in ((X[:1], Y[:1]), (TABLE[:1], Y[:1]), (TABLE[:1], pd.Series(Y[:1])), X[0], [*X[0]]):
        found = slicer.explain(one, compare=False, decisive=False)
        np.testing.assert_array_equal(found.sample, X[0])
    with pytest.raises(InputShapeError, match="same shape"):
        slicer.explain([[1], [2, 3]])


def test_columns_as_inputs_keep_their_rows_order():
    """A Series in a dict of inputs has a value for each sample, whatever its index is."""
    inputs = [keras.Input((1,), name=name) for name in ("a", "b")]
    model = keras.Model(inputs, layers.Dense(2)(layers.Concatenate()(inputs)))
    table = pd.DataFrame(X[:, :2], columns=["a", "b"]).sample(frac=1, random_state=0)
    x = {"a": table["a"], "b": table["b"]}
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    assert not slicer.im.columns
    other = {name: series.sort_index() for name, series in x.items()}
    expected = model.predict([X[:, :1], X[:, 1:2]], verbose=0)
    np.testing.assert_allclose(slicer.im.predict(other), expected, atol=1e-6)
    np.testing.assert_allclose(slicer.im.predict(x), expected[table.index], atol=1e-6)


@pytest.mark.parametrize("names", [[4, 3, 2, 1, 0], ["4", "3", "2", "1", "0"]])
def test_places_as_names_have_an_order_where_a_table_was_profiled(model, names):
    """Without one, the columns are read in their order, as by Keras."""
    table, expected = pd.DataFrame(X, columns=names), model.predict(X, verbose=0)
    im = nns.InstrumentedModel(model)
    np.testing.assert_allclose(im.predict(table), expected, atol=1e-6)
    nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    np.testing.assert_allclose(im.predict(table), expected, atol=1e-6)
    profile = nns.Profile.from_data(im, table, progress=False)
    np.testing.assert_allclose(profile.means[im.input_operation], X.mean(axis=0), atol=1e-6)
    nns.Slicer(im, profile, progress=False)
    np.testing.assert_allclose(im.predict(table), expected, atol=1e-6)
    with pytest.warns(UserWarning, match="columns were reordered"):
        np.testing.assert_allclose(im.predict(table.iloc[:, ::-1]), expected, atol=1e-6)


def test_tables_among_several_inputs_have_the_columns_of_the_profile():
    """A table in another order is put right, with a warning; one with other columns is refused."""
    keras.utils.set_random_seed(0)
    series, row = keras.Input((4, 2), name="series"), keras.Input((3,), name="row")
    joined = layers.Concatenate()([layers.Flatten()(series), row])
    model = keras.Model([series, row], layers.Dense(2)(joined))
    names, rng = ["zeta", "alpha", "mid"], np.random.default_rng(0)
    x = {"series": rng.normal(size=(20, 4, 2)), "row": pd.DataFrame(rng.normal(size=(20, 3)))}
    x["row"].columns = names
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    one = {"series": x["series"][:1], "row": x["row"][:1]}
    turned = one | {"row": one["row"][names[::-1]]}
    calls = {
        "capture": lambda x: slicer.im.logits(x),
        "decisive": lambda x: slicer.decisive(x, others=0, scope=0).certificate["probability"],
        "explain": lambda x: slicer.explain(x, compare=False, decisive=False).whole,
    }
    for name, call in calls.items():
        with pytest.warns(UserWarning, match="columns were reordered"):
            found = call(turned)
        np.testing.assert_allclose(found, call(one), err_msg=name)
        with pytest.raises(InputShapeError, match=r"Missing here: \['mid'\]"):
            call(one | {"row": one["row"].rename(columns={"mid": "middle"})})


def test_a_column_of_one_of_two_tables_is_named():
    """Also where the other table has as many columns, or the table's own have no names."""
    keras.utils.set_random_seed(0)
    inputs = [keras.Input((2,), name=name) for name in ("first", "second")]
    model = keras.Model(inputs, layers.Dense(2)(layers.Concatenate()(inputs)))
    im = nns.InstrumentedModel(model)
    first, broken = pd.DataFrame(np.ones((3, 2)), columns=["a", "b"]), np.ones((3, 2))
    broken[1, 1] = np.nan
    second = pd.DataFrame(broken, columns=["c", "d"])
    for table, where in ((second, "values in column 'd' \\("), (broken, "values \\(")):
        with pytest.raises(NonFiniteActivationError, match=where):
            im.logits({"first": first, "second": table})


def test_labels_beside_the_samples_of_two_versions_are_taken(model):
    new = keras.models.clone_model(model)
    expected = versions.compare(model, new, X, Y)
    for pair in (
        (X, Y),
        {"x": X, "y": Y},
        ((X[i], Y[i]) for i in range(60)),
        tf.data.Dataset.from_tensor_slices((X, Y)).batch(7),
        Dataset(X, Y, "rows", "", "none", 4),
    ):
        found = versions.compare(model, new, pair)
        assert found.negative.tolist() == expected.negative.tolist()
        assert found.summary() == expected.summary()
    for alone in (X.tolist(), iter(X)):  # nothing is right or wrong
        found = versions.compare(model, new, alone)
        np.testing.assert_array_equal(found.answers, expected.answers)
        with pytest.raises(InvalidArgumentError, match="pass y"):
            found.negative  # noqa: B018


def test_what_was_fitted_before_training_is_refused_after_it(model):
    im = nns.InstrumentedModel(model)
    ablation = Ablation(im, nns.Profile.from_data(im, X, progress=False), "channel")
    ablation.outputs({}, X)
    normal = np.random.default_rng(1).normal(size=(400, 5)).astype(np.float32)
    detector = nns.detection.LogitMargin(im).fit(normal)
    for variable in model.weights:
        variable.assign(1.5 * variable)
    with pytest.raises(ProfileMismatchError):
        ablation.outputs({}, X)
    with pytest.raises(ProfileMismatchError, match="have changed: fit this"):
        detector.predict(normal)


def test_channels_that_cannot_be_mended_are_counted(model):
    im = nns.InstrumentedModel(model)
    runs = nns.debugging.Runs.split(im, X, Y)
    pairs = [(part.x, part.right) for part in (runs.failing, runs.passing)]
    found = nns.debugging.suspicious(im, *pairs, progress=False)
    with pytest.raises(InvalidArgumentError, match="has 16 hidden channels"):
        nns.debugging.mend(im, found, X, Y, "scale", channels=17)


def test_suspicions_are_of_the_model_that_is_mended(model):
    keras.utils.set_random_seed(1)
    other = keras.Sequential([keras.Input((5,)), layers.Dense(3, "relu"), layers.Dense(3)])
    found = []
    for one in map(nns.InstrumentedModel, (model, other)):
        y = (one.predict(X).argmax(axis=1) + (np.arange(len(X)) < 9)) % 3
        found.append((one, nns.debugging.Runs.split(one, X, y)))
    (im, runs), (small, its_runs) = found
    pairs = [(part.x, part.right) for part in (its_runs.failing, its_runs.passing)]
    suspicion = nns.debugging.suspicious(small, *pairs, progress=False)
    with pytest.raises(InvalidArgumentError, match="of another model"):
        nns.debugging.mend(im, suspicion, runs.failing.x, runs.failing.right)
    with pytest.raises(InvalidArgumentError, match="most must be a positive integer"):
        suspicion.to_frame("channel", most=-1)


NO_MASKS = {"scores": [0.3, -1.0, 2.0], "indices": [0, 1, 2], "nan": [1, 0, np.nan], "texts": "abc"}


def calls_with_masks():
    """Calls that take a mask of the units of a layer, or of its kernel, by name."""
    keras.utils.set_random_seed(0)
    stack = [keras.Input((4,)), layers.Dense(3, "relu", name="d"), layers.Dense(2, name="o")]
    model, x, y = keras.Sequential(stack), np.ones((6, 4), np.float32), np.arange(6) % 2
    return {
        "apply_masks": lambda units, kernel: pruning.apply_masks(model, {"d": kernel}),
        "remove_units": lambda units, kernel: pruning.remove_units(model, {"d": units}),
        "hide": lambda units, kernel: protection.hide(model, {"d": kernel}),
        "restructure": lambda units, kernel: semantic.restructure(model, {"d": units}),
        "readapt": lambda units, kernel: semantic.readapt(model, {"d": units}, x, y, x, epochs=1),
        "develop": lambda units, kernel: semantic.develop(model, {"d": units}, x, y, [0], epochs=1),
    }


@pytest.mark.parametrize("values", NO_MASKS.values(), ids=NO_MASKS)
def test_scores_indices_and_texts_are_no_masks(values):
    units = np.array(list(values))
    for call in calls_with_masks().values():
        with pytest.raises(InvalidArgumentError, match="must be True and False, or 1 and 0"):
            call(units, np.tile(units, (4, 1)))


def test_masks_are_true_and_false():
    """Also as 1 and 0 of any type. Every call copies or trains a model."""
    for name, call in calls_with_masks().items():
        for kind in (bool, int, float, np.uint8):
            mask = np.array([1, 0, 1]).astype(kind)
            assert call(mask, np.tile(mask, (4, 1))) is not None, name
        assert call([True, False, True], [[1, 0, 1]] * 4) is not None, name


def test_places_and_numbers_that_are_none(model):
    im = nns.InstrumentedModel(model)
    with pytest.raises(InvalidArgumentError, match="no operation \\['a'\\]"):
        im[["a"]]
    slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
    with pytest.raises(CriterionError, match="must be one name"):
        slicer.slice(X[:1], nns.slicing.Criterion([0], until=["a"]))
    why = slicer.explain(X[0], compare=False, decisive=False)
    for ranking in (why.channels, why.synapses):
        with pytest.raises(InvalidArgumentError, match="most must be a positive integer"):
            ranking(-1)
