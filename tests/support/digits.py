"""Fixtures on scikit-learn's digits: models that disagree now and then, and slices."""

import keras
import pytest
from sklearn.linear_model import LogisticRegression

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf.detection import SliceDetector
from nnslicer_tf.detection.attacks import MNIST_ATTACKS, generate


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
def normal():
    return datasets.load("digits", "train").x


@pytest.fixture(scope="session")
def slicer(normal):
    im = nns.InstrumentedModel(zoo.load("digits_cnn"))
    profile = nns.Profile.from_data(im, normal, progress=False)
    return nns.Slicer(im, profile, theta=0.0, progress=False)


@pytest.fixture(scope="session")
def ims(models):
    return [nns.InstrumentedModel(model) for model in models]


@pytest.fixture(scope="module")
def fgsm(slicer):
    """Test images that FGSM turned, and what it made of them."""
    data = datasets.load("digits", "test")
    spec = MNIST_ATTACKS["FGSM_4"]
    made = generate(slicer.im.model, spec, data.x, data.y, progress=False)
    return data.x[made.success], made.x[made.success]


@pytest.fixture(scope="module")
def fitted(slicer, normal):
    """A fitted detector for each preset, made when it is first asked for."""
    made = {}

    def get(preset: str) -> SliceDetector:
        if preset not in made:
            made[preset] = SliceDetector(slicer, preset, max_synapses=512).fit(normal)
        return made[preset]

    return get
