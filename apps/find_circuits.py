"""Find circuits planted in networks by hand, comparing slices with other methods.

    python apps/find_circuits.py recurrent     # parity, counters, first of kind
    python apps/find_circuits.py transformers  # copy, induction, first of kind
    python apps/find_circuits.py tracr         # programs compiled by Tracr (pip install tracr-pypi)

Nothing is trained, and no data is needed.
"""

from reproduction.application import add_experiment, application, main
from reproduction.circuits.settings import (
    RecurrentCircuitSettings,
    TracrSettings,
    TransformerCircuitSettings,
)

CIRCUITS = "reproduction.circuits"

app = application(__doc__)
add_experiment(app, "recurrent", RecurrentCircuitSettings, f"{CIRCUITS}.recurrent:recurrent")
add_experiment(
    app, "transformers", TransformerCircuitSettings, f"{CIRCUITS}.transformers:transformers"
)
add_experiment(app, "tracr", TracrSettings, f"{CIRCUITS}.tracr:tracr")

if __name__ == "__main__":
    main(app)
