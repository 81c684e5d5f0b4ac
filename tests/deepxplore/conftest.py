"""Models of scikit-learn's digits that disagree now and then."""

import keras
import pytest
from sklearn.linear_model import LogisticRegression

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo


@pytest.fixture(scope="session")
def digits():
    return datasets.load("digits", "test")


@pytest.fixture(scope="session")
def models():
    """The trained network, and a linear classifier fitted by scikit-learn."""
    train = datasets.load("digits", "train")
    flat = train.x.reshape(len(train), -1)
    fitted = LogisticRegression(C=0.5, max_iter=500).fit(flat, train.y)
    linear = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Flatten(name="flat"),
            keras.layers.Dense(10, name="linear"),
            keras.layers.Softmax(name="probabilities"),
        ],
        name="linear_digits",
    )
    linear.set_weights([fitted.coef_.T, fitted.intercept_])
    return [zoo.load("digits_cnn"), linear]


@pytest.fixture(scope="session")
def ims(models):
    return [nns.InstrumentedModel(model) for model in models]
