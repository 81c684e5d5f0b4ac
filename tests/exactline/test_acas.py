import numpy as np
import pytest

import nnslicer_tf as nns
from nnslicer_tf.exactline import acas, exact_line

FILE = """// A network of two layers
2,2,2,3,
2,3,2,
0,
-10.0,-5.0,
10.0,5.0,
1.0,0.5,7.0,
4.0,2.0,3.0,
1.0,-2.0,
0.5,0.25,
-1.0,1.0,
0.5,
-0.25,
0.0,
1.0,-1.0,2.0,
0.5,0.5,-3.0,
0.125,
-1.0,
"""


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "small.nnet"
    path.write_text(FILE)
    return path


def small_network(x):
    """The network of `FILE`, written out."""
    a, b = (x[0] - 1) / 4, (x[1] - 0.5) / 2
    h = np.maximum([a - 2 * b + 0.5, a / 2 + b / 4 - 0.25, b - a], 0)
    return 3 * np.array([h[0] - h[1] + 2 * h[2] + 0.125, (h[0] + h[1]) / 2 - 3 * h[2] - 1]) + 7


def evaluate(nnet, x):
    """The network of any file."""
    values = (x - nnet.means[:-1]) / nnet.ranges[:-1]
    for weights, biases in zip(nnet.weights[:-1], nnet.biases[:-1], strict=True):
        values = np.maximum(values @ weights.T + biases, 0)
    outputs = values @ nnet.weights[-1].T + nnet.biases[-1]
    return outputs * nnet.ranges[-1] + nnet.means[-1]


def test_file_is_what_it_says(path):
    nnet = acas.load_nnet(path)
    for x in ([3.0, -2.0], [-9.0, 4.0], [0.0, 0.0]):
        np.testing.assert_allclose(evaluate(nnet, x), small_network(x), atol=1e-14)
    assert nnet.minima.tolist() == [-10, -5] and nnet.maxima.tolist() == [10, 5]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_keras_model_is_the_file(path, dtype):
    nnet = acas.load_nnet(path)
    model = acas.to_keras(nnet, dtype)
    x = np.random.default_rng(0).uniform(nnet.minima, nnet.maxima, (50, 2))
    # Keras rounds the numbers of a Rescaling layer to float32 whatever its dtype.
    np.testing.assert_allclose(model(x).numpy(), evaluate(nnet, x), rtol=0, atol=1e-5)


def test_line_is_the_file(path):
    nnet = acas.load_nnet(path)
    im = nns.InstrumentedModel(acas.to_keras(nnet, "float64"))
    partition = exact_line(im, nnet.minima, nnet.maxima)
    t = np.linspace(0, 1, 1001)
    np.testing.assert_allclose(
        partition.evaluate(t), evaluate(nnet, partition.at(t)), rtol=0, atol=1e-12
    )
    assert len(partition) > 1


def with_line(number, text):
    lines = FILE.splitlines()
    lines[number - 1 : number] = [] if text is None else [text]
    return "\n".join(lines)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (with_line(2, "2,2,2,"), "in line 2, expected layers.*4 numbers. Received: 3"),
        (with_line(2, "2,2,2.5,3,"), "in line 2, expected .*positive whole numbers"),
        (with_line(2, "0,2,2,3,"), "in line 2, expected .*positive whole numbers"),
        (with_line(3, "2,3,3,"), "in line 3, expected sizes of 2 inputs to 2 outputs"),
        (with_line(8, "4.0,0.0,3.0,"), "in line 8, expected ranges other than zero"),
        (with_line(10, "0.5,zero,"), "in line 10, expected a row of weights: numbers"),
        (with_line(10, "0.5,"), "in line 10, expected a row of weights: 2 numbers. Received: 1"),
        (with_line(10, "0.5,nan,"), "in line 10, expected a row of weights: finite numbers"),
        (with_line(13, None), "in line 14, expected a bias: 1 numbers. Received: 3"),
        (FILE[: FILE.index("0.125")], "in line 16, expected more lines.*truncated"),
        (FILE + "1.0,\n", "in line 19, expected the end of the file"),
        ("", "in line 0, expected more lines.*truncated"),
    ],
)
def test_malformed_file_is_refused(tmp_path, text, message):
    path = tmp_path / "bad.nnet"
    path.write_text(text)
    with pytest.raises(nns.errors.CorruptFileError, match=message):
        acas.load_nnet(path)


def test_other_files_are_refused(tmp_path):
    with pytest.raises(nns.errors.InvalidArgumentError, match="no file"):
        acas.load_nnet(tmp_path / "missing.nnet")
    (tmp_path / "binary.nnet").write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(nns.errors.CorruptFileError, match="not a text file"):
        acas.load_nnet(tmp_path / "binary.nnet")


def test_real_networks(shared):
    paths = sorted((shared / "acasxu").glob("*.nnet"))
    assert len(paths) == 45
    rng = np.random.default_rng(0)
    for path in paths:
        nnet = acas.load_nnet(path)
        x = rng.uniform(nnet.minima, nnet.maxima, (20, 5))
        outputs = evaluate(nnet, x)
        assert [len(b) for b in nnet.biases] == [50] * 6 + [5]
        model = acas.to_keras(nnet)
        scale = np.abs(outputs).max()
        error = np.abs(np.asarray(model(x.astype(np.float32))) - outputs).max()
        assert error < 1e-4 * scale


def test_real_line(shared):
    nnet = acas.load_nnet(shared / "acasxu" / "ACASXU_run2a_1_1_batch_2000.nnet")
    im = nns.InstrumentedModel(acas.to_keras(nnet, "float64"))
    partition = exact_line(im, [0.0, 0, 0, 650, 600], [10_000.0, 0, 0, 650, 600])
    t = np.linspace(0, 1, 5_001)
    expected = evaluate(nnet, partition.at(t))
    np.testing.assert_allclose(partition.evaluate(t), expected, rtol=0, atol=1e-9)
    regions = partition.classify(lowest=True)
    near = np.abs(t[:, None] - regions.ratios).min(axis=1) < 1e-9
    np.testing.assert_array_equal(regions.label_at(t)[~near], expected.argmin(axis=1)[~near])
    assert len(regions) > 1
