"""The explorer's format: what goes in comes out, and bad data is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from nnslicer_tf.report.explorer.packing import FORMAT, Packer
from support.documents import unpack

SHAPES = hnp.array_shapes(max_dims=3, max_side=6)


def packed_alone(add, array):
    packer = Packer()
    reference = getattr(packer, add)(array)
    header, arrays = unpack(packer.pack({"mine": reference}))
    assert header["mine"] == reference and header["format"] == FORMAT
    return arrays[reference]


@given(hnp.arrays(np.int64, SHAPES, elements=st.integers(-(2**31), 2**31 - 1)))
def test_whole_numbers(array):
    assert np.array_equal(packed_alone("add", array), array)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@given(data=st.data())
def test_floats_are_exact(dtype, data):
    elements = st.floats(width=32 if dtype == np.float32 else 64, allow_nan=False)
    array = data.draw(hnp.arrays(dtype, SHAPES, elements=elements))
    found = packed_alone("add", array)
    assert found.dtype == dtype and np.array_equal(found, array)


@given(hnp.arrays(np.float32, SHAPES, elements=st.floats(-(2.0**60), 2.0**60, width=32)))
def test_levels_are_off_by_two_percent_of_the_largest(array):
    found = packed_alone("add_levels", array)
    largest = np.abs(array).max(initial=0)
    assert np.abs(found - array).max() <= 0.02 * largest
    assert np.all(np.sign(found) * np.sign(array) >= 0)


def test_bools_and_bytes():
    mask = np.array([[True, False], [False, True]])
    assert np.array_equal(packed_alone("add", mask), mask.astype(int))
    picture = np.arange(256, dtype=np.uint8)
    assert np.array_equal(packed_alone("add", picture), picture)


@pytest.mark.parametrize(
    ("largest", "size"), [(127, 1), (128, 2), (2**15 - 1, 2), (2**15, 4)], ids=str
)
def test_the_smallest_type_is_used(largest, size):
    packer = Packer()
    packer.add(np.array([largest]))
    assert unpack(packer.pack({}))[1][0].itemsize == size


def test_equal_arrays_are_stored_once():
    packer = Packer()
    first = packer.add(np.arange(5))
    assert packer.add(np.arange(5)) == first
    others = packer.add(np.arange(6)), packer.add(np.arange(5).reshape(5, 1))
    assert len({first, *others}) == 3
    assert len(unpack(packer.pack({}))[1]) == 3


def test_equal_documents_are_equal_bytes():
    documents = []
    for _ in range(2):
        packer = Packer()
        packer.add(np.arange(5))
        documents.append(packer.pack({"title": "θ"}))
    assert documents[0] == documents[1]


def test_text_is_kept():
    text = 'θ <b>"&</script>\n'
    assert unpack(Packer().pack({"title": text}))[0]["title"] == text
