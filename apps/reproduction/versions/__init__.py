"""Two versions of a model: which changes made an answer flip, and which to take back."""
