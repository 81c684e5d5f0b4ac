"""What tells stored results of one model from those of another: own code, what it reads, names."""

import importlib.util
import subprocess
import sys
from functools import partial
from pathlib import Path

import keras
import numpy as np
import pytest
from keras import layers, ops

import nnslicer_tf as nns
from nnslicer_tf import deepbase, deepxplore, detection, dflare
from nnslicer_tf.errors import ProfileMismatchError
from nnslicer_tf.instrument.fingerprint import same_model

X = np.random.default_rng(0).normal(size=(128, 4)).astype(np.float32)

OWN = """
import logging
from collections import deque
from datetime import timedelta
from enum import Enum
from functools import partial, wraps
from random import Random
from threading import Lock
from types import ModuleType, SimpleNamespace
import keras
import numpy as np
import pandas as pd
from keras import layers, ops

own_settings = ModuleType("own_settings")
own_settings.__file__, own_settings.LIMIT = "own_settings.py", {number}
own_settings.unread = {other}
LIMIT = {number}
TABLE = np.array([{number}, 1.0, 1.0, 1.0], "float32")
IRRELEVANT = {other}


def helper(x):
    return ops.minimum(x, LIMIT)


def by_helper(x):
    return helper(ops.relu(x))


def by_global(x):
    "A docstring of {other}."
    return ops.minimum(ops.relu(x), LIMIT)


def by_array(x):
    return x * TABLE


def by_default(x, limit={number}):
    return ops.minimum(x, limit)


def closed(limit):
    return lambda x: ops.minimum(x, limit)


by_closure = closed({number})
by_lists = closed([{number}] * 4)
by_tensor = closed(ops.convert_to_tensor([{number}] * 4))
by_nested = lambda x: closed(LIMIT)(x)
by_partial = partial(lambda x, limit: ops.minimum(x, limit), limit={number})
by_constant = lambda x: ops.minimum(x, {number})


class Clipped:
    def __init__(self):
        self.limit = {number}

    def __call__(self, x):
        return ops.minimum(x, self.limit)


by_object = Clipped()
by_method = Clipped().__call__


class Base(layers.Layer):
    def call(self, x):
        return ops.minimum(x, {number})


class ByBase(Base):
    def call(self, x):
        return super().call(x) * 1.0


class Own(layers.Layer):
    limit = {number}
    irrelevant = {other}

    def __init__(self, **options):
        super().__init__(**options)
        self.own, self.array, self.free, self.calls = {number}, TABLE, {other}, []
        self.inside = dict(limits=[{number}])

    @property
    def least(self):
        return {number}

    @staticmethod
    def fixed(x):
        return ops.minimum(x, {number})

    def applied(self, x):
        return ops.minimum(x, self.own)


class ByClass(Own):
    def call(self, x):
        return ops.minimum(x, self.limit)


class ByAttribute(Own):
    def call(self, x):
        return ops.minimum(x, self.own)


class ByArray(Own):
    def call(self, x):
        return ops.minimum(x, self.array)


class ByDict(Own):
    def call(self, x):
        return ops.minimum(x, self.inside["limits"][0])


class ByProperty(Own):
    def call(self, x):
        return ops.minimum(x, self.least)


class ByStatic(Own):
    def call(self, x):
        return self.fixed(x)


class Settings:
    limit = {number}
    unread = {other}


class Inner:
    def __init__(self):
        self.at_most, self.unread = {number}, {other}

    def run(self, x):
        return ops.minimum(x, self.at_most)


class ByObject(Own):
    def __init__(self, **options):
        super().__init__(**options)
        self.config = SimpleNamespace(scale={number}, unread={other}, nested=Inner())

    def call(self, x):
        return ops.minimum(x, self.config.scale)


class ByNested(ByObject):
    def call(self, x):
        return ops.minimum(x, self.config.nested.at_most)


class ByHelperObject(ByObject):
    def call(self, x):
        return self.config.nested.run(x)


class ByMixedDict(Own):
    def __init__(self, **options):
        super().__init__(**options)
        self.mixed = dict(scale={number}, kernel=keras.initializers.Zeros())

    def call(self, x):
        return ops.minimum(x, self.mixed["scale"])


class ByGlobalClass(Own):
    def call(self, x):
        return ops.minimum(x, Settings.limit)


class ByRange(Own):
    def __init__(self, **options):
        super().__init__(**options)
        self.steps = range(int({number}))

    def call(self, x):
        return ops.minimum(x, len(self.steps))


class ByModule(Own):
    def call(self, x):
        return ops.minimum(x, own_settings.LIMIT)


class Slotted:
    __slots__ = ("scale", "unread")

    def __init__(self):
        self.scale, self.unread = {number}, {other}


class Strength(Enum):
    GIVEN = {number}


def passed(x, settings):
    return passed_on(x, settings)


def passed_on(x, settings):
    return ops.minimum(x, settings.scale)


def of_layer(x, layer):
    return ops.minimum(x, layer.slotted.scale)


def same(call):
    @wraps(call)
    def run(self, x):
        return call(self, x) * 1.0

    return run


class Various(Own):
    "It has no configuration: Keras cannot tell what it is made of."

    def __init__(self, **options):
        super().__init__(**options)
        self.slotted, self.strength = Slotted(), Strength.GIVEN
        self.listed, self.named = [Slotted(), 1.0], dict(main=(Slotted(),), free=ops.relu)
        self.functions, self.queue = [ops.relu, closed({number})], deque([{number}])
        self.objects = np.array([SimpleNamespace(scale={number}), None], object)
        self.table, self.span = pd.Series([{number}]), timedelta(seconds={number})
        self.lock, self.random, self.seed = Lock(), Random(1), keras.random.SeedGenerator()
        self.seen, self.counts, self.log = [], {{}}, 0

    def get_config(self):
        return {{}}


class BySlot(Various):
    def call(self, x):
        return ops.minimum(x, self.slotted.scale)


class ByList(Various):
    def call(self, x):
        return ops.minimum(x, self.listed[0].scale)


class ByNamed(Various):
    def call(self, x):
        return ops.minimum(x, self.named["main"][0].scale)


class ByPassed(Various):
    def call(self, x):
        return passed(x, self.slotted)


class ByLayer(Various):
    def call(self, x):
        return of_layer(x, self)


class ByEnum(Various):
    def call(self, x):
        return ops.minimum(x, self.strength.value)


class ByFunctions(Various):
    def call(self, x):
        for function in self.functions:
            x = function(x)
        return x


class ByQueue(Various):
    def call(self, x):
        return ops.minimum(x, self.queue[0])


class ByObjects(Various):
    def call(self, x):
        return ops.minimum(x, self.objects[0].scale)


class BySeries(Various):
    def call(self, x):
        return ops.minimum(x, float(self.table.iloc[0]))


class BySpan(Various):
    def call(self, x):
        return ops.minimum(x, self.span.total_seconds())


class ByGetattr(Various):
    def call(self, x):
        return ops.minimum(x, getattr(self.strength, "val" + "ue"))


class ByInnerLayer(Various):
    def __init__(self, **options):
        super().__init__(**options)
        self.slope = layers.LeakyReLU({number})

    def call(self, x):
        return self.slope(x)


class ByInnerLayers(Various):
    def __init__(self, **options):
        super().__init__(**options)
        self.slopes = [layers.LeakyReLU({number})]

    def call(self, x):
        return self.slopes[0](x)


class ByInnerModel(Various):
    def __init__(self, **options):
        super().__init__(**options)
        self.inner = keras.Sequential([layers.Dense(4), layers.LeakyReLU({number})])

    def call(self, x):
        return self.inner(x)


class ByDecorated(Various):
    @same
    def call(self, x):
        return ops.minimum(x, self.slotted.scale)


class ByUsed(Various):
    "What a call changes does not count, nor does what changes when it is used."

    def call(self, x):
        self.seen.append(x)
        self.counts["calls"] = len(self.seen)
        logger.info("%s calls", self.log)
        with self.lock:
            noise = self.random.random() * 0.0
        return ops.minimum(x, self.slotted.scale) + noise


logger = logging.getLogger("own")
by_slots = (lambda settings: lambda x: ops.minimum(x, settings.scale))(Slotted())
by_given = partial(passed, settings=SimpleNamespace(scale={number}))


class ByHelper(Own):
    def call(self, x):
        self.last = x  # what a layer keeps does not count, nor does its name
        ops.identity(x) if hasattr(ops, self.name) else None
        return self.applied(x)
"""
FUNCTIONS = (
    *("helper", "global", "array", "default", "closure", "lists", "tensor", "nested", "partial"),
    *("constant", "object", "method", "slots", "given"),
)
CLASSES = (
    *("Base", "Class", "Attribute", "Array", "Dict", "Property", "Static", "Helper"),
    *("Object", "Nested", "HelperObject", "MixedDict", "GlobalClass", "Range", "Module"),
    *("Slot", "List", "Named", "Passed", "Layer", "Enum", "Functions", "Queue", "Objects"),
    *("Series", "Span", "Getattr", "InnerLayer", "InnerLayers", "InnerModel", "Decorated", "Used"),
)


def module(folder, number, other=7):
    path = folder / "own_parts.py"
    path.write_text(OWN.format(number=number, other=other))
    spec = importlib.util.spec_from_file_location("own_parts", path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def build(part, names="hid"):
    """A model with an own function or layer; `names` are those of its layers."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((4,), name="x")
    if isinstance(part, type):
        hidden = part(name=names[0])(inputs)
    else:
        hidden = layers.Lambda(part, name=names[0], output_shape=(4,))(inputs)
    hidden = layers.Dense(4, activation="tanh", name=names[1])(hidden)
    return keras.Model(inputs, layers.Dense(3, name=names[2])(hidden), name="m")


def identity(part):
    return nns.InstrumentedModel(build(part), bounds=None).identity


@pytest.mark.parametrize(
    "name", [*(f"by_{name}" for name in FUNCTIONS), *(f"By{name}" for name in CLASSES)]
)
def test_what_own_code_computes_with_counts(name, tmp_path):
    """Limits of 20 and 30 are beyond all values that a function could be tried on."""
    one, again, other, beside = (
        getattr(module(tmp_path, *numbers), name)
        for numbers in ((20.0,), (20.0,), (30.0,), (20.0, 8))
    )
    expected = identity(one)
    assert identity(again) == expected == identity(beside)
    assert identity(other) != expected


def test_names_that_keras_counts_up_do_not_count_as_code(tmp_path):
    own, codes = module(tmp_path, 20.0), []
    for _ in range(2):
        model = keras.Sequential([keras.Input((4,)), own.ByHelper(), layers.Dense(3)])
        codes.append(nns.InstrumentedModel(model).own_code)
    assert codes[0] and codes[0] == codes[1]


def test_it_is_the_same_in_another_process_and_after_calls(tmp_path):
    own = module(tmp_path, 20.0)
    parts = ("by_helper", "by_partial", "by_nested", "ByHelper", "ByArray", "ByUsed", "ByObjects")
    models = [build(getattr(own, name)) for name in parts]
    found = [nns.InstrumentedModel(model).identity for model in models]
    for model in models:
        model.compile("sgd", "mse")
        model.predict(X, verbose=0)
        model(X[:3])
    assert [nns.InstrumentedModel(model).identity for model in models] == found
    code = (
        "import sys, pathlib; sys.path[:0] = sys.argv[1:3]\n"
        "from test_identity import *\n"
        "own = module(pathlib.Path(sys.argv[2]), 20.0)\n"
        "for name in sys.argv[3:]: print('identity', identity(getattr(own, name)))"
    )
    here = str(Path(__file__).parent)
    run = subprocess.run(
        [sys.executable, "-c", code, here, str(tmp_path), *parts], capture_output=True, text=True
    )
    lines = [one for one in run.stdout.splitlines() if one.startswith("identity")]
    assert lines == [f"identity {one}" for one in found], run.stderr


def test_arrays_of_a_configuration_count():
    def of(values):
        layer = layers.Lambda(
            lambda x, mean: x - mean, arguments={"mean": np.array(values)}, output_shape=(4,)
        )
        keras.utils.set_random_seed(0)
        return keras.Sequential([keras.Input((4,), name="x"), layer, layers.Dense(3, name="o")])

    one, again, other = (
        nns.InstrumentedModel(of(v)).fingerprint for v in ([1.0] * 4, [1.0] * 4, [1, 1, 1, 2.0])
    )
    assert one == again != other


def test_names_in_another_order_are_other_names():
    p, q = (build(partial(ops.multiply, 1.0), n) for n in ("abc", "bac"))
    q.set_weights(p.get_weights())
    assert nns.InstrumentedModel(p).identity != nns.InstrumentedModel(q).identity


def two(names):
    keras.utils.set_random_seed(0)
    hidden = inputs = keras.Input((4,), name="x")
    for name in names:
        hidden = layers.Dense(4, activation="tanh", name=name)(hidden)
    return keras.Model(inputs, layers.Dense(3, name="out")(hidden), name="m")


def test_a_profile_does_not_fit_layers_whose_names_are_exchanged(tmp_path):
    p, q = two("ab"), two("ba")
    profile, own = (nns.Profile.from_data(model, X, progress=False) for model in (p, q))
    with pytest.raises(ProfileMismatchError, match="other names"):
        nns.Slicer(q, profile)
    # Nor does a folder of searches, with the right profile.
    for model, means in ((p, profile), (q, own)):
        slicer = nns.Slicer(model, means, progress=False)
        options = {"scope": None, "others": 0, "folder": tmp_path / "searches"}
        if model is p:
            slicer.decisive(X[:4], **options)
            slicer.slice(X[:4], checkpoint=tmp_path / "slices")
        else:
            with pytest.raises(ProfileMismatchError, match="different run"):
                slicer.decisive(X[:4], **options)
            with pytest.raises(ProfileMismatchError, match="different run"):
                slicer.slice(X[:4], checkpoint=tmp_path / "slices")


def test_a_cache_of_behaviours_knows_names_and_shapes(tmp_path):
    options = {"measures": ["correlation"], "error": None, "progress": False}
    hypothesis = {"h": (X[:, 0] > 0).astype(float)}
    for names in ("abc", "bca"):
        keras.utils.set_random_seed(0)
        found = deepbase.inspect(
            two(names), X, hypothesis, units=["b"], cache=tmp_path / "names", **options
        )
        model = two(names)
        values = keras.Model(model.inputs, model.get_layer("b").output).predict(X, verbose=0)
        expected = [np.corrcoef(column, hypothesis["h"])[0, 1] for column in values.T]
        np.testing.assert_allclose(found.score.to_numpy(float), expected, atol=1e-5)
    # Images of two shapes with the same bytes.
    inputs = keras.Input((None, None, 1))
    pooled = layers.GlobalAveragePooling2D(name="g")(layers.Conv2D(3, 3)(inputs))
    model = keras.Model(inputs, layers.Dense(2)(pooled))
    scores = []
    for shape, cache in (((4, 16, 1), "images"), ((8, 8, 1), "images"), ((8, 8, 1), None)):
        im = nns.InstrumentedModel(model, shape)
        images = np.random.default_rng(1).normal(size=(128, 64)).reshape(128, *shape)
        folder = None if cache is None else tmp_path / cache
        scores.append(
            deepbase.inspect(im, images, hypothesis, units=["g"], cache=folder, **options).score
        )
    assert scores[1].tolist() == pytest.approx(scores[2].tolist())
    assert scores[0].tolist() != pytest.approx(scores[2].tolist())


def test_stores_and_files_know_the_code_of_own_layers(tmp_path):
    """Name, configuration and weights of the layers are equal; what they compute is not."""
    a, b = (nns.InstrumentedModel(build(module(tmp_path, n).ByAttribute)) for n in (0.1, 0.9))
    assert a.fingerprint == b.fingerprint and not np.allclose(a.predict(X), b.predict(X))
    coverage = deepxplore.NeuronCoverage(a, 0.5)
    coverage.update(X)
    coverage.save(tmp_path / "coverage.npz")
    deepxplore.NeuronCoverage(a, 0.5).restore(tmp_path / "coverage.npz")
    with pytest.raises(ProfileMismatchError, match="different model"):
        deepxplore.NeuronCoverage(b, 0.5).restore(tmp_path / "coverage.npz")
    detector = detection.LogitMargin(a).fit(X)
    detector.save(tmp_path / "detector.npz")
    detection.LogitMargin.load(tmp_path / "detector.npz", a)
    with pytest.raises(ProfileMismatchError, match="different model"):
        detection.LogitMargin.load(tmp_path / "detector.npz", b)
    third = build(module(tmp_path, 0.5).ByAttribute)
    third.set_weights([w + 0.3 for w in third.get_weights()])
    options = {"search": dflare.DFlare(max_queries=20), "progress": False}
    for im in (a, b):
        pair = dflare.ModelPair(*map(dflare.with_softmax, (im.model, third)))
        if im is a:
            dflare.find_deviations(pair, X[:6], checkpoint=tmp_path / "search", **options)
        else:
            with pytest.raises(ProfileMismatchError, match="different run"):
                dflare.find_deviations(pair, X[:6], checkpoint=tmp_path / "search", **options)


def test_codes_are_compared_within_one_version_of_python():
    assert same_model("f o a7 1", "f o a8 2") and same_model("f o", "f o a7 1")
    for other in ("g o a7 1", "f p a7 1", "f o a7 2", "g o", "f"):
        assert not same_model("f o a7 1", other)


class Counting(layers.Layer):
    def __init__(self, **options):
        super().__init__(**options)
        self.calls, self.scale = 0, 2.0

    def call(self, x):
        self.calls += 1
        return x * self.scale


def test_what_a_call_changes_itself_is_no_code():
    layer = Counting()
    model = keras.Sequential([keras.Input((4,), name="x"), layer, layers.Dense(3, name="o")])
    before = nns.InstrumentedModel(model).own_code
    model(X[:2])
    assert layer.calls > 1 and nns.InstrumentedModel(model).own_code == before
    layer.scale = 3.0
    assert nns.InstrumentedModel(model).own_code != before


@pytest.mark.parametrize(
    "preprocess",
    [lambda x: x / 2 + 1, layers.Rescaling(0.5, name="r"), lambda x: ops.tanh(x / 3) / 2 / 2],
)
def test_a_preprocessed_model_is_known_again(preprocess, tmp_path):
    """What the library adds has the same names each time."""
    model = two("ab")
    im = nns.InstrumentedModel(model, preprocess=preprocess)
    profile = nns.Profile.from_data(im, X, progress=False)
    layers.Dense(1)(keras.Input((2,)) / 2)  # Keras counts names up
    model.save(tmp_path / "m.keras")
    for one in (model, keras.models.load_model(tmp_path / "m.keras")):
        again = nns.InstrumentedModel(one, preprocess=preprocess)
        assert again.identity == im.identity
        slices = nns.Slicer(again, profile, progress=False).slice(X[:5])
        assert slices == nns.Slicer(im, profile, progress=False).slice(X[:5])


def test_detectors_that_name_parts_know_their_names(tmp_path):
    keras.utils.set_random_seed(0)
    x = np.random.default_rng(0).normal(size=(200, 4)).astype(np.float32)
    p, q = two("ab"), two("ba")
    q.set_weights(p.get_weights())
    slicers = [
        nns.Slicer(m, nns.Profile.from_data(m, x, progress=False), progress=False) for m in (p, q)
    ]
    detector = detection.SliceDetector(slicers[0], "paper", kernels=iter(["a"])).fit(x)
    assert detector.kernels == ("a",)
    detector.save(tmp_path / "d.npz")
    again = detection.SliceDetector.load(tmp_path / "d.npz", slicers[0])
    np.testing.assert_array_equal(again.score_samples(x[:9]), detector.score_samples(x[:9]))
    with pytest.raises(ProfileMismatchError, match="different model"):
        detection.SliceDetector.load(tmp_path / "d.npz", slicers[1])


def test_a_folder_of_searches_goes_on_after_compile(tmp_path):
    model = two("ab")
    options = {"scope": None, "others": 0, "folder": tmp_path / "searches"}
    found = []
    for _ in range(2):
        im = nns.InstrumentedModel(model)
        slicer = nns.Slicer(im, nns.Profile.from_data(im, X, progress=False), progress=False)
        found.append(slicer.decisive(X[:3], **options).certificate["size"].tolist())
        model.compile(loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    assert found[0] == found[1]
