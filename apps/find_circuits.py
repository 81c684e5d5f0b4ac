"""Find circuits planted in networks by hand, comparing slices with other methods.

    python apps/find_circuits.py recurrent     # parity, counters, first of kind
    python apps/find_circuits.py transformers  # copy, induction, first of kind
    python apps/find_circuits.py tracr         # programs compiled by Tracr (pip install tracr-pypi)

Nothing is trained, and no data is needed.
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
