"""The inner loops, compiled by Numba; independent of Keras, so that workers start fast.

For slices: `sums` (weighted sums, using `exclusion` and `vectors`), `pools`, `pointwise` and
`rows`; `paths` for effective paths, `lines` for exact lines. All take and return NumPy arrays only.
"""
