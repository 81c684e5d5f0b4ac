"""Find circuits that were planted in networks by hand: slices against other methods.

    python apps/find_circuits.py recurrent  # parity, counters, first of kind

Nothing is trained, and no data are needed.
"""

from nnslicer_tf.experiments.application import add_experiment, application, main
from nnslicer_tf.experiments.circuits.settings import RecurrentCircuitSettings

app = application(__doc__)
app.callback()(lambda: None)  # a group of commands, though there is one
add_experiment(
    app,
    "recurrent",
    RecurrentCircuitSettings,
    "nnslicer_tf.experiments.circuits.recurrent:recurrent",
)

if __name__ == "__main__":
    main(app)
