"""Every public entry point with every kind of model: it answers, or says why it does not."""

import keras
import numpy as np
import pytest
from keras import layers

import nnslicer_tf as nns
from nnslicer_tf import (
    attributions,
    debugging,
    deepbase,
    deepxplore,
    detection,
    dflare,
    exactline,
    protection,
    pruning,
    semantic,
)

COUNT = 48


def stack(shape, *parts, loss=None, dtype="float32"):
    hidden = layers.Dense(8, activation="relu", name="hidden")
    filled = [hidden if part == "hidden" else part for part in parts]
    model = keras.Sequential([keras.Input(shape, dtype=dtype), *filled])
    if loss is not None:
        model.compile("sgd", loss)
    return model


def of_two_outputs():
    x = keras.Input((5,))
    h = layers.Dense(8, activation="relu", name="hidden")(x)
    return keras.Model(x, [layers.Dense(3, name="class")(h), layers.Dense(1, name="value")(h)])


def of_two_inputs():
    x = [keras.Input((5,)), keras.Input((4,))]
    h = layers.Dense(8, activation="relu", name="hidden")(layers.Concatenate()(x))
    return keras.Model(x, layers.Dense(3)(h))


def ensemble():
    x = keras.Input((5,))
    h = layers.Dense(8, activation="relu", name="hidden")(x)
    members = [layers.Dense(3, activation="softmax")(h) for _ in range(2)]
    return keras.Model(x, layers.Average()(members))


def of_a_map(final):
    parts = layers.Conv2D(4, 3, activation="relu", name="hidden"), layers.Conv2D(3, 1)
    return stack((6, 6, 1), *parts, layers.Activation(final))


@keras.saving.register_keras_serializable("door")
class Subclassed(keras.Model):
    def __init__(self, **options):
        super().__init__(**options)
        self.hidden, self.last = layers.Dense(8, activation="relu"), layers.Dense(3)

    def call(self, x):
        return self.last(self.hidden(x))


def subclassed():
    model = Subclassed()
    model(np.zeros((1, 5), np.float32))
    return model


MODELS = {
    "classifier": lambda: stack((5,), "hidden", layers.Dense(3, activation="softmax")),
    "logits": lambda: stack((5,), "hidden", layers.Dense(3)),
    "number": lambda: stack((5,), "hidden", layers.Dense(1)),
    "numbers": lambda: stack((5,), "hidden", layers.Dense(2), loss="mse"),
    "labels": lambda: stack((5,), "hidden", layers.Dense(3, activation="sigmoid")),
    "one logit": lambda: stack(
        (5,), "hidden", layers.Dense(1), loss=keras.losses.BinaryCrossentropy(from_logits=True)
    ),
    "map": lambda: of_a_map("linear"),
    "segmentation": lambda: of_a_map("softmax"),
    "two outputs": of_two_outputs,
    "two inputs": of_two_inputs,
    "ensemble": ensemble,
    "nothing hidden": lambda: stack((5,), layers.Dense(3, name="hidden")),
    "tokens": lambda: stack(
        (6,),
        layers.Embedding(9, 4),
        layers.GlobalAveragePooling1D(),
        "hidden",
        layers.Dense(3),
        dtype="int32",
    ),
    "integers": lambda: stack((5,), "hidden", layers.Dense(3), dtype="int32"),
    "bytes": lambda: stack(
        (4, 4, 1),
        layers.Rescaling(1 / 255),
        layers.Flatten(),
        "hidden",
        layers.Dense(3),
        dtype="uint8",
    ),
    "subclassed": subclassed,
    "recurrent": lambda: stack((7, 4), layers.LSTM(6, name="hidden"), layers.Dense(3)),
    "no weights": lambda: stack((4,), layers.Softmax(name="hidden")),
    "nested": lambda: stack((5,), stack((5,), "hidden"), layers.Dense(3)),
}


class Subject:
    """A wrapped model, samples, and classes for them."""

    def __init__(self, name):
        keras.utils.set_random_seed(0)
        rng = np.random.default_rng(0)
        self.im = nns.InstrumentedModel(MODELS[name]())
        self.model, other = self.im.model, self.im.copy()
        for variable in other.model.trainable_variables:
            variable.assign(np.array(variable) + rng.normal(size=variable.shape))
        self.other = other.model
        parts = []
        for tensor in self.im.functional.inputs:
            shape, integer = (COUNT, *tensor.shape[1:]), "int" in tensor.dtype
            values = rng.integers(0, 9, shape) if integer else rng.normal(size=shape)
            parts.append(values.astype(tensor.dtype))
        self.x = parts if len(parts) > 1 else parts[0]
        logits = self.im.logits(self.x)
        for bias in self.model.trainable_variables[-1:]:
            if bias.shape == logits.shape[1:]:  # all classes are predicted
                bias.assign(np.array(bias) - np.median(logits, axis=0))
        predicted = self.im.classes.from_logits(self.im.logits(self.x)).reshape(COUNT, -1)
        known = not self.im.classes.is_number
        self.y = predicted[:, 0].astype(int) if known else np.arange(COUNT) % 3
        self.profile = nns.Profile.from_data(self.im, self.x, progress=False)
        self.few = self.rows(np.arange(COUNT) < 4)
        self.alike = self.rows(self.y == self.y[0])
        self.one = [part[0] for part in self.x] if isinstance(self.x, list) else self.x[0]

    def rows(self, mask):
        return [part[mask] for part in self.x] if isinstance(self.x, list) else self.x[mask]

    def slicer(self, **options):
        return nns.Slicer(self.im, self.profile, workers=0, progress=False, **options)

    def runs(self):
        """Half of the samples with a wrong class: failing and passing runs."""
        fails, known = np.arange(COUNT) % 2 == 0, np.unique(self.y)
        wrong = np.roll(known, 1)[np.searchsorted(known, self.y)]
        return (self.rows(fails), wrong[fails]), (self.rows(~fails), self.y[~fails])

    def critical(self):
        return semantic.SemanticSlicer(self.im, self.x, self.y).semantic_slice(0.9)

    def weights(self):
        return pruning.scores(self.im, "weight", self.x, self.y)

    def pair(self):
        return dflare.ModelPair(self.model, self.other)

    def attributed(self, name):
        x = self.one
        if isinstance(x, list):
            x = dict(zip(self.im.input_operations, x, strict=True))
        return attributions.ATTRIBUTIONS[name](self.im, x, self.profile.means, 0)


def suspicious(method):
    return lambda s: debugging.suspicious(s.im, *s.runs(), method, progress=False)


def mend(how):
    return lambda s: debugging.mend(s.im, suspicious("gradient")(s), s.x, s.y, how, epochs=1)


def search(algorithm):
    def found(s):
        return dflare.find_deviations(s.pair(), s.few, search=algorithm, progress=False)

    return found


def explained(**options):
    return lambda s: s.slicer().explain(s.one, **options).figure()


CALLS = {
    "slice": lambda s: s.slicer(theta=0.3).slice(s.few),
    "slice, channels": lambda s: s.slicer(granularity="channel").slice(s.few),
    "slice, amounts": lambda s: s.slicer(contribution="amount").slice_each(s.few),
    "iterate": lambda s: list(s.slicer().iterate(s.few)),
    "apply": lambda s: s.slicer().slice(s.few).apply(s.im, s.profile),
    **{
        f"decisive, {level}": lambda s, level=level: s.slicer().decisive(s.few, level=level)
        for level in ("synapse", "neuron", "channel", "input")
    },
    "decisive, together": lambda s: s.slicer().decisive(s.alike, together=True),
    "explain": explained(),
    "explain, compared": explained(compare=True),
    "explore": lambda s: nns.explore(s.slicer().slice_each(s.few), s.im, s.few, progress=False),
    **{
        f"scores, {name}": lambda s, name=name: pruning.scores(s.im, name, s.x, s.y)
        for name in ("weight", "nnslicer", "channel", "random")
    },
    "fine_tune": lambda s: pruning.fine_tune(
        pruning.prune(s.model, s.weights(), 0.3), s.x, s.y, epochs=1
    ),
    "remove_units": lambda s: pruning.remove_units(s.im, {"hidden": np.arange(8) == 0}),
    "shrink": lambda s: pruning.shrink(s.im, s.x, s.y, classes=[0, 1], ratio=0.3, progress=False),
    **{f"suspicious, {method}": suspicious(method) for method in debugging.METHODS},
    **{f"mend, {how}": mend(how) for how in ("mask", "scale", "train")},
    "compare_layers": lambda s: debugging.compare_layers(s.im, s.other, s.x, progress=False),
    "restructure": lambda s: semantic.restructure(s.model, s.critical()),
    "readapt": lambda s: semantic.readapt(s.model, s.critical(), s.x, s.y, s.x, epochs=1),
    "develop": lambda s: semantic.develop(s.model, s.critical(), s.x, s.y, learned=[0], epochs=1),
    "hide": lambda s: protection.hide(s.model, protection.select(s.weights(), 0.3)),
    "generate": lambda s: deepxplore.generate(
        [s.im, s.im.like(s.other)], np.clip(s.few, 0, 1), max_iterations=1, progress=False
    ),
    "coverage": lambda s: deepxplore.NeuronCoverage(s.im, 0.3).update(s.x),
    **{
        f"attribution, {name}": lambda s, name=name: s.attributed(name)
        for name in attributions.ATTRIBUTIONS
    },
    "exact_line": lambda s: exactline.exact_line(s.im, s.x[0], s.x[1]),
    "exact_plane": lambda s: exactline.exact_plane(s.im, s.x[:3]),
    "fit": lambda s: detection.SliceDetector(s.slicer(), "paper", false_positive_rate=0.3).fit(s.x),
    "fit, margin": lambda s: detection.LogitMargin(s.im, false_positive_rate=0.3).fit(s.x),
    "attack": lambda s: detection.attacks.generate(
        s.model, "FGSM_4", np.clip(s.x[:4], 0, 1), s.y[:4], progress=False
    ),
    "inspect": lambda s: deepbase.inspect(s.im, s.x, {"class": s.y}, progress=False),
    "compress": lambda s: dflare.compress(s.model, "int8", s.x),
    "DFlare": search(dflare.DFlare(max_queries=10)),
    "agreement": lambda s: dflare.agreement(s.pair(), s.few),
}


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.filterwarnings("ignore")
def test_it_answers_or_says_why_not(name):
    subject, failed = Subject(name), {}
    for what, call in CALLS.items():
        if name == "two inputs" and what in (
            "smooth",
            "attack",
            "generate",
        ):  # these take one array
            continue
        try:
            call(subject)
        except nns.errors.NNSlicerError as error:
            assert len(str(error)) > 20, what
            if name == "classifier":  # every call is known to work
                failed[what] = str(error)
        except Exception as error:  # any other is what this test is for
            failed[what] = f"{type(error).__name__}: {error}"
    assert not failed
