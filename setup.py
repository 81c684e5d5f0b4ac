"""Packages of the distribution: the library, and data/ as its package data."""

from setuptools import find_packages, setup

# data/ stays at the top level, where people look for weights and results, and is
# installed as nnslicer_tf.data, so that everything works from any folder.
setup(
    packages=[*find_packages(include=["nnslicer_tf", "nnslicer_tf.*"]), "nnslicer_tf.data"],
    package_dir={"nnslicer_tf.data": "data"},
    package_data={
        "nnslicer_tf": [
            "py.typed",
            "**/*.pyi",
            "experiments/catalogue.toml",
            "report/explorer/static/*",
        ],
        "nnslicer_tf.data": ["**/*"],
    },
)
