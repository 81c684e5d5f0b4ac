"""Inner loops over NumPy arrays, compiled by Numba; without Keras, so that workers start fast.

`sums`, `products`, `pools`, `pointwise` and `rows` are for slices. The other modules serve these;
see README.md.
"""
