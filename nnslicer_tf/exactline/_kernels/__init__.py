"""Compiled loops over curves, step functions and meshes; see `nnslicer_tf._kernels`."""
