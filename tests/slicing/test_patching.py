"""Activation and path patching against runs with values replaced by hand."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.slicing import patch, patch_path
from nnslicer_tf.slicing.patching import SWEEPS

LENGTH, WIDTH = 4, 6


@pytest.fixture(scope="module")
def transformer():
    keras.utils.set_random_seed(1)
    words = keras.Input((LENGTH, WIDTH), name="words")
    x = words
    for i in (1, 2):
        read = layers.MultiHeadAttention(2, 3, name=f"attention{i}")(x, x)
        x = layers.Add(name=f"mid{i}")([x, read])
        hidden = layers.Dense(8, "relu", name=f"hidden{i}")(x)
        x = layers.Add(name=f"post{i}")([x, layers.Dense(WIDTH, name=f"back{i}")(hidden)])
    outputs = layers.Dense(3, name="last")(layers.Flatten()(x))
    model = keras.Model(words, outputs)
    rng = np.random.default_rng(0)
    for variable in model.variables:
        variable.assign(0.5 * rng.normal(size=variable.shape))
    clean, corrupt = rng.normal(size=(2, LENGTH, WIDTH)).astype(np.float32)
    return nns.InstrumentedModel(model), clean, corrupt


def replaced(im, x, changes):
    """Logits of a sample with some values replaced: operation → function of its value."""
    found = im.graph.run(
        ops.convert_to_tensor(x[None]),
        [im.logit_operation],
        lambda name, value: changes[name](value) if name in changes else value,
    )
    return ops.convert_to_numpy(found[im.logit_operation])[0]


@pytest.mark.parametrize("restore", [True, False])
@pytest.mark.parametrize("sweep", SWEEPS)
def test_every_part_is_replaced_as_by_hand(transformer, sweep, restore):
    im, clean, corrupt = transformer
    found = patch(im, clean, corrupt, 2, instead_of=0, sweep=sweep, restore=restore)
    own, other = (corrupt, clean) if restore else (clean, corrupt)
    values = im.capture(other[None])
    assert found.clean == pytest.approx(np.dot(im.logits(clean[None])[0], [-1, 0, 1]), rel=1e-4)
    assert found.corrupt == pytest.approx(np.dot(im.logits(corrupt[None])[0], [-1, 0, 1]), rel=1e-4)
    if sweep.startswith("head"):
        assert set(found.table["operation"]) == {"attention1/context", "attention2/context"}
        expected = 2 * 2 * (LENGTH if "position" in sweep else 1)
        assert len(found.table) == expected
    for row in found.table.sample(min(12, len(found.table)), random_state=0).to_dict("records"):
        name = row["operation"]
        place = np.zeros(im[name].shape, bool)
        if sweep == "operation":
            place[:] = True
        elif sweep == "channel":
            place[..., row["channel"]] = True
        elif sweep == "position":
            place[row["position"]] = True
        elif sweep == "head":
            place[:, row["head"]] = True
        else:
            place[row["position"], row["head"]] = True

        def change(value, place=place, name=name):
            return ops.where(place, values[name], value)

        logits = replaced(im, own, {name: change})
        score = logits[2] - logits[0]
        assert row["score"] == pytest.approx(score, rel=1e-3, abs=1e-4)
        base, full = (found.corrupt, found.clean)[:: 1 if restore else -1]
        assert row["effect"] == pytest.approx((score - base) / (full - base), rel=1e-3, abs=1e-4)


def test_the_whole_last_state_makes_the_whole_difference(transformer):
    im, clean, corrupt = transformer
    found = patch(im, clean, corrupt, 1, sweep="operation").table.set_index("operation")
    assert found.loc["post2", "effect"] == pytest.approx(1, abs=1e-4)
    assert found.loc["words" if "words" in found.index else "post2", "effect"] == pytest.approx(1)
    only = patch(im, clean, corrupt, 1, sweep="operation", operations=["mid1"])
    assert list(only.table["operation"]) == ["mid1"]
    # One position of the last state: effects add up, since a linear layer follows.
    parts = patch(im, clean, corrupt, 1, operations=["post2"])
    assert parts.table["effect"].sum() == pytest.approx(1, abs=1e-3)
    axes = parts.plot()
    assert axes.get_xlabel() == "position" and "position of the clean run, put" in axes.get_title()
    assert "score" in parts.summary().lower() and "post2" in parts.summary()


def test_by_default_the_leading_classes_are_compared(transformer):
    im, clean, corrupt = transformer
    first, second = (int(im.logits(x[None]).argmax()) for x in (clean, corrupt))
    found = patch(im, clean, corrupt, operations=["mid1"])
    against = () if first == second else (second,)
    assert found.target.neurons == (first,) and found.target.against == against


def test_paths_are_those_computed_by_hand():
    """y = last(a + b(relu(a))): a acts directly, or through b alone; in NumPy."""
    rng = np.random.default_rng(0)
    row = keras.Input((3,), name="row")
    a = layers.Dense(4, name="a")(row)
    b = layers.Dense(4, name="b")(layers.ReLU()(a))
    model = keras.Model(row, layers.Dense(2, name="last")(layers.Add(name="sum")([a, b])))
    for variable in model.variables:
        variable.assign(rng.normal(size=variable.shape))
    clean, corrupt = rng.normal(size=(2, 3)).astype(np.float32)
    (wa, ba), (wb, bb), (wl, bl) = (model.get_layer(n).get_weights() for n in ("a", "b", "last"))

    def of_a(x):
        return x @ wa + ba

    def of_b(h):
        return np.maximum(h, 0) @ wb + bb

    def score(h, g):
        return ((h + g) @ wl + bl)[1]

    h, g = of_a(clean), of_b(of_a(clean))
    k = of_a(corrupt)
    whole = score(k, of_b(k)) - score(h, g)
    through = patch_path(model, clean, corrupt, "a", "b", {"last": 1})
    assert through == pytest.approx((score(h, of_b(k)) - score(h, g)) / whole, rel=1e-4)
    direct = patch_path(model, clean, corrupt, "a", "last", {"last": 1})
    assert direct == pytest.approx((score(k, g) - score(h, g)) / whole, rel=1e-4)
    assert through + direct == pytest.approx(1, rel=1e-3)  # the last layer is linear
    with pytest.raises(nns.errors.InvalidArgumentError, match="does not depend"):
        patch_path(model, clean, corrupt, "b", "a", {"last": 1})


def test_an_activation_is_reached_through_its_own_sum():
    keras.utils.set_random_seed(0)
    stack = [layers.Dense(8, "relu", name="a"), layers.Dense(6, "tanh", name="b")]
    model = keras.Sequential([keras.Input((4,)), *stack, layers.Dense(2, name="last")])
    samples = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    for receiver in ("b", "b:pre", "last"):  # the only way
        effect = patch_path(model, *samples, "a", receiver, {"last": 0})
        assert effect == pytest.approx(0 if receiver == "last" else 1, abs=1e-4)


def test_a_head_reads_a_head_alone(transformer):
    """The second attention's head, where only the first's head differs; by hand."""
    im, clean, corrupt = transformer
    found = patch_path(
        im, clean, corrupt, ("attention1/context", 1), ("attention2/context", 0), {"last": 2}
    )
    kept, changed = (im.capture(x[None]) for x in (clean, corrupt))
    context = np.where(
        np.arange(2)[:, None] == 1, changed["attention1/context"], kept["attention1/context"]
    )
    hold = {n: lambda _, n=n: ops.convert_to_tensor(kept[n]) for n in ("hidden1:pre", "back1")}
    seen = im.graph.run(
        ops.convert_to_tensor(clean[None]),
        ["attention2/context"],
        lambda n, v: context if n == "attention1/context" else hold[n](v) if n in hold else v,
    )["attention2/context"]
    received = np.where(np.arange(2)[:, None] == 0, seen, kept["attention2/context"])
    after = replaced(im, clean, {"attention2/context": lambda _: ops.convert_to_tensor(received)})
    low, high = (im.logits(x[None])[0][2] for x in (clean, corrupt))
    assert found == pytest.approx((after[2] - low) / (high - low), rel=1e-3, abs=1e-4)
    assert abs(found) > 1e-3


def test_bad_arguments(transformer):
    im, clean, corrupt = transformer
    for options, message in (
        ({"sweep": "layer"}, "Unknown sweep 'layer'"),
        ({"operations": ["nowhere"]}, "'nowhere' does not exist"),
        ({"operations": ["mid1"], "sweep": "head"}, "'mid1' has no heads"),
    ):
        with pytest.raises(nns.errors.InvalidArgumentError, match=message):
            patch(im, clean, corrupt, 1, **options)
    with pytest.raises(nns.errors.InvalidArgumentError, match="in both runs"):
        patch(im, clean, clean, 1)
    with pytest.raises(nns.errors.InvalidArgumentError, match="has 2 heads"):
        patch_path(im, clean, corrupt, ("attention1/context", 5), "hidden2:pre", 1)


def test_errors_say_which_of_the_samples_is_bad(transformer):
    im, clean, corrupt = transformer
    with pytest.raises(nns.errors.InputShapeError, match="The corrupt sample: The model takes"):
        patch(im, clean, corrupt[:-1], 1)
    with pytest.raises(nns.errors.NNSlicerError, match="The clean sample: "):
        patch_path(im, np.full(clean.shape, np.nan), corrupt, "mid1", "hidden2:pre", 1)


def test_no_operations_are_refused(transformer):
    im, clean, corrupt = transformer
    with pytest.raises(nns.errors.InvalidArgumentError, match="operations is empty"):
        patch(im, clean, corrupt, 0, operations=[])
