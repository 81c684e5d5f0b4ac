"""The slicer's promises beyond single samples: sums, sets, criteria, files, errors."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import nnslicer_tf as nns
from nnslicer_tf import _environment
from nnslicer_tf._kernels import sums
from nnslicer_tf.slicing import _zero_walk
from nnslicer_tf.slicing import slicer as slicer_module


@pytest.mark.parametrize("theta", [0.0, 0.3])
@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_many_samples_are_the_sum_of_single_ones(im, profile, x, theta, granularity):
    slicer = nns.Slicer(im, profile, theta, granularity, workers=0, progress=False)
    whole = slicer.slice(x)
    total = slicer.slice(x[:1])
    for i in range(1, len(x)):
        total = total + slicer.slice(x[i : i + 1])
    assert whole == total
    assert whole.info["samples"] == total.info["samples"] == len(x)


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_slice_each_holds_the_slice_of_each_sample(im, profile, x, theta):
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    each = slicer.slice_each(x[:7])
    assert len(each) == 7
    for i in range(7):
        assert each[i] == slicer.slice(x[i : i + 1])
        np.testing.assert_array_equal(each.matrix[[i]].toarray()[0], each[i].to_vector())
    assert each.sum() == slicer.slice(x[:7])
    np.testing.assert_array_equal(each.predicted, im.logits(x[:7]).argmax(axis=1))


def test_at_theta_zero_the_walk_on_the_backend_equals_the_kernels(im, profile, x, monkeypatch):
    slicer = nns.Slicer(im, profile, 0.0, workers=0, progress=False)
    used = []
    applies = _zero_walk.applies
    monkeypatch.setattr(_zero_walk, "applies", lambda *a: used.append(applies(*a)) or used[-1])
    dense, dense_each = slicer.slice(x), slicer.slice_each(x)
    assert used == [True, True]
    monkeypatch.setattr(_zero_walk, "applies", lambda *_: False)
    by_kernels, kernels_each = slicer.slice(x), slicer.slice_each(x)
    assert dense == by_kernels
    assert (dense_each.matrix != kernels_each.matrix).nnz == 0
    assert (dense_each.neuron_matrix != kernels_each.neuron_matrix).nnz == 0


def test_results_do_not_depend_on_batch_size_or_order(slicer, x, monkeypatch):
    whole = slicer.slice(x)
    assert slicer.slice(x[::-1]) == whole
    for size in (1, 7):
        monkeypatch.setattr(slicer_module, "LARGEST_BATCH", size)
        assert slicer.slice(x) == whole


def test_a_profile_is_taken_from_its_file(im, profile, x, tmp_path):
    profile.save(tmp_path / "p.npz")
    of_file = nns.Slicer(im, str(tmp_path / "p.npz"), 0.3, workers=0, progress=False)
    assert of_file.slice(x[:3]) == nns.Slicer(im, profile, 0.3, workers=0).slice(x[:3])
    with pytest.raises(nns.errors.MissingFileError, match="no profile file"):
        nns.Slicer(im, "nope.npz")
    with pytest.raises(nns.errors.InvalidArgumentError, match=r"Profile\.from_data.*ndarray"):
        nns.Slicer(im, x)


def test_data_sets_are_taken_batched_or_not(slicer, x):
    whole = slicer.slice(x)
    samples = tf.data.Dataset.from_tensor_slices(x)
    assert slicer.slice(samples) == whole
    assert slicer.slice(samples.batch(3)) == whole
    labelled = tf.data.Dataset.from_tensor_slices((x, np.zeros(len(x)))).batch(16)
    assert slicer.slice(labelled) == whole


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_the_bar_says_when_something_compiles(im, profile, x, theta, monkeypatch, capsys):
    monkeypatch.setattr(_environment, "SHOWN_AFTER", 0)
    monkeypatch.setattr(sums, "is_compiled", lambda: False)
    slicer = nns.Slicer(im, profile, theta, workers=0)
    slicer.slice(x[:2])
    assert "Compiling" in capsys.readouterr().err
    monkeypatch.setattr(sums, "is_compiled", lambda: True)
    slicer.slice(x[:2])
    shown = capsys.readouterr().err
    assert "Slicing" in shown and "Compiling" not in shown


@pytest.mark.parametrize("granularity", ["activation", "channel"])
def test_few_samples_at_zero_are_not_worth_compiling(im, profile, x, granularity, monkeypatch):
    whole = nns.Slicer(im, profile, 0.0, granularity, workers=0, progress=False)
    expected, each = whole.slice(x[:5]), whole.slice_each(x[:3])
    # Products of a dense layer and of a convolution: one for each weight and position.
    positions = {name: im[name].size // im[name].shape[-1] for name in whole.im.kernels}
    of_sample = sum(positions[n] * kernel.size for n, kernel in im.kernels.items())
    monkeypatch.setattr(slicer_module, "FEW_PRODUCTS", 8 * of_sample)
    monkeypatch.setattr(_zero_walk.CountWalk, "__call__", None)  # it would fail
    few = nns.Slicer(im, profile, 0.0, granularity, workers=0, progress=False)
    assert few.slice(x[:5]) == expected
    np.testing.assert_array_equal(few.slice_each(x[:3]).to_array(), each.to_array())
    if granularity == "activation":
        with pytest.raises(TypeError):
            few.slice(x[:1])


def test_larger_theta_keeps_a_subset_of_a_local_slice(im, profile, x):
    """With the CONTRIB of an operation given, θ only takes away."""
    local = nns.Criterion({"inner": "all"}, until="inner")
    previous = None
    for theta in (0.0, 0.1, 0.5, 2.0):
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
        vectors = slicer.slice_each(x[:5], local, operations=["first"])
        kept = abs(vectors.neuron_matrix).sum(axis=1)
        if previous is not None:
            # Only "inner" has synapses in a local slice, and fewer with each step.
            assert (abs(vectors.matrix).sum(axis=1) <= previous).all()
        previous = abs(vectors.matrix).sum(axis=1)
        other = np.delete(np.arange(vectors.matrix.shape[1]), vectors.columns(["inner"]))
        assert vectors.matrix[:, other].nnz == 0
        assert kept.shape == (5,)


def test_local_values_sum_to_the_change_of_the_output(im, profile, x):
    """Σ w_i·Δx_i = Δy for every weighted sum, whatever its geometry."""
    values = im.capture(x)
    for operation in im.operations:
        if operation.kind != "weighted_sum":
            continue
        source = operation.inputs[0]
        dx = (values[source] - profile.means[source]).astype(np.float32)
        kernel = operation.params
        linear = np.asarray(kernel.apply(*map(keras.ops.convert_to_tensor, (dx, kernel.kernel()))))
        dy = values[operation.name] - profile.means[operation.name]
        np.testing.assert_allclose(linear, dy, atol=2e-5)


def test_criterion_on_predicted_equals_each_samples_own_class(slicer, im, x):
    labels = im.logits(x[:6]).argmax(axis=1)
    by_hand = sum(
        (slicer.slice(x[i : i + 1], outputs=[int(c)]) for i, c in enumerate(labels[1:], 1)),
        start=slicer.slice(x[:1], outputs=[int(labels[0])]),
    )
    assert slicer.slice(x[:6], outputs="predicted") == by_hand


def test_inner_criterion_starts_where_it_says(slicer, x):
    one = slicer.slice(x[:3], outputs={"join": [5, 6]})
    assert one.neurons["join"].ravel().nonzero()[0].tolist() == [5, 6]
    assert one.neurons["join"].sum() == 6
    assert not one.neurons["pool"].any()
    assert one.neurons["inner"].any()


def test_algebra(slicer, x):
    a, b = slicer.slice(x[:1]), slicer.slice(x[1:2])
    in_a, in_b = a.to_vector() != 0, b.to_vector() != 0
    assert (in_a != in_b).any()
    np.testing.assert_array_equal((a & b).to_vector() != 0, in_a & in_b)
    np.testing.assert_array_equal((a | b).to_vector() != 0, in_a | in_b)
    np.testing.assert_array_equal((a - b).to_vector() != 0, in_a & ~in_b)
    np.testing.assert_array_equal((a & b).to_vector()[in_a & in_b], a.to_vector()[in_a & in_b])


def test_apply_zeroes_what_is_outside_the_slice(slicer, im, x):
    one = slicer.slice(x)
    sliced = one.apply(im.model, "zero")
    for name, mask in one.synapse_mask().items():
        layer, original = sliced.get_layer(name), im.model.get_layer(name)
        expected = np.asarray(original.kernel) * mask
        np.testing.assert_array_equal(np.asarray(layer.kernel), expected)
        np.testing.assert_array_equal(np.asarray(layer.bias), np.asarray(original.bias))
    assert nns.InstrumentedModel(im.model).fingerprint == slicer.profile.fingerprint


def test_files_keep_everything(slicer, profile, x, tmp_path):
    one, each = slicer.slice(x[:3]), slicer.slice_each(x[:3])
    one.save(tmp_path / "s.npz")
    each.save(tmp_path / "e.npz")
    profile.save(tmp_path / "p.npz")
    loaded = nns.Slice.load(tmp_path / "s.npz")
    assert loaded == one
    assert loaded.info == one.info
    loaded_each = nns.SliceSet.load(tmp_path / "e.npz")
    assert all(loaded_each[i] == each[i] for i in range(3))
    means = nns.Profile.load(tmp_path / "p.npz").means
    assert all(np.array_equal(means[name], mean) for name, mean in profile.means.items())


@pytest.mark.parametrize("kind", [nns.Slice, nns.SliceSet, nns.Profile])
def test_damaged_files_are_refused(slicer, profile, x, tmp_path, kind):
    path = tmp_path / "result.npz"
    result = {
        nns.Slice: lambda: slicer.slice(x[:1]),
        nns.SliceSet: lambda: slicer.slice_each(x[:1]),
        nns.Profile: lambda: profile,
    }[kind]()
    result.save(path)
    whole = path.read_bytes()
    for broken in (whole[: len(whole) // 2], b"", b"nonsense"):
        path.write_bytes(broken)
        with pytest.raises(nns.errors.CorruptFileError, match=r"result\.npz"):
            kind.load(path)
    np.savez(path, x=np.zeros(3))
    with pytest.raises(nns.errors.CorruptFileError, match=r"result\.npz"):
        kind.load(path)


def test_rows_on_disk_equal_rows_in_memory(slicer, x, tmp_path, monkeypatch):
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 6)
    memory, disk = slicer.slice_each(x), slicer.slice_each(x, folder=tmp_path / "rows")
    assert isinstance(disk.matrix.data, np.memmap)
    assert (memory.matrix != disk.matrix).nnz == 0
    assert (memory.neuron_matrix != disk.neuron_matrix).nnz == 0
    np.testing.assert_array_equal(memory.predicted, disk.predicted)
    assert disk[17] == memory[17]


def test_rows_at_zero_are_dense_in_memory_on_disk_and_in_files(im, profile, x, tmp_path):
    """Every reading of a set is the same as of the slices of its samples, one by one."""
    slicer = nns.Slicer(im, profile, theta=0.0, workers=0, progress=False)
    single = [slicer.slice(x[i : i + 1]) for i in range(7)]
    rows = np.stack([s.to_vector() for s in single])
    memory = slicer.slice_each(x[:7])
    memory.save(tmp_path / "set.npz")
    disk = slicer.slice_each(x[:7], folder=tmp_path / "rows")
    dense_bytes = 4 * memory.to_array().size
    assert (tmp_path / "rows" / "synapses.dense").stat().st_size == dense_bytes
    assert memory.matrix.data.nbytes + memory.matrix.indices.nbytes > dense_bytes  # as CSR
    for found in (memory, disk, nns.SliceSet.load(tmp_path / "set.npz")):
        np.testing.assert_array_equal(found.to_array(), rows)
        np.testing.assert_array_equal(found.matrix.toarray(), rows)
        np.testing.assert_array_equal(
            found.to_array()[:, found.columns(["dense"])],
            [s.synapses["dense"].ravel() for s in single],
        )
        assert [found[i] for i in range(7)] == single
        assert found.sum() == slicer.slice(x[:7])
        shares = [np.mean(s.synapses["inner"] != 0) for s in single]
        np.testing.assert_allclose(found.kept_share("inner"), shares)


def test_some_kernels_and_no_neurons(slicer, x):
    everything = slicer.slice_each(x[:4])
    some = slicer.slice_each(x[:4], kernels=["dense", "inner"], operations=())
    assert list(some.kernels) == ["inner", "dense"]
    assert some.neuron_matrix is None
    expected = everything.matrix[:, everything.columns(["inner", "dense"])]
    assert (some.matrix != expected).nnz == 0


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_iterate_hands_out_what_slice_each_keeps(im, profile, x, theta, monkeypatch):
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 6)
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    each = slicer.slice_each(x)
    parts = list(slicer.iterate(x, kernels=["dense", "inner"], operations=["pool"]))
    assert [len(part.predicted) for part in parts] == [6] * 6 + [4]
    for kernel in ("inner", "dense"):
        found = np.concatenate([part.synapses[kernel] for part in parts])
        assert found.dtype == np.int32
        expected = each.matrix[:, each.columns([kernel])].toarray()
        np.testing.assert_array_equal(found.reshape(len(x), -1), expected)
    pool = np.concatenate([part.neurons["pool"] for part in parts])
    expected = each.neuron_matrix[:, each.neuron_columns(["pool"])].toarray()
    np.testing.assert_array_equal(pool.reshape(len(x), -1), expected)
    predicted = np.concatenate([part.predicted for part in parts])
    np.testing.assert_array_equal(predicted, each.predicted)


def by_channel(synapses):
    """Sum of the sizes of contributions by output channel, for each sample."""
    return {
        name: keras.ops.sum(keras.ops.abs(values), axis=tuple(range(1, len(values.shape) - 1)))
        for name, values in synapses.items()
    }


@pytest.mark.parametrize("theta", [0.0, 0.3])
def test_iterate_reduces_where_it_walks(im, profile, x, theta):
    slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
    each = slicer.slice_each(x[:9])
    (part,) = slicer.iterate(x[:9], kernels=["inner"], reduce=by_channel)
    assert part.synapses == {}
    shape = (9, *each.kernels["inner"])
    dense = each.matrix[:, each.columns(["inner"])].toarray().reshape(shape)
    np.testing.assert_array_equal(part.reduced["inner"], abs(dense).sum(axis=(1, 2, 3)))
    with pytest.raises(nns.errors.InvalidArgumentError, match="reduce must be a function"):
        next(slicer.iterate(x[:9], reduce="sum"))
    with pytest.raises(nns.errors.CriterionError, match="until must be one name"):
        slicer.slice(x[:9], nns.Criterion("predicted", until=np.array(["inner"])))


def test_iterate_gives_zeros_where_the_walk_does_not_come(im, profile, x):
    for theta in (0.0, 0.3):
        slicer = nns.Slicer(im, profile, theta, workers=0, progress=False)
        local = nns.Criterion({"inner": "all"}, until="inner")
        (part,) = slicer.iterate(x[:2], local, kernels=["dense", "inner"])
        assert not part.synapses["dense"].any() and part.synapses["inner"].any()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"theta": -0.1}, nns.errors.InvalidArgumentError, "theta"),
        ({"theta": float("nan")}, nns.errors.InvalidArgumentError, "theta"),
        ({"theta": "much"}, nns.errors.InvalidArgumentError, "theta"),
        ({"granularity": "layer"}, nns.errors.InvalidArgumentError, "'activation', 'channel'"),
        ({"workers": -1}, nns.errors.InvalidArgumentError, "workers"),
    ],
)
def test_bad_arguments(im, profile, arguments, error, words):
    with pytest.raises(error, match=words):
        nns.Slicer(im, profile, **arguments)


@pytest.mark.parametrize(
    ("outputs", "words"),
    [
        ([4], "0 to 3"),
        ([-1], "0 to 3"),
        ([], "no neuron"),
        ([0.5], "integer"),
        ("best", "all"),
        ({"nowhere": [1]}, "no operation 'nowhere'"),
        ({"poll": "all"}, "Did you mean 'pool'"),
        ({"pool": [96]}, "96 neurons"),
        ({}, "empty"),
    ],
)
def test_bad_criteria(slicer, x, outputs, words):
    with pytest.raises(nns.errors.CriterionError, match=words):
        slicer.slice(x[:1], outputs)


def test_bad_data(slicer, x):
    with pytest.raises(nns.errors.InputShapeError, match=r"8, 8, 2"):
        slicer.slice(x[:, :4])
    with pytest.raises(nns.errors.InputShapeError, match="real numbers"):
        slicer.slice(x.astype(str))
    with pytest.raises(nns.errors.InvalidArgumentError, match="empty"):
        slicer.slice(x[:0])
    bad = x.copy()
    bad[23, 0, 0, 0] = np.nan
    with pytest.raises(nns.errors.NonFiniteActivationError, match="Sample 23"):
        slicer.slice(bad)


def test_a_set_without_kernels_has_neurons_alone(slicer, x):
    names = ["pool", "dense"]
    each = slicer.slice_each(x[:2], kernels=(), operations=names)
    whole = slicer.slice_each(x[:2], operations=names)
    for one, other in zip(each, whole, strict=True):
        assert not one.synapses
        for name in names:
            np.testing.assert_array_equal(one.neurons[name], other.neurons[name])


@pytest.mark.parametrize("size", [4, 8])
def test_fewer_samples_than_a_checkpoint_has(slicer, x, tmp_path, monkeypatch, size):
    monkeypatch.setattr(slicer_module, "LARGEST_BATCH", 4)
    slicer.slice(x[:12], checkpoint=tmp_path / "sums")
    slicer.slice_each(x[:12], folder=tmp_path / "rows")

    with pytest.raises(
        nns.errors.ProfileMismatchError, match=rf"3 batches; these data have {size // 4}"
    ):
        slicer.slice(x[:size], checkpoint=tmp_path / "sums")
    all_rows = slicer.slice_each(x[:12], folder=tmp_path / "rows")
    fewer = slicer.slice_each(x[:size], folder=tmp_path / "rows")
    assert all_rows.sum() == slicer.slice(x[:12])  # whose file has been replaced
    assert len(fewer) == size and fewer.sum() == slicer.slice(x[:size])
    assert slicer.slice_each(x[:12], folder=tmp_path / "rows").sum() == slicer.slice(x[:12])


def recurrent(of_inputs, of_layers):
    """A model whose input and layers have these dtypes."""
    inputs = keras.Input((5, 3), dtype=of_inputs)
    y = keras.layers.LSTM(4, dtype=of_layers, name="lstm")(inputs)
    return keras.Model(inputs, keras.layers.Dense(3, dtype=of_layers, name="end")(y))


def counts_and_amounts(model):
    """Slices at θ = 0 of both kinds, of twelve samples that the profile is of, too."""
    x = np.random.default_rng(0).normal(size=(12, 5, 3))
    im = nns.InstrumentedModel(model)
    profile = nns.Profile.from_data(im, x, progress=False)
    return [
        nns.Slicer(im, profile, 0.0, progress=False, contribution=kind).slice(x)
        for kind in ("count", "amount")
    ]


@pytest.fixture(scope="module")
def in_float32():
    """(weights, slices) of a model in float32."""
    model = recurrent("float32", "float32")
    return model.get_weights(), counts_and_amounts(model)


@pytest.mark.parametrize("floats", ["layers", "inputs", "everything"])
def test_models_in_float64_are_analysed_in_float32(floats, in_float32):
    weights, slices = in_float32
    model = recurrent(
        "float32" if floats == "layers" else "float64",
        "float32" if floats == "inputs" else "float64",
    )
    model.set_weights(weights)
    default = keras.config.floatx()
    keras.config.set_floatx("float64" if floats == "everything" else default)
    try:
        found = counts_and_amounts(model)
    finally:
        keras.config.set_floatx(default)
    for one, other in zip(found, slices, strict=True):
        for name, synapses in one.synapses.items():
            np.testing.assert_allclose(synapses, other.synapses[name], rtol=1e-5, atol=1e-6)


def test_data_in_bfloat16(slicer, x):
    rounded = keras.ops.convert_to_numpy(keras.ops.cast(x, "bfloat16"))
    assert slicer.slice(rounded) == slicer.slice(rounded.astype(np.float32))
    with pytest.raises(TypeError, match="slice"):
        slicer.slice_each(x[:3])[0:2]
