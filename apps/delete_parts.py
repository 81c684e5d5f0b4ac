"""Delete heads and synapses of a transformer, in the order of slices, gradients and others.

python apps/delete_parts.py
"""

from reproduction.application import add_experiment, application, main
from reproduction.sentences.settings import PartSettings

app = application(__doc__)
add_experiment(app, "parts", PartSettings, "reproduction.sentences.parts:parts")

if __name__ == "__main__":
    main(app)
