"""The inner loops, compiled by Numba: free of Keras, so that workers start fast.

One module for each analysis that needs loops: `sums` and `exclusion` for slices, `paths`
for effective paths, `lines` for exact lines. They take and return NumPy arrays alone.
"""
