"""Find circuits planted in networks by hand, comparing slices with other methods.

    python apps/find_circuits.py recurrent     # parity, counters, first of kind
    python apps/find_circuits.py transformers  # copy, induction, first of kind

Nothing is trained, and no data is needed.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.circuits.settings import (
    RecurrentCircuitSettings,
    TransformerCircuitSettings,
)

CIRCUITS = "nnslicer_tf.experiments.circuits"

app = application(__doc__)
add_experiment(app, "recurrent", RecurrentCircuitSettings, f"{CIRCUITS}.recurrent:recurrent")
add_experiment(
    app, "transformers", TransformerCircuitSettings, f"{CIRCUITS}.transformers:transformers"
)

if __name__ == "__main__":
    main(app)
