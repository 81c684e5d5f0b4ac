"""Contributions against background rows, compared with all orders of features in plain Keras."""

from itertools import permutations

import keras
import numpy as np
import pandas as pd
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf.attributions import background, shapley
from nnslicer_tf.attributions.background import column_groups, contributions_against
from nnslicer_tf.errors import InvalidArgumentError
from nnslicer_tf.instrument.target import resolve_target

RNG = np.random.default_rng(0)


def by_all_orders(score, x, rows, features):
    """Shapley values by their definition: what a feature adds, over all orders and rows."""
    count = max(features) + 1
    total = np.zeros((len(rows), count))
    orders = list(permutations(range(count)))
    for order in orders:
        mixed, before = rows.copy(), score(rows)
        for feature in order:
            mixed[:, np.array(features) == feature] = x[np.array(features) == feature]
            after = score(mixed)
            total[:, feature] += after - before
            before = after
    return total / len(orders)


def customers(count=60):
    """Rows of `pandas.get_dummies`: a city, an age that has no effect, an income that has one."""
    cities = np.array(["Oslo", "New_York", "Rome", "Oslo"])[np.arange(count) % 4]
    numbers = RNG.uniform(0, 1, (count, 2))
    frame = pd.DataFrame({"age": numbers[:, 0], "income": numbers[:, 1], "home_city": cities})
    return pd.get_dummies(frame, columns=["home_city"]).astype("f4")


def without_effect_of_age():
    """Cities d = relu(4·city − 3) add up to 1 for customers, so that relu(age − Σd) is 0.

    For the mean of customers, in which each city is a fraction, all d are 0.
    """
    model = keras.Sequential([keras.Input((5,))])
    for units, name in ((5, "first"), (4, "second")):
        model.add(layers.Dense(units, "relu", name=name))
    model.add(layers.Dense(1, name="score"))
    first = np.diag([1.0, 1, 4, 4, 4])
    second = np.zeros((5, 4))
    second[:, 0] = 2, 0, -2, -2, -2  # twice the age, less cities
    second[2:, 1] = 1  # the cities, always 1
    second[1, 2] = second[3, 3] = 1  # the income, and one of the cities
    last = np.array([[1.0], [1.8], [0.3], [0.2]])
    bias = np.array([0, 0, -3, -3, -3]), np.zeros(4), np.zeros(1)
    model.set_weights([first, bias[0], second, bias[1], last, bias[2]])
    return model


def test_the_mean_of_one_hot_columns_is_no_customer():
    """Against the mean, the column without an effect has the largest contribution."""
    model, frame = without_effect_of_age(), customers()
    profile = nns.Profile.from_data(model, frame, progress=False)
    slicer = nns.Slicer(model, profile, progress=False)
    row = frame.iloc[[int(frame["age"].argmax())]]
    options = {"compare": False, "decisive": False}
    at_mean = np.abs(slicer.explain(row, background="mean", **options).contributions)
    assert at_mean[0] == at_mean.max() and at_mean[0] > 0.7

    why = slicer.explain(row, **options)
    x, rows = row.to_numpy()[0], np.array(next(iter(profile.rows.values())))
    assert len(rows) == 60 and why.background.names == ("age", "income", "home_city")
    expected = by_all_orders(lambda z: model(z).numpy()[:, 0], x, rows, [0, 1, 2, 2, 2])
    np.testing.assert_allclose(why.background.by_row, expected, atol=1e-5)
    assert np.abs(why.background.values[0]) < 1e-6
    answers = model(np.concatenate([row, rows])).numpy()[:, 0]
    assert why.contributions.sum() == pytest.approx(answers[0] - answers[1:].mean(), abs=1e-5)
    assert why.background.mean_row_is_far and "no typical sample" in why.summary()
    table = why.background.to_frame().set_index("feature")
    city = next(name for name in frame.columns[2:] if row[name].item())
    assert table.loc["home_city", "value"] == city.removeprefix("home_city_")
    spread = expected.std(axis=0, ddof=1) / np.sqrt(60)
    np.testing.assert_allclose(table["standard error"][["income", "home_city"]], spread[1:], 1e-3)


def network(features, units=3):
    keras.utils.set_random_seed(1)
    hidden = layers.Dense(16, activation="tanh", kernel_initializer="random_normal")
    return keras.Sequential([keras.Input((features,)), hidden, layers.Dense(units)])


def test_all_coalitions_give_what_all_orders_give():
    im = nns.InstrumentedModel(network(4))
    x, rows = RNG.normal(size=(1, 4)).astype("f4"), RNG.normal(size=(4, 4)).astype("f4")
    found, errors = shapley.shapley_values(im, x, rows, resolve_target(im, 1, instead_of=2))
    expected = by_all_orders(
        lambda z: np.subtract(*im.model(z).numpy()[:, 1:].T), x[0], rows, range(4)
    )
    np.testing.assert_allclose(found, expected, atol=1e-5)
    assert not errors.any()


def test_orders_are_drawn_where_there_are_many_features(monkeypatch):
    """Their errors are right: estimates are as far from the exact values as they say."""
    im = nns.InstrumentedModel(network(8))
    x, rows = RNG.normal(size=(1, 8)).astype("f4"), RNG.normal(size=(9, 8)).astype("f4")
    target = resolve_target(im, 1)
    exact, _ = shapley.shapley_values(im, x, rows, target)
    monkeypatch.setattr(shapley, "_MAX_RUNS", 2300)
    distances = []
    for seed in range(30):
        drawn, errors = shapley.shapley_values(im, x, rows, target, rng=seed)
        np.testing.assert_allclose(drawn.sum(axis=1), exact.sum(axis=1), atol=1e-5)
        distances.append((drawn - exact).mean(axis=0) / errors)
    assert 0.8 < np.std(distances) < 1.2
    again, _ = shapley.shapley_values(im, x, rows, target, rng=seed)
    np.testing.assert_array_equal(again, drawn)


def test_columns_that_are_one_feature():
    names = [
        "age",
        "missingindicator_age",
        "a_x",
        "a_y",
        "a_b_p",
        "a_b_q",
        "own_car",
        "own_cat",
        "z",
    ]
    rows = np.zeros((3, 9))
    rows[:, 2:4] = [[1, 0], [0, 1], [1, 0]]
    rows[:, 4:6] = [[1, 0], [0, 1], [0, 0]]  # the first category was dropped
    rows[:, 6:8] = [[1, 1], [0, 1], [0, 0]]  # no one-hot columns: both can be 1
    expected = {"a_b": [4, 5], "age": [0, 1]}
    assert column_groups(names, rows) == expected  # "a_" is a prefix of four, with sums of 2
    names[2:4] = ["c_x", "c_y"]
    assert column_groups(names, rows) == expected | {"c": [2, 3]}


@pytest.mark.parametrize(
    ("groups", "message"),
    [
        ({"g": ["age", "agee"]}, "Unknown column 'agee'. Did you mean 'age'"),
        ({"g": [0, 5]}, "column 5 of 'g' does not exist"),
        ({"g": [0, 1], "h": [1]}, "column 1 of 'h' is in two groups"),
        ({"g": [0.7, 1.2]}, "Unknown column 0.7"),
        ({"g": [True, False]}, "Unknown column True"),
        ({"age": [1, 2]}, "'age' is a column that is in no group, too"),
    ],
)
def test_groups_that_do_not_fit_are_refused(groups, message):
    frame = customers(8)
    model = without_effect_of_age()
    slicer = nns.Slicer(model, nns.Profile.from_data(model, frame, progress=False), progress=False)
    with pytest.raises(InvalidArgumentError, match=message):
        slicer.explain(frame.iloc[0], groups=groups, compare=False, decisive=False)


def test_a_group_cannot_name_a_column_that_is_there_twice():
    """It took the first of them."""
    frame = customers(8)
    model = without_effect_of_age()
    frame.columns = ["age", "age", *frame.columns[2:]]
    slicer = nns.Slicer(model, nns.Profile.from_data(model, frame, progress=False), progress=False)
    options = {"compare": False, "decisive": False}
    with pytest.raises(InvalidArgumentError, match="'age' of 'g' occurs twice: pass indices"):
        slicer.explain(frame.iloc[0], groups={"g": ["age", frame.columns[2]]}, **options)
    found = slicer.explain(frame.iloc[0], groups={"g": [1, 2]}, **options)
    assert found.background.features.tolist() == [0, 1, 1, 2, 3]


def test_columns_among_several_inputs_have_names_and_groups(tmp_path):
    """Those of two tables, in another order than the inputs; beside a signal, on the page."""
    keras.utils.set_random_seed(0)
    person, place = keras.Input((2,), name="person"), keras.Input((3,), name="place")
    model = keras.Model([person, place], layers.Dense(2)(layers.Concatenate()([person, place])))
    city = np.eye(2)[RNG.integers(0, 2, 40)]
    tables = {
        "place": pd.DataFrame(
            np.c_[city, RNG.normal(size=40)], columns=["city_A", "city_B", "age"]
        ),
        "person": pd.DataFrame(RNG.normal(size=(40, 2)), columns=["age", "income"]),
    }
    one = {name: table[:1] for name, table in tables.items()}
    slicer = nns.Slicer(model, nns.Profile.from_data(model, tables, progress=False), progress=False)
    why = slicer.explain(one, 1, background=tables, compare=False, decisive=False)
    found = why.background.to_frame().set_index("feature")["contribution"]
    assert set(found.index) == {"place: city", "place: age", "person: age", "person: income"}
    # A linear model: weight times the difference from the mean row.
    kernel = model.layers[-1].kernel.numpy()[:, 1]
    means = np.concatenate([tables[n].mean() for n in ("person", "place")])
    terms = kernel * (np.concatenate([one[n].iloc[0] for n in ("person", "place")]) - means)
    expected = [terms[0], terms[1], terms[2] + terms[3], terms[4]]
    order = ["person: age", "person: income", "place: city", "place: age"]
    np.testing.assert_allclose(found[order], expected, atol=1e-5)

    signal = keras.Input((4, 2), name="signal")
    joined = layers.Concatenate()([layers.Flatten()(signal), person])
    model = keras.Model([signal, person], layers.Dense(2)(joined))
    both = {"signal": RNG.normal(size=(40, 4, 2)), "person": tables["person"]}
    slicer = nns.Slicer(model, nns.Profile.from_data(model, both, progress=False), progress=False)
    one = {name: part[:1] for name, part in both.items()}
    why = slicer.explain(one, compare=False, decisive=False)
    why.save(tmp_path / "why.html")
    assert (
        f"income = {one['person']['income'].iloc[0]:.3g} (mean"
        in (tmp_path / "why.html").read_text()
    )
    pytest.importorskip("shap")
    assert why.to_shap()["person"].feature_names == ["age", "income"]


def test_images_are_compared_with_each_row_by_deeplift():
    stack = [keras.Input((4, 4, 1)), layers.Conv2D(2, 3, activation="relu"), layers.Flatten()]
    im = nns.InstrumentedModel(keras.Sequential([*stack, layers.Dense(3)]))
    x, rows = RNG.normal(size=(1, 4, 4, 1)).astype("f4"), RNG.normal(size=(6, 4, 4, 1)).astype("f4")
    found = contributions_against(im, x, rows, resolve_target(im, 2))
    logits = im.model(np.concatenate([x, rows])).numpy()[:, 2]
    np.testing.assert_allclose(found.by_row.sum(axis=1), logits[0] - logits[1:], atol=1e-5)
    np.testing.assert_allclose(found.scores, logits[1:], atol=1e-5)
    assert found.method == background.DEEPLIFT and found.by_row.shape == (6, 16)
    with pytest.raises(InvalidArgumentError, match="groups are for tables"):
        contributions_against(im, x, rows, resolve_target(im, 2), groups={"a": [0, 1]})


def test_a_table_is_the_inputs_of_its_columns():
    """A DataFrame, or its columns as a dict, for a model with an input for each; one is one-hot."""
    frame = pd.DataFrame(RNG.normal(size=(9, 2)), columns=["z", "a"])
    city = np.eye(3)[RNG.integers(0, 3, 9)]
    numbers = {name: keras.Input((1,), name=name) for name in frame}
    hidden = layers.Dense(8, activation="tanh")(layers.Concatenate()(list(numbers.values())))
    arrays = {name: frame[[name]].to_numpy() for name in frame}

    def explained(model, data, row):
        profile = nns.Profile.from_data(model, data, progress=False)
        slicer = nns.Slicer(model, profile, progress=False)
        return slicer.explain(row, compare=False, decisive=False).background

    model = keras.Model(numbers, layers.Dense(1, name="price")(hidden))
    expected = explained(model, arrays, {name: column[[4]] for name, column in arrays.items()})
    assert dict(zip(expected.columns, expected.entries, strict=True)) == pytest.approx(
        dict(frame.iloc[4]), rel=1e-6
    )
    for data in (frame, dict(frame)):
        for row in (frame.iloc[[4]], frame.iloc[4], dict(frame.iloc[4])):
            found = explained(model, data, row)
            assert found.columns == expected.columns
            np.testing.assert_allclose(found.values, expected.values, atol=1e-6)

    numbers["city"] = keras.Input((3,), name="city")
    output = layers.Dense(1, name="price")(layers.Concatenate()([hidden, numbers["city"]]))
    model, data = keras.Model(numbers, output), dict(frame) | {"city": city}
    found = explained(model, data, {name: column[:1] for name, column in data.items()})
    assert sorted(found.names) == ["a", "city", "z"]
    table = found.to_frame().set_index("feature")
    assert table["value"]["city"] == f"[{city[0].argmax()}]"


def test_missing_values_are_called_missing():
    columns = ("age", "missingindicator_age")
    by_row, errors = np.ones((2, 1)), np.zeros(1)
    for entries, value in (([40, 1], "missing"), ([40, 0], "40"), ([1, 0], "1")):
        table = background.Background(
            None, background.SHAPLEY, ("age",), columns, np.array(entries), np.zeros(2, int),
            by_row, errors, 0.0, 0.0,
        ).to_frame()  # fmt: skip
        assert table["value"].tolist() == [value]


def test_several_inputs_of_a_table_and_a_category():
    """A number, a category that is embedded, two numbers: four features, and one of a group."""
    inputs = [
        keras.Input((1,), name="z"),
        keras.Input((1,), name="kind"),
        keras.Input((2,), name="a"),
    ]
    parts = [inputs[0], layers.Flatten()(layers.Embedding(4, 2)(inputs[1])), inputs[2]]
    hidden = layers.Dense(8, activation="tanh")(layers.Concatenate()(parts))
    model = keras.Model(inputs, layers.Dense(1, name="price")(hidden))
    x = {
        "z": RNG.normal(size=(9, 1)),
        "kind": RNG.integers(0, 4, (9, 1)),
        "a": RNG.normal(size=(9, 2)),
    }
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    sample = {name: values[4] for name, values in x.items()}
    rows = {name: values[:4] for name, values in x.items()}
    why = slicer.explain(sample, background=rows, groups={"both": ["z", 3]}, decisive=False)
    assert why.background.names == ("both", "kind", "a[0]")
    flat = np.concatenate([*x.values()], axis=1)
    expected = by_all_orders(
        lambda z: model([z[:, :1], z[:, 1:2], z[:, 2:]]).numpy()[:, 0],
        flat[4],
        flat[:4],
        [0, 1, 2, 0],
    ).mean(axis=0)
    np.testing.assert_allclose(why.background.values, expected, atol=1e-5)
    found = why.contributions
    np.testing.assert_allclose(
        [found["z"][0] + found["a"][1], found["kind"][0], found["a"][0]], expected, atol=1e-5
    )
    # Curves: means over the rows, of features that are hidden together.
    order, answers = np.argsort(-expected), []
    for hidden_features in (0, 1, 2, 3):
        is_hidden = np.isin([0, 1, 2, 0], order[:hidden_features])
        mixed = np.where(is_hidden, flat[:4], flat[4])
        answers.append(model([mixed[:, :1], mixed[:, 1:2], mixed[:, 2:]]).numpy().mean())
    curve = why.comparison.deletion["Shapley values"]
    np.testing.assert_allclose(curve.answers[[0, 14, 27, 40]], answers, atol=1e-5)


def test_the_order_is_as_stable_as_the_rows_agree():
    same = background.Background(
        None,
        "",
        ("a", "b", "c"),
        (),
        np.zeros(3),
        np.arange(3),
        np.tile([3.0, -2, 1], (8, 1)),
        np.zeros(3),
        0,
        0,
    )
    assert same.stability == pytest.approx(1)
    rows = np.random.default_rng(0).normal(size=(40, 30))
    noise = background.Background(
        None, "", ("a",) * 30, (), np.zeros(30), np.arange(30), rows, np.zeros(30), 0, 0
    )
    assert abs(noise.stability) < 0.3


def test_groups_of_columns_that_numbers_name():
    """A number is a column's name then, also as an int, and not its place."""
    features, names = background._features({"g": [1, 2]}, ["2", "7", "1"])
    assert (features.tolist(), names) == ([0, 1, 0], ("g", "7"))
    assert background._features({"g": ["7", 2]}, ["2", "7", "1"])[0].tolist() == [0, 0, 1]
    assert background._features({"g": [1, 2]}, ["a", "b", "c"])[0].tolist() == [0, 1, 1]
    with pytest.raises(InvalidArgumentError, match="Unknown column '0'"):
        background._features({"g": [0]}, ["2", "7", "1"])
