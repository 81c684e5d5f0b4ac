"""Slicing out an attribute: cut what carries it, and let attackers retrain (paper, section 7).

Digits are tinted red or green; in training the tint agrees with the digit's parity in four of five
images, so that a network learns to use it. Test images have either tint at random. The attribute is
the tint, the task the digit. `sliced` removes channels (they are set to their mean) in rounds: an
attacker is trained on the features that are left, and those channels go that do most for its answer
and least for the digit, by `Ablation.effects`. After each round attackers are trained anew on the
last hidden layer: one linear, one with a hidden layer.

Beside it: `random` channels, and `projected` features, from which the direction of a linear
attacker is removed in each round (Ravfogel et al., ACL 2020).
"""

from collections.abc import Iterator

import keras
import numpy as np
from keras import layers
from sklearn.linear_model import LogisticRegression
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import StandardScaler

from nnslicer_tf import InstrumentedModel, Profile, datasets
from nnslicer_tf.instrument import Ablation, Mean
from reproduction.nnslicer.settings import AttributeSettings
from reproduction.result import ExperimentResult, ExperimentTable, note
from reproduction.rows import RowStore

_TINTS = np.array([[1.0, 0.35, 0.35], [0.35, 1.0, 0.35]], np.float32)
_AGREES = 0.8  # share of the training images whose tint agrees with the parity
_ROUNDS, _SHARE = 10, 0.08  # of removal, and of the channels in each
_EPOCHS = 3
_SCORED = 400  # images by which channels are ranked


def attribute(s: AttributeSettings) -> ExperimentResult:
    """Slice the tint of digits out of a network; measure the task and retrained attackers."""
    store = RowStore.of(s, "attribute", ("seed",), "images")
    rows = store.fill([{"seed": i} for i in range(s.seeds)], lambda **n: _rows(s, **n), "Networks")
    by = rows.groupby(["way", "removed"], sort=False)
    means = by.mean(numeric_only=True).drop(columns="seed").reset_index()
    head = {"images": s.images, "seeds": s.seeds, "rounds": _ROUNDS}
    title = "An attribute sliced out: accuracy of the task and of attackers"
    table = ExperimentTable("attribute", means, title, head, note("attribute"))
    return ExperimentResult([table, ExperimentTable("attribute_rows", rows)])


class _Case:
    """A network that learned digits with tints, and its data."""

    def __init__(self, images: int, seed: int) -> None:
        keras.utils.set_random_seed(seed)
        self.rng = np.random.default_rng(seed)
        train = datasets.load("mnist", f"train[{seed * images}:{(seed + 1) * images}]")
        test = datasets.load("mnist", "test")
        agrees = self.rng.random(len(train.x)) < _AGREES
        tints = np.where(agrees, train.y % 2, 1 - train.y % 2)
        model = _network()
        optimizer = keras.optimizers.Adam(2e-3)
        model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        model.fit(train.x * _TINTS[tints][:, None, None], train.y, 64, _EPOCHS, verbose=0)
        # Attackers know images of both tints, whatever the digit.
        tints = self.rng.integers(0, 2, len(train.x))
        self.x, self.y, self.tint = train.x * _TINTS[tints][:, None, None], train.y, tints
        self.test_tint = self.rng.integers(0, 2, len(test.x))
        self.test_x, self.test_y = test.x * _TINTS[self.test_tint][:, None, None], test.y
        # The same layers, with an attacker's logit and the features beside the digits' logits.
        features = model.get_layer("features").output
        outputs = {"digit": model.output, "tint": layers.Dense(1, name="tint")(features)}
        outputs["copy"] = layers.Identity(name="copy")(features)
        self.model = keras.Model(model.inputs, outputs)
        im = InstrumentedModel(self.model)
        means = Mean(Profile.from_data(im, self.x[:1000], progress=False))
        self.by_output = {
            name: Ablation(im, means, "channel", target={name: "all"}) for name in outputs
        }
        self.units = self.by_output["tint"].units

    def features(self, mask: np.ndarray, x: np.ndarray) -> np.ndarray:
        """Return the last hidden layer's values `(samples, features)` under a mask of channels."""
        return self.by_output["copy"].outputs(mask, x)

    def attacked(self, mask: np.ndarray) -> np.ndarray:
        """Return for each channel how much more it does for a new attacker than for the digit."""
        scaler, attacker = _linear(self.features(mask, self.x), self.tint)
        weights = attacker.coef_[0] / scaler.scale_
        bias = attacker.intercept_ - weights @ scaler.mean_
        self.model.get_layer("tint").set_weights([weights[:, None], bias])
        shares = []
        for name, answers in {"tint": self.tint, "digit": self.y}.items():
            total = np.zeros(self.units)
            for answer in np.unique(answers):
                x = self.x[:_SCORED][answers[:_SCORED] == answer]
                target = {name: 0 if name == "tint" else int(answer)}
                sign = 2 * answer - 1 if name == "tint" else 1
                total += sign * self.by_output[name].effects(mask, x, target)[1]
            total = np.maximum(total, 0)
            shares.append(total / total.sum())
        return np.where(mask > 0, shares[0] - shares[1], -np.inf)


def _linear(features: np.ndarray, labels: np.ndarray) -> Pipeline:
    return make_pipeline(StandardScaler(), LogisticRegression(max_iter=2000)).fit(features, labels)


def _network() -> keras.Model:
    x = inputs = keras.Input((28, 28, 3))
    for filters in (16, 32):
        x = layers.Conv2D(filters, 3, activation="relu")(x)
        x = layers.MaxPooling2D()(x)
    x = layers.Dense(64, activation="relu", name="features")(layers.Flatten()(x))
    return keras.Model(inputs, layers.Dense(10, name="digit")(x))


def _rows(s: AttributeSettings, seed: int) -> Iterator[dict[str, object]]:
    case = _Case(s.images, seed)
    digit = case.model.get_layer("digit")
    kernel, bias = (np.asarray(weight) for weight in digit.get_weights())
    first = LogisticRegression(max_iter=500).fit(
        case.features(np.ones(case.units), case.x), case.tint
    )

    def measured(way: str, removed: float, train: np.ndarray, test: np.ndarray) -> dict:
        linear, refitted = _linear(train, case.tint), _linear(train, case.y)
        network = MLPClassifier(64, early_stopping=True, random_state=seed)
        hidden = make_pipeline(StandardScaler(), network).fit(train, case.tint)
        right = (test @ kernel + bias).argmax(axis=1) == case.test_y
        # Where the tint misleads: the digit's parity is the other one.
        misled = case.test_tint != case.test_y % 2
        row = {"way": way, "removed": removed, "digit": right.mean()}
        row |= {"digit, other tint": right[misled].mean()}
        row["digit, refitted"] = refitted.score(test, case.test_y)
        row["first attacker"] = first.score(test, case.test_tint)
        row["linear attacker"] = linear.score(test, case.test_tint)
        return row | {"hidden attacker": hidden.score(test, case.test_tint)}

    count = round(_SHARE * case.units)
    masks = {"sliced": np.ones(case.units), "random": np.ones(case.units)}
    ends = [case.features(masks["sliced"], x) for x in (case.x, case.test_x)]
    yield measured("none", 0.0, *ends)
    for step in range(1, _ROUNDS + 1):
        for way, mask in masks.items():
            free = np.where(mask > 0, case.rng.random(case.units), -np.inf)
            order = np.argsort(-(case.attacked(mask) if way == "sliced" else free), kind="stable")
            mask[order[:count]] = 0
            both = [case.features(mask, x) for x in (case.x, case.test_x)]
            yield measured(way, step * count / case.units, *both)
        # The direction of a linear attacker goes from the features, the mean stays.
        scaler, attacker = _linear(ends[0], case.tint)
        direction = attacker.coef_[0] / scaler.scale_
        direction /= np.linalg.norm(direction)
        middle = ends[0].mean(axis=0)
        ends = [x - np.outer((x - middle) @ direction, direction) for x in ends]
        yield measured("projected", step / ends[0].shape[1], *ends)
