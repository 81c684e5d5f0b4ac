"""The ExactLine paper's experiments (Sotoudeh and Thakur, NeurIPS 2019)."""

__all__: list[str] = []
