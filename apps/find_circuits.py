"""Find circuits planted in networks by hand, comparing slices with other methods.

Nothing is trained, and no data is needed; `tracr` needs Tracr (pip install tracr-pypi).
"""

from reproduction.application import experiments

app = experiments(
    __name__,
    __doc__,
    "circuits",
    ("recurrent", "RecurrentCircuitSettings", "finding:recurrent"),
    ("transformers", "TransformerCircuitSettings", "finding:transformers"),
    ("tracr", "TracrSettings", "tracr:tracr"),
)
