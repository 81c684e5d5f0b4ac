"""The inner loops, compiled by Numba: free of Keras, so that workers start fast.

For slices: `sums` (weighted sums, by `exclusion` in `vectors`), `pools`, `pointwise` and `rows`;
`paths` for effective paths, `lines` for exact lines. They take and return NumPy arrays alone.
"""
