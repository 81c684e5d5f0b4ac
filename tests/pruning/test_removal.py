"""Removal of units: a small model gives what a model with zeros in their place gives."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import pruning
from nnslicer_tf.pruning.removal import mask_units
from support.models import MODELS, data, random_model, set_dyadic_weights


def outputs(model, x):
    return keras.ops.convert_to_numpy(model(x, training=False))


def random_units(model, rng):
    """Keep masks for the units of all layers but the last, at least one unit each."""
    im = nns.InstrumentedModel(model)
    keep = {}
    for operation in im.operations:
        inner = operation.kind == "weighted_sum" and operation.name != im.logit_operation
        if inner and not operation.name.endswith(":depthwise"):
            mask = rng.random(operation.shape[-1]) > 0.5
            mask[rng.integers(len(mask))] = True
            keep[operation.layer] = mask
    return keep


@pytest.mark.parametrize("name", MODELS)
def test_removing_equals_masking(name):
    rng = np.random.default_rng(7)
    model = set_dyadic_weights(MODELS[name](), rng)
    x = data(rng, model, 5)
    keep = random_units(model, rng)
    masked = mask_units(model, keep)
    small = pruning.remove_units(model, keep)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-5, atol=1e-5)
    assert small.count_params() <= model.count_params()


@pytest.mark.parametrize("seed", range(12))
def test_compacting_random_models_keeps_the_outputs(seed):
    rng = np.random.default_rng(seed)
    model = set_dyadic_weights(random_model(rng), rng)
    x = data(rng, model, 5)
    im = nns.InstrumentedModel(model)
    masks = {name: rng.random(k.shape) > 0.8 for name, k in im.kernels.items()}
    masked = pruning.apply_masks(model, masks)
    small = pruning.compact(masked)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-5, atol=1e-5)


def staged(stages, shape, classes=3):
    """A model in stages, and a function that runs it with channels zeroed between them."""
    model = keras.Sequential([keras.Input(shape), *(x for s in stages for x in s)])
    set_dyadic_weights(model, np.random.default_rng(1))

    def masked(x, *keeps):
        for stage, keep in zip(stages, (*keeps, 1.0)):
            for layer in stage:
                x = layer(x, training=False)
            x = x * np.asarray(keep, np.float32)
        return keras.ops.convert_to_numpy(x)

    return model, masked


@pytest.mark.parametrize("activation", ["relu", "sigmoid", "tanh"])
def test_a_removed_unit_is_read_as_zero(activation):
    """Against the model run stage by stage, the units zeroed between the stages."""
    model, masked = staged(
        [
            [
                layers.Conv2D(4, 3, padding="same", name="conv"),
                layers.BatchNormalization(epsilon=0),
                layers.Activation(activation),
                layers.MaxPooling2D(2),
            ],
            [layers.Flatten(), layers.Dense(5, activation=activation, name="hidden")],
            [layers.Dense(3)],
        ],
        (6, 4, 2),
    )
    x = data(np.random.default_rng(2), model, 4)
    conv, hidden = np.array([1, 0, 1, 0], bool), np.array([0, 1, 1, 1, 0], bool)
    small = pruning.remove_units(model, {"conv": conv, "hidden": hidden})
    expected = masked(x, conv, hidden)
    assert not np.allclose(expected, outputs(model, x))
    np.testing.assert_allclose(outputs(small, x), expected, rtol=1e-5, atol=1e-5)
    assert [tuple(w.shape) for w in small.weights if len(w.shape) > 1] == [
        (3, 3, 2, 2),
        (3 * 2 * 2, 3),
        (3, 3),
    ]
    assert small.get_layer("conv").filters == 2
    assert small.get_layer("hidden").units == 3


def residual_model():
    inputs = keras.Input((4, 4, 2))
    x = layers.Conv2D(4, 3, padding="same", name="stem")(inputs)
    x = layers.ReLU()(layers.BatchNormalization()(x))
    h = layers.Conv2D(6, 3, padding="same", name="inner", activation="relu")(x)
    h = layers.Conv2D(4, 3, padding="same", name="branch")(h)
    x = layers.Add()([x, layers.BatchNormalization(name="norm")(h)])
    x = layers.GlobalAveragePooling2D()(x)
    return set_dyadic_weights(
        keras.Model(inputs, layers.Dense(3, name="logits")(x)), np.random.default_rng(3)
    )


def test_channels_that_are_added_go_together():
    model = residual_model()
    x = data(np.random.default_rng(4), model, 4)
    first_out = np.array([0, 1, 1, 1], bool)
    inner = np.array([1, 0, 0, 1, 1, 0], bool)

    one = pruning.remove_units(model, {"branch": first_out, "inner": inner})
    assert one.get_layer("branch").kernel.shape == (3, 3, 3, 4)  # the stem still has it
    masked = mask_units(model, {"branch": first_out, "inner": inner})
    np.testing.assert_allclose(outputs(one, x), outputs(masked, x), rtol=1e-5, atol=1e-5)

    both = pruning.remove_units(model, {"branch": first_out, "stem": first_out})
    assert both.get_layer("stem").kernel.shape == (3, 3, 2, 3)
    assert both.get_layer("branch").kernel.shape == (3, 3, 6, 3)
    assert both.get_layer("norm").gamma.shape == (3,)
    assert both.get_layer("logits").kernel.shape == (3, 3)
    masked = mask_units(model, {"branch": first_out, "stem": first_out})
    np.testing.assert_allclose(outputs(both, x), outputs(masked, x), rtol=1e-5, atol=1e-5)


def test_a_depthwise_filter_goes_with_its_channel():
    model = keras.Sequential(
        [
            keras.Input((4, 4, 2)),
            layers.Conv2D(6, 1, use_bias=False, name="expand"),
            layers.BatchNormalization(epsilon=0),
            layers.ReLU(6.0),
            layers.DepthwiseConv2D(3, padding="same", name="depthwise"),
            layers.BatchNormalization(epsilon=0, name="norm"),
            layers.Conv2D(3, 1, name="project"),
        ]
    )
    set_dyadic_weights(model, np.random.default_rng(5))
    keep = np.array([1, 0, 1, 1, 0, 0], bool)
    small = pruning.remove_units(model, {"expand": keep})
    assert small.get_layer("depthwise").kernel.shape == (3, 3, 3, 1)
    assert small.get_layer("norm").beta.shape == (3,)
    # Independently: the rows of the projection that read the removed channels are zero.
    expected = pruning.without_masks(model)
    kernel = np.array(expected.get_layer("project").get_weights()[0])
    kernel[:, :, ~keep] = 0
    expected.get_layer("project").set_weights([kernel, model.get_layer("project").get_weights()[1]])
    x = data(np.random.default_rng(6), model, 4)
    np.testing.assert_allclose(outputs(small, x), outputs(expected, x), rtol=1e-5, atol=1e-5)


def test_units_that_nobody_reads_are_dead():
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, name="a"), layers.Dense(4, name="b"), layers.Dense(2)]
    )
    rng = np.random.default_rng(8)
    names = list(nns.InstrumentedModel(model).kernels)
    masks = {names[1]: np.ones((5, 4), bool), names[2]: np.ones((4, 2), bool)}
    masks[names[2]][:3] = False  # of b only unit 3 is read …
    masks[names[1]][[0, 4], 3] = False  # … and that reads units 1, 2 and 3 of a
    small = pruning.compact(pruning.apply_masks(model, masks))
    assert small.get_layer("a").units == 3
    assert small.get_layer("b").units == 1
    x = rng.normal(size=(5, 4)).astype(np.float32)
    masked = pruning.apply_masks(model, masks)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-5, atol=1e-6)


def test_a_layer_keeps_at_least_one_unit():
    model = keras.Sequential(
        [keras.Input((4,)), layers.Dense(5, activation="relu", name="a"), layers.Dense(2, name="b")]
    )
    model.get_layer("b").bias.assign([1.0, -2.0])
    small = pruning.remove_units(model, {"a": np.zeros(5, bool)})
    assert small.get_layer("a").units == 1
    np.testing.assert_array_equal(outputs(small, np.ones((1, 4), np.float32)), [[1.0, -2.0]])


def test_masks_hold_on_in_a_compacted_model(tmp_path):
    model = residual_model()
    im = nns.InstrumentedModel(model)
    pruned = pruning.prune(model, pruning.scores(im, "random"), 0.5)
    small = pruning.compact(mask_units(pruned, {"inner": np.array([1, 0, 0, 1, 1, 0], bool)}))
    held = pruning.masks(small)
    assert held["inner"].shape == (3, 3, 4, 3)
    np.testing.assert_array_equal(held["inner"], pruning.masks(pruned)["inner"][..., [0, 3, 4]])
    small.compile("sgd", "mse")
    x = data(np.random.default_rng(9), model, 16)
    small.fit(x, np.ones((16, 3)), epochs=2, verbose=0)
    kernels = nns.InstrumentedModel(small).kernels
    for name, mask in held.items():
        assert not kernels[name].kernel()[~mask].any()
    small.save(tmp_path / "small.keras")
    again = keras.models.load_model(tmp_path / "small.keras")
    np.testing.assert_array_equal(outputs(again, x), outputs(small, x))


def test_a_real_architecture_becomes_smaller():
    """MobileNetV2's blocks: expansion, depthwise, projection, with additions around."""
    keras.utils.set_random_seed(0)
    model = keras.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=10)
    rng = np.random.default_rng(0)
    keep = {
        layer.name: np.arange(layer.filters) % 2 == 0
        for layer in model.layers
        if layer.name.endswith("expand")
    }
    x = rng.uniform(size=(2, 32, 32, 3)).astype(np.float32)
    masked = mask_units(model, keep)
    small = pruning.compact(masked)
    np.testing.assert_allclose(outputs(small, x), outputs(masked, x), rtol=1e-4, atol=1e-6)
    for name, mask in keep.items():
        assert small.get_layer(name).filters == mask.sum()
        depthwise = small.get_layer(name.replace("expand", "depthwise"))
        assert depthwise.kernel.shape[-2] == mask.sum()


@pytest.mark.parametrize(
    ("keep", "message"),
    [
        ({"nosuch": np.ones(4, bool)}, "Unknown layer with a kernel 'nosuch'"),
        ({"stem": np.ones(3, bool)}, "'stem' has shape \\(3,\\), not \\(4,"),
    ],
)
def test_bad_masks_are_refused(keep, message):
    with pytest.raises(nns.errors.InvalidArgumentError, match=message):
        pruning.remove_units(residual_model(), keep)


@keras.saving.register_keras_serializable("tests")
class Block(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = layers.Dense(6, activation="relu")

    def call(self, x):
        return self.inner(x)


def test_a_block_that_makes_its_layers_is_refused_by_name():
    x = keras.Input((6,))
    model = keras.Model(x, layers.Dense(3)(Block()(x)))
    pruned = pruning.prune(model, pruning.scores(model, "random"), 0.9)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=r"\(Block\) creates its own"):
        pruning.compact(pruned)
