"""Files of Keras 2: each is written by tf-keras, loaded by this library, and compared.

    python tests/gauntlet/old_files.py [CASE …]

builds models of every layer of Keras 2 and of its old options with tf-keras, saves each in three
forms (`h5`; `2.2`, the same with a config as Keras 2.2 wrote it; `keras`, the ZIP of 2.13 to 2.15),
and compares `load_model`'s predictions with tf-keras's. A file is equal, or it is refused with the
layer and the remedy; anything else is a fault. The rows are in `data/results/old_files/files.csv`.
"""

import csv
import json
import sys
import tempfile
import warnings
from pathlib import Path

import keras
import numpy as np

from nnslicer_tf.errors import NNSlicerError
from nnslicer_tf.instrument.loading import load_model

TABLE = Path(__file__).parents[2] / "data" / "results" / "old_files" / "files.csv"
FIELDS = ("case", "form", "outcome", "difference", "reason")
FORMS = ("h5", "2.2", "keras")
TOLERANCE = 1e-5
CASES = {}


def case(name, shape=(6,), draw=None, atol=TOLERANCE):
    """Register the layers of a sequential model, or a function of an input, under a name."""

    def register(make):
        CASES[name] = (make, shape, draw, atol)
        return make

    return register


def integers(below):
    return lambda rng, shape: rng.integers(0, below, shape).astype("int32")


def strings(*words):
    return lambda rng, shape: rng.choice(np.array(words, dtype=object), shape)


SEQUENCE, IMAGE, VOLUME = (5, 4), (8, 8, 3), (4, 4, 4, 2)
TOKENS = integers(9)

# Layers, by a name and the input's shape: what a sequential model of them is
STACKS = {
    "dense": (SEQUENCE[1:], lambda k, ls: [ls.Dense(5, "relu"), ls.Dense(3, "softmax")]),
    "activations": (
        (6,),
        lambda k, ls: [
            o
            for name in ("elu", "selu", "softplus", "softsign", "tanh", "gelu", "swish", "mish")
            for o in (ls.Dense(6), ls.Activation(name))
        ],
    ),
    "exponential, linear, relu6": (
        (6,),
        lambda k, ls: [ls.Dense(6, "exponential"), ls.Dense(4, "linear"), ls.ReLU(6.0)],
    ),
    "hard_sigmoid": ((6,), lambda k, ls: [ls.Dense(5, "hard_sigmoid"), ls.Dense(2, "sigmoid")]),
    "hard_sigmoid as a layer": ((6,), lambda k, ls: [ls.Dense(5), ls.Activation("hard_sigmoid")]),
    "LeakyReLU alpha": ((6,), lambda k, ls: [ls.Dense(5), ls.LeakyReLU(alpha=0.17), ls.Dense(2)]),
    "LeakyReLU default": ((6,), lambda k, ls: [ls.Dense(5), ls.LeakyReLU(), ls.Dense(2)]),
    "ReLU with slope": (
        (6,),
        lambda k, ls: [ls.Dense(5), ls.ReLU(max_value=1.0, negative_slope=0.2, threshold=0.1)],
    ),
    "ELU alpha": ((6,), lambda k, ls: [ls.Dense(5), ls.ELU(alpha=0.4)]),
    "ThresholdedReLU": ((6,), lambda k, ls: [ls.Dense(5), ls.ThresholdedReLU(theta=0.4)]),
    "PReLU": (IMAGE, lambda k, ls: [ls.Conv2D(4, 3), ls.PReLU(shared_axes=[1, 2]), ls.Flatten()]),
    "Softmax axis": (IMAGE, lambda k, ls: [ls.Conv2D(4, 3), ls.Softmax(axis=1)]),
    "Softmax of two axes": (IMAGE, lambda k, ls: [ls.Conv2D(4, 3), ls.Softmax(axis=[1, 2])]),
    "Conv1D": (
        (9, 3),
        lambda k, ls: [
            ls.Conv1D(4, 3, padding="causal", dilation_rate=2),
            ls.Conv1D(4, 3, strides=2, groups=2),
            ls.GlobalMaxPooling1D(),
        ],
    ),
    "Conv2D": (
        IMAGE,
        lambda k, ls: [
            ls.ZeroPadding2D(((1, 0), (2, 1))),
            ls.Conv2D(6, (3, 2), strides=(2, 1), padding="same", activation="relu"),
            ls.Conv2D(4, 2, groups=2, use_bias=False),
            ls.Cropping2D(((0, 1), (1, 0))),
            ls.GlobalAveragePooling2D(keepdims=True),
        ],
    ),
    "Conv3D": (
        VOLUME,
        lambda k, ls: [
            ls.Conv3D(4, 2, padding="same"),
            ls.MaxPooling3D(2),
            ls.Conv3DTranspose(2, 2, strides=2),
            ls.AveragePooling3D(2),
            ls.UpSampling3D(2),
            ls.ZeroPadding3D(1),
            ls.Cropping3D(1),
            ls.GlobalAveragePooling3D(),
        ],
    ),
    "transposed": (
        IMAGE,
        lambda k, ls: [
            ls.Conv2DTranspose(4, 3, strides=2, padding="same", output_padding=1),
            ls.Conv2DTranspose(2, 3, strides=2, padding="valid"),
        ],
    ),
    "Conv1DTranspose": ((7, 3), lambda k, ls: [ls.Conv1DTranspose(4, 3, strides=2)]),
    "DepthwiseConv2D": (
        IMAGE,
        lambda k, ls: [ls.DepthwiseConv2D(3, depth_multiplier=2), ls.DepthwiseConv2D(2)],
    ),
    "DepthwiseConv1D": ((9, 3), lambda k, ls: [ls.DepthwiseConv1D(3, depth_multiplier=2)]),
    "separable": (
        IMAGE,
        lambda k, ls: [
            ls.SeparableConv2D(5, 3, depth_multiplier=2, activation="relu"),
            ls.Reshape((36, 5)),
            ls.SeparableConv1D(3, 3),
        ],
    ),
    "LocallyConnected2D": (IMAGE, lambda k, ls: [ls.LocallyConnected2D(2, 3), ls.Flatten()]),
    "pooling": (
        IMAGE,
        lambda k, ls: [
            ls.MaxPooling2D(2, strides=1, padding="same"),
            ls.AveragePooling2D(3, strides=2, padding="same"),
            ls.Flatten(data_format="channels_last"),
        ],
    ),
    "upsampling": (
        IMAGE,
        lambda k, ls: [ls.UpSampling2D(2, interpolation="bilinear"), ls.UpSampling2D((1, 2))],
    ),
    "upsampling bicubic": (IMAGE, lambda k, ls: [ls.UpSampling2D(2, interpolation="bicubic")]),
    "BatchNormalization": (
        IMAGE,
        lambda k, ls: [ls.Conv2D(4, 3), ls.BatchNormalization(), ls.BatchNormalization(axis=1)],
    ),
    "BatchNormalization without scale": (
        SEQUENCE,
        lambda k, ls: [
            ls.BatchNormalization(scale=False, epsilon=0.1),
            ls.BatchNormalization(center=False),
        ],
    ),
    "BatchNormalization of two axes": (IMAGE, lambda k, ls: [ls.BatchNormalization(axis=[2, 3])]),
    "BatchNormalization renorm": (IMAGE, lambda k, ls: [ls.BatchNormalization(renorm=True)]),
    "LayerNormalization": (
        IMAGE,
        lambda k, ls: [ls.LayerNormalization(), ls.LayerNormalization(axis=[1, 2, 3])],
    ),
    "LayerNormalization of two axes": (
        IMAGE,
        lambda k, ls: [ls.LayerNormalization(axis=[1, 2], epsilon=0.01)],
    ),
    "GroupNormalization": (IMAGE, lambda k, ls: [ls.Conv2D(4, 3), ls.GroupNormalization(2)]),
    "UnitNormalization": (IMAGE, lambda k, ls: [ls.Conv2D(4, 3), ls.UnitNormalization()]),
    "UnitNormalization of two axes": (IMAGE, lambda k, ls: [ls.UnitNormalization(axis=[1, 2])]),
    "Normalization": (SEQUENCE, lambda k, ls: [adapted(k, ls, SEQUENCE), ls.Dense(2)]),
    "Normalization of one number": (
        SEQUENCE,
        lambda k, ls: [ls.Normalization(axis=None, mean=0.5, variance=4.0), ls.Dense(2)],
    ),
    "Normalization with constants": (
        (3,),
        lambda k, ls: [ls.Normalization(mean=[1.0, 2.0, 3.0], variance=[4.0, 2.0, 1.0])],
    ),
    "Normalization inverted": (
        (3,),
        lambda k, ls: [ls.Normalization(mean=[1.0, 2, 3], variance=[4.0, 2, 1], invert=True)],
    ),
    "LSTM": (
        SEQUENCE,
        lambda k, ls: [
            ls.LSTM(4, return_sequences=True, implementation=1),
            ls.LSTM(3, unit_forget_bias=False, dropout=0.2, recurrent_dropout=0.1),
        ],
    ),
    "LSTM hard_sigmoid": (
        SEQUENCE,
        lambda k, ls: [ls.LSTM(4, recurrent_activation="hard_sigmoid"), ls.Dense(2)],
    ),
    "LSTM relu": (SEQUENCE, lambda k, ls: [ls.LSTM(4, activation="relu", use_bias=False)]),
    "LSTM backwards, unrolled": (
        SEQUENCE,
        lambda k, ls: [ls.LSTM(4, go_backwards=True, unroll=True, return_sequences=True)],
    ),
    "LSTM time_major": (SEQUENCE, lambda k, ls: [ls.LSTM(4, time_major=True)]),
    "GRU": (
        SEQUENCE,
        lambda k, ls: [ls.GRU(4, return_sequences=True), ls.GRU(3, reset_after=False)],
    ),
    "GRU hard_sigmoid": (
        SEQUENCE,
        lambda k, ls: [ls.GRU(4, recurrent_activation="hard_sigmoid", reset_after=False)],
    ),
    "SimpleRNN": (SEQUENCE, lambda k, ls: [ls.SimpleRNN(4, activation="relu"), ls.Dense(1)]),
    "RNN of cells": (
        SEQUENCE,
        lambda k, ls: [
            ls.RNN(ls.LSTMCell(4), return_sequences=True),
            ls.RNN([ls.GRUCell(3), ls.SimpleRNNCell(2)]),
        ],
    ),
    "RNN of cells, hard_sigmoid": (
        SEQUENCE,
        lambda k, ls: [ls.RNN(ls.LSTMCell(4, recurrent_activation="hard_sigmoid"))],
    ),
    "CuDNN-like v1 layers": (
        SEQUENCE,
        lambda k, ls: [v1(k).LSTM(4, return_sequences=True), v1(k).GRU(3)],
    ),
    "Bidirectional": (
        SEQUENCE,
        lambda k, ls: [
            ls.Bidirectional(ls.LSTM(3, return_sequences=True), merge_mode="sum"),
            ls.Bidirectional(ls.GRU(2)),
        ],
    ),
    "Bidirectional hard_sigmoid": (
        SEQUENCE,
        lambda k, ls: [ls.Bidirectional(ls.LSTM(3, recurrent_activation="hard_sigmoid"))],
    ),
    "Bidirectional with a backward layer": (
        SEQUENCE,
        lambda k, ls: [
            ls.Bidirectional(
                ls.LSTM(3, return_sequences=True),
                backward_layer=ls.GRU(2, return_sequences=True, go_backwards=True),
            )
        ],
    ),
    "TimeDistributed": (
        SEQUENCE,
        lambda k, ls: [ls.TimeDistributed(ls.Dense(3, "hard_sigmoid")), ls.Flatten()],
    ),
    "TimeDistributed Conv2D": (
        (3, 8, 8, 2),
        lambda k, ls: [
            ls.TimeDistributed(ls.Conv2D(4, 3, activation="relu")),
            ls.TimeDistributed(ls.GlobalAveragePooling2D()),
            ls.LSTM(2),
        ],
    ),
    "TimeDistributed of a model": (
        SEQUENCE,
        lambda k, ls: [
            ls.TimeDistributed(k.Sequential([ls.Input((4,)), ls.Dense(3), ls.Dense(2, "tanh")])),
            ls.Flatten(),
        ],
    ),
    "TimeDistributed of Bidirectional": (
        (3, 5, 4),
        lambda k, ls: [ls.TimeDistributed(ls.Bidirectional(ls.GRU(2))), ls.LSTM(2)],
    ),
    "ConvLSTM2D": (
        (3, 6, 6, 2),
        lambda k, ls: [ls.ConvLSTM2D(3, 3, return_sequences=True), ls.ConvLSTM2D(2, 2)],
    ),
    "ConvLSTM1D, 3D": (
        (3, 6, 2),
        lambda k, ls: [ls.ConvLSTM1D(3, 3, recurrent_activation="sigmoid"), ls.Flatten()],
    ),
    "Masking": (
        SEQUENCE,
        lambda k, ls: [ls.Masking(0.0), ls.LSTM(3)],
    ),
    "noise and dropout": (
        SEQUENCE,
        lambda k, ls: [
            ls.GaussianNoise(0.1),
            ls.SpatialDropout1D(0.2),
            ls.GaussianDropout(0.2),
            ls.Dropout(0.3, noise_shape=[None, 1, None]),
            ls.AlphaDropout(0.2),
            ls.ActivityRegularization(l1=0.1),
            ls.Dense(2, kernel_regularizer="l2", kernel_constraint="max_norm"),
        ],
    ),
    "random pictures": (
        IMAGE,
        lambda k, ls: [
            ls.RandomFlip(),
            ls.RandomRotation(0.1),
            ls.RandomZoom(0.1),
            ls.RandomTranslation(0.1, 0.1),
            ls.RandomContrast(0.1),
            ls.RandomBrightness(0.1),
            ls.Conv2D(2, 3),
        ],
    ),
    "RandomCrop": (IMAGE, lambda k, ls: [ls.RandomCrop(6, 6), ls.Conv2D(2, 3)]),
    "Rescaling, Resizing": (
        IMAGE,
        lambda k, ls: [ls.Rescaling(0.5, offset=-1.0), ls.Resizing(5, 7), ls.CenterCrop(4, 5)],
    ),
    "Resizing nearest": (IMAGE, lambda k, ls: [ls.Resizing(5, 12, interpolation="nearest")]),
    "Resizing bicubic": (IMAGE, lambda k, ls: [ls.Resizing(5, 12, interpolation="bicubic")]),
    "Resizing area": (IMAGE, lambda k, ls: [ls.Resizing(4, 4, interpolation="area")]),
    "Resizing with a crop": (
        (8, 10, 3),
        lambda k, ls: [ls.Resizing(4, 4, crop_to_aspect_ratio=True)],
    ),
    "CenterCrop of a small picture": (IMAGE, lambda k, ls: [ls.CenterCrop(10, 9)]),
    "shapes": (
        SEQUENCE,
        lambda k, ls: [
            ls.Permute((2, 1)),
            ls.Reshape((2, -1)),
            ls.ZeroPadding1D(1),
            ls.Cropping1D((1, 0)),
            ls.UpSampling1D(2),
            ls.MaxPooling1D(2),
            ls.AveragePooling1D(2, strides=1),
            ls.Flatten(),
            ls.RepeatVector(3),
        ],
    ),
    "EinsumDense": (
        SEQUENCE,
        lambda k, ls: [ls.EinsumDense("abc,cd->abd", output_shape=(None, 3), bias_axes="d")],
    ),
    "Lambda of Python code": (SEQUENCE, lambda k, ls: [ls.Lambda(lambda x: x * 2.0), ls.Dense(2)]),
    "a nested model": (
        (6,),
        lambda k, ls: [
            k.Sequential([ls.Input((6,)), ls.Dense(4, "hard_sigmoid"), ls.Dense(4)]),
            ls.Dense(2),
        ],
    ),
    "a nested model, half frozen": ((6,), lambda k, ls: [half_frozen(k, ls), ls.Dense(2)]),
    "a frozen layer": (
        (6,),
        lambda k, ls: [ls.Dense(6, trainable=False), ls.BatchNormalization(trainable=False)],
    ),
    "mixed float16": (
        (6,),
        lambda k, ls: [ls.Dense(5, "relu", dtype="mixed_float16"), ls.Dense(2, dtype="float32")],
    ),
    "float64": ((6,), lambda k, ls: [ls.Dense(5, "relu", dtype="float64"), ls.Dense(2)]),
    "a policy": (
        (6,),
        lambda k, ls: [
            ls.Dense(5, "relu", dtype=k.mixed_precision.Policy("mixed_bfloat16")),
            ls.Dense(2, dtype="float32"),
        ],
    ),
}
TOKEN_STACKS = {
    "Embedding": lambda k, ls: [ls.Embedding(9, 4, input_length=5), ls.Flatten(), ls.Dense(2)],
    "Embedding with a mask": lambda k, ls: [ls.Embedding(9, 4, mask_zero=True), ls.LSTM(3)],
    "Embedding, mask, GRU, Bidirectional": lambda k, ls: [
        ls.Embedding(9, 4, mask_zero=True),
        ls.Bidirectional(ls.GRU(3, return_sequences=True)),
        ls.GlobalAveragePooling1D(),
    ],
    "CategoryEncoding": lambda k, ls: [
        ls.CategoryEncoding(9, output_mode="multi_hot"),
        ls.Dense(2),
    ],
    "CategoryEncoding of counts": lambda k, ls: [
        ls.CategoryEncoding(9, output_mode="count"),
        ls.Dense(2),
    ],
    "IntegerLookup": lambda k, ls: [
        ls.IntegerLookup(vocabulary=[3, 1, 5], output_mode="int"),
        ls.Embedding(6, 2),
    ],
    "Hashing": lambda k, ls: [ls.Hashing(5), ls.Embedding(6, 2)],
}
STRING_STACKS = {
    "StringLookup": lambda k, ls: [ls.StringLookup(vocabulary=["a", "b"]), ls.Embedding(5, 2)],
    "TextVectorization": lambda k, ls: [
        ls.TextVectorization(vocabulary=["", "[UNK]", "a", "b"], output_sequence_length=4),
        ls.Embedding(5, 2),
    ],
}


def adapted(k, ls, shape):
    layer = ls.Normalization()
    layer.adapt(np.random.default_rng(3).normal(2.0, 3.0, (20, *shape)).astype("f4"))
    return layer


def v1(k):
    """Return layers of Keras 1.x in TensorFlow: their recurrent activation was hard_sigmoid."""
    from tf_keras.src.layers.rnn import gru_v1, lstm_v1

    class Layers:
        LSTM, GRU = lstm_v1.LSTM, gru_v1.GRU

    return Layers


def half_frozen(k, ls):
    model = k.Sequential([ls.Input((6,)), ls.Dense(6), ls.Dense(6, "tanh"), ls.Dense(6)])
    model.layers[0].trainable = False
    return model


for _name, (_shape, _make) in STACKS.items():
    CASES[_name] = (_make, _shape, None, 2e-3 if "16" in _name or "policy" in _name else TOLERANCE)
for _name, _make in TOKEN_STACKS.items():
    CASES[_name] = (_make, (5,), TOKENS, TOLERANCE)
for _name, _make in STRING_STACKS.items():
    _shape = (1,) if "Text" in _name else (3,)
    CASES[_name] = (_make, _shape, strings("a", "b", "c", "a b c"), TOLERANCE)


@case("merges")
def _merges(k, ls):
    a, b = k.Input((4,), name="a"), k.Input((4,), name="b")
    parts = [ls.Add(), ls.Subtract(), ls.Multiply(), ls.Average(), ls.Maximum(), ls.Minimum()]
    both = [ls.Dense(4)(a), ls.Dense(4)(b)]
    out = ls.Concatenate()([*(part(both) for part in parts), ls.Dot(axes=1, normalize=True)(both)])
    return k.Model([a, b], out)


@case("a shared layer and two outputs")
def _shared(k, ls):
    a, b = k.Input((4,), name="a"), k.Input((4,), name="b")
    shared = ls.Dense(3, "hard_sigmoid", name="shared")
    out = ls.concatenate([shared(a), shared(b)])
    return k.Model([a, b], [ls.Dense(2, name="one")(out), ls.Dense(1, name="two")(out)])


@case("a shared nested model")
def _siamese(k, ls):
    a, b = k.Input((4,), name="a"), k.Input((4,), name="b")
    x = k.Input((4,))
    inner = k.Model(x, ls.Dense(3, "hard_sigmoid")(ls.BatchNormalization()(ls.Dense(5)(x))))
    return k.Model([a, b], ls.subtract([inner(a), inner(b)]))


@case("inputs by name")
def _named(k, ls):
    inputs = {"left": k.Input((4,), name="left"), "right": k.Input((3,), name="right")}
    out = ls.Concatenate()([ls.Dense(2)(inputs["left"]), ls.Dense(2)(inputs["right"])])
    return k.Model(inputs, {"y": ls.Dense(2, name="y")(out)})


@case("layers in another order")
def _order(k, ls):
    x = k.Input((4,))
    late, early = ls.Dense(4, name="b_late"), ls.Dense(4, name="a_early")
    return k.Model(x, ls.Add()([late(early(x)), early(x)]))


@case("LSTM states")
def _states(k, ls):
    x, y = k.Input((5, 4), name="x"), k.Input((3, 4), name="y")
    _, *states = ls.LSTM(3, return_state=True)(x)
    return k.Model([x, y], ls.LSTM(3)(y, initial_state=states))


@case("attention")
def _attention(k, ls):
    x, y = k.Input((5, 4), name="x"), k.Input((3, 4), name="y")
    out = ls.MultiHeadAttention(2, 3)(x, y)
    plain = ls.Attention(use_scale=True)([x, y])
    additive = ls.AdditiveAttention()([x, y])
    return k.Model([x, y], ls.Concatenate()([out, plain, additive]))


@case("operators of TensorFlow")
def _operators(k, ls):
    x = k.Input((6,))
    h = ls.Dense(6)(x)
    return k.Model(x, ls.Dense(2)((h * 2.0 + x) / 3.0 - 1.0))


@case("indices of tensors")
def _indices(k, ls):
    x = k.Input((5, 4))
    return k.Model(x, ls.Dense(2)(x[:, -1]))


@case("functions of TensorFlow")
def _functions(k, ls):
    import tensorflow as tf

    x = k.Input((5, 4))
    return k.Model(x, ls.Dense(2)(tf.nn.relu(tf.reduce_mean(x, axis=1))))


@case("masked attention")
def _masked_attention(k, ls):
    x = k.Input((5,), dtype="int32", name="ids")
    e = ls.Embedding(9, 4, mask_zero=True)(x)
    return k.Model(x, ls.GlobalAveragePooling1D()(ls.MultiHeadAttention(2, 3)(e, e)))


@case("nested models of both kinds")
def _nested(k, ls):
    x, y = k.Input((6,)), k.Input((6,))
    inner = k.Model(y, ls.Dense(6, "hard_sigmoid")(ls.BatchNormalization()(y)), name="inner")
    last = k.Sequential([ls.Input((6,)), ls.Dense(5), ls.Dense(2)], name="last")
    return k.Model(x, last(inner(inner(x))))


@case("MobileNetV2")
def _mobilenet(k, ls):
    return k.applications.MobileNetV2((32, 32, 3), alpha=0.35, weights=None, classes=3)


@case("EfficientNetB0")
def _efficientnet(k, ls):
    return k.applications.EfficientNetB0(input_shape=(32, 32, 3), weights=None, classes=3)


def build(name):
    """Return a case's model of tf-keras with random weights, and inputs."""
    import tf_keras

    make, shape, draw, _ = CASES[name]
    tf_keras.utils.set_random_seed(0)
    tf_keras.backend.clear_session()
    rng = np.random.default_rng(0)
    made = make(tf_keras, tf_keras.layers)
    if isinstance(made, list):
        dtype = "string" if draw and draw(rng, (1,)).dtype == object else "float32"
        dtype = "int32" if draw is TOKENS else dtype
        made = tf_keras.Sequential([tf_keras.layers.Input(shape, dtype=dtype), *made])
    x = []
    for tensor in made.inputs:
        size = (7, *tensor.shape[1:])
        pick = draw or (TOKENS if tensor.dtype == "int32" else None)
        x.append(pick(rng, size) if pick else rng.normal(size=size).astype("f4"))
    scale = 0.4 if len(made.layers) < 30 else 0.02  # outputs of deep networks would overflow
    for weight in made.weights:
        if weight.name.startswith(("count", "mean", "variance")) or not weight.dtype.is_floating:
            continue  # those of Normalization are read when it is built
        value = weight.numpy() + rng.normal(0.0, scale, weight.shape)
        weight.assign(np.abs(value) + 0.1 if "variance" in weight.name else value)
    if name == "Masking":
        x[0][:, 3:] = 0.0
    return made, x


def of_keras_22(config):
    """Return a config as Keras 2.2 wrote it: classes without modules, no newer keys."""
    if isinstance(config, list):
        return [of_keras_22(part) for part in config]
    if not isinstance(config, dict):
        return config
    newer = ("module", "registered_name", "build_config", "shared_object_id", "optional", "groups")
    drops = newer if "class_name" in config or "optional" in config else ()
    return {k: of_keras_22(v) for k, v in config.items() if k not in drops}


def write(model, folder, form):
    """Write a model of tf-keras in one of the `FORMS`, and return the path."""
    import h5py

    path = folder / ("model.keras" if form == "keras" else "model.h5")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.save(path)
    if form == "2.2":
        with h5py.File(path, "r+") as file:
            config = of_keras_22(json.loads(file.attrs["model_config"]))
            file.attrs["model_config"] = json.dumps(config).encode()
            file.attrs["keras_version"] = b"2.2.4"
    return path


def predictions(model, x):
    """Return a model's outputs as arrays."""
    names = getattr(model, "input_names", None)
    if isinstance(getattr(model, "_nested_inputs", None), dict):
        x = dict(zip(names, x, strict=True))
    elif isinstance(getattr(model, "_inputs_struct", None), dict):
        x = dict(zip(model._inputs_struct, x, strict=True))
    else:
        x = x if len(x) > 1 else x[0]
        if isinstance(x, np.ndarray) and x.dtype == object:
            import tensorflow as tf

            x = tf.constant(x.tolist())
    outputs = model(x, training=False)
    return [np.asarray(y, np.float64) for y in keras.tree.flatten(outputs)]


def compare(name, form, folder):
    """Return the row of a case in one form."""
    row = {"case": name, "form": form}
    model, x = build(name)
    expected = predictions(model, x)
    try:
        path = write(model, folder, form)
    except Exception as error:
        return {**row, "outcome": "not written", "reason": _line(error)}
    try:
        loaded = load_model(path)
        found = predictions(loaded, x)
    except NNSlicerError as error:
        return {**row, "outcome": "refused", "reason": _line(error).replace(str(folder), "")}
    except Exception as error:
        return {**row, "outcome": "FAULT: raw error", "reason": _line(error)}
    if [y.shape for y in found] != [y.shape for y in expected]:
        return {**row, "outcome": "FAULT: other shapes"}
    difference = max(np.abs(y - z).max() for y, z in zip(found, expected, strict=True))
    equal = difference <= CASES[name][3]
    row["difference"] = f"{difference:.1e}"
    return {**row, "outcome": "equal" if equal else "FAULT: other values"}


def _line(error):
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:400]


def main(names):
    rows = []
    for name in names or CASES:
        for form in FORMS:
            with tempfile.TemporaryDirectory() as folder:
                rows.append(compare(name, form, Path(folder)))
            print(*rows[-1].values(), sep=" | ", flush=True)
    if not names:
        TABLE.parent.mkdir(parents=True, exist_ok=True)
        with TABLE.open("w", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            writer.writeheader()
            writer.writerows(rows)
    faults = [row for row in rows if row["outcome"].startswith("FAULT")]
    print(len(rows), "files,", len(faults), "faults")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
