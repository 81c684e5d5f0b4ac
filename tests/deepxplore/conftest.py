"""Models of scikit-learn's digits that disagree now and then."""

from support.digits import digits, ims, models  # noqa: F401
