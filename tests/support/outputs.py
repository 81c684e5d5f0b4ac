"""Small models of maps, numbers and several outputs, with data made by a seed."""

import keras
import numpy as np
from keras import layers

SIDE = 8


def images(count: int = 60, seed: int = 0) -> np.ndarray:
    """Return images `(count, 8, 8, 1)` of 0 … 1."""
    return np.random.default_rng(seed).uniform(size=(count, SIDE, SIDE, 1)).astype(np.float32)


def u_net(units: int = 3, final: str | None = "softmax") -> keras.Model:
    """Return a U-Net of one level with random weights, for images."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((SIDE, SIDE, 1))
    down = layers.Conv2D(8, 3, padding="same", activation="relu", name="down")(inputs)
    deep = layers.Conv2D(12, 3, padding="same", activation="relu", name="deep")(
        layers.MaxPooling2D()(down)
    )
    up = layers.Conv2DTranspose(8, 2, strides=2, activation="relu", name="up")(deep)
    joined = layers.Concatenate()([down, up])
    last = layers.Conv2D(8, 3, padding="same", activation="relu", name="last")(joined)
    scores = layers.Conv2D(units, 1, activation=final, name="map")
    model = keras.Model(inputs, scores(last), name="u_net")
    for weight in model.trainable_variables:  # answers of all classes
        weight.assign(2 * np.asarray(weight) if "kernel" in weight.path else np.asarray(weight))
    return model


def autoencoder() -> keras.Model:
    """Return an autoencoder of images with random weights."""
    keras.utils.set_random_seed(1)
    stack = [
        layers.Conv2D(8, 3, strides=2, padding="same", activation="relu", name="code"),
        layers.Conv2DTranspose(6, 2, strides=2, activation="relu", name="grow"),
        layers.Conv2D(1, 3, padding="same", name="picture"),
    ]
    return keras.Sequential([keras.Input((SIDE, SIDE, 1)), *stack])


def regression(columns: int = 6, values: int = 1) -> keras.Model:
    """Return a network of rows of a table, compiled for numbers."""
    keras.utils.set_random_seed(2)
    stack = [layers.Dense(16, activation="relu", name="wide"), layers.Dense(8, "relu", name="thin")]
    model = keras.Sequential([keras.Input((columns,)), *stack, layers.Dense(values, name="value")])
    model.compile("adam", "mse")
    return model


def two_outputs() -> keras.Model:
    """Return a network of rows with a class of three and a number."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((6,))
    shared = layers.Dense(16, activation="relu", name="shared")(inputs)
    kind = layers.Dense(3, activation="softmax", name="kind")(
        layers.Dense(8, activation="relu", name="of_kind")(shared)
    )
    size = layers.Dense(1, name="size")(layers.Dense(8, activation="relu", name="of_size")(shared))
    model = keras.Model(inputs, {"kind": kind, "size": size}, name="two")
    model.compile("adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"})
    return model


def noisy(model: keras.Model, scale: float = 0.05, only: str = "") -> keras.Model:
    """Return a copy with noise on its weights, or on those of one layer."""
    copy, rng = keras.models.clone_model(model), np.random.default_rng(0)
    copy.set_weights(model.get_weights())
    for variable in copy.trainable_variables:
        noise = scale * rng.standard_normal(variable.shape)
        if variable.path.startswith(only):
            variable.assign(np.asarray(variable) + noise)
    return copy
