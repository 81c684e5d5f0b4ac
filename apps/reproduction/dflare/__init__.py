"""The DFlare paper's experiments (Tian et al., TOSEM 2023)."""
