"""Decisive slices for other samples' values, alone minimal and needed, against NumPy."""

import itertools
import re

import keras
import numpy as np
import pytest
from keras import layers, ops
from scipy.stats import binom

import nnslicer_tf as nns
from nnslicer_tf import datasets, zoo
from nnslicer_tf._numerics import lower_bound
from nnslicer_tf.instrument import Samples, Weights
from nnslicer_tf.slicing import donors
from nnslicer_tf.slicing.donors import looks_of


class Network:
    """Dense layers 6 → hidden → 4 in NumPy and Keras, whose hidden neurons are the units.

    Samples have larger values than others, so that they can hold against these.
    """

    def __init__(self, seed=3, hidden=10):
        rng = np.random.default_rng(seed)
        model = keras.Sequential([keras.Input((6,)), layers.Dense(hidden, "relu"), layers.Dense(4)])
        for weight in model.weights:
            weight.assign(rng.normal(size=weight.shape))
        self.weights = model.get_weights()
        self.data = rng.normal(size=(80, 6)).astype(np.float32)
        self.data[:3] *= 2
        self.im = nns.InstrumentedModel(model)
        self.profile = nns.Profile.from_data(self.im, self.data, progress=False)
        self.slicer = nns.Slicer(self.im, self.profile, workers=0, progress=False)
        self.x = rng.normal(size=(8, 6)).clip(-2, 2).astype(np.float32)
        self.mean = (self.data @ self.weights[0] + self.weights[1]).mean(axis=0)

    def hidden(self, x):
        return x @ self.weights[0] + self.weights[1]

    def logits(self, one, mask, others):
        """Logits with only some neurons active, for each row of the others' hidden values."""
        mixed = np.where(mask, self.hidden(one), others)
        return np.maximum(mixed, 0) @ self.weights[2] + self.weights[3]

    def decisive(self, x=None, **options):
        x = self.x if x is None else x
        options = {"level": "neuron", "max_share": 1.0, "others": 0} | options
        return self.slicer.decisive(x, **options)

    def masks(self, found, index):
        (mask,) = found.masks(index).values()
        return mask


@pytest.fixture(scope="module")
def network():
    return Network()


@pytest.mark.parametrize("trials", [1, 29, 50])
def test_the_lower_bound_is_broken_by_at_most_one_in_twenty(trials):
    """Exactly: the probability of counts whose bound is above p, for every p."""
    counts = np.arange(trials + 1)
    bounds = np.array([lower_bound(int(k), trials) for k in counts])
    for p in np.linspace(0.01, 0.999, 60):
        assert binom.pmf(counts, trials, p)[bounds > p].sum() <= 0.05 + 1e-9
    # And no lower than that: at the bound, as many or more have 5 %.
    np.testing.assert_allclose(binom.sf(counts[1:] - 1, trials, bounds[1:]), 0.05)


@pytest.mark.parametrize(("trials", "level"), [(14, 0.5), (13, 0.7), (14, 0.8), (5, 0.5)])
def test_a_test_that_stops_early_passes_too_little_for_one_in_twenty(trials, level):
    """Exactly, over all outcomes; and it passes wherever the bound after all trials does."""
    outcomes = np.array(list(itertools.product([0, 1], repeat=trials)))
    failures = np.cumsum(1 - outcomes, axis=1)
    looks = looks_of(trials, level)
    passed = np.any([failures[:, n - 1] <= allowed for n, allowed in looks.items()], axis=0)
    chances = level ** outcomes.sum(axis=1) * (1 - level) ** failures[:, -1]
    assert chances[passed].sum() <= 0.05 + 1e-12
    bounds = np.array([lower_bound(k, trials) for k in range(trials + 1)])[outcomes.sum(axis=1)]
    assert passed[bounds >= level].all()
    assert (passed.sum() > (bounds >= level).sum()) == (len(looks) > 1)
    # What cannot pass any more has more failures than the last look allows.
    assert [*looks] == sorted(looks) and [*looks.values()] == [*range(len(looks))]


def test_planted_shares_pass_a_test_as_often_as_they_may():
    """89 % pass in place of 90 % at most one time in twenty; 98 % as often as with all trials."""
    looks, rng = looks_of(100, 0.9), np.random.default_rng(0)
    passed, runs = {}, {}
    for share in (0.89, 0.9, 0.98):
        failures = np.cumsum(rng.random((20_000, 100)) >= share, axis=1)
        table = np.array([failures[:, n - 1] <= allowed for n, allowed in looks.items()])
        over = np.array([failures[:, n - 1] > looks[100] for n in looks])
        passed[share] = table.any(axis=0).mean()
        runs[share] = np.array([*looks])[(table | over).argmax(axis=0)].mean()
    assert passed[0.89] <= 0.05 and passed[0.9] <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 20_000)
    assert passed[0.98] >= binom.cdf(4, 100, 0.02) - 0.005 and runs[0.98] < 60


def test_scope_is_the_share_of_other_samples_whose_values_keep_the_answer(network):
    others = np.random.default_rng(0).normal(size=(60, 6)).astype(np.float32)
    found = network.decisive(scope=others)
    table = found.to_frame()
    for index, one in enumerate(network.x):
        logits = network.logits(one, network.masks(found, index), network.hidden(others))
        kept = int((logits.argmax(axis=1) == table["answer"][index]).sum())
        assert table["scope kept"][index] == kept / 60 and table["scope donors"][index] == 60
        bound = table["scope bound"][index]
        assert bound == 0 if kept == 0 else binom.sf(kept - 1, 60, bound) == pytest.approx(0.05)
        said = f"the answer is kept for {100 * kept / 60:.0f} % (at least {int(100 * bound)} %"
        assert said in found.summary(index)
    # By default, of samples that the profile keeps; never the sample itself, nor the search's.
    own = network.decisive(network.data[:3]).certificate["scope donors"]
    in_profile = {row.tobytes() for row in next(iter(network.profile.rows.values()))}
    assert len(in_profile) == 80 and (own <= 50).all()
    of_all = network.decisive(network.data[:3], scope=1000).certificate["scope donors"]
    assert (of_all == 79).all()
    few = network.decisive(network.x[:1], reference=Samples(network.data[:70]), scope=100)
    assert few.certificate["scope donors"][0] == 10
    same = network.decisive(network.data[:1], scope=network.data[:1])
    assert same.certificate["scope donors"][0] == 0 == same.certificate["scope bound"][0]
    for scope in (None, 0):
        off = network.decisive(network.x[:1], scope=scope)
        assert "scope kept" not in off.certificate and "other samples" not in off.summary()


def test_without_samples_the_certificate_says_what_is_missing(network):
    bare = nns.Profile(network.profile.means, 80, network.profile.fingerprint)
    slicer = nns.Slicer(network.im, bare, workers=0, progress=False)
    found = slicer.decisive(network.x[:1], level="neuron", others=0)
    assert "scope kept" not in found.certificate
    assert "the profile keeps no samples; pass scope=x" in found.summary()
    with pytest.raises(nns.errors.InvalidArgumentError, match="profile keeps no samples"):
        slicer.decisive(network.x, reference="samples")


def test_at_least_holds_for_other_samples(network):
    """The certificate is that of the test's samples; on thousands of others, the bound holds."""
    rng = np.random.default_rng(1)
    background, test, many = (
        0.6 * rng.normal(size=(n, 6)).astype(np.float32) for n in (60, 100, 4000)
    )
    options = {"reference": Samples(background), "at_least": 0.9}
    found = network.decisive(scope=test, **options)
    table, looks = found.to_frame(), looks_of(100, 0.9)
    assert table["kept"].all() and (table["share"] < 1).sum() >= 3
    assert table["scope donors"].min() < 100
    for index, one in enumerate(network.x):
        mask = network.masks(found, index)
        answers = network.logits(one, mask, network.hidden(test)).argmax(axis=1)
        kept, donors = table["scope kept"][index], table["scope donors"][index]
        assert kept == table["donors kept"][index]
        # The test stopped at a look, with as many failures as it allows, of those of all donors.
        failures = round((1 - kept) * donors)
        assert failures <= (answers != table["answer"][index]).sum()
        assert mask.all() or (donors in looks and failures <= looks[donors])
        assert table["scope bound"][index] == (1.0 if mask.all() else 0.9)
        answers = network.logits(one, mask, network.hidden(many)).argmax(axis=1)
        assert (answers == table["answer"][index]).mean() > 0.88
    # Without it, the same slices of means keep far fewer.
    alone = network.decisive(scope=test).certificate["scope kept"]
    assert alone.mean() < 0.9 and found.info["at_least"] == 0.9
    # Every level, and one slice for several samples.
    answers = network.im.predict(network.x).argmax(axis=1)
    same = network.x[answers == np.bincount(answers).argmax()]
    for level in ("synapse", "channel", "input"):
        shared = network.decisive(same, level=level, together=True, scope=test, **options)
        assert shared.certificate["scope kept"][0] >= 0.96
    with pytest.raises(nns.errors.InvalidArgumentError, match="at least 29 other samples"):
        network.decisive(reference=Samples(background[:50]), at_least=0.9)
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"pass reference=Samples\(x\)"):
        network.decisive(at_least=0.9)


def test_bounds_hold_after_the_choice_of_a_size():
    """Of slices from many splits of donors, at most 5 % may keep less than was promised."""
    network = Network(seed=7, hidden=24)
    rng = np.random.default_rng(2)
    many = network.hidden(0.25 * rng.normal(size=(4000, 6)).astype(np.float32))
    broken, promised = 0, 0
    for split in range(10):
        background = 0.25 * rng.normal(size=(60, 6)).astype(np.float32)
        options = {"reference": Samples(background), "at_least": 0.7, "rng": split}
        found = network.decisive(**options)
        for index, one in enumerate(network.x):
            mask = network.masks(found, index)
            kept = network.logits(one, mask, many).argmax(axis=1)
            broken += (kept == found.certificate["answer"][index]).mean() < 0.7
            promised += not mask.all()
    assert promised > 30 and broken <= 0.05 * promised + 4  # two standard deviations above


def test_slices_of_a_class_keep_its_samples_and_claim_few_others():
    """The test's shares are right, and both bounds hold for thousands of other samples."""
    rng = np.random.default_rng(0)
    network = Network(seed=3, hidden=24)
    data = rng.normal(size=(6000, 6)).clip(-2, 2).astype(np.float32)
    answers = network.im.logits(data).argmax(axis=1)
    label = int(np.bincount(answers[:1000]).argmax())
    own, others = (data[:1000][(answers[:1000] == label) == is_own] for is_own in (True, False))
    # Others of the class itself are left out.
    options = {"together": True, "at_least": 0.8, "at_most": 0.2, "scope": 0}
    found = network.decisive(own, against=data[:1000], **options)
    row = {name: column[0] for name, column in found.certificate.items()}
    mask = network.masks(found, 0)
    assert row["size"] == mask.sum() < 24
    assert row["unseen samples"] == len(own) - int(0.5 * len(own))
    assert row["others"] == len(others) - int(0.5 * len(others))
    assert row["unseen bound"] == 0.8 and row["claims bound"] == 0.2
    assert row["unseen kept"] > 0.8 and row["others claimed"] < 0.2
    given = np.maximum(np.where(mask, network.hidden(data), network.mean), 0)
    given = (given @ network.weights[2] + network.weights[3]).argmax(axis=1)
    # Each sample of the class has its own answer; and the bounds hold for the rest.
    alone = found.certificate["answer with slice alone"]
    np.testing.assert_array_equal(alone, given[:1000][answers[:1000] == label])
    np.testing.assert_array_equal(found.certificate["kept"], alone == label)
    rest, of_rest = given[1000:] == label, answers[1000:] == label
    assert rest[of_rest].mean() > 0.8 and rest[~of_rest].mean() < 0.2
    assert f"of {row['others']} others it claims {100 * row['others claimed']:.1f} %" in (
        found.summary()
    )
    # With nothing active all samples have one answer, the class's: all others are claimed.
    nothing = np.maximum(network.mean, 0) @ network.weights[2] + network.weights[3]
    assert nothing.argmax() == label and (found.certificate["empty answer"] == label).all()
    assert not found.certificate["empty kept"].any() and "says little" not in found.summary()
    alone = network.decisive(own, together=True, scope=0)
    assert alone.certificate["empty kept"].all() and "says little" in alone.summary()
    for wrong in ({"together": False}, {"at_least": None}):
        with pytest.raises(
            nns.errors.InvalidArgumentError, match="pass together=True and at_least"
        ):
            network.decisive(own, against=others, **options | wrong)
    with pytest.raises(nns.errors.InvalidArgumentError, match="at least 27 samples of the class"):
        network.decisive(own[:20], against=others, **options)


@pytest.mark.parametrize("at_least", [0.3, 0.5, 0.9, 0.95])
def test_the_background_that_is_asked_for_is_the_smallest(network, at_least):
    """It asked for up to twice as many samples, also where `scope` gave those of the test."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(105, 6)).astype(np.float32)

    def least(scope):
        with pytest.raises(nns.errors.InvalidArgumentError) as raised:
            reference = Samples(x[:5])
            network.decisive(x[:1], at_least=at_least, reference=reference, scope=scope)
        return [int(n) for n in re.findall(r" (\d+) (?:other )?samples", str(raised.value))]

    def is_enough(count):
        first, _, last = donors._split(count, rng)
        return len(first) >= donors.DRAWN and bool(donors.looks_of(len(last), at_least))

    smallest = next(count for count in range(1, 300) if is_enough(count))
    trials = next(count for count in range(1, 300) if donors.looks_of(count, at_least))
    assert least(100) == [trials, smallest]
    assert least(x[5:]) == [trials, 23]


def eliminated(network, one, answer):
    """Greedy elimination: leave out the neuron without which the answer is most probable."""
    mask = np.ones(10, bool)
    while True:
        rows = []
        for unit in np.flatnonzero(mask):
            without = mask.copy()
            without[unit] = False
            (logits,) = network.logits(one, without, network.mean[None]).astype(np.float64)
            odds = logits[answer] - np.log(np.exp(logits).sum())
            rows.append((logits.argmax() == answer, odds, unit))
        rows = [row for row in rows if row[0]]
        if not rows or mask.sum() == 1:
            return mask
        mask[max(rows, key=lambda row: row[1])[2]] = False


def test_minimal_slices_are_a_greedy_eliminations_or_smaller(network):
    found = network.decisive(minimal=True, max_divergence=0.5)
    loose = network.decisive(minimal=True)
    for index, one in enumerate(network.x):
        answer = loose.certificate["answer"][index]
        mask = network.masks(loose, index)
        greedy = eliminated(network, one, answer)
        subsets = np.array(list(itertools.product([False, True], repeat=10)))
        keep = [network.logits(one, s, network.mean[None]).argmax() == answer for s in subsets]
        least = subsets[keep].sum(axis=1)
        assert max(1, least.min()) <= mask.sum() <= greedy.sum()
        # One unit can go where nothing at all keeps the answer.
        assert loose.certificate["minimal"][index] == (mask.sum() > 1 or least.min() > 0)
        # With a bound, too, no single neuron of the slice can go.
        mask, full = network.masks(found, index), network.logits(one, True, network.mean[None])[0]
        p = np.exp(full) / np.exp(full).sum()
        for unit in np.flatnonzero(mask) if mask.sum() > 1 else ():
            without = mask.copy()
            without[unit] = False
            (logits,) = network.logits(one, without, network.mean[None])
            q = np.exp(logits) / np.exp(logits).sum()
            assert (p * np.log(p / q)).sum() > 0.5 or logits.argmax() != answer
    sentence = "Without any single one of its units, the answer is lost"
    sizes = loose.certificate["size"]
    assert [sentence in loose.summary(i) for i in range(len(sizes))] == (sizes > 1).tolist()


def test_minimal_with_donors_and_many_units():
    """16 · 70 synapses of one layer: more than are tried one after the other unasked."""
    rng = np.random.default_rng(0)
    model = keras.Sequential([keras.Input((16,)), layers.Dense(70, use_bias=False)])
    model.set_weights([rng.normal(size=(16, 70))])
    data = rng.normal(size=(40, 16)).astype(np.float32)
    profile = nns.Profile.from_data(model, data, progress=False)
    slicer = nns.Slicer(model, profile, workers=0, progress=False)
    (kernel,) = model.get_weights()
    options = {"others": 0, "scope": 0, "max_share": 1.0}
    for rows in (data.mean(axis=0)[None], data[:3]):
        reference = Samples(rows)
        plain = slicer.decisive(data[5:6], reference=reference, **options)
        found = slicer.decisive(data[5:6], reference=reference, minimal=True, **options)
        assert found.certificate["size"][0] <= plain.certificate["size"][0]
        (mask,) = found.masks().values()

        # Alone, and without each of its synapses, for every donor.
        places = np.argwhere(mask)
        tried = np.repeat(mask[None], 1 + len(places), axis=0)
        tried[(np.arange(1, len(tried)), *places.T)] = False
        changes = ((data[5] - rows)[:, None, :, None] * tried * kernel).sum(axis=2)
        answers = (changes + (rows @ kernel)[:, None]).argmax(axis=2)
        keep = (answers == found.certificate["answer"][0]).all(axis=0)
        assert keep.tolist() == [True] + [False] * len(places)


def test_needed_slices_change_the_answer_when_they_are_removed(network):
    found, plain = network.decisive(needed=True, minimal=True), network.decisive(minimal=True)
    grown = found.certificate["size"] > plain.certificate["size"]
    assert grown.any() and (found.certificate["minimal"] == ~grown).all()
    table = found.to_frame()
    for index, one in enumerate(network.x):
        mask, answer = network.masks(found, index), table["answer"][index]
        (alone,), (removed,) = (network.logits(one, m, network.mean[None]) for m in (mask, ~mask))
        assert alone.argmax() == answer == table["answer with slice alone"][index]
        assert table["needed"][index] == (removed.argmax() != answer)
        # Where none was found, the slice is that of an ordinary search.
        if not table["needed"][index]:
            assert (
                "Not found, because none that keeps" in found.summary(index)
                and not table["found"][index]
            )
            np.testing.assert_array_equal(mask, network.masks(plain, index))
    assert table["needed"].sum() > plain.certificate["needed"].sum()
    with pytest.raises(nns.errors.InvalidArgumentError, match="cannot be combined"):
        network.decisive(needed=True, at_least=0.9, reference=Samples(network.data))


def test_a_number_that_is_needed():
    """y = 3·a + 3·b, and means 0: either keeps y within 60 %, and only both change it by more."""
    model = keras.Sequential([keras.Input((3,)), layers.Dense(1)])
    model.set_weights([np.array([[3.0], [3.0], [0.1]]), np.zeros(1)])
    im = nns.InstrumentedModel(model, task="regression")
    data = np.array([[1, 1, 1], [-1, -1, -1]], np.float32)
    profile = nns.Profile.from_data(im, data, progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    options = {"tolerance": 0.6, "others": 0, "level": "input", "max_share": 1.0}
    one, both = (slicer.decisive(data[:1], needed=n, **options) for n in (False, True))
    assert one.certificate["size"][0] == 1 and not one.certificate["needed"][0]
    assert both.certificate["size"][0] == 2 and both.certificate["needed"][0]
    assert next(iter(both.masks().values())).ravel().tolist() == [True, True, False]
    # The scope of a number: within the tolerance of the change with everything ablated.
    assert one.certificate["scope donors"][0] == 1


OPTIONS_OF_WEIGHTS = {
    "plain": {},
    "minimal": {"minimal": True},
    "needed": {"needed": True},
    "bounded": {"max_divergence": 0.3},
}


def mixed(network, old, masks, x):
    """Logits of the new version whose inactive synapses have the old version's weights."""
    kernels = [
        np.where(mask, new, before)
        for mask, new, before in zip(masks, network.weights[::2], old.weights[::2], strict=True)
    ]
    hidden = np.maximum(x @ kernels[0] + network.weights[1], 0)
    return hidden @ kernels[1] + network.weights[3]


@pytest.mark.parametrize("options", OPTIONS_OF_WEIGHTS.values(), ids=OPTIONS_OF_WEIGHTS)
def test_slices_of_the_synapses_against_another_versions_weights(network, options):
    """Certificates are what the model says whose other weights are the old version's."""
    old = Network(seed=4)
    x = network.x[:3]
    found = network.decisive(x, level="synapse", reference=Weights(old.im), **options)
    table = found.to_frame()
    for index, one in enumerate(x):
        masks = list(found.masks(index).values())
        ways = [masks, [~mask for mask in masks]]
        alone, removed = (mixed(network, old, way, one).argmax() for way in ways)
        answer = mixed(network, old, [True, True], one).argmax()
        assert table["answer"][index] == answer == alone == table["answer with slice alone"][index]
        assert table["needed"][index] == (removed != answer)
        assert table["size"][index] == sum(mask.sum() for mask in masks)
        if "minimal" not in options:
            continue
        for mask in masks:
            for place in zip(*np.nonzero(mask), strict=True):
                mask[place] = False
                assert (
                    table["size"][index] == 1 or mixed(network, old, masks, one).argmax() != answer
                )
                mask[place] = True


def test_slices_of_a_class_against_another_versions_weights():
    """The bounds hold for thousands of samples that the search has not seen."""
    network, old = Network(seed=0, hidden=16), Network(seed=1, hidden=16)
    data = np.random.default_rng(0).normal(size=(5000, 6)).clip(-2, 2).astype(np.float32)
    answers = network.im.logits(data).argmax(axis=1)
    label = int(np.bincount(answers[:1000]).argmax())
    own, others = (data[:1000][(answers[:1000] == label) == is_own] for is_own in (True, False))
    found = network.decisive(
        own,
        level="synapse",
        reference=Weights(old.im),
        **{"together": True, "against": others, "at_least": 0.8, "at_most": 0.3, "scope": 0},
    )
    masks = list(found.masks().values())
    assert found.certificate["size"][0] == sum(m.sum() for m in masks) < sum(m.size for m in masks)
    given = mixed(network, old, masks, data).argmax(axis=1)
    alone = found.certificate["answer with slice alone"]
    np.testing.assert_array_equal(alone, given[:1000][answers[:1000] == label])
    rest, of_rest = given[1000:] == label, answers[1000:] == label
    assert rest[of_rest].mean() > 0.8 and rest[~of_rest].mean() < 0.3


class Twice(layers.Layer):
    """A dense layer, and its kernel, transposed, once more."""

    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(6, "relu")

    def call(self, x):
        return ops.matmul(self.dense(x), ops.transpose(self.dense.kernel))


def test_scope_where_weights_are_replaced_is_refused_or_said_to_be_missing(network):
    """Inactive weights of another version, or zeros of a tied kernel, are no sample's values."""
    with pytest.raises(nns.errors.InvalidArgumentError, match="Replaced weights take no"):
        reference = Weights(Network(seed=4).im)
        network.decisive(level="synapse", reference=reference, scope=network.data)
    inputs = keras.Input((6,))
    model = keras.Model(inputs, layers.Dense(3, name="last")(Twice()(inputs)))
    slicer = nns.Slicer(model, nns.Profile.from_data(model, network.data, progress=False))
    found = slicer.decisive(network.data[:1], reference="zero", others=0, max_share=1.0)
    assert "scope donors" not in found.certificate
    assert "not tested with other samples' values: inactive weights are zero" in found.summary()


def test_a_sample_is_no_donor_of_its_own(network):
    one, others = network.data[:1], network.data[1:4]
    options = {"scope": 0, "reference": Samples(np.concatenate([one, others]))}
    found = network.decisive(one, **options)
    alone = network.decisive(one, **options | {"reference": Samples(others)})
    assert (found.members[0] == alone.members[0]).all()
    for name in alone.certificate.keys() - {"passes"}:
        values = found.certificate[name], alone.certificate[name]
        np.testing.assert_allclose(*values, rtol=1e-5, err_msg=name)  # float32
    with pytest.raises(nns.errors.InvalidArgumentError, match="only sample of the reference"):
        network.decisive(one, **options | {"reference": Samples(one)})
    options |= {"reference": Samples(others.repeat(60, axis=0)), "at_least": 0.9}
    with pytest.raises(nns.errors.InvalidArgumentError, match="equal to the one to slice"):
        network.decisive(one, **options | {"scope": one.repeat(40, axis=0)})
    found = network.decisive(one, scope=one)
    assert found.certificate["scope donors"] == 0
    assert "all that were given equal it" in found.summary()


def test_what_is_said_where_no_size_passes_or_nothing_active_is_enough(network):
    options = {"reference": Samples(network.data), "at_least": 0.9}
    # Each sample alone is kept by the whole network only: the rest turns against it.
    found = network.decisive(network.data[10:40], **options)
    whole = found.certificate["share"] == 1
    assert whole.any() and not found.certificate["found"][whole].any()
    texts = [found.summary(i) for i in range(30)]
    assert [("passed the test with other samples'" in text) for text in texts] == whole.tolist()
    # The remark stands wherever nothing active keeps what was asked for, and only there.
    for least in (None, 0.3, 0.5):
        found = network.decisive(min_probability=least)
        for index, one in enumerate(network.x):
            nothing, full = (network.logits(one, m, network.mean[None])[0] for m in (False, True))
            p = np.exp(nothing) / np.exp(nothing).sum()
            is_kept = nothing.argmax() == full.argmax() and p[full.argmax()] >= (least or 0)
            assert found.certificate["empty kept"][index] == is_kept
            assert ("without any of them, so the slice says" in found.summary(index)) == is_kept
    with pytest.raises(IndexError, match="There are 8 slices"):
        found.summary(8)
    with pytest.raises(IndexError, match="There are 8 slices"):
        found.masks(8)


def test_the_tolerance_of_a_number_is_each_samples_own():
    """y = 10·a + b: a sample that changes little has a small tolerance beside one that changes."""
    model = keras.Sequential([keras.Input((2,)), layers.Dense(1)])
    model.set_weights([np.array([[10.0], [1.0]]), np.zeros(1)])
    im = nns.InstrumentedModel(model, task="regression")
    data = np.array([[1, 1], [-1, -1], [0, 1]], np.float32)
    profile = nns.Profile.from_data(im, data[:2], progress=False)
    slicer = nns.Slicer(im, profile, workers=0, progress=False)
    options = {"tolerance": 0.2, "max_share": 1.0, "scope": 0}
    found = slicer.decisive(data[[0, 2]], together=True, **options)
    # Without b, y of the first is 10 of 11, and of the second 0 of 1.
    assert found.certificate["size"][0] == 2 and found.certificate["kept"].all()
    assert slicer.decisive(data[:1], **options).certificate["size"][0] == 1


@pytest.mark.whole
def test_a_class_of_a_deep_network_has_a_slice():
    """Effects that were estimated with 0.7 of ResNet10 lost every class."""
    data = datasets.load("cifar10", "train[:3000]")
    im = nns.InstrumentedModel(zoo.load("resnet10"))
    slicer = nns.Slicer(im, nns.Profile.from_data(im, data.x[:500], progress=False))
    answers = im.classes.from_logits(im.logits(data.x))
    own, others = data.x[answers == 8][:200], data.x[answers != 8][:400]
    found = slicer.decisive(
        own, together=True, against=others, at_least=0.9, at_most=0.1, others=0, scope=0
    )
    assert found.certificate["share"][0] < 0.7


def test_a_search_that_meets_no_needed_slice_does_not_deny_that_there_is_one():
    """One synapse keeps the answer and is needed; the search without a bound meets another."""
    rng = np.random.default_rng(3)
    inputs = keras.Input((2,))
    hidden = layers.Dense(2, "relu", name="h")(inputs)
    model = keras.Model(inputs, layers.Dense(1, activation="sigmoid", name="o")(hidden))
    for weight in model.weights:
        weight.assign(rng.normal(size=weight.shape))
    x = rng.normal(size=(40, 2)).astype(np.float32)
    slicer = nns.Slicer(model, nns.Profile.from_data(model, x, progress=False), progress=False)
    options = {"needed": True, "scope": None, "others": 0, "max_share": 1.0}
    missed = 0
    for index in range(40):
        found = slicer.decisive(x[index : index + 1], **options)
        if not found.certificate["needed"][0]:
            missed += 1
            assert (
                "no slice the search tried" in found.summary() and "because" not in found.summary()
            )
    assert missed
