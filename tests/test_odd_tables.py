"""Odd `.csv` files, each with the right values beside it, or the reason why it is refused.

Values and labels are written by hand; nothing here reads a file but `load_data`.
"""

import re
import warnings

import numpy as np
import pandas as pd
import pytest

from nnslicer_tf import datasets
from nnslicer_tf._checks import as_class_indices, check_labels
from nnslicer_tf.errors import (
    CorruptFileError,
    InputShapeError,
    InvalidArgumentError,
    PlausibilityWarning,
)

A, AB = "a,label\n", "a,b,label\n"
MANY = "|".join(f"c{i}" for i in range(999))

# Text (or bytes); columns, x, and y as names or integers.
# ruff: noqa: E501 - a line for each file
READ = {
    "plain": (AB + "1,2,0\n3,4,1\n", "a|b", [[1, 2], [3, 4]], [0, 1]),
    "a # in a name": ("label,rooms,note #1,note #2\n0,3,7,0\n", "rooms|note #1|note #2", [[3, 7, 0]], [0]),
    "a # in a label": (A + "1,C#\n2,C\n3,C#\n", "a", [[1], [2], [3]], ["C#", "C", "C#"]),
    "a # at the start of a label": ("label,a\n#1,5\n#2,6\n", "a", [[5], [6]], ["#1", "#2"]),
    "a # at the start of a quoted label": ('label,a\n"#1",5\n', "a", [[5]], ["#1"]),
    "comments above": ("# made by us, in 2026\n#\n" + A + "1,0\n", "a", [[1]], [0]),
    "a comment below": (AB + "1,2,0\n# a comment\n3,4,1\n", "a|b", [[1, 2], [3, 4]], [0, 1]),
    "a comment with commas below": (AB + "# one, two, three, four\n3,4,1\n", "a|b", [[3, 4]], [1]),
    "a comment at the end": (AB + "1,2,0\n# end", "a|b", [[1, 2]], [0]),
    "blank lines": ("\n\n" + A + "\n1,0\n\n\n2,1\n\n", "a", [[1], [2]], [0, 1]),
    "lines of blanks": (A + "1,0\n   \n2,1\n", "a", [[1], [2]], [0, 1]),
    "a line break in the first name": ('"a\n(°C)";b;label\n1;2;0\n', "a\n(°C)|b", [[1, 2]], [0]),
    "a line break between tabs": ('"a\nb"\tlabel\n1\t0\n', "a\nb", [[1]], [0]),
    "Excel's line and a tab": ("sep=\t\na\tlabel\n1\t0\n", "a", [[1]], [0]),
    "Excel's line below a comment": ("# ours\nsep=;\na,b;label\n1;0\n", "a,b", [[1]], [0]),
    "no last line end": (A + "1,0\n2,1", "a", [[1], [2]], [0, 1]),
    "Windows": ("a,label\r\n1,0\r\n2,1\r\n", "a", [[1], [2]], [0, 1]),
    "old Macs": ("a,label\r1,0\r2,1\r", "a", [[1], [2]], [0, 1]),
    "a mark of UTF-8": (b"\xef\xbb\xbfa,label\n1,0\n", "a", [[1]], [0]),
    "UTF-16": ("a,label\n1,ä\n".encode("utf-16"), "a", [[1]], ["ä"]),
    "UTF-8": ("größe,label\n1,weiß\n", "größe", [[1]], ["weiß"]),
    "empty values at the ends": (AB + "1,2,0,\n3,4,1,\n", "a|b", [[1, 2], [3, 4]], [0, 1]),
    "an empty value at one end": ("label,a,b\n0,1,50.5,\n1,2,3\n", "a|b", [[1, 50.5], [2, 3]], [0, 1]),
    "an empty last column": ("a,label,\n1,0,\n2,1,\n", "a", [[1], [2]], [0, 1]),
    "two empty last columns": ("a,label,,\n1,0,,\n", "a", [[1]], [0]),
    "blanks around values": (" a , label \n 1 , cat \n 2 , dog \n3,cat\n", "a", [[1], [2], [3]], ["cat", "dog", "cat"]),
    "quoted values": ('"a","label"\n"1","0"\n', "a", [[1]], [0]),
    "a comma in quotes": ('"a, b",label\n1,"x, y"\n', "a, b", [[1]], ["x, y"]),
    "quotes in quotes": ('a,label\n1,"5"" pipe"\n', "a", [[1]], ['5" pipe']),
    "quotes inside": ('a,label\n1,5" pipe\n', "a", [[1]], ['5" pipe']),
    "a line end in quotes": ('a,label\n1,"two\nlines"\n2,one\n', "a", [[1], [2]], ["two\nlines", "one"]),
    "a # line in quotes": ('a,label\n1,"two\n#lines"\n2,one\n', "a", [[1], [2]], ["two\n#lines", "one"]),
    "quotes after a blank": ('a,label\n1, "x, y"\n', "a", [[1]], ["x, y"]),
    "semicolons": ("a;b;label\n1;2;0\n", "a|b", [[1, 2]], [0]),
    "commas in names of semicolons": ("a;b, in m;label\n1;2;0\n", "a|b, in m", [[1, 2]], [0]),
    "a comma in the first name": ("größe, cm;b;label\n1.5;2;0\n", "größe, cm|b", [[1.5, 2]], [0]),
    "quotes around the last name alone": ('alter;größe;"a;b";label\n1;2;3;0\n', "alter|größe|a;b", [[1, 2, 3]], [0]),
    "tabs": ("a\tb\tlabel\n1\t2\t0\n", "a|b", [[1, 2]], [0]),
    "tabs and an empty value": ("a\tlabel\t\n1\t0\t\n", "a", [[1]], [0]),
    "Excel's separator": ("sep=;\na;label\n1;0\n", "a", [[1]], [0]),
    "another of Excel's": ("sep=|\na|label\n1|0\n", "a", [[1]], [0]),
    "a table of labels below": ("label,a\n1,1e-3\n0,-2E+2\n", "a", [[1e-3], [-200]], [1, 0]),
    "signs and points": (A + "+1.,0\n-.5,1\n", "a", [[1], [-0.5]], [0, 1]),
    "leading zeros": (A + "007,0\n", "a", [[7]], [0]),
    "large integers": (A + "16777216,0\n", "a", [[16777216]], [0]),
    "integers beyond int64": (A + "3" * 30 + ",0\n-1,1\n", "a", [[int("3" * 30)], [-1]], [0, 1]),
    "values of bool": (A + "True,0\nFalse,1\n", "a", [[1], [0]], [0, 1]),
    "labels of bool": (A + "1,True\n2,False\n", "a", [[1], [2]], ["True", "False"]),
    "labels of bool, all True": (A + "1,True\n2,TRUE\n", "a", [[1], [2]], ["True", "True"]),
    "labels of bool, all False": (A + "1,false\n2,false\n", "a", [[1], [2]], ["False", "False"]),
    "labels with points": (A + "1,1.0\n2,0.0\n", "a", [[1], [2]], [1, 0]),
    "numbers and names as labels": (A + "1,10\n2,ten\n", "a", [[1], [2]], ["10", "ten"]),
    "one column": ("a\n1\n2\n", "a", [[1], [2]], None),
    "labels first": ("label,a,b\n2,1,5\n", "a|b", [[1, 5]], [2]),
    "labels between": ("a,label,b\n1,2,5\n", "a|b", [[1, 5]], [2]),
    "the name in capitals": ("a,LABEL\n1,1\n", "a", [[1]], [1]),
    "names that differ in case": ("a,A,label\n1,2,0\n", "a|A", [[1, 2]], [0]),
    "a name that is a number": ("a,7,label\n1,2,0\n", "a|7", [[1, 2]], [0]),
    "names as of pandas": ("0,1,label\n1,2,0\n", "0|1", [[1, 2]], [0]),
    "names that pandas would change": ("a,a.1,label\n1,2,0\n", "a|a.1", [[1, 2]], [0]),
    "many columns": (MANY.replace("|", ",") + ",label\n" + "1," * 999 + "0\n", MANY, [[1] * 999], [0]),
}  # fmt: skip

REFUSED = {
    "a longer row": ("label,a,b\n0,1,50.5,7\n", "line 2 has 4 values, but the header has 3 names"),
    "all rows longer": ("a,b,c,label\n1,2,3,0,9\n", "line 2 has 5 values, but the header has 4 names"),
    "one longer row of many": (AB + "1,2,0\n3,4,1\n5,6,0,1\n", "line 4 has 4 values"),
    "a shorter row": (AB + "1,2,0\n3,4\n", "line 3 has 2 values"),
    "a row of one value": (AB + "1,2,0\n3\n", "line 3 has 1 value,"),
    "a longer row after a line end in quotes": (
        'a,label\n1,"two\nlines"\n2,one,3\n',
        "line 4 has 3 values",
    ),
    "a decimal comma": (A + "1,5,0\n", "line 2 has 3 values, but the header has 2 names"),
    "decimal commas and semicolons": ("a;label\n1,5;0\n", "'a' does not hold numbers: row 1 has '1,5'"),
    "row names of R": ('"a","label"\n"1",5,0\n', "line 2 has 3 values"),
    "an index of pandas": (",a,label\n0,5,0\n", r"first column has no name.*index=False"),
    "a column without a name": ("a,,label\n1,2,0\n", "column 2 has no name"),
    "one name twice": ("a,a,label\n1,2,0\n", "two columns are called 'a'"),
    "two labels of one name": ("a,label,label\n1,2,0\n", "two columns are called 'label'"),
    "two names for labels": ("a,label,class\n1,2,0\n", "'label', 'class' could hold the labels"),
    "no names": ("5.1,3.5,setosa\n4.9,3,setosa\n", "begins with values"),
    "no names, other digits": ("٣,٥,٩\n٤,٦,٧\n", "begins with values"),
    "no names, digits in groups": ("1_000,2_500,9_000\n1,2,0\n", "begins with values"),
    "no names, one missing": ("1.5,nan\n2.5,3.5\n", "begins with values, 1.5, nan"),
    "no names, spelled as missing": ("NA,null,7\n2.5,3.5,1\n", "begins with values"),
    "no names, infinite": ("-inf,2,Infinity\n1,2,3\n", "begins with values"),
    "no names, of bool": ("True,2.5\nFalse,3.5\nTrue,1.5\n", "begins with values"),
    "no names, of bool alone": ("TRUE;false\nFALSE;true\n", "begins with values"),
    "no names, mostly of bool": ("True,False,True,2.5\nFalse,True,True,1\n", "begins with values"),
    "no names, one value": ("nan\n2.5\n", "begins with values"),
    "no names, missing and text": ("NA,NA,setosa\n2.5,3.5,setosa\n", "begins with values"),
    "no names, rising and missing": ("1,2,3,4,5,6,7,nan\n1,2,3,4,5,6,7,8\n", "begins with values"),
    "no names, 0 and missing": ("0,nan,1\n3,4,5\n", "begins with values"),
    "no names, 25 digits": ("9" * 25 + ",7,3\n1,2,3\n", "begins with values"),
    "no names, dates": ("2020-01-01,5,7\n2020-01-02,6,8\n", "begins with values"),
    "no names, more dates": ("2020-01-01,10:30,7\n2020-01-02,10:40,8\n", "does not hold numbers"),
    "a comment for names": ("# a,b,label\n1,2,0\n3,4,1\n", "begins with values"),
    "no rows": (A, "has no rows"),
    "comments alone": ("# nothing\n", "has no rows"),
    "nothing": ("", "has no rows"),
    "blanks alone": ("\n  \n", "has no rows"),
    "an open quote": ('a,label\n1,"cat\n2,dog\n', "line 3: unexpected end of data"),
    "text after a quote": ('a,label\n1,"cat"x\n', "line 2: .* expected after"),
    "bytes of Latin-1": ("a,label\n1,weiß\n".encode("latin-1"), "not text in UTF-8.*Save it as UTF-8"),
    "an archive": (b"PK\x03\x04\x00\xff\xfe\x80", "not text in UTF-8"),
    "words": (A + "1,0\nred,1\n", "'a' does not hold numbers: row 2 has 'red'.*StringLookup"),
    "units": (A + "5 m,0\n", "row 1 has '5 m'"),
    "per cent": (A + "50%,0\n", "row 1 has '50%'"),
    "thousands": (A + '"1,234",0\n', "row 1 has '1,234'"),
    "underscores": (A + "1_000,0\n", "row 1 has '1_000'"),
    "dates": (A + "2026-01-02,0\n", "row 1 has '2026-01-02'"),
    "a missing value": ("a,age,label\n1,2,0\n3,,1\n", "column 'age' has no value in row 2 of 2"),
    "a value NA": ("a,age,label\n1,NA,0\n3,4,1\n", "column 'age' has no value in row 1 of 2"),
    "an empty column": (AB + "1,,0\n2,,1\n", "column 'b' has no value in row 1 of 2"),
    "infinity": (A + "1,0\n-inf,1\n", "column 'a' has -inf, which is no finite float32 in row 2"),
    "beyond float32": (A + "1e300,0\n", r"column 'a' has 1e\+300, which is no finite float32"),
    "an integer of 400 digits": (A + "1,0\n" + "9" * 400 + ",1\n", "'a' has inf, .* in row 2 of 2"),
    "one below 0": (A + "-" + "9" * 400 + ",0\n", "odd.csv': column 'a' has inf, .* in row 1 of 1"),
    "one beyond int64": (A + "9" * 40 + ",0\n", "column 'a' has inf, which is no finite float32"),
    "one beside a half": (A + "9" * 400 + ",0\n0.5,1\n", "column 'a' has inf|has 9999"),
    "one of 5000 digits": (A + "9" * 5000 + ",0\n", "does not hold numbers: row 1 has '9{59}\\. Remove"),
    "a missing label": (A + "1,\n2,1\n", "row 1 of 2 has no label"),
    "a label NA": (A + "1,cat\n2,NA\n", "row 2 of 2 has no label"),
    "a label of 1e300": (A + "1,0\n2,1e300\n", r"row 2 of column 'label' has 1e\+300"),
    "a label beyond int64": (A + "1,18446744073709551615\n", "row 1 of column 'label' has"),
    "a label beyond uint64": (A + "1,36893488147419103232\n2,1\n", None),
    "a label of half": (A + "1,0.5\n", "row 1 of column 'label' has 0.5"),
    "a label below 0": (A + "1,-1\n", "row 1 of column 'label' has -1"),
    "a long row below blank lines": ("\n\n" + A + "1,0\n1,2,3\n", "line 5 has 3 values"),
    "a long row below Excel's": ("sep=;\na;label\n1;0\n1;2;3\n", "line 4 has 3 values"),
    "a long row below a line break": ('sep=,\na,label\n1,"0\n"\n1,2,3\n', "line 5 has 3 values"),
    "a name of 140,000 letters": ("a" * 140_000 + ",label\n1,0\n", "line 1: field larger than field limit"),
    "a cell of 140,000 letters": (A + "a" * 140_000 + ",0\n", "line 2: field larger than field limit"),
    "the same below": (A + "1,0\n" + "a" * 140_000 + ",0\n", "line 3: field larger than field limit"),
}  # fmt: skip


def load(tmp_path, content):
    path = tmp_path / "odd.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Class numbers follow")
        has_labels = b"label" in path.read_bytes().lower().replace(b"\0", b"")
        return datasets.load_data(path, labels=has_labels)


@pytest.mark.parametrize("name", READ)
def test_read(tmp_path, name):
    content, columns, x, y = READ[name]
    found = load(tmp_path, content)
    assert found.columns == tuple(columns.split("|"))
    np.testing.assert_array_equal(found.x, np.array(x, np.float32))
    assert found.x.dtype == np.float32
    if y is None:
        assert not len(found.y)
    elif found.class_names:
        assert [found.class_names[label] for label in found.y] == y
    else:
        assert found.y.tolist() == y


@pytest.mark.parametrize("name", REFUSED)
def test_refused(tmp_path, name):
    content, message = REFUSED[name]
    if message is None:  # it is read as the text that it is, or refused
        found = load(tmp_path, content)
        assert found.class_names == ("1", "36893488147419103232")
        return
    with pytest.raises(CorruptFileError, match=message):
        load(tmp_path, content)


def test_there_are_many():
    assert len(READ) + len(REFUSED) >= 90


@pytest.mark.parametrize(
    ("y", "expected"),
    [
        (np.array([True, False]), [1, 0]),
        (np.array([[True], [False]]), [1, 0]),
        (np.array([[True, False], [False, True]]), [0, 1]),
        (np.array([1, 0], np.uint64), [1, 0]),
        (np.array([2**64 - 1, 0], np.uint64), None),
        (np.array([2**40, 0]), None),
    ],
)
def test_labels_of_arrays(tmp_path, y, expected):
    np.savez(tmp_path / "a.npz", x=np.zeros((2, 3)), y=y)
    if expected is None:
        with pytest.raises(InvalidArgumentError, match="must be 0 or more"):
            check_labels(y, 2)
        with pytest.raises(CorruptFileError, match="must be 0 or more"):
            datasets.load_data(tmp_path / "a.npz")
    else:
        assert check_labels(y, 2).tolist() == expected
        assert datasets.load_data(tmp_path / "a.npz").y.tolist() == expected


@pytest.mark.parametrize(
    "labels, y", [("True False", [1, 0]), ("true true", [1, 1]), ("False", [0])]
)
def test_true_is_class_1_also_alone(tmp_path, labels, y):
    path = tmp_path / "odd.csv"
    path.write_text("a,label\n" + "".join(f"1,{label}\n" for label in labels.split()))
    found = datasets.load_data(path)  # without the warning of an alphabetical order
    assert found.y.tolist() == y and found.class_names == ("False", "True")
    other = datasets.load_data(path, classes=["True", "False"])
    assert [other.class_names[label] for label in other.y] == [str(bool(label)) for label in y]
    assert datasets.load_data(path, classes=["ill", "well"]).y.tolist() == y


def test_numbers_that_are_names(tmp_path):
    path = tmp_path / "odd.csv"
    for labels, names in (("0 1 1", "10"), ("3 5 3", "357"), ("0 1 2", "012")):
        path.write_text("a,label\n" + "".join(f"1,{label}\n" for label in labels.split()))
        found = datasets.load_data(path, classes=list(names))
        assert [found.class_names[label] for label in found.y] == labels.split()
    path.write_text("a,label\n1,0\n1,1\n")
    assert datasets.load_data(path, classes=["ill", "well"]).y.tolist() == [0, 1]


def test_a_first_line_that_could_be_a_sample_is_said(tmp_path):
    path = tmp_path / "odd.csv"
    path.write_text("1.5,2.5,3.5\n3,4,2\n5,6,7\n")
    with pytest.warns(PlausibilityWarning, match=r"1.5, 2.5, 3.5, is taken for the columns' names"):
        found = datasets.load_data(path, labels=False)
    assert found.x.tolist() == [[3, 4, 2], [5, 6, 7]]
    for names in ("0,1,2", "NA,K,Mg", "true,a,b", "inf,low,high"):  # pandas' own, and few words
        path.write_text(f"{names}\n3,4,2\n")
        assert len(datasets.load_data(path, labels=False).x) == 1
    for half in ("1.5,?", "y,1.5", "True,no", "-,nan"):
        path.write_text(f"{half}\n3,4\n5,6\n")
        said = re.escape(f"the first line, {half.replace(',', ', ')}, is taken for")
        with pytest.warns(PlausibilityWarning, match=said):
            datasets.load_data(path, labels=False)


@pytest.mark.parametrize("true, false", [("true", "false"), ("TRUE", "FALSE"), ("True", "False")])
@pytest.mark.parametrize("turned", [False, True])
def test_names_of_true_and_false_in_any_letters_and_order(tmp_path, true, false, turned):
    path = tmp_path / "odd.csv"
    path.write_text(f"a,label\n1,{true}\n2,{false}\n3,{false}\n")
    names = [true, false, "unknown"]
    found = datasets.load_data(path, classes=names[::-1] if turned else names)
    assert [found.class_names[label] for label in found.y] == [true, false, false]


@pytest.mark.parametrize("name", [int, str, float, "category", np.int8])
def test_one_hot_tables_by_the_names_of_their_columns(name):
    """What `get_dummies` makes of labels that lack a class, whatever the columns' order."""
    y = np.array([2, 0, 0, 4, 2])
    table = pd.get_dummies(pd.Series(y).astype(name))
    table = table[table.columns[::-1]]
    if name in (str, float):  # names are no labels: the table says nothing of classes 1 and 3
        with pytest.raises(InvalidArgumentError, match="one-hot with 3 columns; the model has 5 c"):
            check_labels(table, 5, 5)
        return
    for one in (table, table.astype(int), table.astype("float32")):
        assert as_class_indices(one).tolist() == y.tolist()
        assert check_labels(one, 5, 5).tolist() == check_labels(one, 5).tolist() == y.tolist()
    with pytest.raises(InvalidArgumentError, match=r"in 0 … 3.*from 0 to 4"):
        check_labels(table, 5, 4)


@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("make", [np.asarray, np.ndarray.tolist, pd.DataFrame, lambda y: y > 0])
def test_one_hot_labels_of_another_number_of_classes(make, width):
    y = make(np.eye(width)[[0, 1, 1]])
    assert check_labels(y, 3).tolist() == check_labels(y, 3, width).tolist() == [0, 1, 1]
    if make is pd.DataFrame:  # its columns are 0, 1, …
        assert check_labels(y, 3, 3).tolist() == [0, 1, 1]
        y = y.rename(columns="class {}".format)
    with pytest.raises(InvalidArgumentError, match=f"{width} columns; the model has 3 classes"):
        check_labels(y, 3, 3)
    maps = np.eye(width)[np.zeros((3, 4, 5), int)]
    assert check_labels(maps, 3, width, (4, 5)).shape == (3, 4, 5)
    with pytest.raises(InvalidArgumentError, match=f"{width} columns; the model has 3 classes"):
        check_labels(maps, 3, 3, (4, 5))


@pytest.mark.parametrize(
    "y", [pd.DataFrame(), pd.DataFrame(index=[0, 1]), np.zeros((2, 0)), [[], []]]
)
def test_labels_without_columns(y):
    with pytest.raises(InvalidArgumentError, match="one class index for each of 2 samples"):
        check_labels(y, 2, 3)
    assert as_class_indices(y).size == 0


def test_a_table_that_lacks_a_column_names_those_of_values(tmp_path):
    """The label is none of them, and what is named already is not asked for."""
    path, plain = tmp_path / "t.csv", tmp_path / "p.csv"
    path.write_text("a,b,c,label\n1,2,3,0\n2,3,4,1\n")
    plain.write_text("a,b,c\n1,2,3\n2,3,4\n")
    for file, hint in ((path, ""), (plain, " Name the column of labels 'label'.")):
        with pytest.raises(InputShapeError) as caught:
            datasets.load_data(file, shape=(5,), labels=False)
        end = f"has 3 columns of values, a, b, c; the model takes 5.{hint}"
        assert str(caught.value).endswith(end)
