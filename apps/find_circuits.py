"""Find circuits planted in networks by hand, comparing slices with other methods.

Nothing is trained, and no data is needed; `tracr` needs Tracr (pip install tracr-pypi).
"""

from reproduction.application import experiments, main

app = experiments(
    __doc__,
    "circuits",
    ("recurrent", "RecurrentCircuitSettings", "finding:recurrent"),
    ("transformers", "TransformerCircuitSettings", "finding:transformers"),
    ("tracr", "TracrSettings", "tracr:tracr"),
)

if __name__ == "__main__":
    main(app)
