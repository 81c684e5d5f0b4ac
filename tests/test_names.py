"""Names that are looked up."""

import pytest

from nnslicer_tf._checks import check_name, counted, did_you_mean, with_article
from nnslicer_tf.errors import InvalidArgumentError


def test_a_known_name_passes_and_an_unknown_one_is_refused_with_the_nearest():
    check_name("metric", "taylor", ("taylor", "gradient"))
    with pytest.raises(
        InvalidArgumentError,
        match=r"^Unknown metric 'tylor'. Did you mean 'taylor'\? "
        r"Expected one of: 'taylor', 'gradient'\.$",
    ):
        check_name("metric", "tylor", ("taylor", "gradient"))


def test_what_is_no_string_is_refused():
    with pytest.raises(
        InvalidArgumentError, match=r"Unknown metric None\. Expected one of: 'taylor'"
    ):
        check_name("metric", None, ("taylor",))


def test_near_names_are_found_in_upper_and_lower_case():
    assert did_you_mean("fgsm_2", ("FGSM_2", "FGSM_8", "PGD")).startswith(" Did you mean 'FGSM_2'")


def test_nothing_is_asked_where_no_name_is_near():
    assert did_you_mean("zebra", ("FGSM_2", "PGD")) == ""


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "synapse", "1 synapse"),
        (0, "input", "0 inputs"),
        (1094, "synapse", "1,094 synapses"),
        (1, "class", "1 class"),
        (2, "class", "2 classes"),
    ],
)
def test_numbers_of_things(number, noun, text):
    assert counted(number, noun) == text


def test_articles():
    names = ("Dense", "Embedding", "LSTM", "GRU")
    assert list(map(with_article, names)) == [
        "a Dense",
        "an Embedding",
        "an LSTM",
        "a GRU",
    ]
