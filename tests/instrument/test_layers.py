"""Every layer and operator that has a rule: captured values against plain Keras."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf.instrument import KINDS, Affine, Synapses
from nnslicer_tf.instrument.layers import (
    activations,
    merges,
    normalisation,
    pooling,
    routing,
    weighted_sums,
)

tf = pytest.importorskip("tensorflow")
FAMILIES = (activations, merges, normalisation, pooling, routing, weighted_sums)
LINE, IMAGE, VOLUME = (8, 3), (6, 5, 4), (4, 3, 4, 2)

# Layer class → (shape of the input, arguments) of each variant.
SINGLE = {
    layers.Dense: [((5,), {"units": 3, "activation": "relu"}), (IMAGE, {"units": 3})],
    layers.Conv1D: [
        (LINE, {"filters": 4, "kernel_size": 3, "activation": "tanh"}),
        (LINE, {"filters": 4, "kernel_size": 3, "padding": "causal", "dilation_rate": 2}),
    ],
    layers.Conv2D: [
        (IMAGE, {"filters": 4, "kernel_size": 3, "strides": 2, "padding": "same"}),
        (IMAGE, {"filters": 4, "kernel_size": (2, 3), "dilation_rate": 2, "activation": "relu"}),
        (IMAGE, {"filters": 6, "kernel_size": 3, "groups": 2, "use_bias": False}),
        (IMAGE, {"filters": 2, "kernel_size": 1, "activation": layers.PReLU()}),
        (IMAGE, {"filters": 2, "kernel_size": 1, "activation": layers.LeakyReLU(0.5)}),
    ],
    layers.Conv3D: [(VOLUME, {"filters": 3, "kernel_size": 2, "padding": "same"})],
    layers.DepthwiseConv1D: [(LINE, {"kernel_size": 3, "depth_multiplier": 2})],
    layers.DepthwiseConv2D: [
        (IMAGE, {"kernel_size": 3, "depth_multiplier": 2, "activation": "relu"}),
        (IMAGE, {"kernel_size": 3, "strides": 2, "padding": "same"}),
    ],
    layers.SeparableConv1D: [(LINE, {"filters": 4, "kernel_size": 3, "activation": "relu"})],
    layers.SeparableConv2D: [
        (IMAGE, {"filters": 3, "kernel_size": 3, "depth_multiplier": 2, "padding": "same"})
    ],
    layers.Conv1DTranspose: [(LINE, {"filters": 2, "kernel_size": 3, "strides": 2})],
    layers.Conv2DTranspose: [
        (IMAGE, {"filters": 2, "kernel_size": 3, "strides": 2, "padding": "same"}),
        (IMAGE, {"filters": 2, "kernel_size": 4, "strides": 2, "activation": "relu"}),
    ],
    layers.Conv3DTranspose: [(VOLUME, {"filters": 2, "kernel_size": 2, "strides": 2})],
    layers.AveragePooling1D: [(LINE, {"pool_size": 3, "padding": "same"})],
    layers.AveragePooling2D: [(IMAGE, {"pool_size": 2}), (IMAGE, {"pool_size": 3, "strides": 1})],
    layers.AveragePooling3D: [(VOLUME, {"pool_size": 2})],
    layers.MaxPooling1D: [(LINE, {"pool_size": 3, "padding": "same"})],
    layers.MaxPooling2D: [
        (IMAGE, {"pool_size": 2}),
        (IMAGE, {"pool_size": 3, "strides": 2, "padding": "same"}),
    ],
    layers.MaxPooling3D: [(VOLUME, {"pool_size": 2})],
    layers.GlobalAveragePooling1D: [(LINE, {})],
    layers.GlobalAveragePooling2D: [(IMAGE, {}), (IMAGE, {"keepdims": True})],
    layers.GlobalAveragePooling3D: [(VOLUME, {})],
    layers.GlobalMaxPooling1D: [(LINE, {})],
    layers.GlobalMaxPooling2D: [(IMAGE, {})],
    layers.GlobalMaxPooling3D: [(VOLUME, {})],
    layers.Activation: [
        (IMAGE, {"activation": name})
        for name in ("relu", "relu6", "linear", "gelu", "hard_sigmoid", "swish", "elu", "tanh")
    ],
    layers.ReLU: [
        (IMAGE, {}),
        (IMAGE, {"max_value": 1, "negative_slope": 0.25}),
        (IMAGE, {"threshold": 0.5}),
        (IMAGE, {"max_value": 6}),
    ],
    layers.LeakyReLU: [(IMAGE, {"negative_slope": 0.125})],
    layers.PReLU: [(IMAGE, {}), (IMAGE, {"shared_axes": [1, 2]})],
    layers.ELU: [(IMAGE, {"alpha": 0.5})],
    layers.Softmax: [(IMAGE, {}), (IMAGE, {"axis": 1})],
    layers.BatchNormalization: [
        (IMAGE, {}),
        ((5,), {"scale": False}),
        (IMAGE, {"center": False}),
        (IMAGE, {"axis": 1}),
    ],
    layers.Rescaling: [(IMAGE, {"scale": 1 / 255, "offset": -1.0})],
    layers.Normalization: [
        (IMAGE, {"mean": [1, 2, 3, 4], "variance": [1, 4, 9, 16]}),
        (IMAGE, {"mean": [1, 2, 3, 4], "variance": [1, 4, 9, 16], "invert": True}),
    ],
    layers.LayerNormalization: [(IMAGE, {})],
    layers.GroupNormalization: [(IMAGE, {"groups": 2})],
    layers.UnitNormalization: [(IMAGE, {})],
    layers.Flatten: [(IMAGE, {})],
    layers.Reshape: [(IMAGE, {"target_shape": (5, 6, 4)})],
    layers.Permute: [(IMAGE, {"dims": (2, 3, 1)})],
    layers.RepeatVector: [((5,), {"n": 3})],
    layers.ZeroPadding1D: [(LINE, {"padding": (1, 2)})],
    layers.ZeroPadding2D: [(IMAGE, {"padding": ((1, 0), (0, 2))})],
    layers.ZeroPadding3D: [(VOLUME, {"padding": 1})],
    layers.Cropping1D: [(LINE, {"cropping": (1, 2)})],
    layers.CenterCrop: [(IMAGE, {"height": 3, "width": 2})],
    layers.Cropping2D: [(IMAGE, {"cropping": ((1, 0), (0, 2))})],
    layers.Cropping3D: [(VOLUME, {"cropping": ((1, 0), (0, 1), (1, 1))})],
    layers.UpSampling1D: [(LINE, {"size": 3})],
    layers.UpSampling2D: [
        (IMAGE, {"size": (2, 3)}),
        (IMAGE, {"size": 2, "interpolation": "bilinear"}),
        (IMAGE, {"size": (3, 1), "interpolation": "bicubic"}),
    ],
    layers.Resizing: [
        (IMAGE, {"height": 9, "width": 4}),
        (IMAGE, {"height": 6, "width": 5}),
        (IMAGE, {"height": 3, "width": 8, "interpolation": "nearest"}),
        (IMAGE, {"height": 4, "width": 4, "crop_to_aspect_ratio": True}),
    ],
    layers.UpSampling3D: [(VOLUME, {"size": 2})],
    # Nothing at inference.
    layers.Identity: [(IMAGE, {})],
    layers.ActivityRegularization: [(IMAGE, {})],
    layers.Dropout: [(IMAGE, {"rate": 0.5})],
    layers.AlphaDropout: [(IMAGE, {"rate": 0.5})],
    layers.GaussianDropout: [(IMAGE, {"rate": 0.5})],
    layers.GaussianNoise: [(IMAGE, {"stddev": 1.0})],
    layers.SpatialDropout1D: [(LINE, {"rate": 0.5})],
    layers.SpatialDropout2D: [(IMAGE, {"rate": 0.5})],
    layers.SpatialDropout3D: [(VOLUME, {"rate": 0.5})],
    layers.RandomFlip: [((6, 5, 3), {})],
    layers.RandomBrightness: [((6, 5, 3), {"factor": 0.5})],
    layers.RandomContrast: [((6, 5, 3), {"factor": 0.5})],
    layers.RandomRotation: [((6, 5, 3), {"factor": 0.5})],
    layers.RandomTranslation: [((6, 5, 3), {"height_factor": 0.5, "width_factor": 0.5})],
    layers.RandomZoom: [((6, 5, 3), {"height_factor": 0.5})],
}
for _rank, _shape in ((1, LINE), (2, IMAGE), (3, VOLUME)):
    for _kind in ("Average", "Max"):
        _class = getattr(layers, f"Adaptive{_kind}Pooling{_rank}D")
        SINGLE[_class] = [(_shape, {"output_size": 2})]
RMS = getattr(layers, "RMSNormalization", None)
if RMS is not None:
    SINGLE[RMS] = [(IMAGE, {})]

# TensorFlow pools volumes in float32 alone; statistics are taken in the layer's precision.
NOT_IN_FLOAT64 = (
    *(layers.LayerNormalization, layers.GroupNormalization),
    *(layers.AveragePooling3D, layers.MaxPooling3D),
    *(layers.AdaptiveAveragePooling3D, layers.AdaptiveMaxPooling3D),
)

MERGES = (
    *(layers.Add, layers.Subtract, layers.Multiply, layers.Average),
    *(layers.Maximum, layers.Minimum, layers.Concatenate),
)

# Written in a functional model, without layers.
OPERATORS = {
    "x + y": lambda x, y: x + y,
    "x - y": lambda x, y: x - y,
    "x * y": lambda x, y: x * y,
    "x + 1": lambda x, y: x + 1.0,
    "1 - x": lambda x, y: 1.0 - x,
    "x * 2": lambda x, y: x * 2.0,
    "2 * x": lambda x, y: 2.0 * x,
    "x / 4": lambda x, y: x / 4.0,
    "-x": lambda x, y: -x,
    "x * array": lambda x, y: x * np.array([1.0, -2.0, 0.5, 3.0], "float32"),
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "relu": lambda x, y: ops.relu(x),
    "relu6": lambda x, y: ops.relu6(x),
    "leaky relu": lambda x, y: ops.leaky_relu(x, 0.25),
    "activations.relu": lambda x, y: keras.activations.relu(x, max_value=1.0),
    "sigmoid": lambda x, y: ops.sigmoid(x),
    "tanh": lambda x, y: ops.tanh(x),
    "gelu": lambda x, y: ops.gelu(x),
    "silu": lambda x, y: ops.silu(x),
    "exp": lambda x, y: ops.exp(x),
    "abs": lambda x, y: ops.absolute(x),
    "square": lambda x, y: ops.square(x),
    "clip": lambda x, y: ops.clip(x, -0.5, 1.0),
    "hard sigmoid": lambda x, y: ops.hard_sigmoid(x),
    "softmax": lambda x, y: ops.softmax(x),
    "mean": lambda x, y: ops.mean(x, axis=(1, 2)),
    "max": lambda x, y: ops.max(x, axis=(1, 2), keepdims=True),
    "reshape": lambda x, y: ops.reshape(x, (-1, 5, 6, 4)),
    "transpose": lambda x, y: ops.transpose(x, (0, 2, 1, 3)),
    "expand and squeeze": lambda x, y: ops.squeeze(ops.expand_dims(x, 1), 1),
    "flip": lambda x, y: ops.flip(x, 2),
    "repeat": lambda x, y: ops.repeat(x, 2, axis=1),
    "swap axes": lambda x, y: ops.swapaxes(x, 1, 2),
    "move axis": lambda x, y: ops.moveaxis(x, 3, 1),
    "concatenate": lambda x, y: ops.concatenate([x, y], axis=2),
    "stack": lambda x, y: ops.stack([x, y], axis=1),
    "x[:, 1:, ::2]": lambda x, y: x[:, 1:, ::2],
    "x[..., 0]": lambda x, y: x[..., 0],
}


def samples(shape, n=3, seed=0):
    return np.random.default_rng(seed).normal(size=(n, *shape)).astype(np.float32)


def randomise(model, seed=1):
    """Give all weights random values; variances stay positive."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if weight.dtype.startswith("float"):
            value = rng.normal(size=weight.shape)
            weight.assign(np.abs(value) + 0.5 if "variance" in weight.path else value)
    return model


def check_model(model):
    """Compare an instrumented model with the model; check what its operations promise."""
    randomise(model)
    im = nns.InstrumentedModel(model)
    x = samples(im.input_shape)
    expected = np.asarray(model(x, training=False))
    activations = im.capture(x)
    np.testing.assert_allclose(activations[im.output_operations[0]], expected, rtol=1e-5, atol=1e-5)
    for operation in im.operations[1:]:
        inputs = [activations[name] for name in operation.inputs]
        value = activations[operation.name]
        assert operation.kind in KINDS
        assert value.shape == (len(x), *operation.shape), operation
        assert operation.input_shapes == tuple(i.shape[1:] for i in inputs)
        check_float64(operation, inputs, value)
        if isinstance(operation.params, Affine):
            factor, offset = operation.params.read()
            effect = inputs[0] * factor + offset
            np.testing.assert_allclose(effect, value, rtol=1e-4, atol=1e-5)
        if isinstance(operation.params, Synapses):
            check_synapses(operation.params, inputs[0], value)
    return im


def computes_tanh(operation):
    named = type(operation.keras_layer).__name__ == "Tanh"
    return named or getattr(operation.keras_layer, "activation", None) is keras.activations.tanh


def check_float64(operation, inputs, value):
    """Operations compute in the precision of their inputs."""
    if isinstance(operation.keras_layer, NOT_IN_FLOAT64):
        return
    if keras.backend.backend() == "jax" and computes_tanh(operation):
        return  # Keras casts to float32 there
    tensors = [ops.convert_to_tensor(i.astype(np.float64)) for i in inputs]
    exact = ops.convert_to_numpy(operation.compute(*tensors))
    assert exact.dtype == np.float64, operation
    np.testing.assert_allclose(exact, value, rtol=1e-4, atol=1e-5, err_msg=operation.name)


def check_synapses(synapses, x, value):
    """A weighted sum written out: taps, weights and bias in NumPy, one group at a time."""
    matrix = synapses.matrix().astype(np.float64)  # (taps, inputs per group, outputs)
    flat = x.reshape(len(x), -1, x.shape[-1]).astype(np.float64)
    read = np.where((synapses.taps >= 0)[None, :, :, None], flat[:, synapses.taps], 0)
    per_group = matrix.shape[2] // synapses.groups
    parts = []
    for group in range(synapses.groups):
        inputs = read[..., group * matrix.shape[1] : (group + 1) * matrix.shape[1]]
        weights = matrix[..., group * per_group : (group + 1) * per_group]
        parts.append(np.einsum("nptc,tco->npo", inputs, weights))
    total = np.concatenate(parts, axis=-1)
    if (bias := synapses.read_bias()) is not None:
        total = total + bias
    np.testing.assert_allclose(total.reshape(value.shape), value, rtol=1e-4, atol=1e-4)
    assert np.array_equal(synapses.to_kernel(synapses.matrix()), synapses.kernel())


CASES = [
    pytest.param(layer_class, *variant, id=f"{layer_class.__name__}-{i}")
    for layer_class, variants in SINGLE.items()
    for i, variant in enumerate(variants)
]


@pytest.mark.parametrize(("layer_class", "shape", "arguments"), CASES)
def test_layer(layer_class, shape, arguments):
    layer = layer_class(**arguments, name="layer")
    im = check_model(keras.Sequential([keras.Input(shape), layer]))
    assert im.operations[-1].name == "layer"
    assert {operation.layer for operation in im.operations[1:]} == {"layer"}


@pytest.mark.parametrize(
    ("layer_class", "tensors"),
    [(merge, n) for merge in MERGES for n in (2, 3) if (merge, n) != (layers.Subtract, 3)],
)
def test_merge(layer_class, tensors):
    inputs = keras.Input(IMAGE)
    branches = [inputs, *(layers.Conv2D(4, 1)(inputs) for _ in range(tensors - 1))]
    check_model(keras.Model(inputs, layer_class()(branches)))


@pytest.mark.parametrize("name", OPERATORS)
def test_operator(name):
    inputs = keras.Input(IMAGE)
    other = layers.Conv2D(4, 1)(inputs)
    check_model(keras.Model(inputs, OPERATORS[name](inputs, other)))


def test_every_registered_layer_is_in_this_file():
    registered = {key for family in FAMILIES for key in family.LAYERS if isinstance(key, type)}
    assert registered <= {*SINGLE, *MERGES, layers.Dot}  # in test_attention


@pytest.mark.parametrize(
    "layer",
    [
        layers.Conv2D(2, 3, activation="relu"),
        layers.Dense(2, activation="gelu"),
        layers.DepthwiseConv2D(3, activation="tanh"),
        layers.SeparableConv2D(2, 3, activation="relu"),
        layers.Conv2DTranspose(2, 3, activation="relu"),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_value_before_a_fused_activation(layer):
    """`:pre` is what the same layer gives without its activation."""
    model = randomise(keras.Sequential([keras.Input(IMAGE), layer]))
    plain = type(layer).from_config({**layer.get_config(), "activation": None})
    plain.build((None, *IMAGE))
    plain.set_weights(layer.get_weights())
    x = samples(IMAGE)
    activations = nns.InstrumentedModel(model).capture(x)
    before = activations[f"{layer.name}:pre"]
    np.testing.assert_allclose(before, plain(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(
        activations[layer.name], layer.activation(before), rtol=1e-5, atol=1e-5
    )


@pytest.mark.parametrize(
    ("layer", "kind"),
    [
        (layers.ReLU(), "rectify"),
        (layers.ReLU(max_value=6.0), "rectify"),
        (layers.ReLU(negative_slope=0.5), "elementwise"),
        (layers.ReLU(threshold=1.0), "elementwise"),
        (layers.Activation("relu"), "rectify"),
        (layers.Activation("tanh"), "elementwise"),
        (layers.Activation("linear"), "routing"),
        (layers.Dropout(0.5), "routing"),
        (layers.LayerNormalization(), "scale"),
        (layers.MaxPooling2D(), "maximum"),
        (layers.GlobalAveragePooling2D(), "average"),
    ],
)
def test_kind(layer, kind):
    im = nns.InstrumentedModel(keras.Sequential([keras.Input(IMAGE), layer]))
    assert im.operations[-1].kind == kind


@pytest.mark.parametrize(
    ("layer", "message"),
    [
        (layers.Conv2DTranspose(2, 3, dilation_rate=2), "transposed and dilated"),
        (layers.Resizing(4, 8, pad_to_aspect_ratio=True, fill_value=1.0), "more than weight rows"),
        (layers.MultiHeadAttention(1, 2), "one axis of positions"),
        (layers.Lambda(lambda x: tf.cumsum(x, axis=1)), "function of TensorFlow.*keras.ops"),
        (layers.Lambda(lambda x: tf.reduce_mean(x, axis=1)), "function of TensorFlow.*keras.ops"),
    ],
)
def test_layers_without_a_rule_are_named(layer, message):
    inputs = keras.Input(IMAGE)
    attention = isinstance(layer, layers.MultiHeadAttention)
    outputs = layer(inputs, inputs) if attention else layer(inputs)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=message) as error:
        nns.InstrumentedModel(keras.Model(inputs, outputs))
    assert layer.name in str(error.value)
    assert type(layer).__name__ in str(error.value)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda x: ops.mean(x, axis=0, keepdims=True), "mixes samples"),
        (lambda x: ops.argsort(x, axis=-1), "returns indices"),
        (lambda x: x[0:1, :], "batch axis"),
    ],
)
def test_operators_without_a_rule_are_named(build, message):
    inputs = keras.Input(IMAGE)
    with pytest.raises(nns.errors.UnsupportedLayerError, match=message):
        nns.InstrumentedModel(keras.Model(inputs, build(inputs)))


def test_a_crop_that_enlarges_is_refused():
    model = keras.Sequential([keras.Input((3, 3, 1)), layers.CenterCrop(2, 5, name="crop")])
    with pytest.raises(
        nns.errors.UnsupportedLayerError, match=r"'crop' \(CenterCrop\) enlarges images"
    ):
        nns.InstrumentedModel(model)
