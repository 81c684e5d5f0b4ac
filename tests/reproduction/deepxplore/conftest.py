"""Models of scikit-learn's digits that disagree now and then."""

from support.digits import digits, models  # noqa: F401
