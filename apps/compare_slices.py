"""Compare slices with other rankings of synapses: what keeps the answer, alone?

    python apps/compare_slices.py --model lenet5                   # MNIST
    python apps/compare_slices.py --model resnet10 --samples 60    # CIFAR-10
    python apps/compare_slices.py --model text_transformer         # SST-2

A run that was stopped resumes.
"""

from reproduction.application import add_experiment, application, main
from reproduction.decisive.settings import DecisiveSettings

app = application(__doc__)
add_experiment(app, "decisive", DecisiveSettings, "reproduction.decisive.comparison:compare")

if __name__ == "__main__":
    main(app)
