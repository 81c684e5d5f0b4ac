"""The zoo with the papers' larger networks: sizes, outputs, and the accuracy of their weights."""

import keras
import numpy as np
import pytest

from nnslicer_tf import datasets
from nnslicer_tf.errors import InvalidArgumentError
from reproduction.zoo.models import zoo

# Trainable parameters, counted by hand or as published. The papers give 42,784 for LeNet,
# 300 K for ResNet10 and 11 M for ResNet18.
PARAMETERS = {
    "digits_cnn": 16 * 10 + 32 * (9 * 16 + 1) + 10 * 129,
    "mlp": 785 * 512 + 513 * 256 + 257 * 10,
    "lenet": 42_784,
    "lenet1": 4 * 26 + 12 * 101 + 10 * 589,
    "lenet4": 6 * 26 + 16 * 151 + 84 * 785 + 850,
    "lenet5": 61_706,
    "simplenet": 20 * 26 + 50 * 501 + 500 * 801 + 5_010,
    "resnet10": (300_000, 320_000),
    "resnet10_preactivation": 308_634,
    "resnet18": 11_173_962,
    "resnet20": (265_000, 275_000),
    "plainnet20": (265_000, 275_000),
    "alexnet": 19_076_938,
    "vgg16": (15_000_000, 15_500_000),
    "resnet101": (42_000_000, 43_000_000),
    "mobilenet_v3_small": (1_500_000, 1_600_000),
    "mobilenet_v3_large": (4_000_000, 4_300_000),
    # 3×3 convolutions, 64 positions of 96 channels; blocks of attention, MLP and two norms
    "vit": 24 * 28
    + 48 * (9 * 24 + 1)
    + 96 * (9 * 48 + 1)
    + 96 * 64
    + 4 * (4 * 97 * 96 + 97 * 192 + 193 * 96 + 4 * 96)
    + 2 * 96
    + 970,
    "text_transformer": 64 * 14_052 + 2 * (4 * 65 * 64 + 65 * 128 + 129 * 64 + 4 * 64) + 128 + 130,
    "lstm_rows": 4 * 64 * (28 + 64 + 1) + 65 * 10,
    "text_lstm": 64 * 14_000 + 2 * 4 * 64 * (64 + 64 + 1) + 2 * 129,
}


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_and_outputs(name):
    model = zoo.build(name)
    count = sum(int(np.prod(w.shape)) for w in model.trainable_weights)
    expected = PARAMETERS[name]
    low, high = expected if isinstance(expected, tuple) else (expected, expected)
    assert low <= count <= high
    assert model.output_shape == (None, 2 if name.startswith("text") else 10)
    assert getattr(model.layers[-1], "activation", keras.activations.linear).__name__ == "linear"


def test_every_model_is_in_the_table():
    # VGG-19 for ImageNet is left out above: it takes 600 MB.
    assert set(zoo.MODELS) == {*PARAMETERS, "vgg19"}


def test_alexnets_dense_layer_holds_the_papers_share():
    model = zoo.build("alexnet")
    share = model.get_layer("dense1").count_params() / model.count_params()
    assert round(100 * share, 2) == 87.97


def test_mobilenet_enlarges_small_images():
    keras.utils.set_random_seed(0)
    model, large = (zoo.build("mobilenet_v3_small", (side, side, 3)) for side in (32, 96))
    large.set_weights(model.get_weights())
    x = np.random.default_rng(0).random((2, 32, 32, 3), np.float32)
    repeated = x.repeat(3, axis=1).repeat(3, axis=2)
    np.testing.assert_allclose(model(x), large(repeated), rtol=1e-4, atol=1e-6)
    assert model.get_layer("enlarged").output.shape == (None, 96, 96, 3)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: zoo.build("alexnet", (4, 4, 3)), r"'alexnet' cannot be built .*\(4, 4, 3\)"),
        (
            lambda: zoo.load("resnet101"),
            r"no trained weights of 'resnet101' on 'cifar10'.*train\.py",
        ),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(InvalidArgumentError, match=message):
        call()


@pytest.mark.parametrize(
    ("name", "images", "least"),
    [("resnet10", 1000, 0.87), ("resnet18", 200, 0.85), ("mobilenet_v3_small", 200, 0.8)],
)
def test_the_cifar10_models_read_cifar10(shared_data, name, images, least):
    data = datasets.load("cifar10", f"test[:{images}]")
    assert zoo.accuracy(zoo.load(name), data, batch_size=200) >= least
