"""Packages of the distribution: the library; data/, apps/ and benchmarks/ as its package data."""

from setuptools import find_packages, setup

# They stay at the top level, where people look for weights, results and experiments, and are
# installed below the package, so that everything works from any folder.
BESIDE = {f"nnslicer_tf.{name}": name for name in ("data", "apps", "benchmarks")}

setup(
    packages=[*find_packages(include=["nnslicer_tf", "nnslicer_tf.*"]), *BESIDE],
    package_dir=BESIDE,
    package_data={
        "nnslicer_tf": [
            "py.typed",
            "**/*.pyi",
            "experiments/catalogue.toml",
            "report/explorer/static/*",
        ],
        **{name: ["**/*"] for name in BESIDE},
    },
    # What `nnslicer reproduce report` makes from the other results, a third of the size; arrays
    # from which a checkout draws pictures again; rows of single sentences; large weights.
    exclude_package_data={
        "nnslicer_tf.data": [
            "results/report/*",
            "results/**/*.npz",
            "results/sentences/*_areas.csv",
            "results/sentences/*_leads.csv",
            "weights/mobilenet_v3_small-*",
            "weights/resnet18-*",
            "weights/alexnet-*",
            "weights/vgg16-*",
            "weights/exactline/convmedium-*",
            "weights/exactline/convbig-*",
        ]
    },
)
