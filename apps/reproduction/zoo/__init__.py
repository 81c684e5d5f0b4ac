"""Training of the zoo's models, with a log."""

__all__: list[str] = []
