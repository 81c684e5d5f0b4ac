"""Models of other kinds: analyses agree with plain Keras, or the model is refused in words."""

import pytest
from gauntlet.wild_models import MODELS, check


@pytest.mark.parametrize("name", MODELS)
def test_no_error_is_silent(name):
    assert check(name) == "right"
