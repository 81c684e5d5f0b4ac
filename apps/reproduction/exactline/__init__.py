"""The ExactLine paper's experiments (Sotoudeh and Thakur, NeurIPS 2019)."""
